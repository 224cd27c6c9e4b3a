"""Continuing as new, and runs that were forked from another's log."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.errors import ConfigurationError
from holdfast.events import (
    ACTIVITY_SCHEDULED,
    CONTINUED,
    FORKED,
    PAUSED,
    RESUMED,
    UPDATE_ACCEPTED,
    UPDATE_REPLIES,
)
from holdfast.types import Finish, Notice
from tests.runtime.bench import RUN_ID, Bench

ORIGIN = UUID("0198c0de-0000-7000-8000-00000000000a")


async def _elsewhere(item: int) -> int:
    raise AssertionError("the test gives the results")


render = Activity(_elsewhere, name="render")
work = Step(_elsewhere, name="work")


async def count(ctx: Context, n: int) -> int:
    await ctx.wait_for_signal("tick")
    if n < 3:
        ctx.continue_as_new(n + 1)
    return n


def test_a_run_continues_as_new_with_the_messages_that_it_has_not_read() -> None:
    bench = Bench(count, given=1)
    bench.settle()
    late = bench.update("report", {"to": "ann"}, "u1")
    bench.resume(bench.signal("tick"), bench.signal("tick", 2), late)
    part = bench.commit()
    assert [event.type for event in part.events] == [CONTINUED]
    assert part.has_commands
    [new] = bench.details_of(CONTINUED)
    assert part.then == Finish("continued", json.dumps({"run_id": new["run_id"]}).replace(" ", ""))
    assert (new["input"], new["version"]) == (2, 1)
    assert new["signals"] == [
        {"signal_name": "tick", "input": 2, "key": None, "update": False, "reply_to": None},
        {
            "signal_name": "report",
            "input": {"to": "ann"},
            "key": "u1",
            "update": True,
            "reply_to": "client/1",
        },
    ]
    assert UUID(new["run_id"]) != RUN_ID
    assert bench.ended == "continued"


def test_a_signal_that_comes_as_a_run_continues_goes_along() -> None:
    """Trap 1. Trap 6."""
    bench = Bench(count, given=1)
    bench.settle()
    bench.resume(bench.signal("tick"))
    bench.refuse(bench.signal("tick", "late"))
    bench.settle()
    [new] = bench.details_of(CONTINUED)
    assert [signal["input"] for signal in new["signals"]] == ["late"]


async def serve(ctx: Context, n: int) -> None:
    ctx.handle_update("add", lambda: n)
    await ctx.wait_for_signal("tick")
    ctx.continue_as_new(n + 1)


def continuing() -> Bench:
    """A run whose code has ended, and whose commit is under way."""
    bench = Bench(serve, given=1)
    bench.settle()
    bench.resume(bench.signal("tick"))
    return bench


def test_an_update_that_comes_as_a_run_continues_goes_along() -> None:
    """Trap 1. Trap 6. The handler that it has is of no use any more."""
    bench = continuing()
    bench.refuse(bench.update("add", None, "u1"))
    bench.settle()
    [new] = bench.details_of(CONTINUED)
    assert [(each["key"], each["update"]) for each in new["signals"]] == [("u1", True)]
    assert UPDATE_ACCEPTED not in bench.types()


def test_messages_that_were_not_taken_before_the_end_go_along() -> None:
    """Trap 1. S5. Tasks that would have been next do not take it any more."""

    async def flow(ctx: Context) -> None:
        async def read() -> None:
            await ctx.wait_for_signal("note")

        await ctx.wait_for_signal("tick")
        asyncio.create_task(read())
        ctx.handle_update("add", lambda: 1)
        ctx.continue_as_new()

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.signal("note"), bench.update("add", None, "u1"), bench.signal("tick"))
    bench.settle()
    [new] = bench.details_of(CONTINUED)
    assert [each["signal_name"] for each in new["signals"]] == ["note", "add"]
    assert not [kind for kind in bench.types() if kind in UPDATE_REPLIES]
    assert bench.notices == [Notice("client/1", f"{RUN_ID} u1")]


def test_a_cancel_that_comes_as_a_run_continues_ends_it() -> None:
    """S10. Trap 16. Nobody would tell the run that follows."""
    bench = continuing()
    bench.refuse(bench.cancel_request())
    bench.settle()
    assert bench.ended == "cancelled"


def test_a_cancel_that_the_code_has_heard_does_not_keep_it_from_continuing() -> None:
    """S10. The code has the last word."""

    async def stubborn(ctx: Context, n: int) -> None:
        try:
            await ctx.wait_for_signal("tick")
        except asyncio.CancelledError:
            ctx.continue_as_new(n + 1)

    bench = Bench(stubborn, given=1)
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.ended == "continued"


@pytest.mark.parametrize("crash", [False, True])
def test_a_run_that_is_paused_as_it_continues_does_so_when_it_is_resumed(crash: bool) -> None:
    """Trap 1. The run that follows would not be paused."""
    bench = continuing()
    bench.refuse(bench.plain(PAUSED, '{"reason":null}'))
    bench.settle()
    assert bench.suspended
    if crash:
        bench.crash()
        bench.settle()
    bench.resume(bench.plain(RESUMED))
    bench.settle()
    assert bench.ended == "continued"


def test_a_child_that_continues_tells_its_parent_nothing() -> None:
    bench = Bench(count, given=1, parent=ORIGIN)
    bench.settle()
    bench.resume(bench.signal("tick"))
    assert bench.commit().touches == ()


def test_a_run_continues_after_the_end_of_activities_that_it_let_go() -> None:
    async def flow(ctx: Context) -> None:
        render(1)
        ctx.continue_as_new()

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.ended == "continued"


def test_an_input_that_a_start_would_refuse_is_refused() -> None:
    async def flow(ctx: Context, n: int) -> str:
        try:
            ctx.continue_as_new("many")
        except ValueError as error:
            return str(error)

    bench = Bench(flow, given=1)
    bench.settle()
    assert "input of flow" in bench.output


def test_only_the_workflows_own_task_continues_the_run() -> None:
    async def flow(ctx: Context) -> str:
        async def stray() -> None:
            ctx.continue_as_new()

        try:
            await asyncio.create_task(stray())
        except ConfigurationError as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    assert "own task" in bench.output


async def chance(ctx: Context) -> list[object]:
    found: list[object] = [ctx.random.random(), str(ctx.uuid())]
    await work(1)
    return [*found, ctx.random.random(), str(ctx.uuid())]


@pytest.mark.parametrize("at", [1, 2])
def test_a_fork_draws_the_random_numbers_of_its_origin(at: int) -> None:
    """S6. What derives from a run's id must not change under a copied log."""
    origin = Bench(chance)
    origin.complete("work", 1)
    origin.settle()
    forked = json.dumps({"run_id": str(RUN_ID), "idx": at, "seed": str(RUN_ID)})
    fork = Bench(chance)
    fork.turn.abandon()
    fork.run_id = ORIGIN
    fork.log = [*origin.log[:at], fork.plain(FORKED, forked)]
    fork.claim()
    if at == 1:
        fork.complete("work", 1)
    fork.settle()
    assert fork.output == origin.output


def test_a_fork_schedules_nothing_that_has_a_copied_end() -> None:
    """Results that are kept come before the calls that they belong to."""

    async def flow(ctx: Context) -> list[int]:
        first = render(1)
        return [await work(1), await first, await render(2)]

    bench = Bench(flow)
    bench.turn.abandon()
    forked = json.dumps({"run_id": str(ORIGIN), "idx": 3, "seed": str(ORIGIN)})
    ends = [bench.activity_completed("render", 1), bench.activity_completed("render#2", 2)]
    bench.log = [bench.log[0], *ends, bench.plain(FORKED, forked)]
    bench.strict = True
    bench.claim()
    bench.complete("work", 5)
    bench.settle()
    assert bench.output == [5, 1, 2]
    assert not bench.of_type(ACTIVITY_SCHEDULED)
