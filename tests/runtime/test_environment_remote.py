"""holdfast.testing with what runs elsewhere: activities, children, approvals, other services."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import App, Context, Retry, current_activity
from holdfast.testing import Environment

app = App("shop", retry=Retry(attempts=3, base="10s", jitter=0))
attempts: list[int] = []


@app.activity(queue="media")
def resize(path: str, fail: int) -> str:
    attempts.append(current_activity().attempt)
    if current_activity().attempt <= fail:
        raise ConnectionError("away")
    return f"small {path}"


@app.workflow
async def gallery(ctx: Context, fail: int) -> list[str]:
    return list(await asyncio.gather(*(resize(path, fail) for path in ("a", "b"))))


@app.workflow
async def nap(ctx: Context, hours: int) -> int:
    await asyncio.sleep(3600 * hours)
    return hours


@app.workflow
async def family(ctx: Context) -> list[int]:
    return list(await asyncio.gather(nap(2), nap(3)))


@app.workflow
async def hopeless(ctx: Context) -> None:
    await asyncio.get_running_loop().create_future()


@app.workflow
async def hopeful(ctx: Context) -> None:
    await hopeless()


@app.workflow
async def careful(ctx: Context) -> bool:
    return (await ctx.request_approval("Publish?")).approved


@app.workflow
async def remote(ctx: Context) -> str:
    return await ctx.activity("service/render", 3, queue="gpu", type=str)


@app.workflow
async def cautious(ctx: Context) -> str:
    resizing = asyncio.create_task(resize("a", 9))
    await asyncio.sleep(5)
    resizing.cancel()
    try:
        await resizing
    except asyncio.CancelledError:
        return "given up"
    return "in vain"


@app.workflow
async def careless(ctx: Context) -> str:
    _ = resize("a", 2)
    return "gone on"


async def test_an_activity_that_nobody_awaits_is_recorded_before_its_run_ends() -> None:
    """S7. Fire and forget."""
    attempts.clear()
    async with Environment(app) as env:
        handle = await env.client.start(careless)
        assert await env.result(handle) == "gone on"
        types = [entry.event.type for entry in await handle.log()]
    assert attempts == [1, 2, 3]
    assert types[-2:] == ["ActivityCompleted", "WorkflowCompleted"]


async def test_retries_of_activities_wait_in_virtual_time() -> None:
    """S7."""
    attempts.clear()
    async with Environment(app) as env:
        began = env.now
        assert await env.run(gallery, 2) == ["small a", "small b"]
        assert env.now - began == timedelta(seconds=10 + 20)
    assert sorted(attempts) == [1, 1, 2, 2, 3, 3]


async def test_an_activity_given_up_between_two_attempts_is_not_tried_again() -> None:
    """S10."""
    attempts.clear()
    async with Environment(app) as env:
        handle = await env.client.start(cautious)
        assert await env.result(handle) == "given up"
        await env.advance("1h")
    assert attempts == [1]


async def test_children_sleep_side_by_side() -> None:
    """S8."""
    async with Environment(app) as env:
        began = env.now
        assert await env.run(family) == [2, 3]
        assert env.now - began == timedelta(hours=3)


async def test_a_stuck_child_is_an_error_of_the_test() -> None:
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match=r"\(hopeless\) is stuck"):
            await env.run(hopeful)


async def test_an_approval_is_decided_by_the_test() -> None:
    """T4."""
    async with Environment(app) as env:
        handle = await env.client.start(careful)
        with pytest.raises(AssertionError, match="waits for a decision of"):
            await env.result(handle)
        [approval] = await env.client.approvals.list()
        await env.client.approvals.decide(approval.run_id, approval.key, approved=True, by="ann")
        assert await env.result(handle) is True


async def test_another_app_stands_in_for_the_service_that_has_the_activity() -> None:
    """S7."""
    service = App("service")

    @service.activity(queue="gpu")
    async def render(scene: int) -> str:
        return f"scene {scene}"

    async with Environment(app, service) as env:
        assert await env.run(remote) == "scene 3"


async def test_an_activity_that_no_app_has_is_named() -> None:
    """B7."""
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="render of queue gpu, which no worker"):
            await env.run(remote)
