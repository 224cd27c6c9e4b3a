"""Child runs as their parent's code sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.errors import ChildFailed, ConfigurationError, RunCancelled
from holdfast.events import CANCELLED, CHILD_CANCEL, CHILD_STARTED, FORKED, SIGNAL_SENT, TIMER_FIRED
from holdfast.testing import Environment
from holdfast.types import ANY_END, Suspend
from holdfast.values.ids import child_run_id, keyed_run_id
from tests.runtime.bench import RUN_ID, START, Bench

OTHER_ID = UUID("0198c0de-0000-7000-8000-000000000001")


async def _ship(ctx: Context, order: int) -> int:
    raise AssertionError("another turn runs it")


ship = Workflow(_ship, name="ship", version=3, queue="docks", timeout="1h", priority=1)


def test_calling_a_workflow_starts_a_child_run_and_returns_its_output() -> None:
    async def flow(ctx: Context) -> int:
        return await ship(7)

    bench = Bench(flow)
    part = bench.commit()
    assert part.has_commands
    assert part.then == Suspend(None, (ANY_END,))
    [started] = bench.details_of(CHILD_STARTED)
    assert started["child_run_id"] == str(child_run_id(RUN_ID, "ship", START))
    wanted = {
        "workflow_name": "ship/ship",
        "version": 3,
        "input": 7,
        "queue": "docks",
        "priority": 1,
        "key": None,
        "parent_close": "cancel",
        "timeout": 3600.0,
        "retention": 30 * 86400.0,
        "tags": [],
    }
    assert {name: started[name] for name in wanted} == wanted
    bench.crash()
    bench.settle()
    bench.resume(bench.child_completed("ship", 70))
    part = bench.commit()
    assert bench.output == 70
    assert part.has_children
    assert len(bench.of_type(CHILD_STARTED)) == 1


def test_ids_of_children_begin_with_the_time_of_their_parent() -> None:
    calls = [("ship", START), ("ship#2", START), ("ship", START + 1)]
    ids = [child_run_id(RUN_ID, key, began) for key, began in calls]
    assert len(set(ids)) == 3
    assert {each.bytes[:6] for each in ids} == {RUN_ID.bytes[:6]}
    assert ids[0].version == 8


def test_options_of_a_call_come_before_those_of_the_workflow() -> None:
    async def flow(ctx: Context) -> object:
        return await ctx.child(
            ship, 1, key="o-1", queue="air", priority=4, timeout="5m", tags=["a"], id="first"
        )

    bench = Bench(flow)
    bench.settle()
    [started] = bench.details_of(CHILD_STARTED)
    assert bench.of_type(CHILD_STARTED)[0].key == "first"
    assert started["child_run_id"] == str(keyed_run_id("ship/ship", "o-1"))
    assert (started["queue"], started["priority"], started["key"]) == ("air", 4, "o-1")
    assert (started["timeout"], started["tags"]) == (300.0, ["a"])


def test_a_workflow_of_another_program_is_started_by_its_name() -> None:
    async def flow(ctx: Context) -> list[object]:
        typed = await ctx.child("pack", {"id": 1}, version=2, type=tuple[int, int])
        return [typed == (1, 2), await ctx.child("ship", 1)]

    registry = Registry("shop")
    options: Any = {"name": "ship", "version": 3, "queue": "docks", "registry": registry}
    registry.add_workflow(Workflow(_ship, **options))
    bench = Bench(flow, registry=registry)
    bench.settle()
    bench.resume(bench.child_completed("pack", [1, 2]))
    bench.settle()
    bench.resume(bench.child_completed("ship", 5))
    bench.settle()
    assert bench.output == [True, 5]
    pack, known = bench.details_of(CHILD_STARTED)
    assert (pack["workflow_name"], known["workflow_name"]) == ("shop/pack", "shop/ship")
    assert (pack["version"], pack["queue"], known["version"], known["queue"]) == (
        2, None, 3, "docks",
    )  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "cancelled", "timed_out", "terminated", "refused"])
def test_a_child_that_does_not_complete_is_a_typed_error(status: str) -> None:
    async def flow(ctx: Context) -> list[object]:
        try:
            await ship(1)
        except ChildFailed as error:
            return [error.key, error.status, str(error.child_run_id), error.matches(OSError)]
        return []

    bench = Bench(flow)
    bench.settle()
    cause = OSError("gone") if status == "failed" else None
    bench.resume(bench.child_failed("ship", status, cause))
    bench.settle()
    assert bench.output == ["ship", status, str(bench.child_id("ship")), status == "failed"]


def test_the_error_of_a_cancelled_child_says_that_it_was_cancelled() -> None:
    async def flow(ctx: Context) -> bool:
        try:
            await ship(1)
        except ChildFailed as error:
            return error.matches(RunCancelled)
        return False

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.child_failed("ship", "cancelled"))
    bench.settle()
    assert bench.output is True


def test_the_failure_of_a_child_is_the_cause_of_its_parents_failure() -> None:
    async def flow(ctx: Context) -> int:
        return await ship(1)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.child_failed("ship", "failed", OSError("gone")))
    bench.settle()
    assert bench.error["kind"] == "holdfast.errors.ChildFailed"
    assert bench.error["cause"]["kind"] == "builtins.OSError"


def test_cancelling_the_wait_for_a_child_cancels_the_child_too() -> None:
    """S10. B6."""

    async def flow(ctx: Context) -> int:
        return await ship(1)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    part = bench.commit()
    assert [event.type for event in part.events] == [CHILD_CANCEL, CANCELLED]
    assert part.touches == (bench.child_id("ship"),)
    assert part.has_children


def test_the_handle_of_a_child_that_was_let_go_has_its_end() -> None:
    async def flow(ctx: Context) -> list[object]:
        handle = await ctx.start_child(ship, 1)
        handle.signal("express", {"by": "ann"})
        await ctx.wait_for_signal("go")
        return [str(handle.run_id), await handle.result(), await handle.result()]

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events] == [CHILD_STARTED, SIGNAL_SENT]
    assert part.touches == (bench.child_id("ship"),)
    assert bench.details_of(CHILD_STARTED)[0]["parent_close"] == "abandon"
    assert bench.details_of(SIGNAL_SENT) == [
        {
            "run_id": str(bench.child_id("ship")),
            "signal_name": "express",
            "input": {"by": "ann"},
            "signal_id": f"{RUN_ID}@{START}/signal",
        }
    ]
    assert bench.suspend == Suspend(None, ("go",))
    bench.resume(bench.child_completed("ship", 3))
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output == [str(bench.child_id("ship")), 3, 3]


def test_cancelling_the_wait_for_a_handle_leaves_its_child_alone() -> None:
    async def flow(ctx: Context) -> str:
        handle = await ctx.start_child(ship, 1)
        try:
            await asyncio.wait_for(handle.result(), 5)
        except TimeoutError:
            handle.cancel("too slow")
            handle.cancel("again")
        try:
            await handle.result()
        except ChildFailed as error:
            return error.status
        return ""

    bench = Bench(flow)
    bench.settle()
    bench.now += 6_000_000
    bench.resume()
    part = bench.commit()
    assert [event.type for event in part.events] == [TIMER_FIRED, CHILD_CANCEL]
    assert bench.details_of(CHILD_CANCEL)[0]["reason"] == "too slow"
    assert part.touches == (bench.child_id("ship"),)
    bench.crash()
    bench.settle()
    bench.resume(bench.child_failed("ship", "cancelled"))
    bench.settle()
    assert bench.output == "cancelled"
    assert len(bench.of_type(CHILD_CANCEL)) == 1


def test_calls_with_one_key_share_a_child() -> None:
    """B3. Both settle from the end that is told under the first call's key."""

    async def flow(ctx: Context) -> list[object]:
        both = await asyncio.gather(ctx.child(ship, 1, key="k"), ctx.child(ship, 2, key="k"))
        return [*both, await ctx.child(ship, 3, key="k")]

    bench = Bench(flow)
    bench.settle()
    assert [event.key for event in bench.of_type(CHILD_STARTED)] == ["ship"]
    bench.crash()
    bench.settle()
    bench.resume(bench.child_completed("ship", 9))
    bench.settle()
    assert bench.output == [9, 9, 9]
    assert len(bench.of_type(CHILD_STARTED)) == 1


