"""Code that is not deterministic is found by tests and in development, with its line."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import random
import secrets
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from random import choice
from typing import Any

import pytest

from holdfast import App, Client, Context, RunHandle
from holdfast.errors import RunFailed
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import WorkerOptions
from tests.runtime.desk import eventually, working


@dataclasses.dataclass
class Order:
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


@dataclasses.dataclass
class Plain:
    id: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)


def helper() -> float:
    return time.time()


CALLS: dict[str, Callable[[], Any]] = {
    "uuid.uuid4()": lambda: str(uuid.uuid4()),
    "uuid.uuid1()": lambda: str(uuid.uuid1()),
    "datetime.now()": lambda: str(datetime.now(dt.UTC)),
    "datetime.utcnow()": lambda: str(datetime.utcnow()),
    "date.today()": lambda: str(date.today()),
    "random.random()": random.random,
    "random.choice()": lambda: choice([1, 2, 3]),
    "random.shuffle()": lambda: random.shuffle([1, 2]),
    "secrets.token_hex()": lambda: secrets.token_hex(4),
    "time.time()": helper,
    "time.time_ns()": lambda: time.time_ns(),
}
INDIRECT: dict[str, Callable[[], Any]] = {
    "in a dataclass of its own": lambda: Order().id,
    "in a dataclass": lambda: str(Plain().id),
}


def shop(draw: Callable[[], Any], *, wait: bool = False) -> tuple[App, Any]:
    app = App("shop")

    @app.step
    def charge(amount: object) -> object:
        return amount

    @app.workflow
    async def checkout(ctx: Context) -> object:
        drawn = draw()
        found = await charge(drawn)
        if wait:
            await asyncio.sleep(60)
        return found

    return app, checkout


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("name", [*CALLS, *INDIRECT])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_environment_refuses_clocks_and_chance_in_a_workflow(
    name: str, wait: bool
) -> None:
    draw = {**CALLS, **INDIRECT}[name]
    app, checkout = shop(draw, wait=wait)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="is stuck") as found:
            await env.run(checkout)
    assert "test_checking.py:" in str(found.value)
    assert name in str(found.value) or name in INDIRECT
    assert "ctx." in str(found.value) or "a step" in str(found.value)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_replay_finds_the_line_of_what_the_checks_do_not_see(wait: bool) -> None:
    """A counter outside of the run: what it gives is another value on each replay."""
    drawn: list[int] = []

    def draw() -> int:
        drawn.append(1)
        return len(drawn)

    app, checkout = shop(draw, wait=wait)
    async with Environment(app) as env:
        with pytest.raises(AssertionError, match="other arguments") as found:
            await env.run(checkout)
    assert "test_checking.py:" in str(found.value)
    assert "in checkout" in str(found.value)


async def test_another_branch_at_the_end_is_found() -> None:
    app, times = App("shop"), list[int]()

    @app.step
    def one() -> int:
        return 1

    @app.step
    def two() -> int:
        return 2

    @app.workflow
    async def checkout(ctx: Context) -> int:
        times.append(1)
        return await (one() if len(times) == 1 else two())

    async with Environment(app) as env:
        with pytest.raises(AssertionError, match=r"differs from what it has done.* one"):
            await env.run(checkout)


async def test_a_call_that_was_taken_out_under_a_run_is_not_said_to_differ() -> None:
    """The log of a run that is edited in development has calls of the code before."""
    store = MemoryStore()

    def version(*, weighs: bool) -> App:
        app = App("shop")

        @app.step
        def weigh(box: object) -> None: ...

        @app.step
        def pack(box: object) -> None: ...

        @app.workflow
        async def order(ctx: Context) -> None:
            if weighs:
                await weigh("a box")
            await pack("a box")
            await ctx.wait_for_signal("packed")

        return app

    async with Client(store=store) as client:
        handle = await client.start("shop/order")
        async with working(version(weighs=True), store, check="warn"):
            await eventually(lambda: _is(handle, "waiting"))
        await handle.signal("packed")
        async with working(version(weighs=False), store, check="warn"):
            await eventually(lambda: _is(handle, "stuck", "completed"))
        assert (await handle.get()).state == "completed"


async def _is(handle: RunHandle[object], *states: str) -> bool:
    return (await handle.get()).state in states


async def test_without_replay_nothing_is_refused() -> None:
    app, checkout = shop(time.time, wait=True)
    async with Environment(app, replay=False) as env:
        assert await env.run(checkout) > 0


async def test_steps_libraries_and_own_sources_are_left_alone() -> None:
    app = App("shop")

    @app.step
    async def drawn(seed: int) -> float:
        await asyncio.sleep(0)
        return time.time() + random.random() + uuid.uuid4().int

    @app.step
    def drawn_in_a_thread(seed: int) -> str:
        return str(datetime.now(dt.UTC)) + secrets.token_hex(2)

    @app.workflow
    async def checkout(ctx: Context) -> list[object]:
        async with asyncio.timeout(60):
            await asyncio.gather(drawn(1), drawn_in_a_thread(2))
        ctx.log.warning("logging reads the clock")
        own = random.Random(7)
        return [
            own.random(),
            own.choice([1, 2]),
            str(ctx.now()),
            str(ctx.uuid()),
            ctx.random.random(),
        ]

    async with Environment(app) as env:
        assert (await env.run(checkout))[0] == random.Random(7).random()


async def test_a_run_that_fails_is_replayed_too_and_fails() -> None:
    app = App("shop")

    @app.workflow
    async def checkout(ctx: Context) -> None:
        raise ValueError("no")

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="no"):
            await env.run(checkout)


async def test_calls_that_were_never_awaited_are_dropped_without_a_warning() -> None:
    """A run is closed at each wait; what its code has made by then was never awaited."""
    app = App("shop")

    @app.step
    def charge(amount: int) -> int:
        return amount

    @app.workflow
    async def checkout(ctx: Context) -> list[int]:
        calls = [charge(1), charge(2)]
        await asyncio.sleep(60)
        return [await call for call in calls]

    async with Environment(app) as env:
        assert await env.run(checkout) == [1, 2]


async def test_a_worker_that_checks_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    """As `holdfast dev` has it."""
    app, checkout = shop(CALLS["time.time()"])
    store = MemoryStore()
    async with working(app, store, check="warn"):
        from holdfast import Client

        async with Client(store=store) as client:
            await client.start(checkout)
            await eventually(lambda: "calls time.time() in a workflow" in caplog.text)


def test_workers_do_not_check_unless_asked() -> None:
    assert WorkerOptions().check == "no"
