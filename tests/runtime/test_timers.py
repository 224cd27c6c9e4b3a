"""Durable timers: sleeps, timeouts, and what the log keeps of them."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import sys
import weakref
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from holdfast import App, Context
from holdfast.errors import ConfigurationError
from holdfast.events import TIMER_FIRED, TIMER_SCHEDULED, YIELDED
from holdfast.testing import Environment
from holdfast.types import Suspend
from tests.runtime.bench import SECOND, START, Bench, work


def fire_at(bench: Bench, place: int = 0) -> int:
    text = bench.of_type(TIMER_SCHEDULED)[place].details or ""
    moment: int = json.loads(text)["fire_at"]
    return moment


@pytest.mark.parametrize("seconds", [0.001, 1, 86_400 * 3650])
def test_a_sleep_of_any_length_suspends_and_ends_on_time(seconds: float) -> None:
    """S6. S8."""

    async def flow(ctx: Context) -> float:
        await asyncio.sleep(seconds)
        return ctx.time()

    bench = Bench(flow)
    bench.commit()
    end = START + int(seconds * SECOND)
    assert bench.suspend == Suspend(end, ())
    bench.now = end
    bench.resume()
    bench.settle()
    assert bench.output == pytest.approx(end / SECOND)


def test_a_run_that_is_claimed_just_before_its_timer_fires_waits_in_memory() -> None:
    """S8. Claims come some ms early; another suspension would cost a commit and a claim."""

    async def flow(ctx: Context) -> str:
        await asyncio.sleep(60)
        return "awake"

    bench = Bench(flow)
    bench.commit()
    bench.now += 60 * SECOND - 9_000
    bench.resume()
    assert not bench.suspended
    assert bench.effects.next_due == START + 60 * SECOND
    bench.pass_time(0.009)
    bench.settle()
    assert bench.output == "awake"
    assert bench.of_type(YIELDED) == []


def test_a_run_that_is_woken_long_before_its_timer_fires_suspends_again() -> None:
    """S8. The lease is not kept for what is far."""

    async def flow(ctx: Context) -> None:
        await asyncio.sleep(60)

    bench = Bench(flow)
    bench.commit()
    bench.now += 59 * SECOND
    bench.resume()
    bench.commit()
    assert bench.suspend == Suspend(START + 60 * SECOND, ())


def test_the_deadline_does_not_move_when_the_worker_dies_after_recording_it() -> None:
    """Trap 15. B3."""

    async def flow(ctx: Context) -> None:
        await ctx.sleep(60)

    bench = Bench(flow)
    bench.commit()
    bench.now += 30 * SECOND
    bench.crash()
    bench.settle()
    assert bench.suspend.visible_at == START + 60 * SECOND
    assert len(bench.of_type(TIMER_SCHEDULED)) == 1


def test_a_timer_that_lives_longer_than_a_second_is_recorded_before_the_suspension() -> None:
    """Trap 15. A crash in a long guarded step keeps the deadline."""

    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(60):
            await work(1)

    bench = Bench(flow)
    assert bench.effects.next_due == START + SECOND
    bench.pass_time(1)
    bench.settle()
    assert fire_at(bench) == START + 60 * SECOND
    assert bench.effects.next_due == START + 60 * SECOND
    bench.now += 9 * SECOND
    bench.crash()
    assert bench.starts == ["work"]
    assert bench.effects.next_due == START + 60 * SECOND


def test_recording_a_timer_never_delays_a_step() -> None:
    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(60):
            await work(1)
            await work(2)

    bench = Bench(flow)
    bench.pass_time(1)
    assert [event.type for event in bench.commit_due.events] == ["TimerScheduled"]  # type: ignore[union-attr]
    bench.complete("work")
    bench.commit()
    bench.commit()
    assert bench.starts == ["work", "work#2"]


def test_a_rebuild_keeps_the_deadlines_of_timers_that_were_not_recorded() -> None:
    """Trap 15."""

    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(1):
            await asyncio.gather(work(1), work(2))

    bench = Bench(flow)
    bench.now += SECOND // 2
    bench.complete("work")
    bench.refuse(bench.interruption())
    assert bench.effects.next_due == START + SECOND


def test_a_cancelled_timer_leaves_no_event() -> None:
    async def flow(ctx: Context) -> None:
        async with asyncio.timeout(60):
            await work(1)

    bench = Bench(flow)
    bench.complete("work")
    bench.settle()
    assert bench.types() == ["WorkflowStarted", "StepCompleted", "WorkflowCompleted"]


def test_each_timer_ends_at_its_own_moment() -> None:
    """Trap 3. Retry pauses, wait timeouts and sleeps do not wake each other."""

    async def flow(ctx: Context) -> list[str]:
        order: list[str] = []

        async def after(seconds: int, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        async def signal() -> None:
            try:
                await ctx.wait_for_signal("never", timeout=1800)
            except TimeoutError:
                order.append("signal")

        await asyncio.gather(after(3600, "hour"), signal(), after(60, "minute"), work(1))
        return order

    bench = Bench(flow)
    bench.fail("work", OSError("busy"), retry_in=900)
    bench.settle()
    moments = []
    while bench.suspended:
        visible_at = bench.suspend.visible_at
        assert visible_at is not None
        moments.append((visible_at - START) // SECOND)
        bench.now = visible_at
        bench.resume()
        if "work" in bench.turn.executing:
            bench.complete("work", 1)
        bench.settle()
    assert moments == [60, 900, 1800, 3600]
    assert bench.output == ["minute", "signal", "hour"]


def test_timers_due_together_fire_by_deadline_and_then_by_creation() -> None:
    async def flow(ctx: Context) -> list[int]:
        order: list[int] = []

        async def after(seconds: float, number: int) -> None:
            await asyncio.sleep(seconds)
            order.append(number)

        await asyncio.gather(after(3, 1), after(1, 2), after(3, 3), after(2, 4))
        return order

    bench = Bench(flow)
    bench.commit()
    bench.now += 10 * SECOND
    bench.resume()
    bench.settle()
    assert bench.output == [2, 4, 1, 3]


def test_a_thousand_timers_cost_no_more_than_their_own_events() -> None:
    async def flow(ctx: Context) -> int:
        await asyncio.gather(*(asyncio.sleep(1 + item) for item in range(1000)))
        return 1000

    bench = Bench(flow)
    bench.settle()
    bench.now += 2000 * SECOND
    bench.resume()
    bench.settle()
    assert bench.output == 1000
    assert len(bench.of_type(TIMER_FIRED)) == 1000


def test_sleep_until_records_a_moment_and_not_a_length() -> None:
    async def flow(ctx: Context) -> None:
        await work(1)
        await ctx.sleep_until(datetime.fromtimestamp(START / SECOND, UTC) + timedelta(minutes=1))

    bench = Bench(flow)
    bench.now += 20 * SECOND
    bench.complete("work")
    bench.commit()
    assert bench.suspend.visible_at == START + 60 * SECOND


def test_sleep_until_a_past_moment_returns_at_once_and_needs_a_time_zone() -> None:
    async def flow(ctx: Context) -> str:
        await ctx.sleep_until(ctx.now() - timedelta(days=1))
        try:
            await ctx.sleep_until(datetime(2030, 1, 1))
        except ConfigurationError as error:
            return str(error)
        return "slept"

    bench = Bench(flow)
    bench.settle()
    assert "time zone" in bench.output
    assert bench.types() == ["WorkflowStarted", "WorkflowCompleted"]


def test_a_sleep_has_the_name_it_is_given() -> None:
    """B3."""

    async def flow(ctx: Context) -> None:
        await ctx.sleep(1, id="cool-down")
        await ctx.sleep(1)

    bench = Bench(flow)
    bench.commit()
    bench.pass_time(1)
    bench.resume()
    bench.settle()
    assert [event.key for event in bench.of_type(TIMER_SCHEDULED)] == ["cool-down", "sleep"]


async def sleeping(ctx: Context) -> str:
    await asyncio.sleep(30)
    return "slept"


async def listening(ctx: Context) -> str:
    await ctx.wait_for_signal("go")
    return "heard"


def test_a_deadline_that_changed_code_does_not_wait_for_survives_it() -> None:
    """Fault: after a roll-back nothing woke the run any more."""
    bench = Bench(sleeping)
    bench.settle()
    bench.crash(listening)
    bench.settle()
    assert bench.suspend.visible_at == START + 30 * SECOND
    bench.now = START + 30 * SECOND
    waits = list[int]()
    for _ in range(4):
        bench.resume()
        bench.settle()
        assert bench.suspend.visible_at is not None
        waits.append((bench.suspend.visible_at - bench.now) // SECOND)
        bench.now = bench.suspend.visible_at
    assert waits == [60, 60, 120, 240]
    bench.crash(sleeping)
    bench.settle()
    assert bench.output == "slept"


def test_a_retry_that_changed_code_does_not_make_survives_it() -> None:
    async def working(ctx: Context) -> int:
        return await work(1)

    bench = Bench(working)
    bench.fail("work", OSError("busy"), retry_in=30)
    bench.settle()
    bench.crash(listening)
    bench.settle()
    assert bench.suspend.visible_at == START + 30 * SECOND


def test_sleeping_for_ever_is_a_wait_like_any_other() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(math.inf)

    bench = Bench(flow)
    bench.commit()
    assert bench.suspended
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.ended == "cancelled"


def test_wait_for_makes_no_task() -> None:
    """The same keys on every version of Python."""

    async def flow(ctx: Context) -> list[object]:
        async def inner() -> int:
            return await work(1)

        found: list[object] = [await asyncio.wait_for(inner(), 10)]
        found.append(await asyncio.wait_for(work(2), None))
        for timeout in (5, 0):
            try:
                await asyncio.wait_for(work(3), timeout)
            except TimeoutError:
                found.append("timeout")
        return found

    bench = Bench(flow)
    bench.complete("work", 1)
    bench.settle()
    bench.complete("work#2", 2)
    bench.settle()
    bench.pass_time(5)
    bench.settle()
    assert bench.starts == ["work", "work#2", "work#3"]
    assert bench.output == [1, 2, "timeout", "timeout"]


def test_as_completed_accepts_coroutines_in_their_order() -> None:
    async def flow(ctx: Context) -> None:
        async def one(item: int) -> int:
            return await work(item)

        for found in asyncio.as_completed([one(item) for item in range(20)]):
            await found

    bench = Bench(flow)
    arguments = [json.loads(call.arguments)[0] for call in bench.started]
    assert arguments == list(range(20))


def test_on_other_loops_both_functions_are_those_of_asyncio() -> None:
    async def main() -> list[int]:
        async def one(item: int) -> int:
            return item

        found = [await asyncio.wait_for(one(1), 10)]
        found += sorted([await each for each in asyncio.as_completed([one(2), one(3)])])
        return found

    assert asyncio.run(main()) == [1, 2, 3]


async def test_handles_of_the_loop_are_those_that_libraries_know() -> None:
    """They are kept, compared, asked and cancelled as those of asyncio's own loops."""
    app = App("handles")

    @app.workflow
    async def waits(ctx: Context) -> list[str]:
        loop = asyncio.get_running_loop()
        called: list[str] = []
        soon = loop.call_soon(called.append, "soon")
        never = loop.call_soon(called.append, "never")
        later, unused = (loop.call_later(n, called.append, "later") for n in (60, 3600))
        assert later.when() == loop.time() + 60
        for handle in (soon, never, later, unused):
            assert isinstance(handle, asyncio.Handle)
            assert isinstance(handle, asyncio.TimerHandle) == (handle in (later, unused))
            assert not handle.cancelled()
            assert "append" in repr(handle)
            assert weakref.ref(handle)() is handle
            if sys.version_info >= (3, 12):
                assert isinstance(handle.get_context(), contextvars.Context)
        for handle in (never, unused):
            handle.cancel()
            assert handle.cancelled()
        assert len({soon, never, later, unused}) == 4
        await asyncio.sleep(61)
        assert not soon.cancelled()
        with anyio.move_on_after(5) as moved:
            async with anyio.create_task_group() as group:
                group.start_soon(asyncio.sleep, 1)
                await anyio.sleep(60)
        return [*called, f"moved {moved.cancelled_caught}"]

    async with Environment(app) as env:
        assert await env.run(waits) == ["soon", "later", "moved True"]