def test_a_shared_child_is_cancelled_when_its_last_waiter_is() -> None:
    async def flow(ctx: Context) -> None:
        first = asyncio.create_task(ctx.child(ship, 1, key="k"))
        second = asyncio.create_task(ctx.child(ship, 1, key="k"))
        for task in (first, second):
            await ctx.wait_for_signal("next")
            task.cancel()
        await ctx.wait_for_signal("next")

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.signal("next"))
    bench.settle()
    assert not bench.of_type(CHILD_CANCEL)
    bench.resume(bench.signal("next"))
    bench.settle()
    assert len(bench.of_type(CHILD_CANCEL)) == 1


def test_the_end_of_a_child_is_a_commit_that_concerns_its_parent() -> None:
    async def flow(ctx: Context) -> str:
        return str(ctx.parent_run_id)

    bench = Bench(flow, parent=OTHER_ID)
    part = bench.commit()
    assert part.touches == (OTHER_ID,)
    assert not part.has_commands
    assert bench.output == str(OTHER_ID)


def test_another_run_is_signalled_once() -> None:
    """T5."""

    async def flow(ctx: Context) -> None:
        ctx.signal_run(OTHER_ID, "go", 1)
        await ctx.sleep(60)

    bench = Bench(flow)
    part = bench.commit()
    assert part.has_commands
    assert part.touches == (OTHER_ID,)
    bench.crash()
    bench.settle()
    assert len(bench.of_type(SIGNAL_SENT)) == 1


