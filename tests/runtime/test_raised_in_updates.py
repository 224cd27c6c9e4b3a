"""The handler of an update that raises where that of older code did not: the run is stuck.

Fault: a deploy with a bug failed all updates for good that were under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from holdfast import Context
from holdfast.definitions.workflows import Workflow
from holdfast.errors import StepFailed
from holdfast.events import FORKED, UPDATE_ACCEPTED, UPDATE_COMPLETED, VALUE_RECORDED
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.runtime.turn.turn import RunInfo
from tests.runtime.bench import RUN_ID, SECOND, START, Bench, Code
from tests.runtime.test_raised import Way, pay, recorded, render, ship

audit = recorded("audit")
WITHIN = "~/update-move"


def by_step(bench: Bench) -> None:
    bench.complete(f"{WITHIN}/pay", 1)
    bench.settle()


def by_timer(bench: Bench) -> None:
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()


def by_activity(bench: Bench) -> None:
    bench.resume(bench.activity_completed(f"{WITHIN}/render", 1))
    bench.settle()


def by_failed_attempt(bench: Bench) -> None:
    bench.fail(f"{WITHIN}/pay", OSError("busy"), retry_in=3600)
    bench.settle()


WAYS = {
    "step": (lambda ctx: pay(1), by_step),
    "timer": (lambda ctx: ctx.sleep(60), by_timer),
    "activity": (lambda ctx: render(1), by_activity),
    "failed attempt": (lambda ctx: pay(1), by_failed_attempt),
    "waiting activity": (lambda ctx: render(1), Bench.settle),
    "nothing": (lambda ctx: asyncio.sleep(0), Bench.settle),
    "waiting timer": (lambda ctx: ctx.sleep(60), Bench.settle),
}


def versions(way: Way) -> tuple[Code, Code, Code]:
    """Return code, the same with a bug at the begin of its handler, and after its first call."""

    def version(bug: str) -> Code:
        async def code(ctx: Context) -> str:
            async def move(to: str) -> str:
                settings = {"rate": to} if not bug else {}
                if bug == "at once":
                    return settings["rate"]
                await way(ctx)
                found = settings["rate"]
                await ctx.wait_for_signal("go")
                return found

            ctx.handle_update("move", move)
            await ctx.wait_for_signal("end")
            return "done"

        return code

    return version(""), version("at once"), version("later")


def begun(code: Code) -> Bench:
    """Return a bench whose update is under way."""
    bench = Bench(code)
    bench.settle()
    bench.resume(bench.update("move", "north"))
    bench.settle()
    return bench


@pytest.mark.parametrize("signalled", ["", "go", "end"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", WAYS)
def test_a_run_is_stuck_with_the_exception_and_a_roll_back_heals_it(
    kind: str, late: bool, signalled: str
) -> None:
    way, happen = WAYS[kind]
    old, at_once, later = versions(way)
    bench = begun(old)
    happen(bench)
    if late and (kind.startswith("waiting") or kind == "failed attempt"):
        return  # the call is awaited
    if signalled:
        bench.log.append(bench.signal(signalled))
    length = len(bench.log)
    new = later if late else at_once
    found = rehearse(Workflow(new, name="flow"), RunInfo(RUN_ID, "flow", 1, 1, START), bench.log)
    assert found is not None
    assert found.kind == "stuck"
    assert "test_raised_in_updates.py" in (found.line or "")
    bench.crash(new)
    bench.settle()
    stuck = str(bench.stuck)
    assert "update move was accepted, and its handler raised KeyError: 'rate' at a place" in stuck
    assert "correct it, roll it back" in stuck
    assert "Traceback (most recent call last)" in stuck
    assert isinstance(bench.stuck.__cause__, KeyError) if bench.stuck else False
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    assert bench.notices == []
    bench.crash(old)
    assert bench.stuck is None
    bench.settle()
    if signalled == "go" and late:
        assert bench.details_of(UPDATE_COMPLETED)[0]["result"] == "north"


def test_an_app_may_let_such_updates_fail() -> None:
    old, at_once, _ = versions(WAYS["step"][0])
    bench = begun(old)
    by_step(bench)
    bench.careful = False
    bench.crash(at_once)
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["kind"] == "builtins.KeyError"


def test_an_update_that_no_code_has_begun_fails_to_its_caller() -> None:
    old, at_once, _ = versions(WAYS["step"][0])
    bench = Bench(old)
    bench.settle()
    bench.log.append(bench.update("move", "north"))
    bench.crash(at_once)
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["kind"] == "builtins.KeyError"


def test_an_answer_to_what_no_code_has_seen_fails_the_update() -> None:
    async def code(ctx: Context) -> str:
        async def move(to: str) -> str:
            await pay(1)
            await ctx.wait_for_signal("go")
            raise ValueError(to)

        ctx.handle_update("move", move)
        await audit(1)
        await ctx.wait_for_signal("end")
        return "done"

    bench = Bench(code)
    bench.complete("audit", 1)
    bench.settle()
    bench.resume(bench.update("move", "north"))
    bench.settle()
    by_step(bench)
    bench.log.append(bench.signal("go"))
    for _ in range(2):
        bench.crash()
        bench.settle()
        assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["message"] == "north"
    bench.resume(bench.signal("end"))
    bench.settle()
    assert bench.output == "done"


def test_the_run_may_be_behind_elsewhere() -> None:
    """Only the handler's own calls say that older code came further with it."""

    def version(delayed: bool) -> Code:
        async def code(ctx: Context) -> str:
            async def move(to: str) -> str:
                await ctx.wait_for_signal("go")
                raise ValueError(to)

            ctx.handle_update("move", move)
            await ctx.wait_for_signal("begin")
            if delayed:
                await ctx.sleep(600)
            await audit(1)
            return "done"

        return code

    bench = begun(version(delayed=False))
    bench.resume(bench.signal("begin"))
    bench.settle()
    bench.fail("audit", OSError("busy"), retry_in=3600)
    bench.settle()
    bench.log.append(bench.signal("go"))
    bench.crash(version(delayed=True))
    bench.settle()
    assert bench.stuck is None
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["message"] == "north"


