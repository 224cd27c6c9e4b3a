"""Activities as a run's code sees them: ordered at the call, ended by others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.errors import ActivityFailed, ActivityTimedOut
from holdfast.events import ACTIVITY_CANCEL, ACTIVITY_SCHEDULED, CANCELLED, STEP_COMPLETED
from holdfast.retry import Retry
from holdfast.types import ANY_END, Suspend
from tests.runtime.bench import START, Bench


async def _elsewhere(item: int) -> int:
    raise AssertionError("another worker runs it")


render = Activity(_elsewhere, name="render", queue="media", retry=Retry(attempts=2))
work = Step(_elsewhere, name="work")


def test_an_activity_is_scheduled_by_the_commit_that_suspends_the_run() -> None:
    """S7."""

    async def flow(ctx: Context) -> int:
        return await render(7)

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events] == [ACTIVITY_SCHEDULED]
    assert part.has_commands
    assert part.then == Suspend(None, (ANY_END,))
    order = json.loads(part.events[0].details or "")
    assert part.events[0].key == "render"
    assert order["activity_name"] == "render/render"
    assert (order["queue"], order["input"]) == ("media", [7])
    assert "priority" not in order  # it has that of the run
    assert order["retry"]["attempts"] == 2
    assert order["start_to_close"] is order["schedule_to_close"] is None
    bench.resume(bench.activity_completed("render", 70))
    bench.settle()
    assert bench.output == 70


def test_a_replay_schedules_no_activity_again() -> None:
    """S6. S7. Trap 9."""

    async def flow(ctx: Context) -> list[int]:
        return await asyncio.gather(render(1), render(2))

    bench = Bench(flow)
    bench.commit()
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_completed("render#2", 2))
    bench.settle()
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.output == [1, 2]
    assert len(bench.of_type(ACTIVITY_SCHEDULED)) == 2


def test_an_end_during_the_commit_of_other_calls_loses_no_command() -> None:
    """Trap 1. A commit with commands may also be appended after what others wrote first."""

    async def flow(ctx: Context) -> list[object]:
        first = render(1)
        await ctx.wait_for_signal("more")
        return [await first, await render(2)]

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.signal("more"))
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.refuse(bench.signal("late"))
    bench.settle()
    assert bench.suspend.awaiting == (ANY_END,)
    bench.resume(bench.activity_completed("render#2", 2))
    bench.settle()
    assert bench.output == [1, 2]
    assert len(bench.of_type(ACTIVITY_SCHEDULED)) == 2


Caller = Callable[[], Coroutine[object, None, object]]


async def by_task() -> object:
    return await asyncio.create_task(render(1))


async def by_group() -> object:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(render(1))
    return task.result()


async def by_gather() -> object:
    return (await asyncio.gather(render(1)))[0]


async def by_wait_for() -> object:
    return await asyncio.wait_for(render(1), 60)


async def by_shield() -> object:
    return await asyncio.shield(render(1))


async def as_completed() -> object:
    for one in asyncio.as_completed([render(1)]):
        return await one
    return None


async def later() -> object:
    call = render(1)
    await asyncio.sleep(0)
    return await call


@pytest.mark.parametrize(
    "caller", [by_task, by_group, by_gather, by_wait_for, by_shield, as_completed, later]
)
def test_a_call_works_in_each_asyncio_function_that_takes_a_coroutine(caller: Caller) -> None:
    """S7."""

    async def flow(ctx: Context) -> object:
        return await caller()

    bench = Bench(flow)
    bench.settle()
    for _ in range(2):
        bench.crash()
        bench.settle()
    bench.resume(bench.activity_completed("render", 9))
    bench.settle()
    assert bench.output == 9


def test_a_call_may_be_awaited_once() -> None:
    async def flow(ctx: Context) -> str:
        call = render(1)
        await call
        try:
            await call
        except RuntimeError as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert "awaited before" in bench.output


def test_an_exhausted_activity_raises_what_is_recorded() -> None:
    """S7. B2."""

    async def flow(ctx: Context) -> list[object]:
        found: list[object] = []
        for item in range(2):
            try:
                await render(item)
            except ActivityFailed as error:
                timed_out = isinstance(error, ActivityTimedOut)
                found.append([error.key, error.matches(OSError), timed_out])
        return found

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.activity_failed("render", OSError("gone")))
    bench.settle()
    bench.resume(bench.activity_failed("render#2", TimeoutError("late"), timed_out=True))
    bench.settle()
    assert bench.output == [["render", True, False], ["render#2", True, True]]


@pytest.mark.parametrize("begun", [False, True])
def test_a_call_that_is_given_up_asks_the_activity_to_stop(begun: bool) -> None:
    """Trap 16. Also a call that is cancelled before its task has begun."""

    async def flow(ctx: Context) -> str:
        task = asyncio.create_task(render(1))
        if begun:
            await ctx.wait_for_signal("stop")
        task.cancel()
        await asyncio.wait([task])
        await ctx.sleep(60)
        return "given up"

    bench = Bench(flow)
    bench.settle()
    if begun:
        bench.resume(bench.signal("stop"))
        bench.settle()
    assert len(bench.of_type(ACTIVITY_CANCEL)) == 1
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    bench.crash()
    bench.settle()
    bench.now += 60_000_000
    bench.resume()
    bench.settle()
    assert bench.output == "given up"
    assert len(bench.of_type(ACTIVITY_CANCEL)) == 1


def test_a_cancelled_run_asks_the_activity_that_it_awaits_to_stop() -> None:
    """S10. B6."""

    async def flow(ctx: Context) -> None:
        await render(1)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    part = bench.commit()
    assert [event.type for event in part.events] == [ACTIVITY_CANCEL, CANCELLED]
    assert part.has_commands


def test_a_timeout_around_a_call_is_decided_once() -> None:
    """Trap 5. Trap 7. The end that comes after the timer changes nothing."""

    async def flow(ctx: Context) -> str:
        try:
            await asyncio.wait_for(render(1), 10)
        except TimeoutError:
            await ctx.wait_for_signal("go")
            return "late"
        return "in time"

    bench = Bench(flow)
    bench.settle()
    assert bench.suspend.visible_at == START + 10_000_000
    bench.now += 11_000_000
    bench.resume()
    bench.settle()
    bench.resume(bench.activity_completed("render", 1), bench.signal("go"))
    bench.settle()
    assert bench.output == "late"


@pytest.mark.parametrize(("first", "winner"), [("render", 1), ("ship", 2)])
def test_a_race_of_an_activity_and_a_child_is_decided_once(first: str, winner: int) -> None:
    """Trap 19. The end that is first in the log wins, however late the replay."""

    async def flow(ctx: Context) -> list[object]:
        racers = {asyncio.create_task(render(1)), asyncio.create_task(ctx.child("ship"))}
        done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        won = [task.result() for task in done]
        await ctx.wait_for_signal("go")
        return won

    bench = Bench(flow)
    bench.settle()
    keys = {event.key.rpartition("/")[2]: event.key for event in bench.log if event.key}
    ends = {
        "render": bench.activity_completed(keys["render"], 1),
        "ship": bench.child_completed(keys["ship"], 2),
    }
    bench.resume(ends.pop(first), *ends.values())
    bench.settle()
    bench.crash()
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output == [winner]


def test_an_activity_is_called_by_name_where_its_code_is_elsewhere() -> None:
    """S7."""

    async def flow(ctx: Context) -> list[object]:
        plain = await ctx.activity("resize", "cat.png", 640, queue="gpu", start_to_close="30s")
        typed = await ctx.activity("resize", type=tuple[int, int], id="again")
        return [plain, type(typed).__name__]

    bench = Bench(flow)
    order = json.loads(bench.commit().events[0].details or "")
    assert (order["activity_name"], order["queue"]) == ("flow/resize", "gpu")
    assert (order["input"], order["start_to_close"]) == (["cat.png", 640], 30.0)
    bench.resume(bench.activity_completed("resize", [1, 2]))
    assert bench.commit().events[0].key == "again"
    bench.resume(bench.activity_completed("again", [1, 2], name="resize"))
    bench.settle()
    assert bench.output == [[1, 2], "tuple"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda: render(1), lambda: render(2), "with other arguments"),
        (lambda: render(1), lambda: work.with_options(name="render")(1), "a call of render now"),
        (lambda: work.with_options(name="render")(1), lambda: render(1), "a step in the log"),
    ],
    ids=["other_arguments", "activity_to_step", "step_to_activity"],
)
def test_a_changed_call_makes_the_run_stuck(before: Caller, after: Caller, message: str) -> None:
    """S6. T9."""

    async def old(ctx: Context) -> None:
        await before()
        await ctx.sleep(60)

    async def new(ctx: Context) -> None:
        await after()
        await ctx.sleep(60)

    bench = Bench(old)
    if bench.starts:
        bench.complete("render")
    bench.settle()
    if bench.of_type(ACTIVITY_SCHEDULED):
        bench.log.append(bench.activity_completed("render", 1))
    bench.crash(new)
    assert message in str(bench.stuck)


def test_a_stuck_turn_schedules_nothing() -> None:
    """What it did before it broke is dropped with it; the corrected code schedules it again."""

    async def flow(ctx: Context) -> None:
        render(1)
        asyncio.get_running_loop().run_in_executor(None, print)

    bench = Bench(flow)
    assert bench.commit_due is None
    assert bench.stuck is not None


@pytest.mark.parametrize("cause", ["eviction", "conflict"])
def test_cleanup_of_closed_code_schedules_nothing(cause: str) -> None:
    """Trap 17."""

    async def flow(ctx: Context) -> None:
        try:
            await work(1)
            await ctx.wait_for_signal("go")
        finally:
            render(1)
            ctx.signal_run(ctx.run_id, "bye")
            await ctx.request_approval("really?")

    bench = Bench(flow)
    bench.complete("work")
    if cause == "conflict":
        bench.refuse(bench.interruption())
    bench.settle()
    bench.turn.abandon()
    assert bench.types()[-1] == STEP_COMPLETED
    assert not bench.of_type(ACTIVITY_SCHEDULED)


def test_ten_thousand_calls_of_one_run_are_one_commit() -> None:
    """S7. Counted, not timed: ends are looked up by their key."""

    async def flow(ctx: Context) -> int:
        return sum(await asyncio.gather(*(render(item) for item in range(10_000))))

    bench = Bench(flow)
    assert len(bench.commit().events) == 10_000
    keys = [event.key or "" for event in bench.of_type(ACTIVITY_SCHEDULED)]
    bench.resume(*(bench.activity_completed(key, 1) for key in keys))
    bench.settle()
    assert bench.output == 10_000


def test_arguments_and_results_pass_through_the_codec_in_the_first_execution_too() -> None:
    async def flow(ctx: Context) -> Any:
        return await ctx.activity("echo", (1, {"b", "a"}))

    bench = Bench(flow)
    order = json.loads(bench.commit().events[0].details or "")
    assert order["input"] == [[1, ["a", "b"]]]