def test_a_fork_starts_its_own_children_even_if_they_have_keys() -> None:
    """B3. What failed in its origin's child can be tried again; what completed is kept."""

    async def flow(ctx: Context) -> object:
        return [await ctx.child(ship, n, key=f"o-{n}") for n in range(2)]

    origin = Bench(flow)
    origin.settle()
    kept = [*origin.of_type(CHILD_STARTED), origin.child_completed("ship", 1)]
    bench = Bench(flow)
    bench.turn.abandon()
    forked = json.dumps({"run_id": str(OTHER_ID), "idx": 3, "seed": str(OTHER_ID)})
    bench.log = [bench.log[0], *kept, bench.plain(FORKED, forked)]
    bench.claim()
    bench.settle()
    [_, started] = bench.details_of(CHILD_STARTED)
    began = bench.log[3].at
    assert started["child_run_id"] == str(child_run_id(RUN_ID, "ship/ship\0o-1", began))
    assert started["key"] is None


def test_another_workflow_under_a_key_makes_the_run_stuck() -> None:
    """S6. T9."""

    async def old(ctx: Context) -> None:
        await ctx.child(ship, 1, id="do")

    async def new(ctx: Context) -> None:
        await ctx.child("pack", 1, id="do")

    bench = Bench(old)
    bench.settle()
    bench.crash(new)
    assert "a call of child flow/pack now, and a call of child ship/ship in the log" in str(
        bench.stuck
    )


def test_a_workflow_is_not_called_outside_of_one() -> None:
    with pytest.raises(ConfigurationError, match=r"client\.start"):
        ship(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 9}, "priority: a whole number from 0 to 4"),
        ({"parent_close": "kill"}, "parent_close is terminate, cancel, abandon, not 'kill'"),
        ({"quue": "air", "delay": 1}, "a child: unexpected option quue: did you mean queue?"),
    ],
)
@pytest.mark.parametrize("call", [Context.child, Context.start_child])
def test_a_bad_option_is_refused_at_the_call(
    call: Callable[..., Awaitable[object]], options: dict[str, object], message: str
) -> None:
    async def flow(ctx: Context) -> str:
        try:
            await call(ctx, ship, 1, **options)
        except (ConfigurationError, TypeError) as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    assert message in bench.output
    assert bench.of_type(CHILD_STARTED) == []


async def test_forks_of_forks_follow_the_keys_that_their_logs_lack() -> None:
    app = App("shop")

    @app.workflow
    async def pack(ctx: Context, number: int) -> int:
        return number

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        packed = [await ctx.child(pack, 1, key="o-1")]
        for number in (2, 3):
            await ctx.wait_for_signal("go")
            packed.append(await ctx.child(pack, number, key=f"o-{number}"))
        return packed

    async with Environment(app) as env:
        runs = [await env.client.start(order)]
        for _ in range(2):
            await env.wait_until_idle()
            runs.append(await env.client.runs.fork(runs[-1].run_id))
            await env.wait_until_idle()
            await runs[-1].signal("go")
            await env.kill()
        for left, run in zip((2, 1, 0), runs, strict=True):
            for _ in range(left):
                await run.signal("go")
            assert await env.result(run) == [1, 2, 3]
