"""Code that raises where older code did not: the run is stuck, and does not fail.

Fault: a deploy with a bug ended all open runs for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Client, Context
from holdfast.client.run import Run
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.errors import ChildFailed, StepFailed
from holdfast.events import FORKED, STEP_COMPLETED, VALUE_RECORDED
from holdfast.runtime.code.history import CALLS
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.runtime.turn.turn import RunInfo
from holdfast.store.memory import MemoryStore
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, SECOND, START, Bench, Code
from tests.runtime.desk import eventually, working


def recorded(name: str) -> Step[[object], int]:
    def fn(item: object) -> int:
        raise AssertionError("the test gives the results")

    return Step(fn, name=name)


async def _elsewhere(item: object) -> int:
    raise AssertionError("the test gives the results")


pay, ship = recorded("pay"), recorded("ship")
render = Activity(_elsewhere, name="render")
Way = Callable[[Context], Any]


def by_step(bench: Bench) -> None:
    bench.complete("pay", 1)
    bench.settle()


def by_timer(bench: Bench) -> None:
    bench.settle()
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()


def by_activity(bench: Bench) -> None:
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()


def by_failed_attempt(bench: Bench) -> None:
    bench.fail("pay", OSError("busy"), retry_in=3600)
    bench.settle()


def by_nothing(bench: Bench) -> None:
    bench.settle()


WAYS: dict[str, tuple[Way, Callable[[Bench], None]]] = {
    "step": (lambda ctx: pay(1), by_step),
    "timer": (lambda ctx: ctx.sleep(60), by_timer),
    "activity": (lambda ctx: render(1), by_activity),
    "failed attempt": (lambda ctx: pay(1), by_failed_attempt),
    "nothing": (lambda ctx: asyncio.sleep(0), by_nothing),
}


def versions(way: Way) -> tuple[Code, Code, Code]:
    """Return code, the same with a bug at its begin, and with one after the first call."""

    async def old(ctx: Context) -> str:
        await way(ctx)
        await ctx.wait_for_signal("end")
        return "done"

    async def at_once(ctx: Context) -> str:
        settings: dict[str, str] = {}
        return settings["rate"]

    async def later(ctx: Context) -> str:
        await way(ctx)
        return await at_once(ctx)

    return old, at_once, later


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", WAYS)
def test_a_run_is_stuck_with_the_exception_and_a_roll_back_heals_it(
    kind: str, late: bool, signalled: bool, strict: bool
) -> None:
    way, happen = WAYS[kind]
    old, at_once, later = versions(way)
    bench = Bench(old, strict=strict)
    happen(bench)
    if signalled:
        bench.log.append(bench.signal("end"))
    length = len(bench.log)
    bench.crash(later if late else at_once)
    bench.settle()
    if kind == "failed attempt" and late:
        assert bench.stuck is None, "the call that is tried again is awaited"
        return
    stuck = str(bench.stuck)
    assert "the code raised KeyError: 'rate'" in stuck
    assert "correct it, roll it back" in stuck
    assert "aliases" not in stuck
    assert "Traceback (most recent call last)" in stuck
    assert 'return settings["rate"]' in stuck
    assert isinstance(bench.stuck.__cause__, KeyError) if bench.stuck else False
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(old)
    assert bench.stuck is None


def test_the_calls_that_the_code_has_not_made_are_named_with_the_exception() -> None:
    old, at_once, _ = versions(WAYS["step"][0])
    bench = Bench(old)
    by_step(bench)
    bench.crash(at_once)
    assert "although the log has step pay under 'pay', which it has not called" in str(bench.stuck)


def test_an_exception_in_answer_to_what_no_code_has_seen_fails_the_run() -> None:
    async def code(ctx: Context) -> None:
        await pay(1)
        await ctx.wait_for_signal("end")
        raise ValueError("no")

    bench = Bench(code)
    by_step(bench)
    bench.log.append(bench.signal("end"))
    bench.log.append(bench.signal("unread"))
    bench.crash()
    bench.settle()
    assert bench.error["message"] == "no"


def test_a_run_whose_failure_was_not_committed_fails_when_it_is_replayed() -> None:
    async def code(ctx: Context) -> None:
        ctx.set_value("at", 1)
        await ship(1)
        await pay(1)
        ctx.set_value("at", 2)
        raise ValueError("no")

    bench = Bench(code)
    bench.complete("ship", 1)
    bench.settle()
    bench.complete("pay", 1)
    assert bench.commit_due is not None
    bench.crash()
    assert bench.starts == ["pay"]
    bench.complete("pay", 1)
    bench.settle()
    assert bench.error["message"] == "no"


def test_a_step_that_failed_ends_its_run_also_when_the_commit_was_lost() -> None:
    async def code(ctx: Context) -> None:
        await pay(1)

    bench = Bench(code)
    bench.fail("pay", OSError("refused"))
    bench.crash()
    bench.fail("pay", OSError("refused"))
    bench.settle()
    assert bench.error["kind"].endswith("StepFailed")


async def raises_after_two(ctx: Context) -> None:
    await asyncio.gather(pay(1), ship(1))
    ctx.set_value("at", "the end")
    raise ValueError("no")


@pytest.mark.parametrize("how", ["storm", "refused value", "large"])
def test_an_exception_whose_end_comes_in_a_later_commit_is_said_before(how: str) -> None:
    """Else a crash between the two would leave a run that older code seems to have continued."""

    async def large(ctx: Context) -> None:
        await pay(1)
        for _ in range(3):
            ctx.set_value("at", "x" * 4_000_000)
        raise ValueError("no")

    bench = Bench(large if how == "large" else raises_after_two)
    if how != "large":
        bench.complete("ship", 1)
        bench.commit()
    bench.complete("pay", 1)
    if how == "storm":
        for _ in range(3):
            bench.refuse(bench.signal("other"))
    elif how == "refused value":
        bench.commit_due = None
        bench.take(bench.turn.invalid("what is this"))
    while "pay" not in [event.key for event in bench.log]:
        bench.commit()
    assert bench.ended is None, "the commits come apart"
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == ["raised"]
    bench.crash()
    assert bench.stuck is None
    bench.settle()
    assert bench.error["message"] == "no"


def test_the_results_that_a_blocked_worker_gives_back_say_that_the_code_has_raised() -> None:
    async def raising(ctx: Context) -> None:
        beside = asyncio.create_task(ship(1))
        await pay(1)
        raise ValueError(beside.get_name())

    bench = Bench(raising)
    bench.complete("pay", 1)
    bench.complete("ship", 1)
    bench.log += bench.unrecorded()
    bench.crash()
    assert bench.stuck is None
    bench.settle()
    assert bench.error["kind"] == "builtins.ValueError"


@pytest.mark.parametrize("fact", [False, True])
def test_a_fork_repeats_the_failure_of_its_origin(fact: bool) -> None:
    async def code(ctx: Context) -> None:
        await pay(1)
        if fact:
            ctx.set_value("at", 1)
        raise ValueError("no")

    bench = Bench(code)
    bench.complete("pay", 1)
    bench.settle()
    assert bench.ended == "failed"
    text = json.dumps({"run_id": str(RUN_ID), "idx": len(bench.log), "seed": str(RUN_ID)})
    bench.log = [*bench.log[:-1], bench.plain(FORKED, text)]
    bench.claim()
    bench.settle()
    assert bench.error["message"] == "no"


def test_a_fork_that_continued_is_stuck_as_any_other_run() -> None:
    old, at_once, later = versions(WAYS["step"][0])
    bench = Bench(old)
    by_step(bench)
    text = json.dumps({"run_id": str(RUN_ID), "idx": 2, "seed": str(RUN_ID)})
    bench.log = [*bench.log[:2], bench.plain(FORKED, text)]
    bench.claim(old)
    bench.settle()
    for code in (later, at_once):
        bench.crash(code)
        assert "KeyError" in str(bench.stuck)


def test_an_app_may_let_such_runs_fail() -> None:
    old, at_once, _ = versions(WAYS["step"][0])
    bench = Bench(old)
    by_step(bench)
    bench.careful = False
    bench.crash(at_once)
    bench.settle()
    assert bench.error["kind"] == "builtins.KeyError"


def test_a_cancelled_run_ends_although_its_code_has_changed() -> None:
    async def old(ctx: Context) -> None:
        await pay(1)
        await ctx.wait_for_signal("end")

    async def second(ctx: Context) -> None:
        await ctx.wait_for_signal("end")

    bench = Bench(old)
    by_step(bench)
    bench.log.append(bench.cancel_request())
    bench.crash(second)
    bench.settle()
    assert bench.ended == "cancelled"


@pytest.mark.parametrize("kind", ["activity", "child"])
def test_a_cancelled_run_that_ends_starts_nothing_that_may_be_recorded(kind: str) -> None:
    """Its cleanup may be recorded under another name: a cancel ends the run without it."""
    undo: dict[str, Callable[[Context, str], Any]] = {
        "activity": lambda ctx, name: ctx.activity(name, 1),
        "child": lambda ctx, name: ctx.child(name, 1),
    }

    def version(name: str, wait: bool) -> Code:
        async def code(ctx: Context) -> None:
            try:
                await render(1)
                await ctx.wait_for_signal("end")
            finally:
                undo[kind](ctx, name)
                if wait:
                    await ctx.wait_for_signal("undone")

        return code

    bench = Bench(version("undo", wait=True))
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    given = [event.key for event in bench.log if event.type in CALLS]
    bench.crash(version("undo-2", wait=False))
    bench.settle()
    assert bench.ended == "cancelled"
    assert [event.key for event in bench.log if event.type in CALLS] == given


def test_a_recorded_failure_does_not_excuse_another_before_recorded_calls() -> None:
    """The log says that older code raised, but not here: the code has changed."""

    async def old(ctx: Context) -> None:
        await pay(1)
        await ship(1)
        raise ValueError("no")

    async def new(ctx: Context) -> None:
        await pay(1)
        raise KeyError("rate")

    bench = Bench(old)
    bench.complete("pay", 1)
    bench.settle()
    bench.complete("ship", 1)
    bench.log += bench.unrecorded()
    bench.crash(new)
    assert "KeyError" in str(bench.stuck)
    bench.crash(old)
    bench.settle()
    assert bench.error["message"] == "no"


def test_a_failure_after_facts_of_a_commit_that_was_overtaken_fails_the_run() -> None:
    """Facts of a commit do not prove that the code saw what others wrote before it."""

    async def paying(ctx: Context) -> None:
        await pay(1)
        ctx.set_value("at", 1)
        await ctx.wait_for_signal("end")

    async def code(ctx: Context) -> None:
        await asyncio.gather(paying(ctx), render(1))

    bench = Bench(code)
    bench.settle()
    bench.complete("paying/pay", 1)
    for _ in range(3):
        bench.refuse(bench.signal("other"))
    part = bench.commit_due
    assert part is not None
    assert part.after_others
    bench.log += [bench.activity_failed("render", OSError("no")), *part.events]
    bench.crash()
    assert bench.stuck is None
    bench.settle()
    assert bench.error["kind"].endswith("ActivityFailed")


@pytest.mark.parametrize("again", [False, True])
def test_code_that_returns_before_recorded_calls_does_not_end_its_run(again: bool) -> None:
    old, _, _ = versions(WAYS["step"][0])

    async def early(ctx: Context) -> None:
        if again:
            ctx.continue_as_new()

    bench = Bench(old)
    by_step(bench)
    length = len(bench.log)
    bench.crash(early)
    assert "and the code has ended" in str(bench.stuck)
    assert len(bench.log) == length + 1
    bench.crash(old)
    assert bench.stuck is None


def test_an_exception_that_older_code_raised_and_handled_is_none_of_the_run() -> None:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
        except StepFailed:
            await ship(1)

    bench = Bench(code)
    bench.fail("pay", OSError("refused"))
    bench.settle()
    bench.crash()
    bench.complete("ship", 1)
    bench.settle()
    assert bench.ended == "completed"
    assert [event.key for event in bench.of_type(STEP_COMPLETED)] == ["ship"]


def test_a_parent_waits_for_a_child_that_is_stuck_until_the_code_is_corrected() -> None:
    asyncio.run(_deploy())


async def _deploy() -> None:
    store = MemoryStore()

    def version(settings: dict[str, str]) -> App:
        app = App("shop")

        @app.step
        def charge(order: str) -> str:
            return order

        @app.workflow
        async def payment(ctx: Context, order: str) -> str:
            receipt = await charge(order)
            found = settings["currency"]
            await ctx.wait_for_signal("packed")
            return f"{receipt} {found}"

        @app.workflow
        async def checkout(ctx: Context, order: str) -> str:
            return await payment(order)

        return app

    client = Client(store=store)
    async with client:
        async with working(version({"currency": "EUR"}), store):
            parent = await client.start("checkout", "lamp")
            await eventually(lambda: _waits_for(client, "packed"))
        [child] = await _runs(client, "shop/payment")
        await client.handle(child.run_id).signal("packed")
        async with working(version({}), store):
            await eventually(lambda: _are(client, "shop/payment", "stuck"))
            assert (await parent.get()).state == "waiting"
            why = await client.why(child.run_id)
            assert "KeyError: 'currency'" in why.because
            assert 'found = settings["currency"]' in why.traceback
        store.advance_to(store.time() + 60 * SECOND)  # it is tried again
        async with working(version({"currency": "EUR"}), store):
            assert await parent.result(timeout="120s") == "lamp EUR"


async def _runs(client: Client, workflow: str) -> list[Run]:
    return (await client.runs.list(names=workflow)).runs


async def _waits_for(client: Client, signal: str) -> bool:
    return any(
        signal in (run.wait.awaiting if run.wait else ())
        for run in await _runs(client, "shop/payment")
    )


async def _are(client: Client, workflow: str, state: str) -> bool:
    return all(run.state == state for run in await _runs(client, workflow))


def test_a_patch_keeps_its_answer_after_facts_of_a_commit_that_was_overtaken() -> None:
    """Fault: a step of the new path had started, and after a crash the run took the old path."""

    async def paying(ctx: Context) -> None:
        await pay(1)
        ctx.set_value("at", 1)
        await ctx.wait_for_signal("end")

    async def rendering(ctx: Context) -> None:
        await render(1)
        await ship("new" if ctx.patched("new") else "old")

    async def code(ctx: Context) -> None:
        await asyncio.gather(paying(ctx), rendering(ctx))

    bench = Bench(code)
    bench.settle()
    bench.complete("paying/pay", 1)
    for _ in range(3):
        bench.refuse(bench.signal("other"))
    part = bench.commit_due
    assert part is not None
    bench.log += [bench.activity_completed("rendering/render", 1), *part.events]
    bench.crash()
    bench.settle()
    assert [call.arguments for call in bench.started] == ['["new"]']


CANCELLED: dict[str, tuple[Way, Callable[[Bench], Event | None]]] = {
    "activity that was told": (
        lambda ctx: render(1),
        lambda bench: bench.activity_failed("render", asyncio.CancelledError()),  # type: ignore[arg-type]
    ),
    "child": (lambda ctx: ctx.child("kid"), lambda bench: bench.child_failed("kid", "cancelled")),
    "activity that no worker had": (lambda ctx: render(1), lambda bench: None),
    "approval": (lambda ctx: ctx.request_approval("Pay?"), lambda bench: None),
}


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("kind", CANCELLED)
def test_code_without_the_timeout_that_cancelled_a_call_is_stuck(
    kind: str, signalled: bool
) -> None:
    """It failed for good of the cancel that older code asked for, or waited without an end."""
    way, end_of = CANCELLED[kind]

    async def old(ctx: Context) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await way(ctx)
        await ctx.wait_for_signal("end")
        return "done"

    async def new(ctx: Context) -> str:
        await way(ctx)
        await ctx.wait_for_signal("end")
        return "done"

    bench = Bench(old)
    by_timer(bench)
    if (end := end_of(bench)) is not None:
        bench.log.append(end)
    if signalled:
        bench.log.append(bench.signal("end"))
    found = rehearse(Workflow(new, name="flow"), RunInfo(RUN_ID, "flow", 1, 1, START), bench.log)
    assert found is not None
    assert found.kind == "stuck"
    length = len(bench.log)
    bench.crash(new)
    bench.settle()
    stuck = str(bench.stuck)
    assert ("has a cancel of" in stuck) if end else ("cancelled by older code" in stuck)
    assert "test_raised.py" in (found.line or "")
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(old)
    bench.settle()
    if not signalled:
        bench.resume(bench.signal("end"))
        bench.settle()
    assert bench.output == "done"


def test_code_that_awaits_a_call_that_it_cancels_itself_continues() -> None:
    async def code(ctx: Context) -> str:
        kid = await ctx.start_child("kid")
        await ctx.sleep(60)
        kid.cancel("too late")
        try:
            await kid.result()
        except ChildFailed as error:
            return error.status
        return "done"

    bench = Bench(code)
    by_timer(bench)
    bench.crash()
    bench.settle()
    assert bench.suspended
    bench.resume(bench.child_failed("kid", "cancelled"))
    bench.settle()
    assert bench.output == "cancelled"


def attempt(code: Code, *, done: bool) -> Bench:
    """Return a bench with the second attempt of a run whose call of ship has failed."""
    bench = Bench(code)
    if done:
        bench.complete("pay", 1)
        bench.settle()
    kept = bench.log[: 1 + done]
    tried = {"number": 1, "attempts": 5, "delay": 1.0, "run_id": str(RUN_ID)}
    text = {"run_id": str(RUN_ID), "idx": 3, "seed": str(RUN_ID), "again": ["ship"], "after": []}
    bench.log = [*kept, bench.plain(FORKED, json.dumps({**text, "attempt": tried}))]
    return bench


@pytest.mark.parametrize("done", [False, True])
def test_an_attempt_is_stuck_that_raises_before_the_call_of_which_the_last_one_failed(
    done: bool,
) -> None:
    """Fault: a deploy with a bug used up all attempts and failed the run for good."""

    def version(bug: str) -> Code:
        async def code(ctx: Context) -> str:
            if done:
                await pay(1)
            if bug == "new call":
                await recorded("audit")(1)
            if bug:
                raise KeyError("rate")
            await ship(1)
            raise ValueError("no")

        return code

    bench = attempt(version(""), done=done)
    length = len(bench.log)
    bench.claim(version("at once"))
    bench.settle()
    assert "raised KeyError: 'rate' before it called 'ship', of which" in str(bench.stuck)
    assert len(bench.log) == length
    bench.claim(version(""))
    bench.complete("ship", 1)
    bench.settle()
    assert bench.error["message"] == "no"

    bench = attempt(version(""), done=done)
    bench.claim(version("new call"))
    bench.complete("audit", 1)
    bench.settle()
    assert bench.error["kind"] == "builtins.KeyError"


def test_an_attempt_may_raise_before_another_call_of_which_the_last_one_failed() -> None:
    async def code(ctx: Context) -> None:
        task = asyncio.create_task(ship(1))
        await pay(1)
        raise ValueError(task.get_name())

    bench = attempt(code, done=True)
    bench.claim()
    bench.settle()
    assert bench.stuck is None
    assert bench.error["kind"] == "builtins.ValueError"
