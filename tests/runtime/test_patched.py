"""Changed code under runs that began with older code. T9. B7."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import Context
from holdfast.codec import fingerprint
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.errors import DeterminismError
from holdfast.events import (
    COMPLETED,
    FORKED,
    STEP_COMPLETED,
    VALUE_RECORDED,
    in_transaction,
    write_step_completed,
)
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, SECOND, Bench, Code


async def _elsewhere(item: int) -> int:
    raise AssertionError("the test gives the results")


def fingerprint_of(item: int) -> int:
    return fingerprint(work.encode_arguments((item,), {}))


work = Step(_elsewhere, name="work")
extra = Step(_elsewhere, name="extra")


async def old(ctx: Context) -> int:
    await ctx.wait_for_signal("go")
    return await work(1)


async def new(ctx: Context) -> int:
    await ctx.wait_for_signal("go")
    if ctx.patched("extra"):
        await extra(1)
    return await work(1)


def test_a_new_run_takes_the_new_path_and_records_it() -> None:
    """T9."""
    bench = Bench(new)
    bench.settle()
    bench.resume(bench.signal("go"))
    assert bench.starts[-1] == "extra"
    bench.settle()
    [patch] = bench.of_type(VALUE_RECORDED)
    assert patch.key == "patch:extra"
    bench.crash()
    assert bench.starts == ["extra"]
    bench.settle()
    assert len(bench.of_type(VALUE_RECORDED)) == 1


def test_a_run_that_has_passed_with_older_code_stays_on_the_old_path() -> None:
    """T9. B7."""
    bench = Bench(old)
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.complete("work", 5)
    part = bench.commit_due
    assert part is not None
    bench.log.append(part.events[0])
    bench.crash(new)
    bench.settle()
    assert bench.output == 5
    assert not bench.of_type(VALUE_RECORDED)


async def noting(ctx: Context) -> int:
    ctx.set_value("state", "new")
    await ctx.wait_for_signal("paid")
    ctx.set_value("state", "paid")
    await ctx.wait_for_signal("go")
    return 1


async def debiting(ctx: Context) -> int:
    ctx.set_value("state", "new")
    if ctx.patched("debit"):
        await extra(1)
    else:
        await ctx.wait_for_signal("paid")
    ctx.set_value("state", "paid")
    await ctx.wait_for_signal("go")
    return 1


async def failing(ctx: Context) -> int:
    ctx.set_value("state", "new")
    raise NameError("it is not defined")


@pytest.mark.parametrize("taken", [[], ["paid"]])
def test_a_commit_of_notes_alone_says_that_older_code_has_passed(taken: list[str]) -> None:
    """Fault: the run paid a second time, or failed for good; only a step's end was proof."""
    bench = Bench(noting)
    bench.settle()
    for signal in taken:
        bench.resume(bench.signal(signal))
        bench.settle()
    bench.crash(debiting)
    bench.settle()
    assert (bench.starts, bench.stuck) == ([], None)
    bench.crash(failing)
    bench.settle()
    assert isinstance(bench.stuck, DeterminismError)
    assert "place that older code has passed" in str(bench.stuck)


def test_notes_after_entries_that_the_code_had_not_seen_are_no_proof() -> None:
    """They stand behind the signal in the log, and the code was not given it yet."""
    bench = Bench(noting)
    for _ in range(3):  # then its commits may follow entries of others
        bench.refuse(bench.signal("other"))
    held = bench.commit()
    bench.news(bench.signal("paid"))
    assert '"seen"' in (held.events[0].details or "")


def test_a_run_that_has_not_come_to_the_patch_takes_the_new_path() -> None:
    """T9."""
    bench = Bench(old)
    bench.settle()
    bench.log.append(bench.signal("go"))
    bench.crash(new)
    assert bench.starts == ["extra"]


def test_a_conflict_does_not_turn_the_new_path_into_the_old_one() -> None:
    """Trap 1. What was not durable is decided again, as after a crash at this moment."""

    async def flow(ctx: Context) -> int:
        await work(1)
        return await (extra(1) if ctx.patched("extra") else work(2))

    bench = Bench(flow)
    bench.complete("work", 1)
    bench.refuse(bench.interruption())
    bench.settle()
    assert bench.starts == ["work", "extra"]
    bench.crash()
    assert bench.starts == ["extra"]


