"""T11. Code around runs, steps and activities."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import pytest

from holdfast import App, Context, Retry, RunFailed, StepFailed, current_step
from holdfast.client import Client
from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.definitions.steps import StepContext
from holdfast.errors import ConfigurationError
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.testing import Environment
from tests.runtime.desk import Desk, working

T = TypeVar("T")

request_id = contextvars.ContextVar("request_id", default="none")


class Traced(Middleware):
    """Say what is entered and left, under a name."""

    def __init__(self, name: str, history: list[str]) -> None:
        self.name, self.history = name, history

    async def run(self, ctx: Context, call_next: CallNext) -> object:
        return await self._around("run", call_next())

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        request_id.set(f"{self.name} {context.step}")
        return await self._around(f"step {context.step}", call_next())

    async def activity(self, context: ActivityContext, call_next: CallNext) -> object:
        return await self._around(f"activity {context.name}", call_next())

    async def _around(self, what: str, call: Awaitable[T]) -> T:
        self.history.append(f"{self.name}: {what} begins")
        try:
            return await call
        finally:
            self.history.append(f"{self.name}: {what} ends")


def shop(*middlewares: Middleware) -> App:
    app = App("shop")
    for middleware in middlewares:
        app.add_middleware(middleware)

    @app.step(retry=Retry(attempts=2, base=0))
    async def charge(fail: bool) -> str:
        if fail:
            raise ConnectionError("no")
        return request_id.get()

    @app.step(timeout="30s")
    def charge_in_thread() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return request_id.get()

    @app.activity
    def resize() -> str:
        return "resized"

    @app.workflow
    async def checkout(ctx: Context, fail: bool) -> list[str]:
        await ctx.wait_for_signal("go")
        return [await charge(fail), await charge_in_thread()]

    return app


async def run(app: App, fail: bool = False) -> object:
    async with Environment(app) as env:
        handle = await env.client.start("checkout", fail)
        await handle.signal("go")
        return await env.result(handle)


async def test_the_first_middleware_is_outermost() -> None:
    """T11."""
    history: list[str] = []
    app = shop(Traced("a", history), Traced("b", history))
    await run(app)
    assert [line for line in history if "step charge " in line] == [
        "a: step charge begins",
        "b: step charge begins",
        "b: step charge ends",
        "a: step charge ends",
    ]
    assert history[:2] == ["a: run begins", "b: run begins"]
    assert history[-2:] == ["b: run ends", "a: run ends"]


async def test_context_variables_of_the_middleware_reach_the_step() -> None:
    """T11. In threads, too."""
    assert await run(shop(Traced("a", []))) == ["a charge", "a charge_in_thread"]


async def test_middleware_surrounds_plain_functions_in_their_threads() -> None:
    history: list[str] = []

    class Threaded(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def in_thread(self, call: Callable[[], object]) -> object:
            step = current_step().step  # what the function sees, it sees
            history.append(f"{self.name}: {step} in {threading.current_thread().name[:13]}")
            try:
                return call()
            finally:
                history.append(f"{self.name} ends")

    assert await run(shop(Threaded("a"), Threaded("b"))) == ["none", "none"]
    begun = [f"{name}: charge_in_thread in holdfast-step" for name in "ab"]
    assert history == [*begun, "b ends", "a ends"]


async def test_middleware_surrounds_each_attempt_and_sees_its_error() -> None:
    """T11. T3."""
    history: list[str] = []
    with pytest.raises(RunFailed):
        await run(shop(Traced("a", history)), fail=True)
    assert history.count("a: step charge begins") == 2


async def test_middleware_surrounds_activities() -> None:
    """T11. S7."""
    history: list[str] = []
    store = MemoryStore(wall_clock)
    desk = await Desk(store, "shop").open()
    async with working(shop(Traced("a", history)), store):
        await desk.order("resize")
        assert await desk.result("resize") == "resized"
    assert history == ["a: activity resize begins", "a: activity resize ends"]


class Meddling(Middleware):
    """Answer for a step, and change what a run returns."""

    async def run(self, ctx: Context, call_next: CallNext) -> object:
        result = await call_next()
        assert isinstance(result, list)
        return [*result, str(ctx.run_id)]

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        if context.step == "charge":
            return "free of charge"
        return await call_next()


async def test_middleware_may_answer_and_change_results() -> None:
    """T11."""
    app = shop(Meddling())
    async with Environment(app) as env:
        handle = await env.client.start("checkout", False)
        await handle.signal("go")
        result = await env.result(handle)
    assert result == ["free of charge", "none", str(handle.run_id)]


class Refusing(Middleware):
    """Let no run and no step through."""

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        raise PermissionError("not today")


async def test_what_a_middleware_raises_is_the_attempts_failure() -> None:
    """T11."""
    with pytest.raises(RunFailed, match="not today") as caught:
        await run(shop(Refusing()))
    assert caught.value.matches(StepFailed)


class Recording(Middleware):
    """A middleware that asks the outside world, in a step as it should."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, ctx: Context, call_next: CallNext) -> object:
        def count() -> int:
            self.calls += 1
            return self.calls

        await ctx.step("audit", count)
        return await call_next()


async def test_middleware_around_a_run_replays_with_it() -> None:
    """T11. S2. Another worker continues the run; what was recorded is not done again."""
    recording = Recording()
    app, store = shop(recording), MemoryStore(wall_clock)
    async with Client(store=store, app=app) as client:
        async with working(app, store):
            handle = await client.start("checkout", False)
            async with asyncio.timeout(30):
                while (wait := (await handle.get()).wait) is None or "go" not in wait.awaiting:
                    await asyncio.sleep(0.001)
        async with working(app, store):
            await handle.signal("go")
            await handle.result()
    assert recording.calls == 1


async def test_without_middleware_a_step_is_not_wrapped() -> None:
    """T11. Nothing is paid for what is not used."""
    app = shop(Middleware())
    layers = app.registry.layers
    assert (layers.runs, layers.steps, layers.activities) == ([], [], [])


def test_a_class_in_the_place_of_its_instance_is_refused() -> None:
    """T11."""
    with pytest.raises(ConfigurationError, match="pass an instance"):
        App("shop").add_middleware(cast("Middleware", Middleware))


async def test_a_second_call_of_next_does_not_do_the_work_again() -> None:
    calls: list[str] = []

    class Twice(Middleware):
        async def step(self, context: StepContext, call_next: CallNext) -> object:
            await call_next()
            return await call_next()

    app = shop(Twice())

    @app.step(retry=Retry(attempts=1))
    async def charge_card() -> None:
        calls.append("charged")

    @app.workflow
    async def pay(ctx: Context) -> None:
        await charge_card()

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="call_next\\(\\) was called twice"):
            await env.run(pay)
    assert calls == ["charged"]
