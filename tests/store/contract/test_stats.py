"""Statistics by minute: written with heartbeats and by ends from outside, merged, deleted."""

from __future__ import annotations

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import Finish, LoadSample, MinuteCounts, Release
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED, MILLIS

from .actors import ManualWorker, start, step

MINUTE = 60_000_000
NAME = "test/order"


def counted(minute: int, number: int, name: str = NAME) -> MinuteCounts:
    """A minute in which so many runs began and ended."""
    counts = [0] * COUNTS
    counts[BEGUN] = counts[ENDED["failed"]] = number
    return MinuteCounts(minute, name, tuple(counts))


async def beat(store: Store, worker: ManualWorker, *stats: MinuteCounts) -> None:
    await store.heartbeat(worker.info(), [], lease_seconds=30, stats=stats)


async def this_minute(store: Store) -> int:
    now = await store.now()
    return now - now % MINUTE


async def totals(store: Store) -> dict[tuple[int, str], int]:
    """How many runs ended by minute and workflow."""
    return {
        (row.minute, row.name): sum(row.counts[at] for at in ENDED.values())
        for row in await store.read_stats(since=0)
    }


async def rows(store: Store) -> int:
    """How many rows of minutes and hours there are."""
    return sum(row.merged for row in await store.read_stats(since=0))