def test_a_handler_that_raises_after_a_new_sleep_and_before_its_calls_makes_the_run_stuck() -> None:
    old, _, _ = versions(WAYS["activity"][0])

    async def new(ctx: Context) -> str:
        async def move(to: str) -> str:
            await ctx.sleep(5)
            raise KeyError(to)

        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return "done"

    bench = begun(old)
    bench.crash(new)
    bench.settle()
    bench.now += 6 * SECOND
    bench.resume()
    bench.settle()
    assert "its handler raised KeyError: 'north'" in str(bench.stuck)


@pytest.mark.parametrize("how", ["large", "refused value", "given back"])
def test_code_that_has_not_changed_fails_an_update_whose_answer_was_not_committed(how: str) -> None:
    """The answer was in a later commit than the result that led to it."""

    async def code(ctx: Context) -> str:
        async def move(to: str) -> str:
            with contextlib.suppress(StepFailed):
                await pay(1)
            ctx.set_value("at", "x" * (9_000_000 if how == "large" else 1))
            ctx.set_value("then", "x" * (9_000_000 if how == "large" else 1))
            raise ValueError(to)

        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return "done"

    bench = begun(code)
    bench.complete(f"{WITHIN}/pay", 1)
    if how == "given back":
        bench.log += bench.unrecorded()
    elif how == "refused value":
        bench.commit_due = None
        bench.take(bench.turn.invalid("what is this"))
        bench.commit()
        bench.commit()
    else:
        bench.commit()
        bench.commit()
    assert f"{WITHIN}/pay" in [event.key for event in bench.log]
    assert not bench.of_type(UPDATE_COMPLETED)
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == ["raised:u"]
    bench.crash()
    assert bench.stuck is None
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["message"] == "north"


def test_a_fork_repeats_the_failure_of_an_update() -> None:
    async def code(ctx: Context) -> str:
        async def move(to: str) -> str:
            await pay(1)
            raise ValueError(to)

        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return "done"

    bench = begun(code)
    by_step(bench)
    [place] = [n for n, event in enumerate(bench.log) if event.type == UPDATE_COMPLETED]
    text = json.dumps({"run_id": str(RUN_ID), "idx": place, "seed": str(RUN_ID)})
    bench.log = [*bench.log[:place], bench.plain(FORKED, text)]
    bench.claim()
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["message"] == "north"
    bench.crash()
    assert bench.stuck is None


def test_a_cancelled_run_ends_although_a_handler_raises() -> None:
    old, at_once, _ = versions(WAYS["step"][0])
    bench = begun(old)
    by_step(bench)
    bench.log.append(bench.cancel_request())
    bench.crash(at_once)
    bench.settle()
    assert bench.ended == "cancelled"


