"""Changed code does not repeat what the log has under another name. Fault: charged twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast import App, Client, Context, Retry, RunHandle
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.errors import ConfigurationError
from holdfast.events import FORKED, STEP_COMPLETED, STEP_ENDS, TERMINAL
from holdfast.store.memory import MemoryStore
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, Bench
from tests.runtime.desk import eventually, working

Code = Callable[[Context], Coroutine[Any, Any, object]]


def recorded(name: str) -> Step[[object], int]:
    def fn(item: object) -> int:
        raise AssertionError("the test gives the results")

    return Step(fn, name=name)


def _elsewhere(item: object) -> int:
    raise AssertionError("the test gives the results")


pay, charge, reserve, ship, audit = map(recorded, ("pay", "charge", "reserve", "ship", "audit"))
draw_up = recorded("draw_up")
render, draw = Activity(_elsewhere, name="render"), Activity(_elsewhere, name="draw")


def paid(code: Code) -> Bench:
    """A run that has reserved and paid, and is to ship."""
    bench = Bench(code)
    for key in list(bench.starts):
        bench.complete(key, 1)
    bench.commit()
    while not any(key.endswith("ship") for key in bench.starts):
        bench.complete(bench.starts[-1], 1)
        bench.commit()
    return bench


async def old(ctx: Context) -> object:
    await reserve("lamp")
    await pay("order")
    return await ship("order")


async def old_by_helper(ctx: Context) -> object:
    async def pay_one(order: str) -> int:
        return await pay(order)

    await reserve("lamp")
    await asyncio.gather(pay_one("order"))
    return await ship("order")


async def renamed_step(ctx: Context) -> object:
    await reserve("lamp")
    await charge("order")
    return await ship("order")


async def renamed_step_with_other_arguments(ctx: Context) -> object:
    await reserve("lamp")
    await charge("order in euros")
    return await ship("order")


async def wrapped_call(ctx: Context) -> object:
    async def pay_one(order: str) -> int:
        return await pay(order)

    await reserve("lamp")
    await asyncio.gather(pay_one("order"))
    return await ship("order")


async def renamed_helper(ctx: Context) -> object:
    async def charge_one(order: str) -> int:
        return await pay(order)

    await reserve("lamp")
    await asyncio.gather(charge_one("order"))
    return await ship("order")


async def renamed_helper_that_sleeps(ctx: Context) -> object:
    async def charge_one(order: str) -> int:
        await asyncio.sleep(5)
        return await pay(order)

    await reserve("lamp")
    await asyncio.gather(charge_one("order"))
    return await ship("order")


async def turned_into_an_activity(ctx: Context) -> object:
    await reserve("lamp")
    await asyncio.gather(draw("order"))
    return await ship("order")


async def renamed_first_step(ctx: Context) -> object:
    await audit("lamp")
    await pay("order")
    return await ship("order")


async def old_name_as_a_variable(ctx: Context) -> object:
    await reserve("lamp")
    await (pay := charge)("order")
    return await ship("order"), pay


async def old_name_in_a_text(ctx: Context) -> object:
    await reserve("lamp")
    ctx.log.info("pay")
    await charge("order")
    return await ship("order")


async def old_step_in_another_branch(ctx: Context) -> object:
    await reserve("lamp")
    await (pay if ctx.run_id is None else charge)("order")
    return await ship("order")


async def old_step_with_another_name(ctx: Context) -> object:
    await reserve("lamp")
    await pay.with_options(name="charge")("order")
    return await ship("order")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (old, renamed_step),
        (old, renamed_step_with_other_arguments),
        (old, wrapped_call),
        (old_by_helper, renamed_helper),
        (old, turned_into_an_activity),
        (old, renamed_first_step),
        (old, old_name_as_a_variable),
        (old, old_name_in_a_text),
        (old, old_step_in_another_branch),
        (old, old_step_with_another_name),
    ],
)
def test_recorded_work_is_not_done_again_and_a_roll_back_heals(before: Code, after: Code) -> None:
    bench = paid(before)
    length = len(bench.log)
    bench.crash(after)
    assert (bench.starts, bench.commit_due) == ([], None)
    assert "which this code has not called" in str(bench.stuck)
    assert len(bench.log) == length + 1  # the lost lease
    bench.claim(before)
    bench.complete("ship", 3)
    bench.settle()
    assert bench.output == 3


def test_a_wait_of_new_code_does_not_prove_that_it_passed_an_old_result() -> None:
    bench = paid(old_by_helper)
    bench.crash(renamed_helper_that_sleeps)
    bench.settle()
    bench.now += 5_000_000
    bench.resume()
    bench.settle()
    for _ in range(3):
        assert bench.starts == []
        assert bench.stuck is not None
        bench.crash(renamed_helper_that_sleeps)
        bench.settle()


async def ordered(ctx: Context) -> object:
    await render("order")
    return await ship("order")


async def drawn(ctx: Context) -> object:
    await draw("order")
    return await ship("order")


@pytest.mark.parametrize("ended", [True, False])
def test_an_activity_is_not_scheduled_again_under_another_name(ended: bool) -> None:
    bench = Bench(ordered)
    bench.settle()
    if ended:
        bench.log.append(bench.activity_completed("render", 1))
    length = len(bench.log)
    bench.crash(drawn)
    assert "activity render" in str(bench.stuck)
    bench.settle()
    assert len(bench.log) == length + 1
    bench.crash(ordered)
    assert bench.stuck is None


def test_results_of_running_steps_are_recorded_before_the_run_is_stuck() -> None:
    async def first(ctx: Context) -> object:
        return await asyncio.gather(pay("a"), ship("b"))

    async def second(ctx: Context) -> object:
        async def later() -> int:
            await ship("b")
            return await charge("a")

        return await asyncio.gather(later(), reserve("c"))

    bench = Bench(first)
    bench.complete("pay", 1)
    bench.commit()
    bench.crash(second)
    assert "pay" in str(bench.stuck)
    assert bench.starts == []


# What changed code may not do, and what it may


async def with_a_new_step(ctx: Context) -> object:
    await reserve("lamp")
    await audit("order")
    await pay("order")
    return await ship("order")


async def with_a_new_branch(ctx: Context) -> object:
    async def watch() -> int:
        return await audit("order")

    await reserve("lamp")
    await asyncio.gather(watch(), draw("order"))
    await pay("order")
    return await ship("order")


async def with_a_new_activity(ctx: Context) -> object:
    await reserve("lamp")
    await asyncio.gather(draw("lamp"))
    await pay("order")
    return await ship("order")


async def with_a_new_child(ctx: Context) -> object:
    await reserve("lamp")
    await ctx.child("delivery", "lamp")
    await pay("order")
    return await ship("order")


async def with_a_new_approval(ctx: Context) -> object:
    await reserve("lamp")
    await ctx.request_approval("pay?")
    await pay("order")
    return await ship("order")


async def with_a_new_signal(ctx: Context) -> object:
    await reserve("lamp")
    ctx.signal_run(RUN_ID, "paying")
    await ctx.sleep(5)
    await pay("order")
    return await ship("order")


async def with_a_new_subscription(ctx: Context) -> object:
    await reserve("lamp")
    await ctx.wait_for_event("payments.#")
    await pay("order")
    return await ship("order")


async def without_the_first_step(ctx: Context) -> object:
    await pay("order")
    return await ship("order")


async def in_another_order(ctx: Context) -> object:
    await pay("order")
    await charge("lamp")
    return await ship("order")


@pytest.mark.parametrize(
    "after",
    [
        with_a_new_step,
        with_a_new_branch,
        with_a_new_activity,
        with_a_new_child,
        with_a_new_approval,
        with_a_new_signal,
        with_a_new_subscription,
        without_the_first_step,
        in_another_order,
    ],
)
def test_nothing_new_starts_while_the_log_has_calls_that_the_code_has_not_made(after: Code) -> None:
    bench = paid(old)
    length = len(bench.log)
    bench.crash(after)
    bench.settle()
    assert "which this code has not called" in str(bench.stuck)
    assert (bench.starts, len(bench.log)) == ([], length + 1)
    bench.crash(old)
    assert bench.starts == ["ship"]
    bench.careful = False
    bench.crash(after)
    bench.settle()
    assert bench.stuck is None


def test_a_new_step_with_a_patch_between_recorded_ones_is_for_new_runs() -> None:
    async def second(ctx: Context) -> object:
        await reserve("lamp")
        if ctx.patched("audit"):
            await audit("order")
        await pay("order")
        return await ship("order")

    bench = paid(old)
    bench.crash(second)
    assert bench.starts == ["ship"]
    new = Bench(second)
    new.complete("reserve", 1)
    new.settle()
    assert new.starts == ["reserve", "audit"]


def test_a_new_branch_beside_recorded_calls_runs_if_the_code_makes_them_all() -> None:
    async def second(ctx: Context) -> object:
        watching = asyncio.create_task(audit("order"))
        await reserve("lamp")
        await pay("order")
        await watching
        return await ship("order")

    bench = paid(old)
    bench.crash(second)
    assert (bench.starts, bench.stuck) == (["audit"], None)


def test_a_step_that_failed_and_waits_for_its_next_attempt_counts_as_recorded() -> None:
    """Its work may have been done, and the new call has another idempotency key."""

    async def first(ctx: Context) -> object:
        return await pay("order")

    async def second(ctx: Context) -> object:
        return await charge("order")

    bench = Bench(first)
    bench.fail("pay", OSError("busy"), retry_in=30)
    bench.settle()
    bench.crash(second)
    assert "step pay" in str(bench.stuck)
    assert bench.starts == []
    bench.now += 30_000_000
    bench.crash(first)
    assert bench.attempts == [("pay", 2)]


def test_a_message_names_three_calls_and_counts_the_others() -> None:
    async def first(ctx: Context) -> object:
        for item in range(5):
            await pay(item)
        return await ship("order")

    async def second(ctx: Context) -> object:
        return await charge("order")

    bench = paid(first)
    bench.crash(second)
    assert "step pay under 'pay#3' and 2 more, which this code" in str(bench.stuck)
    assert "step charge under 'charge' (at " in str(bench.stuck)


def test_an_activity_recorded_before_names_had_apps_is_not_scheduled_elsewhere() -> None:
    shop = App("shop")

    @shop.activity
    def wrap(item: str) -> int:
        raise AssertionError("the test gives the results")

    async def second(ctx: Context) -> object:
        async def wrap_one(item: str) -> int:
            return await wrap(item)

        return await asyncio.gather(wrap_one("lamp"))

    async def first(ctx: Context) -> object:
        return await wrap("lamp")

    bench = Bench(first, registry=shop.registry)
    bench.settle()
    bench.log = [
        Event(each.type, each.key, (each.details or "").replace("shop/wrap", "wrap"), each.at)
        for each in bench.log
    ]
    bench.crash(second)
    assert "activity wrap" in str(bench.stuck)
    bench.crash(first)
    assert bench.stuck is None


def test_an_app_may_opt_out() -> None:
    bench = paid(old)
    bench.careful = False
    bench.crash(renamed_step)
    assert bench.starts == ["charge"]
    assert any("pay" in problem for problem in bench.problems)


def test_patched_code_keeps_the_old_call_for_runs_under_way() -> None:
    async def second(ctx: Context) -> object:
        await reserve("lamp")
        await (charge if ctx.patched("charge") else pay)("order")
        return await ship("order")

    bench = paid(old)
    bench.crash(second)
    assert bench.starts == ["ship"]


def copied(bench: Bench, *without: str, again: bool = True) -> None:
    """Make the log that of a retry, which makes some calls again and says `again` which."""
    told = {"run_id": str(RUN_ID), "idx": 3, "seed": "0198c0de-0000-7000-8000-00000000000a"}
    seed = json.dumps(told | ({"again": without} if again else {}))
    left_out = {*TERMINAL, *without}
    kept = [event for event in bench.log if left_out.isdisjoint((event.type, event.key))]
    bench.log = [*kept, bench.plain(FORKED, seed)]


@pytest.mark.parametrize(
    ("before", "after"), [(old, renamed_step), (old, wrapped_call), (old_by_helper, renamed_helper)]
)
def test_a_retry_with_mended_code_does_not_repeat_what_it_copied(before: Code, after: Code) -> None:
    bench = paid(before)
    bench.complete("ship", 3)
    bench.settle()
    copied(bench, "ship")
    bench.claim(after)
    assert bench.starts == []
    assert "which this code has not called" in str(bench.stuck)
    bench.crash(before)
    assert bench.starts == ["ship"]


def test_a_call_of_a_retry_is_not_taken_for_a_copied_one_that_comes_after_it() -> None:
    async def flow(ctx: Context) -> object:
        await reserve("lamp")
        try:
            return await pay("order")
        finally:
            await pay("cancellation")

    bench = Bench(flow)
    for key in ("reserve", "pay", "pay#2"):
        bench.complete(key, 1)
        bench.settle()
    copied(bench, "pay")
    bench.claim(flow)
    assert (bench.starts, bench.stuck) == (["pay"], None)


@pytest.mark.parametrize("again", [False, True])
def test_a_retry_may_have_results_of_calls_that_are_still_to_come(again: bool) -> None:
    bench = paid(old)
    copied(bench, "reserve", again=again)
    bench.claim(old)
    assert bench.starts == ["reserve"]
    bench.complete("reserve", 1)
    bench.settle()
    assert bench.starts == ["reserve", "ship"]


def test_a_retry_may_take_another_path_after_the_call_that_it_makes_again() -> None:
    """What it has copied of the other path is never called."""

    async def flow(ctx: Context) -> object:
        found = await asyncio.gather(pay("a"), pay("b"), return_exceptions=True)
        if any(isinstance(each, Exception) for each in found):
            return await audit("order")
        return await ship("order")

    bench = Bench(flow)
    bench.complete("pay", 1)
    bench.fail("pay#2", OSError("refused"))
    bench.commit()
    bench.complete("audit", 1)
    bench.settle()
    copied(bench, "pay#2")
    bench.claim(flow)
    assert (bench.starts, bench.stuck) == (["pay#2"], None)
    bench.complete("pay#2", 1)
    bench.settle()
    assert bench.starts == ["pay#2", "ship"]
    bench.complete("ship", 1)
    bench.settle()
    assert bench.output == 1


def test_a_retry_of_a_retry_may_have_results_of_calls_that_are_still_to_come() -> None:
    bench = paid(old)
    copied(bench, "reserve")
    copied(bench, "ship")
    bench.claim(old)
    assert bench.starts == ["reserve"]


@pytest.mark.parametrize("again", [False, True])
def test_a_retry_does_not_make_a_copied_call_in_another_place(again: bool) -> None:
    async def moved(ctx: Context) -> object:
        async def pay_one(order: str) -> int:
            return await pay(order)

        return [await reserve("lamp"), *await asyncio.gather(pay_one("order"), ship("order"))]

    bench = paid(old)
    copied(bench, "reserve", again=again)
    bench.claim(moved)
    bench.complete("reserve", 1)
    bench.settle()
    assert "which this code has not called" in str(bench.stuck)


def test_a_worker_with_renamed_steps_is_stuck_until_one_with_the_alias_comes() -> None:
    """With the worker and the store around it: the customer is charged once."""
    asyncio.run(_deploy())


async def _deploy() -> None:
    store, charged = MemoryStore(), list[str]()

    def version(name: str, *aliases: str) -> App:
        app = App("shop")

        @app.step(name=name, aliases=aliases)
        def charge(order: str) -> str:
            charged.append(f"{name} {order}")
            return order

        @app.workflow
        async def checkout(ctx: Context, order: str) -> str:
            receipt = await charge(order)
            await ctx.wait_for_signal("packed")
            return receipt

        return app

    client = Client(store=store)
    async with client, working(version("pay"), store):
        handle = await client.start("checkout", "lamp")
        await eventually(lambda: _is(handle, "waiting"))
    async with client:
        await handle.signal("packed")
        async with working(version("charge"), store):
            await eventually(lambda: _is(handle, "stuck"))
            run = await handle.get()
        assert charged == ["pay lamp"]
        assert run.wait is not None
        assert "the log has step pay" in str(run.wait.stuck)
        store.advance_to(store.time() + 60_000_000)  # it is tried again
        async with working(version("charge", "pay"), store):
            assert await handle.result(timeout="120s") == "lamp"
    assert charged == ["pay lamp"]


def test_a_run_whose_wait_was_removed_says_how_it_continues() -> None:
    """Fault: it waited on without a word."""
    asyncio.run(_remove_a_wait())


async def _remove_a_wait() -> None:
    store = MemoryStore()

    def version(*, waits: bool) -> App:
        app = App("shop")

        @app.workflow
        async def checkout(ctx: Context, order: str) -> str:
            if waits:
                await ctx.wait_for_signal("packed")
            return order

        return app

    client = Client(store=store)
    async with client:
        async with working(version(waits=True), store):
            handle = await client.start("checkout", "lamp")
            await eventually(lambda: _is(handle, "waiting"))
            assert not (await client.why(handle.run_id)).details
        store.advance_to(store.time() + 1_000_000)
        async with working(version(waits=False), store):
            [told] = (await client.why(handle.run_id)).details
            assert "if this wait was removed from the code, pause and resume the run" in told
            await handle.pause()
            await handle.resume()
            assert await handle.result(timeout="120s") == "lamp"


async def test_a_step_that_is_tried_again_is_not_a_wait_that_code_may_have_lost() -> None:
    """Fault: it was called one. Its next attempt has the code of the workers that live then."""
    store, app = MemoryStore(), App("shop")

    @app.step(retry=Retry(base="1h", max="1h"))
    async def pay() -> None:
        raise ValueError("no money")

    @app.workflow
    async def checkout(ctx: Context) -> None:
        await pay()

    client = Client(store=store)
    async with client:
        async with working(app, store):
            handle = await client.start(checkout)
            await eventually(lambda: _is(handle, "waiting"))
        store.advance_to(store.time() + 1_000_000)
        async with working(app, store):
            told = await client.why(handle.run_id)
    assert told.because.endswith("ValueError: no money")
    assert not told.details


async def _is(handle: RunHandle[object], state: str) -> bool:
    return (await handle.get()).state == state


# Aliases


def test_an_alias_is_not_the_name_of_another_step() -> None:
    app = App("shop")

    @app.step(aliases=["pay"])
    def charge(order: str) -> None: ...

    with pytest.raises(ConfigurationError, match="pay is the name of one step"):

        @app.step
        def pay(order: str) -> None: ...


@pytest.mark.parametrize("aliases", ["pay", ["charge"], ["not a name"]])
def test_impossible_aliases_are_refused(aliases: Any) -> None:
    with pytest.raises(ConfigurationError, match="aliases"):
        Step(_elsewhere, name="charge", aliases=aliases)


def test_a_step_with_an_alias_takes_what_is_recorded_under_its_old_name() -> None:
    charge = Step(_elsewhere, name="charge", aliases=["pay"])

    async def second(ctx: Context) -> object:
        await reserve("lamp")
        first = await charge("order")
        return [first, await charge("tip"), await ship("order")]

    bench = paid(old)
    bench.crash(second)
    assert bench.starts == ["charge#2"]
    bench.complete("charge#2", 8)
    bench.settle()
    bench.crash()
    assert bench.starts == ["ship"]
    bench.complete("ship", 9)
    bench.settle()
    assert bench.output == [1, 8, 9]


def test_an_alias_counts_the_attempts_under_the_old_name_and_a_roll_back_heals() -> None:
    charge = Step(_elsewhere, name="charge", aliases=["pay"])

    async def first(ctx: Context) -> object:
        return await pay("order")

    async def second(ctx: Context) -> object:
        return await charge("order")

    bench = Bench(first)
    bench.fail("pay", OSError("busy"), retry_in=30)
    bench.commit()
    bench.crash(second)
    bench.now += 30_000_000
    bench.take(bench.turn.wake())
    bench.crash(second)
    assert bench.attempts == [("pay", 2)]
    bench.complete("pay", 5)
    part = bench.commit_due
    assert part is not None
    bench.log.append(part.events[0])
    bench.crash(first)
    bench.settle()
    assert bench.output == 5


def renamed(name: str, *aliases: str) -> Step[[object], int]:
    return Step(_elsewhere, name=name, aliases=aliases)


def three(step: Step[[object], int]) -> Code:
    async def code(ctx: Context) -> object:
        return [await step(item) for item in "abc"]

    return code


def at_once(step: Step[[object], int]) -> Code:
    async def code(ctx: Context) -> object:
        return await asyncio.gather(*map(step, "abc"))

    return code


def test_a_step_is_renamed_again_and_again_between_its_calls() -> None:
    """Fault: the second call was not found under the name that it had, so the run was stuck."""
    bench = Bench(three(pay))
    for number, step in enumerate((renamed("charge", "pay"), renamed("bill", "charge", "pay"))):
        bench.complete(bench.starts[-1], number)
        bench.settle()
        bench.crash(three(step))
    assert bench.starts == ["bill#3"]
    bench.crash(three(renamed("pay", "charge")))
    assert bench.starts == ["pay#3"]
    bench.complete("pay#3", 2)
    bench.settle()
    assert bench.output == [0, 1, 2]
    assert [event.key for event in bench.of_type(STEP_COMPLETED)] == ["pay", "charge#2", "pay#3"]


@pytest.mark.parametrize("open_call", [0, 1, 2])
def test_an_alias_finds_the_calls_beside_one_that_has_not_ended(open_call: int) -> None:
    """Fault: it looked for the first call only, as long as the log did not have it."""
    bench = Bench(at_once(pay))
    keys = ["pay", "pay#2", "pay#3"]
    for number, key in enumerate(keys):
        if number != open_call:
            bench.complete(key, number)
    bench.settle()
    bench.crash(at_once(renamed("charge", "pay")))
    [start] = bench.starts
    assert start == keys[open_call].replace("pay", "charge")
    bench.complete(start, open_call)
    bench.settle()
    assert bench.output == [0, 1, 2]


def test_an_alias_finds_the_call_after_one_that_was_given_up() -> None:
    def version(step: Step[[object], int]) -> Code:
        async def code(ctx: Context) -> object:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await step("first")
            found = await step("second")
            await ctx.wait_for_signal("go")
            return found

        return code

    bench = Bench(version(pay))
    bench.pass_time(5)
    bench.settle()
    bench.complete("pay#2", 7)
    bench.settle()
    bench.crash(version(renamed("charge", "pay")))
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output == 7


def test_two_steps_may_share_an_alias_and_one_may_have_two() -> None:
    async def before(ctx: Context) -> object:
        return [await pay("a"), await pay("b"), await audit("c"), await ship("d")]

    async def split(ctx: Context) -> object:
        first, second = renamed("charge", "pay"), renamed("refund", "pay")
        return [await first("a"), await second("b"), await audit("c"), await ship("d")]

    async def merged(ctx: Context) -> object:
        step = renamed("charge", "pay", "audit")
        return [await step("a"), await step("b"), await step("c"), await ship("d")]

    bench = Bench(before)
    for number, key in enumerate(("pay", "pay#2", "audit")):
        bench.complete(key, number)
        bench.commit()
    for code in (split, merged, before):
        bench.crash(code)
        assert bench.starts == ["ship"]


def test_a_new_run_uses_the_new_name() -> None:
    charge = Step(_elsewhere, name="charge", aliases=["pay"])

    async def flow(ctx: Context) -> object:
        return [await charge("order"), await pay("other"), await charge("third")]

    bench = Bench(flow)
    for key in ("charge", "pay", "charge#2"):
        assert bench.starts[-1] == key
        bench.complete(key, 1)
        bench.settle()
        if bench.ended is None:
            bench.crash()
    assert bench.output == [1, 1, 1]


# Signals


def test_a_renamed_signal_is_reported_if_its_message_was_taken_before() -> None:
    async def first(ctx: Context) -> object:
        await ctx.wait_for_signal("paid")
        await ship("order")
        await ctx.wait_for_signal("received")
        return None

    async def second(ctx: Context) -> object:
        await ctx.wait_for_signal("payment")
        await ship("order")
        await ctx.wait_for_signal("received")
        return None

    bench = Bench(first)
    bench.settle()
    bench.resume(bench.signal("paid"))
    bench.complete("ship")
    bench.settle()
    bench.crash(second)
    stuck = str(bench.stuck)
    assert "'payment'" in stuck
    assert "'paid'" in stuck
    bench.claim(first)
    assert bench.stuck is None


def test_a_renamed_signal_is_warned_of_if_its_message_woke_the_run() -> None:
    async def first(ctx: Context) -> object:
        return await ctx.wait_for_signal("paid")

    async def second(ctx: Context) -> object:
        return await ctx.wait_for_signal("payment")

    bench = Bench(first)
    bench.settle()
    bench.log.append(bench.signal("paid"))
    bench.crash(second)
    [problem] = bench.problems
    assert "'paid'" in problem
    assert "'payment'" in problem


async def paid_and_auditing(ctx: Context) -> object:
    await reserve("lamp")
    await pay("order")
    calls = audit("first"), audit("beside"), draw_up("beside")
    return await asyncio.gather(*calls, return_exceptions=True)


async def charging_after_an_audit(ctx: Context) -> object:
    first, *beside = audit("first"), audit("beside"), draw_up("beside")

    async def then_charge() -> int:
        await first
        return await charge("order")

    await reserve("lamp")
    return await asyncio.gather(then_charge(), *beside, return_exceptions=True)


def tried_again(*, cached: bool) -> Bench:
    """A run of changed code that has not called `pay`, with second attempts of three steps."""
    bench = Bench(paid_and_auditing)
    for key in ("reserve", "pay"):
        bench.complete(key, 1)
        bench.commit()
    for key in ("audit", "audit#2", "draw_up"):
        bench.fail(key, OSError("busy"), retry_in=30)
    bench.settle()
    if cached:
        bench.crash(charging_after_an_audit)
        bench.settle()
    bench.now += 30_000_000
    if cached:
        bench.resume()
    else:
        bench.crash(charging_after_an_audit)
    assert [key for key, attempt in bench.attempts if attempt == 2] == bench.starts
    return bench


@pytest.mark.parametrize("cached", [False, True])
def test_a_step_that_ended_before_its_run_got_stuck_is_recorded_despite_a_conflict(
    cached: bool,
) -> None:
    """Faults: the step ran a second time; the run was neither stuck nor continued."""
    bench = tried_again(cached=cached)
    for key in bench.starts:
        bench.complete(key, 1)
    bench.commit()  # of the first; `charge` is refused now, and the others are to be recorded
    bench.refuse(bench.signal("other"))
    assert bench.needs_log == cached
    if cached:
        bench.take(bench.turn.rebuild(list(bench.log)))
    bench.settle()
    assert "may be the same work" in str(bench.stuck)
    ends = [event.key for event in bench.of_type(STEP_COMPLETED)]
    assert ends == ["reserve", "pay", "audit", "audit#2", "draw_up"]


def test_a_result_that_cannot_be_stored_does_not_keep_a_refused_run_from_getting_stuck() -> None:
    """Fault: the commit that the database refused was sent again without end."""
    bench = tried_again(cached=False)
    for key in bench.starts:
        bench.complete(key, 1)
    bench.commit()  # of the first; `charge` is refused now, and two results are to be recorded
    for _ in range(9):
        if (part := bench.commit_due) is None:
            break
        if any(each.key == "draw_up" and each.type == STEP_COMPLETED for each in part.events):
            bench.commit_due = None
            bench.take(bench.turn.invalid("too deep"))
        else:
            bench.commit()
    assert "may be the same work" in str(bench.stuck)
    ends = [event.key for event in bench.log if event.type in STEP_ENDS]
    assert ends == ["reserve", "pay", "audit", "audit#2", "draw_up"]


def test_a_renamed_step_that_left_no_record_keeps_its_idempotency_key() -> None:
    """Fault: a worker died after the effect, and the next one had the new name in the key."""
    bench = Bench(at_once(pay))
    first, _, third = (call.id for call in bench.started)
    assert (first, third) == (f"{bench.run_id}/pay", f"{bench.run_id}/pay#3")
    bench.complete("pay#2", 1)
    bench.settle()
    bench.crash(at_once(renamed("charge", "pay")))
    assert [(call.key, call.id) for call in bench.started] == [
        ("charge", first),
        ("charge#3", third),
    ]
    bench.fail("charge", OSError("busy"), retry_in=30)
    bench.commit()
    bench.crash(at_once(renamed("charge", "pay")))
    bench.now += 30_000_000
    bench.take(bench.turn.wake())
    assert {call.key: call.id for call in bench.started} == {"charge": first, "charge#3": third}


def test_steps_of_one_former_name_share_no_idempotency_key() -> None:
    """Fault: the calls of a step that was split in two had one key, and one effect."""
    card, bank = renamed("card", "pay"), renamed("bank", "pay")

    async def code(ctx: Context) -> object:
        return await asyncio.gather(card(1), bank(2), card(3), bank(4))

    bench = Bench(code)
    expected = [f"{bench.run_id}/{key}" for key in ("pay", "pay#2", "pay#3", "pay#4")]
    assert [call.id for call in bench.started] == expected
    bench.complete("bank", 1)
    bench.settle()
    bench.crash(code)
    assert [call.id for call in bench.started] == [expected[0], *expected[2:]]


def test_a_former_name_is_not_in_the_key_of_a_call_with_an_id_or_another_name() -> None:
    charge = renamed("charge", "pay")

    async def code(ctx: Context) -> object:
        await ctx.step("charge", charge, 1, id="first")
        return await charge.with_options(name="tip")(2)

    bench = Bench(code)
    assert [call.id for call in bench.started] == [f"{bench.run_id}/first"]
    bench.complete("first", 1)
    bench.settle()
    assert [call.id for call in bench.started[1:]] == [f"{bench.run_id}/tip"]
