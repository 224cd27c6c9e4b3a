"""Paused runs: nothing new is begun until they are resumed."""

from __future__ import annotations

import asyncio

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.events import ACTIVITY_SCHEDULED, PAUSED, RESUMED, STEP_COMPLETED
from holdfast.types import Event
from tests.runtime.bench import START, Bench


async def _elsewhere(item: int) -> int:
    raise AssertionError("the test gives the results")


render = Activity(_elsewhere, name="render")
work = Step(_elsewhere, name="work")
after = Step(_elsewhere, name="after")


def paused(bench: Bench) -> Event:
    return bench.plain(PAUSED, '{"reason":null}')


def resumed(bench: Bench) -> Event:
    return bench.plain(RESUMED)


async def two_steps(ctx: Context) -> int:
    return await after(await work(1))


def test_running_steps_are_recorded_and_no_new_one_starts() -> None:
    bench = Bench(two_steps)
    bench.news(paused(bench))
    assert bench.commit_due is None
    bench.complete("work", 5)
    bench.commit()
    assert bench.starts == ["work"]
    assert bench.suspended
    bench.resume(resumed(bench))
    assert bench.starts == ["work", "after"]
    bench.complete("after", 6)
    bench.settle()
    assert bench.output == 6


def test_a_paused_run_is_the_same_on_replay() -> None:
    """S6. Its code has not seen what came while it was paused."""

    async def flow(ctx: Context) -> object:
        result = await work(1)
        render(result)
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.news(paused(bench))
    bench.complete("work", 5)
    bench.settle()
    bench.crash()
    bench.settle()
    assert bench.suspended
    assert bench.starts == []
    assert not bench.of_type(ACTIVITY_SCHEDULED)
    bench.resume(bench.signal("go", 1), resumed(bench))
    bench.settle()
    assert len(bench.of_type(ACTIVITY_SCHEDULED)) == 1
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert bench.output == 1


def test_timers_do_not_fire_while_a_run_is_paused_and_keep_their_moments() -> None:
    """Trap 15."""

    async def flow(ctx: Context) -> str:
        await ctx.sleep(10)
        return "awake"

    bench = Bench(flow)
    bench.turn.abandon()
    bench.log.append(paused(bench))
    bench.claim()
    bench.commit()
    assert bench.suspend.visible_at == START + 10_000_000
    bench.now += 3_600_000_000
    bench.resume()
    assert bench.effects.next_due is None
    bench.settle()
    assert bench.suspended
    bench.resume(resumed(bench))
    bench.settle()
    assert bench.output == "awake"


def test_a_failed_attempt_is_tried_again_after_the_pause() -> None:
    bench = Bench(two_steps)
    bench.news(paused(bench))
    bench.fail("work", OSError("gone"), retry_in=0)
    bench.settle()
    assert bench.suspended
    bench.resume(resumed(bench))
    assert bench.attempts == [("work", 1), ("work", 2)]


def test_a_cancel_of_a_paused_run_waits_until_it_is_resumed() -> None:
    """Trap 16."""

    async def flow(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.settle()
    bench.resume(paused(bench))
    bench.settle()
    bench.resume(bench.cancel_request())
    bench.settle()
    assert bench.suspended
    bench.resume(resumed(bench))
    bench.settle()
    assert bench.ended == "cancelled"


def test_entries_that_a_pause_held_back_are_delivered_one_by_one() -> None:
    """Trap 29."""

    async def flow(ctx: Context) -> list[int]:
        tasks = {asyncio.create_task(ctx.wait_for_signal(name), name=name) for name in "ab"}
        seen: list[int] = []
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            seen.append(len(done))
        return seen

    bench = Bench(flow)
    bench.settle()
    bench.resume(paused(bench), bench.signal("a"), bench.signal("b"), resumed(bench))
    bench.settle()
    assert bench.output == [1, 1]


def test_a_conflict_with_a_pause_starts_nothing() -> None:
    """Trap 1."""
    bench = Bench(two_steps)
    bench.complete("work", 5)
    bench.refuse(paused(bench))
    bench.settle()
    assert bench.starts == ["work"]
    assert bench.suspended
    assert len(bench.of_type(STEP_COMPLETED)) == 1
    bench.resume(resumed(bench))
    assert bench.starts == ["work", "after"]