def test_a_task_of_a_handler_may_be_left_behind_by_its_failure() -> None:
    async def code(ctx: Context) -> str:
        async def move(to: str) -> str:
            beside = asyncio.create_task(ship(1))
            await pay(1)
            raise ValueError(beside.get_name())

        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return "done"

    bench = begun(code)
    by_step(bench)
    assert bench.of_type(UPDATE_ACCEPTED)
    for _ in range(2):
        bench.crash()
        assert bench.stuck is None
        bench.settle()
    assert len(bench.of_type(UPDATE_COMPLETED)) == 1


@pytest.mark.parametrize("timer", ["a sleep", "a timeout"])
def test_a_handler_may_refuse_what_comes_although_a_timer_was_removed(timer: str) -> None:
    """Fault: the run was stuck."""

    def version(sleep: float, limit: float | None) -> Code:
        async def code(ctx: Context) -> str:
            async def move(to: str) -> str:
                if sleep:
                    await ctx.sleep(sleep)
                await pay(1)
                if not await ctx.wait_for_signal("go", timeout=limit):
                    raise ValueError("refused")
                return to

            ctx.handle_update("move", move)
            await ctx.wait_for_signal("end")
            return "done"

        return code

    is_sleep = timer == "a sleep"
    bench = begun(version(60, None) if is_sleep else version(0, 600))
    if is_sleep:
        by_timer(bench)
    by_step(bench)
    bench.crash(version(0, None))
    bench.settle()
    bench.resume(bench.signal("go", 0))
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["error"]["message"] == "refused"


def test_an_accepted_update_whose_decoding_raises_makes_the_run_stuck() -> None:
    def version(kind: type) -> Code:
        async def code(ctx: Context) -> str:
            async def move(to: object) -> None:
                await ctx.wait_for_signal("go")

            move.__annotations__["to"] = kind
            ctx.handle_update("move", move)
            await ctx.wait_for_signal("end")
            return "done"

        return code

    bench = begun(version(str))
    bench.crash(version("Unknown"))  # type: ignore[arg-type]
    assert "update move was accepted, and does not fit the code" in str(bench.stuck)
    assert not bench.of_type(UPDATE_COMPLETED)
    bench.crash(version(str))
    assert bench.stuck is None


@pytest.mark.parametrize("early", ["empty", "at once", "between", "timer"])
def test_a_handler_that_returns_before_its_recorded_calls_makes_the_run_stuck(early: str) -> None:
    """Fault: its answer was recorded, and what it had not done was never done."""

    def version(early: str) -> Code:
        async def code(ctx: Context) -> str:
            async def move(to: str) -> str:
                if early in ("empty", "at once"):
                    return "early"
                await pay(1)
                if early == "between":
                    return "early"
                await ship(1)
                if early != "timer":
                    await ctx.sleep(60)
                return to

            ctx.handle_update("move", move)
            await ctx.wait_for_signal("end")
            return "done"

        return code

    bench = begun(version(""))
    for key in ("pay", "ship"):
        bench.complete(f"{WITHIN}/{key}", 1)
        bench.settle()
    length = len(bench.log)
    bench.crash(version(early))
    bench.settle()
    if early == "timer":  # a sleep may be removed
        assert bench.details_of(UPDATE_COMPLETED)[0]["result"] == "north"
        return
    assert "its handler has returned although the log has step" in str(bench.stuck)
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(version(""))
    assert bench.stuck is None
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["result"] == "north"


def test_a_handler_may_return_before_its_tasks_make_their_calls() -> None:
    async def code(ctx: Context) -> str:
        async def later() -> None:
            await pay(1)
            await ship(1)

        async def move(to: str) -> str:
            tasks.append(asyncio.create_task(later()))
            await audit(1)
            return to

        tasks: list[asyncio.Task[None]] = []
        ctx.handle_update("move", move)
        await ctx.wait_for_signal("end")
        return "done"

    bench = begun(code)
    bench.complete(f"{WITHIN}/audit", 1)
    bench.complete(f"{WITHIN}/later/pay", 1)
    bench.complete(f"{WITHIN}/later/ship", 1)
    bench.log += bench.unrecorded()
    assert not bench.of_type(UPDATE_COMPLETED)
    bench.crash(code)
    bench.settle()
    assert bench.stuck is None
    assert bench.details_of(UPDATE_COMPLETED)[0]["result"] == "north"
