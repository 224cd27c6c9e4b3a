"""`holdfast.pytest`: what its marks find, what they say, and what they leave alone."""

from __future__ import annotations

import re

import pytest

import holdfast.testing.crashes
import holdfast.testing.exploring  # noqa: F401  # else each inner run would import it again

pytest_plugins = ["pytester"]
ASYNCIO = (
    *("-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"),
    *("-o", "asyncio_default_fixture_loop_scope=function"),
)

SHOP = """
import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

from holdfast import App, Context, Retry, current_step

app = App("shop")
booked: list[str] = []
seen: list[str] = []


@app.lifespan
async def memory() -> AsyncIterator[dict[str, str]]:
    yield {}


@app.step
async def book(order: str) -> None:
    booked.append(order)


@app.step
async def book_once(order: str) -> None:
    key = current_step().idempotency_key
    if key not in booked:
        booked.append(key)


@app.step
async def remember(order: str) -> None:
    memory.get()["order"] = order


@app.step
async def recall() -> str:
    return memory.get().get("order", "nothing")


@app.step
async def number() -> str:
    return uuid4().hex


@app.step
async def see(text: str) -> None:
    seen.append(text)


@app.workflow
async def careless(ctx: Context, order: str) -> None:
    await book(order)


@app.workflow
async def careful(ctx: Context, order: str) -> str:
    await book_once(order)
    await asyncio.sleep(60)
    return await number()


@app.workflow
async def forgetful(ctx: Context, order: str) -> str:
    await remember(order)
    return await recall()


@app.workflow
async def hasty(ctx: Context, order: str) -> None:
    await asyncio.gather(see("first"), see("second"))
"""
HEAD = """
import pytest
import shop
from shop import booked, seen


@pytest.fixture
def holdfast_app():
    return shop.app


@pytest.fixture(autouse=True)
def empty():
    booked.clear()
    seen.clear()
"""
FOUND = """
@pytest.mark.crash_everywhere
async def test_careless(environment):
    await environment.run(shop.careless, "lamp")
    assert booked == ["lamp"]


@pytest.mark.crash_everywhere
async def test_careful(environment):
    assert len(await environment.run(shop.careful, "lamp")) == 32
    assert len(booked) == 1


@pytest.mark.crash_everywhere
async def test_forgetful(environment):
    await environment.run(shop.forgetful, "lamp")


@pytest.mark.explore
async def test_hasty(environment):
    await environment.run(shop.hasty, "lamp")
    assert seen == ["first", "second"]


@pytest.mark.explore
async def test_not_hasty(environment):
    await environment.run(shop.hasty, "lamp")
    assert sorted(seen) == ["first", "second"]


@pytest.mark.crash_everywhere(most=3)
async def test_some_points(client, environment):
    handle = await client.start(shop.careful, "lamp")
    await environment.result(handle)


async def test_without_a_mark(environment):
    handle = await environment.client.start(shop.careful, "lamp")
    await environment.wait_until_idle()
    await environment.kill()
    assert len(await environment.result(handle)) == 32
    assert len(booked) == 1
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def lines(pytester: pytest.Pytester, text: str, *options: str) -> str:
    """Run tests of the shop; return what pytest says."""
    pytester.makepyfile(shop=SHOP, test_shop=HEAD + text)
    told = ("-p", "holdfast.pytest", "-p", "no:cacheprovider", "-rA", "--strict-markers")
    return pytester.runpytest_inprocess(*told, *options).stdout.str()


def test_what_is_not_idempotent_is_found_and_the_rest_is_not(pytester: pytest.Pytester) -> None:
    said = lines(pytester, FOUND)
    assert "3 failed, 4 passed" in said, said
    assert "The workers were killed when shop/careless: StepCompleted book had happened" in said
    assert "runs again: let a second time change nothing" in said
    assert re.search(
        r"the runs end otherwise than without a kill: in entry 3 of run \S+ \(shop/forgetful\), "
        r'StepCompleted recall, result is "nothing", and was "lamp"',
        said,
    ), said
    assert "(point 3 of " in said, said
    assert re.search(r"killed at 3 of 6 points\n  after the client's call of start_runs\n", said)
    [seed] = re.findall(r"Seed (\d+) fails\. Repeat it with @pytest.mark.explore\(seed=\1\)", said)
    assert "seeds 0 to 19" in said

    again = FOUND.replace("@pytest.mark.explore\n", f"@pytest.mark.explore(seed={seed})\n")
    said = lines(pytester, again, "-k", "hasty", *ASYNCIO)
    assert "1 failed, 1 passed" in said, said
    assert f"seeds {seed} to {seed}" in said


def test_time_begins_when_a_fixture_says(pytester: pytest.Pytester) -> None:
    text = """
import datetime

@pytest.fixture
def holdfast_now():
    return datetime.datetime(2028, 2, 29, tzinfo=datetime.UTC)

