"""Steps, commits and conflicts of one turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest

from holdfast import App, Context
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError, StepFailed, StepTimedOut
from holdfast.events import STEP_COMPLETED
from holdfast.types import Event, Finish, Suspend
from tests.runtime.bench import START, Bench, work


@Step
def after(item: int) -> int:
    raise AssertionError("the test gives the results")


def test_a_last_step_and_the_end_are_one_commit() -> None:
    async def flow(ctx: Context) -> int:
        return await work(1) + 1

    bench = Bench(flow)
    bench.complete("work", 41)
    part = bench.commit()
    assert [event.type for event in part.events] == ["StepCompleted", "WorkflowCompleted"]
    assert bench.output == 42
    assert bench.ended == "completed"


def test_a_step_and_the_sleep_after_it_are_one_commit() -> None:
    """S8."""

    async def flow(ctx: Context) -> None:
        await work(1)
        await ctx.sleep("1d")

    bench = Bench(flow)
    bench.complete("work")
    part = bench.commit()
    assert [event.type for event in part.events] == ["StepCompleted", "TimerScheduled"]
    assert part.then == Suspend(START + 86_400_000_000, ())
    assert bench.suspended


def test_recorded_results_return_without_running_again() -> None:
    """S6. B1."""

    async def flow(ctx: Context) -> list[int]:
        return [await work(1), await work(2)]

    bench = Bench(flow)
    bench.complete("work", 10)
    bench.commit()
    bench.crash()
    assert bench.starts == ["work#2"]
    bench.complete("work#2", 20)
    bench.settle()
    assert bench.output == [10, 20]


def test_a_step_waits_until_the_result_that_led_to_it_is_durable() -> None:
    """Trap 30. An older commit that returns in between does not start it."""

    async def flow(ctx: Context) -> None:
        async def chain(item: int) -> None:
            await after(await work(item))

        await asyncio.gather(chain(1), chain(2))

    bench = Bench(flow)
    bench.complete("chain/work", 1)
    bench.complete("chain#2/work", 2)
    assert bench.starts == ["chain/work", "chain#2/work"]
    bench.commit()
    assert bench.starts[2:] == ["chain/after"]
    bench.commit()
    assert bench.starts[3:] == ["chain#2/after"]


def test_a_cancel_of_a_step_waits_until_what_led_to_it_is_durable() -> None:
    """Trap 30."""

    async def flow(ctx: Context) -> None:
        slow = asyncio.create_task(after(1))
        await work(1)
        slow.cancel()
        await ctx.sleep(60)

    bench = Bench(flow)
    bench.complete("work")
    assert bench.cancelled == []
    bench.commit()
    assert bench.cancelled == ["after"]


def test_the_result_of_a_step_that_was_given_up_survives_a_conflict() -> None:
    """The cancel is undone by what others wrote; the work of the step is not lost."""

    async def flow(ctx: Context) -> str:
        signal = asyncio.create_task(ctx.wait_for_signal("go"))
        slow = asyncio.create_task(after(1))
        await asyncio.wait([signal, asyncio.create_task(work(1))], return_when="FIRST_COMPLETED")
        if signal.done():
            return f"slow {await slow}"
        slow.cancel()
        await ctx.sleep(60)
        return "given up"

    bench = Bench(flow)
    bench.complete("work")
    bench.complete("after", 7)
    bench.refuse(bench.signal("go"), bench.interruption())
    assert bench.starts == ["after", "work"]
    bench.settle()
    assert bench.output == "slow 7"


def test_two_results_that_arrive_together_are_delivered_one_by_one() -> None:
    """Trap 29. Trap 19. What the code sees between them is the same live and on replay."""

    async def flow(ctx: Context) -> list[list[str]]:
        tasks = {asyncio.create_task(work(item), name=str(item)) for item in range(5)}
        seen: list[list[str]] = []
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            seen.append(sorted(task.get_name() for task in done))
        await after(1)
        return seen

    bench = Bench(flow)
    for key in ("work#3", "work", "work#5", "work#2", "work#4"):
        bench.complete(key)
    bench.settle()
    bench.crash()
    bench.complete("after")
    bench.settle()
    assert bench.output == [["2"], ["0"], ["4"], ["1"], ["3"]]


def test_a_race_has_the_same_winner_on_each_replay() -> None:
    """Trap 19."""

    async def flow(ctx: Context) -> str:
        tasks = [asyncio.create_task(work(1)), asyncio.create_task(after(1))]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = "after" if tasks[1] in done else "work"
        await ctx.step("confirm", confirm, winner)
        return winner

    def confirm(winner: str) -> int:
        raise AssertionError("the test gives the results")

    bench = Bench(flow)
    bench.complete("after")
    bench.complete("work")
    bench.settle()
    for _ in range(3):
        bench.crash()
        assert [json.loads(call.arguments) for call in bench.started] == [["after"]]
    bench.complete("confirm")
    bench.settle()
    assert bench.output == "after"


@pytest.mark.parametrize("recorded", range(11))
def test_gather_reuses_each_recorded_result_in_the_recorded_order(recorded: int) -> None:
    """Trap 18."""
    order: list[int] = []

    async def flow(ctx: Context) -> list[int]:
        async def one(item: int) -> int:
            result = await work(item)
            order.append(item)
            return result

        return await asyncio.gather(*(one(item) for item in range(10)))

    keys = ["one/work", *(f"one#{n}/work" for n in range(2, 11))]
    shuffled = [keys[place * 7 % 10] for place in range(10)]
    bench = Bench(flow)
    for key in shuffled[:recorded]:
        bench.complete(key, keys.index(key))
        bench.settle()
    order.clear()
    if not isinstance(bench.last and bench.last.then, Finish):
        bench.crash()
        assert order == [keys.index(key) for key in shuffled[:recorded]]
        assert bench.starts == [key for key in keys if key not in shuffled[:recorded]]
        for key in bench.starts:
            bench.complete(key, keys.index(key))
        bench.settle()
    assert bench.output == list(range(10))


def test_an_exhausted_step_raises_and_may_be_caught() -> None:
    """B2. S6."""

    async def flow(ctx: Context) -> list[object]:
        try:
            await work(1)
        except StepFailed as error:
            return [error.matches(OSError), error.matches(KeyError), str(error), error.key]
        return []

    bench = Bench(flow)
    bench.fail("work", ConnectionError("gone"))
    bench.settle()
    assert bench.output == [True, False, "step work failed: ConnectionError: gone", "work"]


def test_an_exhausted_step_that_is_not_caught_fails_the_run() -> None:
    """B2."""

    async def flow(ctx: Context) -> None:
        await work(1)

    bench = Bench(flow)
    bench.fail("work", ValueError("bad"))
    bench.settle()
    assert bench.ended == "failed"
    assert bench.error["kind"] == "holdfast.errors.StepFailed"
    assert bench.error["cause"]["kind"] == "builtins.ValueError"


def test_a_timed_out_step_is_told_apart_live_and_on_replay() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await work(1)
        except StepTimedOut:
            return await ctx.step("late", late)
        return "never"

    def late() -> str:
        raise AssertionError("the test gives the results")

    bench = Bench(flow)
    bench.fail("work", TimeoutError("30 s"), late=True)
    bench.commit()
    assert bench.starts == ["work", "late"]
    bench.crash()
    assert bench.starts == ["late"]


def test_a_short_pause_is_waited_for_in_place() -> None:
    """B2."""

    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    bench.fail("work", OSError("busy"), retry_in=0.5)
    assert bench.commit().then is None
    assert bench.effects.next_due == START + 500_000
    bench.pass_time(0.5)
    assert bench.attempts == [("work", 1), ("work", 2)]


def test_a_long_pause_suspends_and_its_attempts_survive_a_crash() -> None:
    """B2. Trap 3."""

    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    bench.fail("work", OSError("busy"), retry_in=30)
    assert bench.commit().then == Suspend(START + 30_000_000, ())
    bench.crash()
    assert bench.starts == []
    assert bench.settle() is not None
    assert bench.suspend.visible_at == START + 30_000_000
    bench.now += 30_000_000
    bench.resume()
    assert bench.attempts == [("work", 2)]
    bench.complete("work", 5)
    bench.settle()
    assert '"attempt":2' in (bench.of_type(STEP_COMPLETED)[0].details or "")
    assert bench.output == 5


def test_a_retry_starts_after_the_failure_is_durable() -> None:
    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    bench.fail("work", OSError("busy"), retry_in=0)
    assert bench.starts == ["work"]
    bench.refuse(bench.interruption())
    assert bench.starts == ["work"]
    bench.commit()
    assert bench.attempts == [("work", 1), ("work", 2)]


def test_a_call_has_its_own_id_at_each_attempt() -> None:
    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    first = bench.started[0].id
    bench.fail("work", OSError("busy"), retry_in=0)
    bench.settle()
    assert bench.started[1].id == first == "0198c0de-0000-7000-8000-123456789abc/work"


def test_a_result_of_a_step_that_was_cancelled_changes_nothing() -> None:
    """Trap 16. B6."""

    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                await work(1)
        except TimeoutError:
            await after(1)
            return "timeout"
        return "never"

    bench = Bench(flow)
    bench.pass_time(5)
    bench.commit()
    assert bench.cancelled == ["work"]
    bench.complete("work", 1)
    bench.complete("after")
    bench.settle()
    assert [event.key for event in bench.of_type(STEP_COMPLETED)] == ["after"]


def test_a_conflict_keeps_results_and_derives_the_rest_again() -> None:
    async def flow(ctx: Context) -> object:
        result = await work(1)
        ctx.set_value("progress", result)
        return [result, await ctx.wait_for_signal("go")]

    bench = Bench(flow)
    bench.complete("work", 3)
    bench.refuse(bench.signal("go", "early"))
    bench.settle()
    assert bench.types() == [
        "WorkflowStarted",
        "SignalReceived",
        "StepCompleted",
        "ValueSet",
        "WorkflowCompleted",
    ]
    assert bench.starts == ["work"]
    assert bench.output == [3, "early"]


def test_an_executing_step_continues_through_a_rebuild() -> None:
    async def flow(ctx: Context) -> list[int]:
        return await asyncio.gather(work(1), after(2))

    bench = Bench(flow)
    before = bench.turn.instance
    bench.complete("work", 1)
    bench.refuse(bench.interruption())
    assert bench.turn.instance is not before
    assert bench.starts == ["work", "after"]
    bench.complete("after", 2)
    bench.settle()
    assert bench.output == [1, 2]


def test_a_resumed_turn_asks_for_the_log_that_it_no_longer_has() -> None:
    async def flow(ctx: Context) -> list[object]:
        signal = await ctx.wait_for_signal("go")
        return [signal, await asyncio.gather(work(1), after(2)), ctx.cancelled]

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.signal("go", 1))
    bench.complete("work", 1)
    bench.refuse(bench.interruption())
    assert bench.needs_log
    bench.complete("after", 2)
    assert bench.commit_due is None
    bench.take(bench.turn.rebuild(bench.log))
    bench.settle()
    assert bench.output == [1, [1, 2], False]
    assert sorted(bench.starts) == ["after", "work"]


def test_new_entries_are_taken_while_no_commit_is_under_way() -> None:
    async def flow(ctx: Context) -> object:
        return (await asyncio.gather(work(1), ctx.wait_for_signal("go")))[1]

    bench = Bench(flow)
    bench.news(bench.signal("go", "now"))
    bench.complete("work")
    bench.settle()
    assert bench.output == "now"


def test_new_entries_during_a_commit_are_left_to_the_conflict() -> None:
    async def flow(ctx: Context) -> object:
        await work(1)
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.complete("work")
    signal = bench.signal("go", 1)
    bench.take(bench.turn.take_unread([signal], bench.turn.durable_length))
    bench.refuse(signal)
    bench.settle()
    assert bench.output == 1


def test_new_entries_that_do_not_follow_the_known_ones_are_ignored() -> None:
    async def flow(ctx: Context) -> object:
        return (await asyncio.gather(work(1), ctx.wait_for_signal("go")))[1]

    bench = Bench(flow)
    future = bench.signal("go", "from the future")
    bench.take(bench.turn.take_unread([future], bench.turn.durable_length + 1))
    assert bench.turn.durable_length == 1
    bench.news(bench.signal("other"))
    bench.take(bench.turn.take_unread(bench.log, 0))
    assert bench.turn.durable_length == 2


@pytest.mark.parametrize("how", ["conflict", "news", "claim"])
def test_a_worker_that_lost_its_lease_drops_the_run(how: str) -> None:
    """Trap 8. Trap 32."""

    async def flow(ctx: Context) -> None:
        await asyncio.gather(work(1), after(1))

    bench = Bench(flow)
    bench.lose_lease()
    if how == "conflict":
        bench.complete("work")
        bench.take(bench.turn.conflict(bench.log[1:]))
    elif how == "news":
        bench.take(bench.turn.take_unread(bench.log[1:], 1))
    else:
        bench.turn.abandon()
        bench.lease -= 1
        bench.claim()
    assert bench.lost
    bench.commit_due = None
    bench.complete("after")
    assert bench.commit_due is None


def test_the_loss_of_another_task_does_not_disturb_the_holder() -> None:
    """Trap 32."""

    async def flow(ctx: Context) -> None:
        await work(1)

    bench = Bench(flow)
    bench.lose_lease(task_key="render")
    bench.take(bench.turn.take_unread(bench.log[1:], 1))
    assert not bench.lost


def test_a_run_that_others_have_ended_is_dropped() -> None:
    """S11."""

    async def flow(ctx: Context) -> None:
        await work(1)

    bench = Bench(flow)
    bench.news(Event("WorkflowTerminated", None, "{}", bench.now))
    assert bench.lost
    assert bench.cancelled == ["work"]


def test_the_end_waits_for_the_commit_under_way_and_cancels_running_steps() -> None:
    async def flow(ctx: Context) -> str:
        asyncio.create_task(after(1), name="stray")
        await work(1)
        await work(2)
        return "done"

    bench = Bench(flow)
    bench.complete("work")
    bench.commit()
    bench.complete("work#2")
    assert bench.cancelled == []
    bench.settle()
    assert bench.output == "done"
    assert bench.cancelled == ["after"]
    assert any("stray" in problem for problem in bench.problems)


def test_a_task_that_failed_unseen_is_reported() -> None:
    async def flow(ctx: Context) -> None:
        async def broken() -> None:
            raise ValueError("nobody looks")

        asyncio.create_task(broken())
        await work(1)

    bench = Bench(flow)
    bench.complete("work")
    bench.settle()
    assert any("nobody looks" in problem for problem in bench.problems)


def test_an_output_that_cannot_be_stored_fails_the_run() -> None:
    """Trap 20."""

    async def flow(ctx: Context) -> object:
        return float("nan")

    bench = Bench(flow)
    bench.settle()
    assert bench.ended == "failed"
    assert "NaN" in bench.error["message"]


def test_arguments_that_cannot_be_stored_fail_at_the_call() -> None:
    """Trap 20."""

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step("bad", print, "a\0b")
        except ValueError as error:
            return str(error)
        return "stored"

    bench = Bench(flow)
    bench.settle()
    assert "NUL" in bench.output


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("awaited", [True, False])
def test_a_system_exit_fails_the_run_and_does_not_end_the_worker(
    kind: type[BaseException], awaited: bool
) -> None:
    async def flow(ctx: Context) -> None:
        async def child() -> None:
            raise kind(3)

        task = asyncio.create_task(child())
        await (task if awaited else work(1))

    bench = Bench(flow)
    bench.settle()
    assert bench.ended == "failed"
    assert bench.error["kind"] == f"builtins.{kind.__name__}"


def test_a_run_that_waits_for_nothing_durable_is_stuck() -> None:
    async def flow(ctx: Context) -> None:
        await work(1)
        await asyncio.get_running_loop().create_future()

    bench = Bench(flow)
    bench.complete("work")
    bench.commit()
    assert "nothing durable" in str(bench.stuck)
    assert bench.types() == ["WorkflowStarted", "StepCompleted"]


def test_a_busy_wait_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", itertools.count().__next__)

    async def flow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    bench = Bench(flow)
    assert "never blocks" in str(bench.stuck)


def test_a_finite_gather_of_very_many_calls_is_not_a_busy_wait() -> None:
    """The limit is one of time, and grows with the tasks that the code has made."""

    async def flow(ctx: Context) -> None:
        await asyncio.gather(*(work(item) for item in range(60_000)))

    bench = Bench(flow)
    assert bench.stuck is None
    assert len(bench.starts) == 60_000


def test_the_limit_of_a_drain_is_one_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of callbacks is too many, and neither a suspended machine nor a debugger counts."""
    monkeypatch.setattr(time, "thread_time", lambda: 1.0)

    async def flow(ctx: Context) -> str:
        for _ in range(150_000):
            await asyncio.sleep(0)
        return "done"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "done"


@pytest.mark.parametrize("seconds", [5, 50])
def test_the_limit_of_a_drain_is_the_apps(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))

    async def flow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    bench = Bench(flow, registry=Registry("app", blocking_limit=seconds))
    assert "never blocks" in str(bench.stuck)
    assert seconds < next(clock) < seconds + 5


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="blocking_limit"):
        App("shop", blocking_limit=0)


def test_a_thousand_steps_in_order_have_keys_of_their_own() -> None:
    async def flow(ctx: Context) -> int:
        return sum([await work(item) for item in range(1000)])

    bench = Bench(flow)
    for place in itertools.count():
        if bench.ended:
            break
        bench.complete(bench.starts[place], 1)
        bench.settle()
    assert bench.output == 1000
    assert bench.starts[-1] == "work#1000"