def test_a_suspended_turn_learns_that_older_code_continued_elsewhere() -> None:
    """T9. Another worker's events in the tail are history too."""
    cached = Bench(new)
    cached.settle()
    other = Bench(old)
    other.settle()
    other.resume(other.signal("go"))
    other.complete("work", 5)
    part = other.commit_due
    assert part is not None
    cached.resume(other.log[-1], part.events[0])
    cached.settle()
    assert cached.output == 5


def test_a_loop_does_not_change_its_answer_midway() -> None:
    """T9. Older code has passed its first round: the run stays on that path."""

    async def loop(ctx: Context) -> list[bool]:
        found: list[bool] = []
        for _ in range(3):
            await ctx.wait_for_signal("go")
            found.append(ctx.patched("p"))
        return found

    async def before(ctx: Context) -> None:
        for _ in range(3):
            await ctx.wait_for_signal("go")

    bench = Bench(before)
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    bench.crash(loop)
    bench.settle()
    bench.resume(bench.signal("go"), bench.signal("go"))
    bench.settle()
    assert bench.output == [False, False, False]


@pytest.mark.parametrize(
    ("kept", "expected"), [(1, [True, True, True]), (2, [False, True, True]), (3, [False] * 3)]
)
def test_a_fork_takes_the_new_path_where_its_copy_ends(kept: int, expected: list[bool]) -> None:
    """T9. Code is forked to continue differently; what its origin did next is not in the copy.

    Fault: code took the new path before the last copied result, too, and a retry was stuck there.
    """

    async def before(ctx: Context) -> None:
        await work(1)
        await work(2)

    async def after(ctx: Context) -> list[bool]:
        early = ctx.patched("early")
        await work(1)
        first = ctx.patched("p")
        await work(2)
        return [early, first, ctx.patched("p")]

    bench = Bench(before)
    bench.complete("work", 1)
    bench.commit()
    bench.complete("work#2", 2)
    bench.settle()
    forked = json.dumps({"run_id": str(RUN_ID), "idx": kept, "seed": str(RUN_ID)})
    bench.log = [*bench.log[:kept], bench.plain(FORKED, forked)]
    bench.claim(after)
    for number, key in list(enumerate(("work", "work#2"), 1))[kept - 1 :]:
        bench.complete(key, number)
        bench.settle()
    bench.settle()
    assert bench.output == expected
    bench.log.pop()  # as if the worker were lost before the end
    bench.crash()
    bench.settle()
    assert bench.output == expected


def test_a_transaction_whose_worker_was_lost_shows_what_its_caller_had_passed() -> None:
    """Fault: nothing else said so, and the run was stuck on the new path."""

    async def before(ctx: Context) -> None:
        await work(1)

    async def after(ctx: Context) -> list[bool]:
        early = ctx.patched("early")
        await work(1)
        return [early, ctx.patched("late")]

    bench = Bench(before)
    bench.complete("work", 1)
    bench.settle()
    [result] = bench.of_type(STEP_COMPLETED)
    bench.log = [bench.log[0], in_transaction(result)]
    bench.claim(after)
    bench.settle()
    assert bench.output == [False, True]


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_a_loop_that_began_on_one_path_stays_on_it(seen: int) -> None:
    """However many rounds older code has made; also where the code is replayed later."""

    async def before(ctx: Context) -> list[int]:
        return [await work(item) for item in range(4)]

    async def after(ctx: Context) -> list[int]:
        return [await (extra if ctx.patched("extra") else work)(item) for item in range(4)]

    bench = Bench(before)
    for item in range(seen):
        bench.complete("work" if item == 0 else f"work#{item + 1}", item)
        bench.commit()
    bench.crash(after)
    made: list[str] = []
    for _ in range(4 - seen):
        made.append(bench.starts[-1])
        bench.complete(made[-1], 9)
        bench.settle()
        if bench.ended is None:
            bench.crash()
            assert bench.stuck is None
    assert bench.output == [*range(seen), *[9] * (4 - seen)]
    kinds = {key.partition("#")[0] for key in made}
    assert kinds == ({"work"} if seen else {"extra"})
    assert len(bench.of_type(VALUE_RECORDED)) == (not seen)


