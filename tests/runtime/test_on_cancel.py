"""What becomes of a called activity or child when the code that awaits it is cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.errors import ConfigurationError
from holdfast.events import (
    ACTIVITY_CANCEL,
    ACTIVITY_SCHEDULED,
    CANCELLED,
    CHILD_CANCEL,
    CHILD_STARTED,
    COMPLETED,
    CONTINUED,
    FAILED,
    STEP_COMPLETED,
)
from holdfast.types import ANY_END, Suspend
from tests.runtime.bench import Bench


async def _elsewhere(item: int) -> int:
    raise AssertionError("another worker runs it")


async def _ship(ctx: Context, order: int) -> int:
    raise AssertionError("another turn runs it")


render = Activity(_elsewhere, name="render")
waited = render.with_options(on_cancel="wait")
abandoned = Activity(_elsewhere, name="render", on_cancel="abandon")
work = Step(_elsewhere, name="work")
ship: Workflow[int, int] = Workflow(_ship, name="ship")

Call = Callable[[Context], Coroutine[object, None, object]]


def _by_await(ctx: Context) -> Coroutine[object, None, object]:
    return waited(1)


def _by_name(ctx: Context) -> Coroutine[object, None, object]:
    return ctx.activity("render", 1, on_cancel="wait")


def _in_gather(ctx: Context) -> Any:
    return asyncio.gather(waited(1))


async def _in_group(ctx: Context) -> object:
    async with asyncio.TaskGroup() as group:
        return await group.create_task(waited(1))


async def _in_timeout(ctx: Context) -> object:
    async with asyncio.timeout(3600):
        return await waited(1)


def _key(bench: Bench) -> str:
    return bench.of_type(ACTIVITY_SCHEDULED)[0].key or ""


@pytest.mark.parametrize("call", [_by_await, _by_name, _in_gather, _in_group, _in_timeout])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_cancelled_run_ends_after_the_activity_that_it_waits_out(
    call: Call, crashes: bool
) -> None:
    """With a new instance after each commit, too."""

    async def flow(ctx: Context) -> object:
        return await call(ctx)

    bench = Bench(flow)
    bench.settle()

    def settle() -> None:
        bench.settle()
        if crashes:
            bench.crash()
            bench.settle()

    settle()
    bench.resume(bench.cancel_request())
    settle()
    assert bench.suspend.awaiting == (ANY_END,)
    bench.resume(bench.activity_failed(_key(bench), OSError("stopped")))
    bench.settle()
    assert bench.ended == "cancelled", bench.stuck
    assert len(bench.of_type(ACTIVITY_CANCEL)) == 1


def test_what_cleans_up_runs_after_the_end_of_the_activity() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await waited(1)
        finally:
            await work(2)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.starts == []
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    bench.crash()
    assert bench.starts == ["work"]
    bench.complete("work")
    bench.settle()
    assert bench.ended == "cancelled"
    assert bench.types()[-2:] == [STEP_COMPLETED, CANCELLED]


def test_a_result_that_came_with_the_request_is_not_the_callers() -> None:
    """The code is cancelled: a timeout around it has passed, whatever the activity did."""

    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await waited(1)
        except TimeoutError:
            return "late"
        return "in time"

    bench = Bench(flow)
    bench.settle()
    bench.pass_time(61)
    bench.resume()
    bench.settle()
    assert bench.suspend == Suspend(None, (ANY_END,))
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.output == "late"


def test_a_second_cancel_does_not_end_the_wait() -> None:
    """A timeout, then the cancel of the run: the run is cancelled, and no timeout of its own."""

    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await waited(1)
        except TimeoutError:
            return "late"
        return "in time"

    bench = Bench(flow)
    bench.settle()
    bench.pass_time(61)
    bench.resume()
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert not bench.ended
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_failed("render", OSError("stopped")))
    bench.settle()
    assert bench.ended == "cancelled"
    assert len(bench.of_type(ACTIVITY_CANCEL)) == 1


def test_a_task_that_is_cancelled_before_it_began_waits_too() -> None:
    async def flow(ctx: Context) -> str:
        task = asyncio.create_task(waited(1))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "stopped"
        return "not stopped"

    bench = Bench(flow)
    bench.settle()
    assert len(bench.of_type(ACTIVITY_CANCEL)) == 1
    assert bench.suspend.awaiting == (ANY_END,)
    bench.resume(bench.activity_failed("render", OSError("stopped")))
    bench.settle()
    assert bench.output == "stopped"


@pytest.mark.parametrize("crashes", [False, True])
def test_an_abandoned_activity_is_not_told_and_the_run_ends_after_it(crashes: bool) -> None:
    """It belongs to the run: an end of the run would stop it."""

    async def flow(ctx: Context) -> None:
        await abandoned(1)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    if crashes:
        bench.crash()
        bench.settle()
    assert bench.suspend == Suspend(None, (ANY_END,))
    bench.resume(bench.activity_failed("render", OSError("lost")))
    bench.settle()
    assert bench.ended == "cancelled"
    assert not bench.of_type(ACTIVITY_CANCEL)
    assert not any("never awaited" in problem for problem in bench.problems)


def test_code_goes_on_beside_an_activity_that_it_abandoned() -> None:
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await abandoned(1)
        except TimeoutError:
            await work(1)
        return "done"

    bench = Bench(flow)
    bench.settle()
    bench.pass_time(61)
    bench.resume()
    bench.settle()
    assert bench.starts == ["work"]
    bench.complete("work")
    bench.settle()
    assert bench.suspend == Suspend(None, (ANY_END,))
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.output == "done"
    assert not bench.of_type(ACTIVITY_CANCEL)


def test_a_run_continues_as_new_after_an_activity_that_it_abandoned() -> None:
    async def flow(ctx: Context) -> None:
        try:
            async with asyncio.timeout(60):
                await abandoned(1)
        except TimeoutError:
            ctx.continue_as_new()

    bench = Bench(flow)
    bench.settle()
    bench.pass_time(61)
    bench.resume()
    bench.settle()
    assert not bench.ended
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.types()[-1] == CONTINUED


def test_a_run_that_fails_does_not_wait_for_what_it_abandoned() -> None:
    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(60):
            await abandoned(1)

    bench = Bench(flow)
    bench.settle()
    bench.pass_time(61)
    bench.resume()
    bench.settle()
    assert bench.types()[-1] == FAILED


@pytest.mark.parametrize("policy", ["wait", "abandon"])
def test_what_a_run_never_awaited_follows_its_policy(policy: Any) -> None:
    """The others are stopped when the run is cancelled."""

    async def flow(ctx: Context) -> str:
        _ = render.with_options(on_cancel=policy)(1)
        _ = render(2)
        return "done"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    asked = [event.key for event in bench.of_type(ACTIVITY_CANCEL)]
    assert asked == (["render", "render#2"] if policy == "wait" else ["render#2"])
    assert not bench.ended
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.types()[-1] == COMPLETED


@pytest.mark.parametrize("crashes", [False, True])
def test_a_run_ends_after_the_child_that_it_waits_out(crashes: bool) -> None:
    async def flow(ctx: Context) -> object:
        return await ctx.child(ship, 1, on_cancel="wait")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    if crashes:
        bench.crash()
        bench.settle()
    assert bench.suspend.awaiting == (ANY_END,)
    assert len(bench.of_type(CHILD_CANCEL)) == 1
    bench.resume(bench.child_failed("ship", "cancelled"))
    bench.settle()
    assert bench.ended == "cancelled"


def test_an_abandoned_child_is_left_alone_by_the_end_of_its_parent_too() -> None:
    async def flow(ctx: Context) -> object:
        return await ctx.child(ship, 1, on_cancel="abandon")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.ended == "cancelled"
    assert not bench.of_type(CHILD_CANCEL)
    assert bench.details_of(CHILD_STARTED)[0]["parent_close"] == "abandon"


def test_parent_close_comes_before_what_follows_from_on_cancel() -> None:
    async def flow(ctx: Context) -> object:
        return await ctx.child(ship, 1, on_cancel="abandon", parent_close="terminate")

    bench = Bench(flow)
    bench.settle()
    assert bench.details_of(CHILD_STARTED)[0]["parent_close"] == "terminate"


def test_a_call_in_the_log_keeps_the_policy_that_it_was_made_with() -> None:
    """A deploy changes it for new calls only: an open one would otherwise wait for no end."""

    def flow_with(policy: Any) -> Any:
        async def flow(ctx: Context) -> None:
            try:
                await render.with_options(on_cancel=policy)(1)
            finally:
                await work(2)

        return flow

    bench = Bench(flow_with("try"))
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    bench.crash(flow_with("wait"))
    bench.settle()
    assert bench.starts == ["work"]

    bench = Bench(flow_with("wait"))
    bench.settle()
    bench.crash(flow_with("try"))
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.starts == []


def test_one_of_two_callers_of_a_child_gives_up_at_once() -> None:
    """The other still wants its output: the child is not asked to stop."""

    async def flow(ctx: Context) -> object:
        first, second = (asyncio.create_task(_child(ctx)), asyncio.create_task(_child(ctx)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        return await second

    async def _child(ctx: Context) -> object:
        return await ctx.child(ship, 1, key="k", on_cancel="wait")

    bench = Bench(flow)
    bench.settle()
    assert not bench.of_type(CHILD_CANCEL)
    key = bench.of_type(CHILD_STARTED)[0].key or ""
    bench.resume(bench.child_completed(key, 7))
    bench.settle()
    assert bench.output == 7


def test_the_default_is_not_written_to_the_log() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(render(1), ship(1))

    bench = Bench(flow)
    bench.settle()
    for kind in (ACTIVITY_SCHEDULED, CHILD_STARTED):
        assert "on_cancel" not in json.dumps(bench.details_of(kind))


def test_what_is_not_a_policy_is_refused() -> None:
    never: Any = "never"
    with pytest.raises(ConfigurationError, match="on_cancel: one of try, wait, abandon"):
        Activity(_elsewhere, on_cancel=never)
    with pytest.raises(ConfigurationError, match="on_cancel"):
        render.with_options(on_cancel=never)

    async def flow(ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match="child ship/ship: on_cancel"):
            _ = ctx.child(ship, 1, on_cancel=never)
        with pytest.raises(TypeError, match=r"on_cancel is an option of ctx\.child"):
            await ctx.start_child(ship, 1, on_cancel="wait")

    bench = Bench(flow)
    bench.settle()
    assert bench.ended == "completed"
