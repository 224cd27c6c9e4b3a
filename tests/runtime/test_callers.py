"""Who makes a call: a run's code calls durably, all else plainly, and closed code not at all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from uuid import uuid4

import pytest

from holdfast import App, Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.store.memory import MemoryStore
from holdfast.types import NewRun
from tests.runtime.bench import Bench
from tests.runtime.desk import eventually, working

ran: list[str] = []


async def _run(what: str) -> str:
    ran.append(what)
    return what


def _run_in_thread(what: str) -> str:
    ran.append(what)
    return what


async def _run_as_child(ctx: Context, what: str) -> str:
    return await _run(what)


work: Step[[str], str] = Step(_run, name="work")
threaded: Step[[str], str] = Step(_run_in_thread, name="threaded")
activity: Activity[[str], str] = Activity(_run, name="activity")
child: Workflow[str, str] = Workflow(_run_as_child, name="child")
CALLS: dict[str, Callable[[str], Awaitable[str]]] = {
    "step": work,
    "sync step": threaded,
    "activity": activity,
    "child": child,
}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


# Inside of steps


async def in_the_step() -> str:
    return await work("inner") + await threaded("inner")


async def in_a_thread() -> str:
    return await asyncio.to_thread(on_a_loop_of_its_own)


def on_a_loop_of_its_own() -> str:
    return asyncio.run(in_the_step())


def in_a_thread_of_its_own() -> str:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(on_a_loop_of_its_own()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize(
    "fn", [in_the_step, in_a_thread, on_a_loop_of_its_own, in_a_thread_of_its_own]
)
async def test_a_step_inside_a_step_is_a_plain_call(fn: Callable[..., object]) -> None:
    """On whichever thread and event loop: only the outer one is recorded."""
    app, store, run_id = App("shop"), MemoryStore(), uuid4()
    outer: Step[..., object] = Step(fn, name="outer")

    @app.workflow
    async def order(ctx: Context) -> object:
        return await outer()

    await store.start_runs([NewRun(run_id=run_id, name="shop/order")])
    async with working(app, store):

        async def ended() -> bool:
            return (await store.get_runs([run_id]))[run_id].state == "completed"

        await eventually(ended)
    log = (await store.read_events([(run_id, 0)]))[run_id]
    assert [event.key for event in log if event.type == "StepCompleted"] == ["outer"]
    assert ran == ["inner", "inner"]


# While a run is closed


async def in_finally(call: Callable[[], Awaitable[object]]) -> None:
    try:
        await work("wait")
    finally:
        await call()


async def in_an_exit_stack(call: Callable[[], Awaitable[object]]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(call)
        await work("wait")


async def in_a_branch(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_finally(call))


async def in_an_async_generator(call: Callable[[], Awaitable[object]]) -> None:
    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await call()

    async with contextlib.aclosing(numbers()) as generator:
        async for _ in generator:
            await work("wait")


@pytest.mark.parametrize(
    "place", [in_finally, in_an_exit_stack, in_a_branch, in_an_async_generator]
)
@pytest.mark.parametrize("early", [False, True], ids=["called then", "called before"])
@pytest.mark.parametrize("what", CALLS)
def test_a_call_of_closed_code_ends_it(
    what: str, early: bool, place: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
) -> None:
    """Trap 17. It is neither made nor run plainly, also where it was only left to be awaited."""
    ends: list[BaseException | None] = []

    async def flow(ctx: Context) -> None:
        called = CALLS[what]("late") if early else None

        async def call() -> None:
            try:
                await (called or CALLS[what]("late"))
            except BaseException as end:
                ends.append(end)
                raise
            ends.append(None)

        await place(call)

    bench = Bench(flow)
    bench.settle()
    length = len(bench.log)
    bench.turn.abandon()
    gc.collect()
    assert [type(end) for end in ends] == [GeneratorExit]
    assert (bench.commit_due, len(bench.log), ran) == (None, length, [])
