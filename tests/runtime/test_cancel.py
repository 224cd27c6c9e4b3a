"""Cancelling a run."""

from __future__ import annotations

import asyncio

from holdfast import Context
from holdfast.definitions.steps import Step
from tests.runtime.bench import SECOND, Bench, work


@Step
def undo(item: int) -> int:
    raise AssertionError("the test gives the results")


def test_a_sleeping_run_is_cancelled() -> None:
    """Trap 16. S10."""

    async def flow(ctx: Context) -> None:
        await ctx.sleep("365d")

    bench = Bench(flow)
    bench.commit()
    bench.turn.abandon()
    bench.log.append(bench.cancel_request())
    bench.claim()
    bench.settle()
    assert bench.ended == "cancelled"
    assert bench.types()[-2:] == ["WorkflowCancelRequested", "WorkflowCanceled"]


def test_a_long_step_is_cancelled_and_its_late_result_changes_nothing() -> None:
    """Trap 16. B6."""

    async def flow(ctx: Context) -> None:
        await work(1)

    bench = Bench(flow)
    bench.news(bench.cancel_request())
    bench.complete("work", 5)
    bench.settle()
    assert bench.ended == "cancelled"
    assert bench.types() == ["WorkflowStarted", "WorkflowCancelRequested", "WorkflowCanceled"]


def test_cleanup_awaits_its_steps_and_a_second_cancel_changes_nothing() -> None:
    """Trap 16. S10."""

    async def flow(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        finally:
            await undo(1)
            await ctx.sleep(5)
            await undo(2)

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.cancel_request())
    assert bench.starts == ["undo"]
    bench.news(bench.cancel_request())
    bench.complete("undo")
    bench.settle()
    bench.crash()
    bench.now += 5 * SECOND
    bench.take(bench.turn.wake())
    bench.settle()
    bench.resume()
    bench.settle()
    assert bench.starts == ["undo#2"]
    bench.complete("undo#2")
    bench.settle()
    assert bench.ended == "cancelled"


def test_code_that_ignores_a_cancel_completes() -> None:
    """B6."""

    async def flow(ctx: Context) -> bool:
        try:
            await ctx.sleep("1d")
        except asyncio.CancelledError:
            await work(1)
        return ctx.cancelled

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.cancel_request())
    bench.complete("work")
    bench.settle()
    assert bench.ended == "completed"
    assert bench.output is True


def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    async def flow(ctx: Context) -> None:
        raise asyncio.CancelledError

    bench = Bench(flow)
    bench.settle()
    assert bench.ended == "failed"
    assert "not from outside" in bench.error["message"]


def test_an_error_in_the_cleanup_fails_the_run() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        finally:
            raise ValueError("cannot undo")

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.ended == "failed"
    assert bench.error["kind"] == "builtins.ValueError"


def test_a_cancel_after_the_end_of_the_code_changes_nothing() -> None:
    """Trap 16. The end is in flight when the request is written."""

    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    bench.complete("work", 3)
    bench.commit()
    assert bench.ended == "completed"

    behind = Bench(flow)
    behind.fail("work", OSError("busy"), retry_in=0)
    behind.commit()
    behind.complete("work", 3)
    behind.refuse(behind.cancel_request())
    behind.settle()
    assert behind.ended == "cancelled", "the request came before the result"


def test_a_group_is_cancelled_as_a_whole() -> None:
    async def flow(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(work(1))
            group.create_task(work(2))

    bench = Bench(flow)
    bench.news(bench.cancel_request())
    bench.settle()
    assert bench.ended == "cancelled"
    assert sorted(bench.cancelled) == ["work", "work#2"]