async def test_now(environment):
    assert environment.now.isoformat() == "2028-02-29T00:00:00+00:00"
"""
    assert "1 passed" in lines(pytester, text)


BAD = """
crash_everywhere, explore = pytest.mark.crash_everywhere, pytest.mark.explore


@crash_everywhere
def test_sync(environment): pass

@crash_everywhere
async def test_no_fixture(): pass

@crash_everywhere
async def test_no_run(environment): pass

@crash_everywhere(most="many")
async def test_text(environment): pass

@crash_everywhere(most=0)
async def test_none(environment): pass

@crash_everywhere(most=True)
async def test_truth(environment): pass

@crash_everywhere(least=3)
async def test_unknown(environment): pass

@explore(seed="x")
async def test_seed(environment): pass

@explore(seeds=-1)
async def test_seeds(environment): pass

@explore
@crash_everywhere
async def test_both(environment): pass

@crash_everywhere
async def test_other_each_time(environment):
    booked.append("")
    seen_before.append("")
    if len(seen_before) % 2:
        await environment.run(shop.careful, "lamp")
    else:
        await environment.run(shop.careless, "lamp")

seen_before = []

@crash_everywhere
async def test_fails_without(environment):
    await environment.run(shop.careful, "lamp")
    assert not "so"

async def test_replaced_badly(environment):
    environment.replace(shop.careless, print)

async def test_replaced_with_nothing(environment):
    environment.replace(shop.book, [])

class TestNoApp:
    @pytest.fixture
    def holdfast_app(self):
        return "shop:app"

    async def test_app(self, environment): pass
"""


def test_what_cannot_be_done_is_said(pytester: pytest.Pytester) -> None:
    said = lines(pytester, BAD)
    assert "passed" not in said.splitlines()[-1], said
    for fault in (
        "the mark crash_everywhere is on test_sync, which is not async: write `async def`",
        "is on test_no_fixture, which does not use the fixture `environment` or `client`",
        "the test starts no run in the fixture `environment`: there is nothing to kill",
        "of test_text: most must be a whole number from 1 on, such as most=30, not 'many'",
        "of test_none: most must be a whole number from 1 on, such as most=30, not 0",
        "of test_truth: most must be a whole number",
        "the mark crash_everywhere of test_unknown: ",
        "the mark explore of test_seed: seed must be a whole number from 0 on",
        "the mark explore of test_seeds: seeds must be a whole number from 1 on",
        "test_both has the marks crash_everywhere and explore: make two tests of it",
        "two tries without a kill start other runs: shop/careful and then shop/careless",
        "No worker was killed yet: the test fails without.",
        "cannot be replaced: give a step, an activity, a job or a step of a flow itself",
        "step book cannot be replaced with []: give a function, or a list",
        "the fixture `holdfast_app` must return an App, or a tuple of several, not 'shop:app'",
    ):
        assert fault in said, (fault, said)


OTHERS = """
made = []


@pytest.fixture(scope="module")
def once():
    made.append("module")
    yield
    made.append("module is closed")


@pytest.fixture
def each():
    made.append("try")


@pytest.mark.crash_everywhere
async def test_fixtures(environment, once, each):
    await environment.run(shop.careful, "lamp")


def test_fixtures_were_made(once):
    assert made.count("module") == 1
    assert made.count("try") > 5
    assert "module is closed" not in made


@pytest.mark.xfail(strict=True)
@pytest.mark.crash_everywhere
async def test_expected(environment):
    await environment.run(shop.careless, "lamp")
    assert booked == ["lamp"]


@pytest.mark.skip
@pytest.mark.crash_everywhere
async def test_skipped(environment): ...


class TestReplaced:
    @pytest.mark.parametrize("order", ["lamp"])
    @pytest.mark.crash_everywhere
    async def test_by_attempts(self, environment, order):
        environment.replace(shop.recall, [ConnectionError("no answer"), "recalled"])
        environment.replace(shop.remember, lambda order: seen.append(order))
        assert await environment.run(shop.forgetful, order) == "recalled"
        assert set(seen) == {order}


@pytest.mark.crash_everywhere
async def test_last(environment, once):
    await environment.run(shop.careful, "lamp")
"""
NEXT = """
def test_of_another_module():
    import test_shop

    assert test_shop.made[-1] == "module is closed"
"""


@pytest.mark.parametrize("options", [(), ASYNCIO])
def test_other_plugins_and_fixtures_are_respected(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_then=NEXT)
    said = lines(pytester, OTHERS, *options)
    assert "5 passed, 1 skipped, 1 xfailed" in said, said


def test_without_an_app_the_fixture_says_what_to_define(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("async def test_it(environment): ...")
    said = pytester.runpytest_inprocess("-p", "holdfast.pytest").stdout.str()
    assert "define a fixture `holdfast_app` in the test's module or in conftest.py" in said
