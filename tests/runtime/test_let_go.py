"""Activities that a run's code lets go: nobody awaits them, and they are recorded all the same."""

from __future__ import annotations

import asyncio
import gc
import warnings

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.events import ACTIVITY_CANCEL, ACTIVITY_SCHEDULED, COMPLETED, FAILED
from holdfast.types import ANY_END, Suspend
from tests.runtime.bench import Bench


async def _elsewhere(item: int) -> int:
    raise AssertionError("another worker runs it")


render = Activity(_elsewhere, name="render")
work = Step(_elsewhere, name="work")


def test_a_call_that_nobody_awaits_is_recorded_before_the_run_ends() -> None:
    """S7. Fire and forget, without a warning of asyncio's."""

    async def flow(ctx: Context) -> str:
        render(1)
        render(2)
        return "done"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench = Bench(flow)
        gc.collect()
    bench.commit()
    assert bench.suspend == Suspend(None, (ANY_END,))
    bench.resume(bench.activity_completed("render#2", 2))
    bench.settle()
    assert bench.suspend == Suspend(None, (ANY_END,))
    bench.crash()
    bench.settle()
    bench.resume(bench.activity_failed("render", OSError("lost")))
    bench.settle()
    assert bench.output == "done"
    assert "activity render failed, and the code never awaited it: OSError: lost" in bench.problems


def test_a_failed_run_does_not_wait_for_what_it_let_go() -> None:
    async def flow(ctx: Context) -> None:
        render(1)
        raise ValueError("bad")

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events] == [ACTIVITY_SCHEDULED, FAILED]


def test_a_cancel_ends_the_wait_for_what_a_run_let_go() -> None:
    """B6. Trap 16."""

    async def flow(ctx: Context) -> str:
        render(1)
        return "done"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    part = bench.commit()
    assert [event.type for event in part.events] == [ACTIVITY_CANCEL, COMPLETED]


def test_the_end_of_the_code_stops_what_its_forgotten_tasks_do() -> None:
    """Their activities are asked to stop and their steps are cancelled, before the run waits."""

    async def flow(ctx: Context) -> str:
        render(1)
        asyncio.create_task(render(2))
        asyncio.create_task(work(1))
        await asyncio.sleep(0)
        await work(2)
        return "done"

    bench = Bench(flow)
    bench.complete("work#2")
    while bench.commit_due is not None and not bench.suspended:
        bench.commit()
    bench.settle()
    assert bench.cancelled == ["work"]
    assert [event.key for event in bench.of_type(ACTIVITY_CANCEL)] == ["render#2"]
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.output == "done"


def test_a_run_that_only_let_activities_go_waits_for_nothing_durable() -> None:
    async def flow(ctx: Context) -> None:
        render(1)
        await asyncio.Event().wait()

    bench = Bench(flow)
    bench.commit()
    assert "nothing durable" in str(bench.stuck)
