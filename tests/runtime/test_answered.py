"""An update that was answered long ago, and changed code of its handler: the answer stands.

Fault: as soon as something woke the run, the handler acted for all updates that had been answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import Context
from holdfast.events import FORKED, UPDATE_COMPLETED
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, SECOND, Bench, Code
from tests.runtime.test_raised import pay, recorded, render

ship, notify = recorded("ship"), recorded("notify")
WITHIN = "~/update-move"
Handling = Callable[[Context, str], Coroutine[Any, Any, Any]]


def served(handling: Handling) -> Code:
    """Return code that serves updates one after the other, and returns what they returned."""

    async def code(ctx: Context) -> list[object]:
        lock, found = asyncio.Lock(), list[object]()

        async def move(to: str) -> object:
            async with lock:
                found.append(to)
                found.append(await handling(ctx, to))
                return found[-1]

        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return found

    return code


async def paid(ctx: Context, to: str) -> object:
    return await pay(to)


async def refused(ctx: Context, to: str) -> object:
    raise ValueError(to)


async def and_notified(ctx: Context, to: str) -> object:
    found = await pay(to)
    await notify(to)
    return found


async def and_notified_in_time(ctx: Context, to: str) -> object:
    found = await pay(to)
    async with asyncio.timeout(5):
        await notify(to)
    return found


async def and_notified_beside(ctx: Context, to: str) -> object:
    found = await pay(to)
    await asyncio.gather(notify(to), ship(to))
    return found


async def and_notified_in_a_group(ctx: Context, to: str) -> object:
    found = await pay(to)
    async with asyncio.TaskGroup() as group:
        group.create_task(notify(to))
    return found


async def and_notified_at_last(ctx: Context, to: str) -> object:
    try:
        return await pay(to)
    finally:
        try:
            await notify(to)
        finally:
            await ship(to)


async def and_notified_later(ctx: Context, to: str) -> object:
    found = await pay(to)
    await ctx.sleep(60)
    await notify(to)
    return found


async def and_notified_when_told(ctx: Context, to: str) -> object:
    found = await pay(to)
    await ctx.wait_for_signal("other")
    await notify(to)
    return found


async def and_rendered(ctx: Context, to: str) -> object:
    found = await pay(to)
    await render(to)
    return found


async def and_started(ctx: Context, to: str) -> object:
    await ctx.start_child("parcel", to)
    return await pay(to)


async def and_signalled(ctx: Context, to: str) -> object:
    found = await pay(to)
    ctx.signal_run(RUN_ID, "moved", to)
    return found


MORE = [
    and_notified,
    and_notified_in_time,
    and_notified_beside,
    and_notified_in_a_group,
    and_notified_at_last,
    and_notified_later,
    and_notified_when_told,
    and_rendered,
    and_signalled,
]


def answered(handling: Handling, *names: str) -> Bench:
    """Return a bench whose updates were answered."""
    bench = Bench(served(handling))
    bench.settle()
    for name in names:
        bench.resume(bench.update("move", name, name))
        bench.settle()
        if not bench.suspended:
            bench.complete(bench.starts[-1], 1)
            bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == len(names)
    return bench


@pytest.mark.parametrize("old", [paid, refused])
@pytest.mark.parametrize("new", [*MORE, and_started])
def test_nothing_new_begins_for_an_update_that_was_answered(old: Handling, new: Handling) -> None:
    if old is paid and new is and_started:
        return  # before a recorded call: the next test
    bench = answered(old, "a", "b")
    length = len(bench.log)
    bench.crash(served(new))
    bench.settle()
    bench.resume(bench.signal("other"))
    bench.settle()
    bench.now += 61 * SECOND
    bench.resume()
    bench.settle()
    assert (bench.stuck, bench.starts) == (None, [])
    kinds = {event.type for event in bench.log[length:]}
    assert not kinds & {"ActivityScheduled", "ChildStarted", "SignalSent", UPDATE_COMPLETED}
    bench.resume(bench.update("move", "c", "c"))  # the lock is free, and the new code is in force
    assert bench.starts or new is and_started
    assert bench.starts[0] == f"{WITHIN}#3/pay" if bench.starts else True
    bench.crash(served(old))
    assert bench.stuck is None or new is and_started


def test_a_new_command_before_the_recorded_calls_of_an_answered_update_is_left_out() -> None:
    bench = answered(paid, "a")
    bench.crash(served(and_started))
    bench.settle()
    assert "ChildStarted" not in bench.types()


def test_the_worker_and_strict_code_hear_of_it() -> None:
    bench = answered(paid, "a")
    bench.crash(served(and_notified))
    [problem] = bench.problems
    assert "update a was answered, and its handler does more now" in problem
    bench.strict = True
    bench.crash(served(and_notified))
    assert "does more now" in str(bench.stuck)
    bench.crash(served(paid))
    assert (bench.stuck, bench.problems) == (None, [])


async def in_the_background(ctx: Context, to: str) -> object:
    async def later() -> None:
        await ctx.sleep(60)
        await render(to)
        await ship(to)

    ctx.set_value("last", to)
    asyncio.get_running_loop().create_task(later(), name="later")
    asyncio.get_running_loop().create_task(ship(to), name="now")
    return "begun"


@pytest.mark.parametrize("awaited", [False, True])
def test_what_a_handler_has_started_continues_after_its_answer(awaited: bool) -> None:
    """It is code that has not changed; or the new code waits for what the old one had started."""

    async def waiting(ctx: Context, to: str) -> object:
        await in_the_background(ctx, to)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*(task for task in others if task.get_name() == "later"))
        return "begun"

    bench = Bench(served(in_the_background))
    bench.settle()
    bench.resume(bench.update("move", "a", "a"))
    bench.settle()
    assert bench.starts == [f"{WITHIN}/ship"]
    bench.complete(f"{WITHIN}/ship", 1)
    bench.settle()
    bench.crash(served(waiting) if awaited else None)
    bench.settle()
    bench.now += 61 * SECOND
    bench.resume()
    bench.settle()
    if not awaited:
        bench.crash()
        bench.settle()
    assert bench.stuck is None
    assert bench.types().count("ActivityScheduled") == 1
    bench.resume(bench.activity_completed(f"{WITHIN}/later/render", 1))
    bench.settle()
    assert bench.starts[-1] == f"{WITHIN}/later/ship"


def test_an_activity_that_is_awaited_now_is_not_taken_back() -> None:
    async def begun(ctx: Context, to: str) -> object:
        _ = render(to)
        return "begun"

    async def waited(ctx: Context, to: str) -> object:
        await render(to)
        return "begun"

    bench = answered(begun, "a")
    bench.crash(served(waited))
    bench.settle()
    assert bench.types().count("ActivityScheduled") == 1
    assert "ActivityCancelRequested" not in bench.types()
    assert bench.stuck is None


def test_an_update_may_be_answered_because_of_a_later_one() -> None:
    """Unchanged code: the first waits for what the second does."""

    async def code(ctx: Context) -> object:
        ready = asyncio.Event()

        async def first() -> str:
            await ready.wait()
            await ctx.start_child("parcel", 1)
            return "first"

        async def second() -> str:
            ready.set()
            return "second"

        ctx.handle_update("first", first)
        ctx.handle_update("second", second)
        return await ctx.wait_for_signal("end")

    bench = Bench(code)
    bench.settle()
    bench.resume(bench.update("first", None, "1"), bench.signal("nothing"))
    bench.settle()
    bench.resume(bench.plain("WorkflowPaused"))
    bench.settle()
    bench.resume(bench.update("second", None, "2"), bench.plain("WorkflowResumed"))
    bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == 2
    bench.crash()
    bench.settle()
    assert (bench.stuck, bench.problems) == (None, [])
    assert bench.types().count("ChildStarted") == 1


def test_a_fork_gives_the_commands_again_that_it_lacks() -> None:
    bench = answered(and_started, "a")
    fork = {"run_id": str(RUN_ID), "idx": 9, "seed": str(RUN_ID), "again": []}
    bench.log = [event for event in bench.log if event.type != "ChildStarted"]
    bench.log.append(Event(FORKED, None, json.dumps(fork), bench.now))
    bench.crash()
    bench.settle()
    assert bench.types().count("ChildStarted") == 1


def test_a_handler_that_does_not_end_makes_the_run_stuck() -> None:
    async def stubborn(ctx: Context, to: str) -> object:
        while True:
            try:
                await notify(to)
            except asyncio.CancelledError:
                continue

    bench = answered(refused, "a")
    bench.crash(served(stubborn))
    assert "update a was answered, and its handler does not end" in str(bench.stuck)
    bench.crash(served(refused))
    assert bench.stuck is None


def test_an_answer_is_dropped_with_the_commands_that_a_stuck_run_could_not_give() -> None:
    """Else other code would take the command for a new one of an answered update."""

    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            moved = asyncio.Event()

            async def move(to: str) -> str:
                moved.set()
                await ctx.start_child("parcel", to)
                return to

            ctx.handle_update("move", move)
            await moved.wait()
            if is_new:
                asyncio.get_running_loop().run_in_executor(None, print)
            await ctx.wait_for_signal("end")

        return code

    bench = Bench(version(True))
    bench.settle()
    bench.resume(bench.update("move", "a", "a"))
    bench.settle()
    assert bench.stuck is not None
    bench.crash(version(False))
    bench.settle()
    assert bench.types().count("ChildStarted") == 1
    assert bench.types().count(UPDATE_COMPLETED) == 1