def test_a_run_that_changed_its_path_under_an_older_release_is_replayed_as_it_was() -> None:
    """Its log has the patch for the second round only."""

    async def flow(ctx: Context) -> list[int]:
        return [await (extra if ctx.patched("extra") else work)(item) for item in range(3)]

    bench = Bench(flow)
    texts = [
        write_step_completed(name, args, 1, "0", 0)
        for name, args in (("work", fingerprint_of(0)), ("extra", fingerprint_of(1)))
    ]
    bench.log += [
        Event(STEP_COMPLETED, "work", texts[0], bench.now),
        Event(VALUE_RECORDED, "patch:extra#2", '{"value":true}', bench.now),
        Event(STEP_COMPLETED, "extra", texts[1], bench.now),
    ]
    bench.claim(flow)
    assert bench.stuck is None
    assert bench.starts == ["extra#2"]


async def pausing(ctx: Context) -> bool:
    await ctx.sleep(60)
    await work(1)
    await ctx.wait_for_signal("go")
    return False


async def not_pausing(ctx: Context) -> bool:
    await work(1)
    await ctx.wait_for_signal("go")
    return ctx.patched("p")


async def charging(ctx: Context) -> bool:
    await extra(1)
    if ctx.patched("charge"):
        return True
    await ctx.wait_for_signal("paid")
    await ctx.sleep(60)
    return False


def test_a_removed_sleep_does_not_keep_a_run_on_the_old_path() -> None:
    """Fault: ctx.patched was False for ever, also at places that no code had passed."""
    bench = Bench(pausing)
    bench.settle()
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()
    bench.complete("work", 1)
    bench.settle()
    bench.crash(not_pausing)
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output is True


def test_a_run_that_sleeps_beyond_the_patch_stays_on_the_old_path() -> None:
    """A new step before the patch has moved the code beyond the log."""

    async def paid(ctx: Context) -> None:
        await ctx.wait_for_signal("paid")
        await ctx.sleep(60)

    bench = Bench(paid)
    bench.settle()
    bench.resume(bench.signal("paid"))
    bench.settle()
    bench.crash(charging)
    bench.complete("extra", 1)
    bench.settle()
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()
    assert bench.output is False


# A new call before the patch

pay_old, pay_new = Step(_elsewhere, name="pay_old"), Step(_elsewhere, name="pay_new")
render = Activity(_elsewhere, name="render")


def ending_with(make_call: Callable[[Context], Coroutine[Any, Any, object]]) -> Code:
    """Return code that makes a new call, then pays the new way or the old one."""

    async def code(ctx: Context) -> int:
        await make_call(ctx)
        return await (pay_new if ctx.patched("pay") else pay_old)(1)

    return code


async def pays(ctx: Context) -> int:
    paid = await pay_old(1)
    await ctx.wait_for_signal("end")
    return paid


async def _both(ctx: Context) -> object:
    return await asyncio.gather(extra(1), work(1))


async def _event(ctx: Context) -> object:
    ctx.subscribe("orders.#")
    return await ctx.sleep(0)


NEW_CALLS: dict[str, Callable[[Context], Coroutine[Any, Any, object]]] = {
    "step": lambda ctx: extra(1),
    "activity": lambda ctx: render(1),
    "child": lambda ctx: ctx.child("child", 1),
    "approval": lambda ctx: ctx.request_approval("pay?"),
    "gather": _both,
    "subscription": _event,
    "sleep": lambda ctx: ctx.sleep(5),
    "signal": lambda ctx: ctx.wait_for_signal("go"),
    "timeout": lambda ctx: ctx.wait_for_signal("no", timeout=5),
}


async def _without_error(call: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(TimeoutError):
        await call


@pytest.mark.parametrize("attempt", ["done", "to be tried again"])
@pytest.mark.parametrize("kind", NEW_CALLS)
def test_a_new_call_before_the_patch_does_not_turn_the_old_path_into_the_new_one(
    kind: str, attempt: str
) -> None:
    """Fault: paid twice. The new call moved the code beyond the log, so it took the new path."""
    bench = Bench(pays)
    if attempt == "done":
        bench.complete("pay_old", 5)
    else:
        bench.fail("pay_old", OSError("busy"), retry_in=3600)
    bench.settle()
    bench.crash(ending_with(lambda ctx: _without_error(NEW_CALLS[kind](ctx))))
    for _ in range(9):
        bench.settle()
        for key in bench.starts:
            if key in bench.turn.executing:
                bench.complete(key, 1)
        if bench.suspended:
            bench.now += 6 * SECOND
            bench.resume(bench.signal("go"))
    assert "pay_new" not in bench.starts
    assert bench.stuck is not None or bench.types()[-1] == COMPLETED or attempt != "done"
    bench.crash(pays)
    assert bench.stuck is None, "a roll-back heals it"
    assert bench.starts == []