async def test_heartbeats_of_several_workers_add_up(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    minute = await this_minute(store)
    await beat(
        store, ann, counted(minute, 2), counted(minute - MINUTE, 5), counted(minute, 7, "a/b")
    )
    await beat(store, ann, counted(minute, 3))
    await beat(store, bob, counted(minute, 1))
    await beat(store, bob)
    assert await totals(store) == {
        (minute, NAME): 6,
        (minute - MINUTE, NAME): 5,
        (minute, "a/b"): 7,
    }
    [only] = await store.read_stats(since=minute, names=[NAME])
    assert (only.counts[BEGUN], only.merged) == (6, 2)
    assert len(await store.read_stats(since=0, limit=1)) == 1


async def test_statistics_are_read_in_parts_the_newest_first(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """However many minutes a part has, it is one row: a chart of a day reads a row for each bar."""
    since = await this_minute(store) - 9 * MINUTE
    for worker in (ann, bob):
        await beat(store, worker, *(counted(since + at * MINUTE, at) for at in range(10)))
    await beat(store, ann, counted(since + MINUTE, 7, "a/b"), counted(since - MINUTE, 5))
    found = await store.read_stats(since=since, part_seconds=240)
    assert {(row.minute - since, row.name): (row.counts[BEGUN], row.merged) for row in found} == {
        (8 * MINUTE, NAME): (34, 4),
        (4 * MINUTE, NAME): (44, 8),
        (0, NAME): (12, 8),
        (0, "a/b"): (7, 1),
    }
    assert [row.minute - since for row in found] == [8 * MINUTE, 4 * MINUTE, 0, 0]
    newest = await store.read_stats(since=since, part_seconds=240, limit=5)
    assert [(row.counts[ENDED["failed"]], row.merged) for row in newest] == [(34, 4), (7, 1)]


async def test_a_run_that_ends_from_outside_is_counted_with_its_time(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    claimed = await start(store)
    await ann.beat()
    task = await ann.take()
    assert task.run_id == claimed
    never_claimed = await start(store)
    await clock.advance(2)
    await store.terminate_runs([claimed])
    await store.cancel_runs([never_claimed])
    rows = await store.read_stats(since=0)
    counts = [sum(each) for each in zip(*(row.counts for row in rows), strict=True)]
    assert {row.name for row in rows} == {task.name}
    assert counts[ENDED["terminated"]] == counts[ENDED["cancelled"]] == 1
    assert counts[MILLIS] == 2_000
    assert counts[BUCKETS:] == [0] * 5 + [1] + [0] * 10  # of 1 to 3 seconds


async def test_old_rows_are_merged_then_deleted(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    hour = 60 * MINUTE
    await clock.advance((hour - await store.now() % hour) / 1e6)
    began = await store.now()
    for worker in (ann, bob):
        await beat(store, worker, *(counted(began + at * MINUTE, 1) for at in range(3)))
    expected = {(began + at * MINUTE, NAME): 2 for at in range(3)}
    assert await store.merge_stats() == 0
    assert await totals(store) == expected

    await clock.advance(10 * 60)
    assert await store.merge_stats() == 6
    assert await store.merge_stats() == 0
    assert await rows(store) == 3
    await beat(store, ann, counted(began, 4))  # one that was late
    assert await store.merge_stats() == 1
    assert await totals(store) == {**expected, (began, NAME): 6}
    assert await rows(store) == 3

    await clock.advance(50 * 3600)
    assert await store.merge_stats(limit=2) == 2
    assert await store.merge_stats(limit=2) == 1
    assert await store.merge_stats() == 0
    assert await totals(store) == {(began, NAME): 10}
    assert await rows(store) == 1

    await clock.advance(91 * 86400)
    assert await store.merge_stats() == 1
    assert await store.read_stats(since=0) == []


async def test_counts_of_ends_from_outside_are_given_once(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """They stay among the statistics. Those of workers' own ends are not given."""
    begun = await start(store, name=NAME)
    await ann.beat()
    assert (await ann.take(handlers=[f"{NAME}@1"])).run_id == begun
    await clock.advance(2)
    queued = await start(store, name=NAME)
    await store.terminate_runs([begun, queued])
    await beat(store, ann, counted(await this_minute(store), 1))
    before = await totals(store)
    assert await store.take_counts("tes") == await store.take_counts("test", limit=0) == []
    taken = await store.take_counts("test")
    assert {each.name for each in taken} == {NAME}
    assert sum(each.counts[ENDED["terminated"]] for each in taken) == 2
    assert sum(each.counts[MILLIS] for each in taken) == 2000
    assert sum(sum(each.counts[BUCKETS:]) for each in taken) == 1
    assert await store.take_counts("test") == []
    assert await totals(store) == before
    await store.terminate_runs([await start(store, name=NAME)])
    [more] = await store.take_counts("test")
    assert more.counts[ENDED["terminated"]] == 1


async def test_gauges_say_what_waits_and_end_at_a_limit(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await ann.beat()
    runs = [await start(store) for _ in range(3)]
    done = await ann.first()
    await ann.commit(done, step(), then=Finish("completed", "1"))
    await store.set_pause("queue", "nothing", paused=True)
    await clock.advance(90)
    stuck = await ann.first()
    await store.release_tasks(
        ann.worker_id,
        [Release(stuck.run_id, "", stuck.lease_no, await store.now() + MINUTE, "changed code")],
    )
    seen = await store.read_gauges()
    assert done.run_id in runs
    assert seen.in_flight == {done.name: 2}
    assert (seen.due, seen.runs_stuck, seen.approvals_open) == ({"default": 1}, 1, 0)
    assert seen.oldest_due_seconds == {"default": 90}
    limited = await store.read_gauges(limit=1)
    assert limited.in_flight == {done.name: 1}
    await ann.take()
    empty = await store.read_gauges()
    assert (empty.due, empty.oldest_due_seconds) == ({"default": 0}, {"default": 0})


async def samples(store: Store, name: str | None = None) -> list[LoadSample]:
    """All samples of the last hour in one part."""
    since = await store.now() - 60 * MINUTE
    return await store.read_samples(since=since, part_seconds=7_200, name=name)


async def test_a_minute_has_one_sample_of_what_waits_and_what_is_worked_on(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    for queue in ("default", "default", "default", "slow"):
        await start(store, queue=queue)
    await start(store, delay_seconds=600.0)  # it does not wait for a worker
    await ann.beat()
    [*_] = (await ann.claim(limit=1)).tasks
    assert await store.sample_load()
    assert not await store.sample_load()
    places = ann.info().concurrency
    assert await samples(store) == [
        LoadSample(0, "", 1, 3, 1, places),
        LoadSample(0, "default", 1, 2, 1, 0),
        LoadSample(0, "slow", 1, 1, 0, 0),
    ]
    await clock.advance(60)
    assert await store.sample_load()
    assert await samples(store) == [  # a worker that is not heard has no places
        LoadSample(0, "", 2, 3, 2, places),
        LoadSample(0, "default", 2, 2, 2, 0),
        LoadSample(0, "slow", 2, 1, 0, 0),
    ]


async def test_samples_of_one_workflow_have_the_row_of_all_queues_beside_them(store: Store) -> None:
    await start(store, name="test/order")
    await start(store, name="test/other", queue="slow")
    assert await store.sample_load()
    assert await samples(store, "test/order") == [
        LoadSample(0, "", 1, 2, 0, 0),
        LoadSample(0, "default", 1, 1, 0, 0),
    ]


async def test_a_sample_counts_to_a_limit_for_each_queue_and_handler(store: Store) -> None:
    for _ in range(5):
        await start(store)
    await start(store, queue="slow")
    assert await store.sample_load(limit=3)
    assert [(each.queue, each.due) for each in await samples(store)] == [
        ("", 4),
        ("default", 3),
        ("slow", 1),
    ]


async def test_samples_are_read_by_parts_of_the_time(store: Store, clock: Clock) -> None:
    since = await this_minute(store)
    for _ in range(3):
        await start(store)
        assert await store.sample_load()
        await clock.advance(60)
    found = await store.read_samples(since=since, part_seconds=120)
    assert [(each.part, each.queue, each.looks, each.due) for each in found] == [
        (0, "", 2, 2),  # the largest of the part, not the sum
        (0, "default", 2, 2),
        (1, "", 1, 3),
        (1, "default", 1, 3),
    ]
    later = await store.read_samples(since=since + MINUTE, part_seconds=60)
    assert [each.part for each in later] == [0, 0, 1, 1]


async def test_old_samples_are_kept_by_the_hour_then_deleted(store: Store, clock: Clock) -> None:
    now = await store.now()
    await clock.advance((60 * MINUTE - now % (60 * MINUTE)) / 1e6)  # to the full hour
    since = await store.now()
    for _ in range(2):
        await start(store)
        assert await store.sample_load()
        await clock.advance(60)
    assert await store.merge_samples() == 0
    await clock.advance(49 * 3600)
    before = await store.read_samples(since=since, part_seconds=7_200)
    assert await store.merge_samples(limit=3) == 3
    assert await store.merge_samples(limit=3) == 1
    assert await store.merge_samples() == 0
    assert await store.read_samples(since=since, part_seconds=7_200) == before
    assert [(each.queue, each.looks, each.due) for each in before] == [
        ("", 2, 2),
        ("default", 2, 2),
    ]
    await clock.advance(90 * 86_400)
    assert await store.merge_samples() == 2
    assert await store.read_samples(since=since, part_seconds=7_200) == []
