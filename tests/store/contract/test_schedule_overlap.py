"""T6. Ticks that overlap: what they do while a run of their schedule has not ended."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.store.port import SCHEDULES_TOPIC, Store
from holdfast.types import BackfillFiring, Bucket, ClaimedTask, Finish, Overlap, RunTarget

from .actors import ManualWorker, get, log_types, start_notice
from .commands import command
from .schedule_actors import (
    MINUTE,
    NAME,
    ORDER,
    ManualScheduler,
    end_run,
    new_schedule,
    run_of,
    summary,
)


@pytest.fixture
def sally(store: Store) -> ManualScheduler:
    """Return a scheduler that does what the test says."""
    return ManualScheduler(store)


async def ticks(sally: ManualScheduler, clock: Clock, count: int, **policy: Any) -> list[Bucket]:
    """Fire so many ticks of a schedule, a minute apart; return their buckets, oldest first."""
    first = await sally.create(**policy)
    for number in range(count):
        await clock.advance(60)
        await sally.fire(first + number * MINUTE)
    return (await sally.store.list_buckets(NAME))[::-1]


async def continue_as_new(ann: ManualWorker, task: ClaimedTask) -> UUID:
    """Continue a run as new; return the next run."""
    new_id = uuid4()
    said = {"run_id": str(new_id), "input": 1, "version": 1, "signals": []}
    answer = await ann.commit(
        task,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        has_children=True,
    )
    assert not answer.refused
    return new_id


async def status(store: Store, bucket: Bucket) -> str:
    return (await get(store, run_of(bucket))).status


@pytest.mark.parametrize(
    ("overlap", "outcomes"),
    [
        ("skip", [("started", None), ("skipped", "overlap"), ("skipped", "overlap")]),
        ("buffer_one", [("started", None), ("buffered", None), ("skipped", "overlap")]),
        ("buffer_all", [("started", None), ("buffered", None), ("buffered", None)]),
        ("allow", [("started", None), ("started", None), ("started", None)]),
        ("terminate_running", [("started", None), ("started", None), ("started", None)]),
    ],
)
async def test_policies(
    sally: ManualScheduler, clock: Clock, overlap: Overlap, outcomes: list[tuple[str, str | None]]
) -> None:
    buckets = await ticks(sally, clock, 3, overlap=overlap)
    assert summary(buckets[::-1]) == outcomes
    assert (await sally.record()).buffered == sum(each == ("buffered", None) for each in outcomes)


async def test_after_the_end_of_the_run_a_tick_starts_again(
    sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    await ticks(sally, clock, 1)
    await end_run(ann)
    await clock.advance(60)
    tick = (await sally.record()).next_tick_at
    assert tick is not None
    assert (await sally.fire(tick)).outcome == "started"


async def test_terminate_ends_the_run_before(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """Also one that a worker holds; the worker is told."""
    first = await sally.create(overlap="terminate_running")
    await clock.advance(60)
    before = await sally.fire(first)
    task = await ann.take(handlers=ORDER)
    await clock.advance(60)
    due = await sally.take()
    fired = await sally.move(due, first + MINUTE)
    assert ("worker/ann", str(task.run_id)) in [(n.topic, n.payload) for n in fired.notices]
    after = await sally.bucket(first + MINUTE)
    assert (await status(store, before), await status(store, after)) == ("terminated", "running")
    assert after.stopped_run_id == before.run_id
    assert (await sally.record()).open_run_ids == (after.run_id,)


async def test_cancel_starts_at_once_if_the_run_had_not_begun(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    before, after = await ticks(sally, clock, 2, overlap="cancel_running")
    assert (await status(store, before), await status(store, after)) == ("cancelled", "running")
    assert after.stopped_run_id == before.run_id


async def test_cancel_waits_until_the_run_has_cleaned_up(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """The newest tick takes the place of one that waits."""
    first = await sally.create(overlap="cancel_running")
    await clock.advance(60)
    before = await sally.fire(first)
    task = await ann.take(handlers=ORDER)
    for number in (1, 2):
        await clock.advance(60)
        assert (await sally.fire(first + number * MINUTE)).outcome == "buffered"
    assert summary(await store.list_buckets(NAME)) == [
        ("started", None),
        ("skipped", "replaced"),
        ("buffered", None),
    ]
    assert (await log_types(store, run_of(before)))[-1] == "WorkflowCancelRequested"
    assert await store.start_buffered() == (0, [])
    await ann.finish(task, expected=2)
    started, notices = await store.start_buffered()
    assert (started, notices) == (1, [start_notice(store)])
    last = await sally.bucket(first + 2 * MINUTE)
    assert (last.outcome, last.stopped_run_id) == ("started", before.run_id)
    assert (await sally.record()).buffered == 0


async def test_a_tick_that_is_fired_again_keeps_the_run_that_it_had_stopped(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """The run was asked to stop for this tick, although a later one took its place."""
    before, *_ = await ticks(sally, clock, 1, overlap="cancel_running")
    await ann.take(handlers=ORDER)
    for at in (1, 2):
        await store.trigger_schedule(NAME, at=at)
    again, _ = await store.trigger_schedule(NAME, at=1, overlap="skip")
    assert again is not None
    assert (again.cause, again.stopped_run_id) == ("overlap", before.run_id)


async def test_buffered_ticks_follow_one_another(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """The end of a run tells the schedulers, each time."""
    heard: list[str] = []
    stop = await store.listen(SCHEDULES_TOPIC, heard.append)
    buckets = await ticks(sally, clock, 3, overlap="buffer_all")
    heard.clear()
    assert (await store.next_look()).has_buffered
    for number in range(3):
        task = await ann.take(handlers=ORDER)
        answer = await ann.finish(task)
        told = [notice for notice in answer.notices if notice.topic == SCHEDULES_TOPIC]
        assert [notice.payload.split(" ")[0] for notice in told] == (
            [str(task.run_id)] if number < 2 else []
        )
        started, _ = await store.start_buffered(run_ids=[task.run_id])
        assert started == (1 if number < 2 else 0)
    ended = await store.list_buckets(NAME)
    assert summary(ended) == [("started", None)] * 3
    assert [each.tick_at for each in ended[::-1]] == [each.tick_at for each in buckets]
    assert not (await store.next_look()).has_buffered
    await stop()


async def test_a_tick_behind_a_chain_of_continuations_waits_for_the_last(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    await ticks(sally, clock, 2, overlap="buffer_one")
    task = await ann.take(handlers=ORDER)
    continued = await continue_as_new(ann, task)
    assert await store.start_buffered(run_ids=[task.run_id]) == (0, [])
    next_task = await ann.take(handlers=ORDER)
    assert next_task.run_id == continued
    answer = await ann.finish(next_task)
    assert SCHEDULES_TOPIC in [notice.topic for notice in answer.notices]
    assert (await store.start_buffered(run_ids=[continued]))[0] == 1


async def test_a_paused_schedule_does_not_start_what_is_buffered(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    await ticks(sally, clock, 2, overlap="buffer_one")
    await store.pause_schedule(NAME)
    await end_run(ann)
    assert await store.start_buffered() == (0, [])
    assert not (await store.next_look()).has_buffered
    await store.resume_schedule(NAME)
    assert (await store.start_buffered())[0] == 1


async def test_a_change_of_policy_holds_for_runs_that_are_open(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    await ticks(sally, clock, 2, overlap="allow")
    await store.update_schedule(new_schedule(overlap="skip"))
    await clock.advance(60)
    tick = (await sally.record()).next_tick_at
    assert tick is not None
    assert (await sally.fire(tick)).cause == "overlap"


async def test_a_schedule_remembers_the_newest_100_open_runs(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    first = await sally.create(overlap="allow")
    await clock.advance(60 * 103)
    due = await sally.take()
    await sally.move(due, *range(first, first + 103 * MINUTE, MINUTE))
    buckets = await store.list_buckets(NAME, limit=200)
    assert len(buckets) == 103
    newest = tuple(run_of(each) for each in buckets[:100][::-1])
    assert (await sally.record()).open_run_ids == newest


async def test_a_tick_starts_a_run_of_a_flow(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """A flow that does not exist fails the tick, and no other."""
    target = RunTarget(kind="flow", name="shop/report")
    first = await sally.create(target=target)
    await sally.store.create_schedule(new_schedule("shop/other"))
    await clock.advance(60)
    due = {each.name: each for each in await store.due_schedules()}
    await sally.move(due["shop/other"], next_tick_at=first)
    bucket = await sally_fires(sally, due[NAME], first)
    assert (bucket.outcome, bucket.run_id) == ("failed", None)
    assert bucket.error is not None
    assert "shop/report" in bucket.error
    assert (await sally.record()).open_run_ids == ()


async def sally_fires(sally: ManualScheduler, due: Any, tick: int) -> Bucket:
    assert (await sally.move(due, tick)).moved == {NAME}
    return await sally.bucket(tick)


async def test_ticks_that_were_asked_for_start_during_a_pause(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """Those of a trigger and of a backfill, one after the other; not the regular ones."""
    regular = await ticks(sally, clock, 2, overlap="buffer_all")
    await store.pause_schedule(NAME)
    now = await store.now()
    for at in (now - 2, now - 1):
        asked, _ = await store.trigger_schedule(NAME, at=at)
        assert asked is not None
        assert asked.outcome == "buffered"
    assert (await store.next_look()).has_buffered
    for at in (now - 2, now - 1):
        task = await ann.take(handlers=ORDER)
        await ann.finish(task)
        assert (await store.start_buffered(run_ids=[task.run_id]))[0] == 1
        assert (await sally.bucket(at)).outcome == "started"
    assert not (await store.next_look()).has_buffered
    await end_run(ann)
    assert await store.start_buffered() == (0, [])
    assert (await sally.bucket(regular[1].tick_at)).outcome == "buffered"
    await store.resume_schedule(NAME)
    assert (await store.start_buffered())[0] == 1
    assert (await sally.record()).buffered == 0


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "cancel_running"])
async def test_a_regular_tick_that_a_pause_holds_is_in_no_triggers_way(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker, overlap: Overlap
) -> None:
    await ticks(sally, clock, 2, overlap="buffer_one")
    await store.pause_schedule(NAME)
    await end_run(ann)
    await clock.advance(1)
    asked, _ = await store.trigger_schedule(NAME, overlap=overlap)
    assert asked is not None
    assert asked.outcome == "started"


async def test_a_backfill_continues_during_a_pause_without_a_notice(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """A scheduler that looks around by itself finds what waits."""
    first = await sally.create()
    await clock.advance(300)
    await store.pause_schedule(NAME)
    await store.backfill_schedule(NAME, first, first + 2 * MINUTE, backfill_id=uuid4())
    [due] = await store.due_backfills()
    at = [first, first + MINUTE, first + 2 * MINUTE]
    firing = BackfillFiring(
        backfill_id=due.backfill_id, position=due.position, ticks=at, new_position=at[-1]
    )
    await store.fire_backfill(firing)
    for each in at[1:]:
        await end_run(ann)
        assert (await store.start_buffered())[0] == 1
        assert (await sally.bucket(each)).outcome == "started"
