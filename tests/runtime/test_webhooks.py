"""Webhooks as a run's code sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from holdfast import App, Context, Retry, RunFailed
from holdfast.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidName,
    WebhookClosed,
    WebhookNotFound,
)
from holdfast.testing import Environment
from tests.runtime.bench import Bench

given: list[str] = []
app = App("webhooks")
BROKEN = [True]


@dataclass
class Payment:
    amount: int


@app.step
async def give(url: str) -> None:
    given.append(url)


@app.step(retry=Retry.NEVER)
async def may_fail() -> None:
    if BROKEN[0]:
        raise ValueError("broken")


@app.workflow
async def checkout(ctx: Context) -> int:
    hook = ctx.webhook("paid", type=Payment)
    await give(hook.url)
    return (await hook.received()).amount


@app.workflow
async def patient(ctx: Context) -> object:
    hook = ctx.webhook("paid")
    await give(hook.url)
    try:
        return await hook.received(timeout="1h")
    except TimeoutError:
        return ["late", await hook.received(timeout="1h")]


@app.workflow
async def forgetful(ctx: Context) -> None:
    hook = ctx.webhook("paid")
    await give(hook.url)
    hook.close()
    await hook.received()


@app.workflow
async def impatient(ctx: Context) -> str:
    hook = ctx.webhook("paid")
    await give(hook.url)
    try:
        await hook.received(timeout="1h")
    except TimeoutError:
        hook.close()
        hook.close()
    await asyncio.sleep(3600)
    return "closed"


@app.workflow
async def several(ctx: Context) -> list[object]:
    hooks = [ctx.webhook("part") for _ in range(3)]
    for hook in hooks:
        await give(hook.url)
    got = await asyncio.gather(*(hook.received() for hook in hooks))
    return [*got, await hooks[0].received()]


@app.workflow
async def raw(ctx: Context) -> list[object]:
    text, data = ctx.webhook("text", type=str), ctx.webhook("data", type=bytes)
    await give(text.url)
    await give(data.url)
    return [await text.received(), (await data.received()).hex()]


@app.workflow
async def later(ctx: Context) -> object:
    hook = ctx.webhook("paid")
    await give(hook.url)
    await asyncio.sleep(3600)
    await may_fail()
    return await hook.received()


@app.workflow
async def again(ctx: Context, left: int) -> object:
    hook = ctx.webhook("paid")
    await give(hook.url)
    if left:
        await asyncio.sleep(3600)
        ctx.continue_as_new(left - 1)
    return await hook.received()


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    given.clear()
    BROKEN[0] = True
    async with Environment(app) as env:
        yield env


async def test_a_post_is_received_by_the_code(env: Environment) -> None:
    handle = await env.client.start(checkout)
    await env.wait_until_idle()
    assert await env.post(given[0], {"amount": 7})
    assert not await env.post(given[0], {"amount": 8})
    assert await env.result(handle) == 7
    assert not await env.post(given[0], {"amount": 9})


async def test_the_url_is_opened_before_the_step_that_gives_it_away(env: Environment) -> None:
    handle = await env.client.start(checkout)
    await env.wait_until_idle()
    types = [each.event.type for each in await handle.log()]
    assert types.index("WebhookOpened") < types.index("StepCompleted")
    assert [each.url for each in await env.client.webhooks.list(handle.run_id)] == given


async def test_a_time_out_leaves_the_url_open(env: Environment) -> None:
    handle = await env.client.start(patient)
    await env.advance("90m")
    assert await env.post(given[0], "now")
    assert await env.result(handle) == ["late", "now"]
    assert given == given[:1]  # the same step, and the same URL, on each replay


async def test_a_closed_url_takes_nothing(env: Environment) -> None:
    handle = await env.client.start(impatient)
    await env.advance("90m")
    with pytest.raises(WebhookClosed):
        await env.post(given[0])
    assert await env.client.webhooks.list(handle.run_id) == []
    assert await env.result(handle) == "closed"
    types = [each.event.type for each in await handle.log()]
    assert types.count("WebhookClosed") == 1


async def test_a_wait_for_a_url_that_the_code_has_closed_is_an_error(env: Environment) -> None:
    """It would wait for good, and nothing would say for what."""
    handle = await env.client.start(forgetful)
    with pytest.raises(RunFailed, match=r"webhook paid of run .* is closed"):
        await env.result(handle)


async def test_each_call_opens_a_url_of_its_own(env: Environment) -> None:
    handle = await env.client.start(several)
    await env.wait_until_idle()
    assert len(set(given)) == 3
    for number, url in reversed(list(enumerate(given))):
        await env.post(url, number)
    assert await env.result(handle) == [0, 1, 2, 0]


async def test_texts_and_bytes_come_as_they_are(env: Environment) -> None:
    handle = await env.client.start(raw)
    await env.wait_until_idle()
    await env.post(given[0], b"not JSON")
    await env.post(given[1], b"\xff\x00")
    assert await env.result(handle) == ["not JSON", "ff00"]


async def test_a_body_that_is_not_json_leaves_the_url_open(env: Environment) -> None:
    handle = await env.client.start(checkout)
    await env.wait_until_idle()
    with pytest.raises(InvalidInput, match="type=bytes"):
        await env.post(given[0], b"amount: 7")
    await env.post(given[0], {"amount": 7})
    assert await env.result(handle) == 7


async def test_a_body_that_does_not_fit_the_type_is_an_error_of_the_code(env: Environment) -> None:
    handle = await env.client.start(checkout)
    await env.wait_until_idle()
    await env.post(given[0], {"amount": "seven"})
    with pytest.raises(RunFailed, match="webhook paid: "):
        await env.result(handle)


async def test_a_form_is_an_object(env: Environment) -> None:
    handle = await env.client.start(patient)
    await env.wait_until_idle()
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    await env.post(given[0], b"a=1&b=2&b=3", headers=form)
    assert await env.result(handle) == {"a": "1", "b": ["2", "3"]}


async def test_a_post_that_comes_early_is_kept(env: Environment) -> None:
    BROKEN[0] = False
    handle = await env.client.start(later)
    await env.wait_until_idle()
    await env.post(given[0], 5)
    assert await env.result(handle) == 5


async def test_a_retry_takes_posts_at_the_url_that_others_have(env: Environment) -> None:
    first = await env.client.start(later)
    with pytest.raises(RunFailed):
        await env.result(first)
    with pytest.raises(WebhookClosed):
        await env.post(given[0], 1)
    BROKEN[0] = False
    second = await env.client.runs.retry(first.run_id)
    await env.wait_until_idle()
    assert await env.post(given[0], 2)
    assert not await env.post(given[0], 3)
    assert await env.result(second) == 2
    assert len(given) == 1  # the step was not repeated: its argument is the same


async def test_a_run_that_continues_as_new_closes_its_urls(env: Environment) -> None:
    handle = await env.client.start(again, 1)
    await env.advance("2h")
    with pytest.raises(WebhookClosed):
        await env.post(given[0], 1)
    await env.post(given[1], 2)
    assert await env.result(handle) == 2


async def test_a_wait_without_a_post_is_named(env: Environment) -> None:
    handle = await env.client.start(checkout)
    with pytest.raises(AssertionError, match=r"a POST to webhook paid: send one with `env\.post`"):
        await env.result(handle)


@pytest.mark.parametrize("url", ["", "https://here/v1/hooks/short", "x" * 43])
async def test_a_url_that_no_run_has_opened_is_unknown(env: Environment, url: str) -> None:
    with pytest.raises(WebhookNotFound):
        await env.post(url)


def test_a_step_begins_when_the_url_before_it_is_durable() -> None:
    """What others post cannot come too early; and a URL that a crash lost was given to nobody."""

    async def flow(ctx: Context) -> object:
        hook = ctx.webhook("paid")
        await ctx.step("give", give, hook.url)
        return await hook.received()

    bench = Bench(flow)
    assert bench.starts == []
    assert [event.type for event in bench.commit().events] == ["WebhookOpened"]
    assert bench.starts == ["give"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
            ConfigurationError,
            "not the secret",
        ),
        ({"scheme": "hmac"}, ConfigurationError, "standard, stripe, github"),
        ({"name": "a/b"}, InvalidName, "a webhook"),
    ],
)
async def test_what_cannot_be_is_refused_at_the_call(
    options: dict[str, str], error: type[Exception], said: str
) -> None:
    strange = App("strange")

    @strange.workflow
    async def opens(ctx: Context) -> str:
        try:
            ctx.webhook(**{"name": "paid", **options})  # type: ignore[call-overload]
        except error as caught:
            return str(caught)
        return ""

    async with Environment(strange) as env:
        told = await env.run(opens)
    assert said in told
    assert "MfKQ9r8" not in told


async def test_the_base_of_urls_is_a_setting(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a URL that was opened stays as it is."""
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://shop.example.com/ops/")
    handle = await env.client.start(patient)
    await env.wait_until_idle()
    assert given[0].startswith("https://shop.example.com/ops/v1/hooks/")
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://other.example.com")
    await env.advance("90m")
    await env.post(given[0], 1)
    assert await env.result(handle) == ["late", 1]
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "shop.example.com")
    broken = await env.client.start(patient)
    with pytest.raises(RunFailed, match="HOLDFAST_PUBLIC_URL is where others reach"):
        await env.result(broken)
