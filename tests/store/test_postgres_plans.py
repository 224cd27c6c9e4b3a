"""What the hot path reads, counted by the server: plans must not depend on luck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from contract.actors import ManualWorker, new_run
from contract.commands import RESIZE, activity
from scene import Scene, Session, finished, turn, yielded

from holdfast.store.postgres.claims import claimed_task
from holdfast.types import ClaimedTask, TurnCommit
from holdfast.values.ids import uuid7

pytestmark = pytest.mark.fresh_database

SEED = """
    with numbers as (
        select n, ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid as run_id  -- in order, as ids are
        from generate_series(1, {count}) as n
    ), runs as (
        insert into holdfast.runs (run_id, name, version, queue, priority, input, created_at)
        select run_id, 'order', 1, 'default', 2, '1', holdfast.now() from numbers
    ){events}
    insert into holdfast.tasks (run_id, queue, handler, priority, visible_at)
    select run_id, 'default', '{handler}', 2,
        holdfast.now() + interval '{delay} day' + n * interval '1 ms'
    from numbers
"""
EVENTS = """, events as (
        insert into holdfast.events (run_id, idx, event_type, at)
        select run_id, 0, 'WorkflowStarted', holdfast.now() from numbers
    )"""
INDEXES = """
    select format('drop index %I.%I', schemaname, indexname), indexdef from pg_indexes
    where schemaname = 'holdfast' and tablename in ('runs', 'tasks') and indexdef !~ ' UNIQUE '
"""
SLEEPING = """
    insert into holdfast.tasks
        (run_id, key, kind, queue, handler, priority, visible_at, deadline_at, payload)
    select run_id, 'a0', 'activity', 'default', 'resize@0', 2, visible_at, visible_at, '{}'
    from holdfast.tasks where handler = 'order@1' and visible_at > holdfast.now()
    on conflict do nothing
"""
READ = """
    select coalesce(sum(seq_tup_read), 0)::int,
        coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::int
    from pg_stat_xact_user_tables t join pg_index i on i.indrelid = t.relid
    where t.schemaname = 'holdfast' and t.relname <> 'workers'  -- a handful, read whole
"""
PAGES = "select pg_stat_get_xact_blocks_fetched('holdfast.tasks_due'::regclass)"


def seed(count: int, *, handler: str = "order@1", days: int = 1, events: str = EVENTS) -> str:
    """Write the statement that makes runs which come due in some days."""
    prefix = uuid4().hex[:20]
    return SEED.format(prefix=prefix, count=count, handler=handler, delay=days, events=events)


async def seed_many(connection: asyncpg.Connection, count: int) -> None:
    """Make runs that come due tomorrow, and index them afterwards: in two thirds of the time."""
    indexes = await connection.fetch(INDEXES)
    for dropping, _ in indexes:
        await connection.execute(dropping)
    await connection.execute(seed(count, events=""))
    for _, making in indexes:
        await connection.execute(making)


@dataclass(frozen=True)
class Reading:
    """What one transaction read: rows by sequential scans, entries by index scans."""

    rows: int
    entries: int

    def __sub__(self, before: Reading) -> Reading:
        return Reading(self.rows - before.rows, self.entries - before.entries)


@dataclass
class Meter:
    """Calls functions on one connection, whose cached plans it keeps, and counts the reading."""

    session: Session

    async def read(self, function: Any, *arguments: object) -> Reading:
        """Call a function in a transaction of its own; say what it read."""
        async with self.session.transaction():
            before = await self._read()
            await self.session.call(function, *arguments)
            return await self._read() - before

    async def commit(self, *turns: TurnCommit) -> Reading:
        """Commit turns; say what that read."""
        async with self.session.transaction():
            before = await self._read()
            row = await self.session.commit("ann", *turns)
            assert row["refused"] is None
            return await self._read() - before

    async def claim(self, limit: int) -> tuple[list[ClaimedTask], Reading]:
        """Claim; return the tasks, and what that read."""
        async with self.session.transaction():
            before = await self._read()
            ranges = (None, None, None, None)
            rows = await self.session.call(
                "claim_tasks",
                "ann",
                ["default"],
                ["order@1"],
                limit,
                30.0,
                0.0,
                0.25,
                5,
                *ranges,
                True,
            )
            return [claimed_task(row) for row in rows[:-1]], await self._read() - before

    async def start(self, count: int) -> list[UUID]:
        """Start runs on this connection."""
        run_ids = [uuid7() for _ in range(count)]
        await self.session.call("start_runs", run_ids, ["order"] * count)
        return run_ids

    async def round(self, count: int) -> list[Reading]:
        """Pass runs through all of their life; return what each call read."""
        run_ids = await self.start(count)
        tasks, claimed = await self.claim(count)
        assert len(tasks) == count
        leases = [run_ids, [""] * count, [1] * count, [1] * count]
        worker = ("ann", "host", 1, ["default"], ["order@1"], 10, "0", None, 30.0)
        readings = [
            claimed,
            await self.read("heartbeat", *worker, *leases),
            await self.commit(*(turn(task) for task in tasks)),
            await self.read(
                "signal_runs", run_ids, ["packed"] * count, ["1"] * count, [None] * count
            ),
            await self.read("read_events", run_ids, [0] * count),
            await self.read("get_runs", run_ids),
            await self.commit(*(yielded(task, "packed", expected=3) for task in tasks)),
            await self.read(
                "signal_runs", run_ids, ["packed"] * count, ["2"] * count, ["id"] * count
            ),
        ]
        again, claimed = await self.claim(count)
        readings += [claimed, await self.commit(*(finished(task) for task in again))]
        return readings

    async def activities(self, tasks: list[ClaimedTask], count: int) -> list[Reading]:
        """Pass activities of runs through all of their life; return what each call read."""
        each = range(count // len(tasks))
        orders = [activity(f"a{n}", schedule_to_close=3600) for n in each]
        parts = (msgspec.structs.replace(turn(task, *orders), has_commands=True) for task in tasks)
        readings = [await self.commit(*parts)]
        claim = ["claim_tasks", "ann", ["default"], list(RESIZE), count, 30.0]
        readings.append(await self.read(*claim))
        run_ids = [task.run_id for task in tasks for _ in each]
        keys = [f"a{n}" for _ in tasks for n in each]
        worker = ("ann", "host", 1, ["default"], ["order@1"], 10, "0", None, 30.0)
        leases = [run_ids, keys, [1] * count, [0] * count, ["1"] * count]
        readings.append(await self.read("heartbeat", *worker, *leases))
        nothing = [None] * count
        ends = [run_ids, keys, [1] * count, ["1"] * count, nothing, [True] * count]
        more = [[False] * count, nothing, nothing]
        readings.append(await self.read("end_activities", "ann", *ends, *more))
        readings.append(await self.read("time_out_activities", 100))
        return readings

    async def _read(self) -> Reading:
        row = await self.session.connection.fetchrow(READ)
        assert row is not None
        return Reading(*row)


async def test_plans_made_on_empty_tables_stay_right(scene: Scene) -> None:
    """Storage rule 21. Cached while there was nothing, used when there is much."""
    meter = Meter(await scene.session())
    await scene.watcher.connection.execute("vacuum analyze")
    for _ in range(8):
        await meter.round(2)
    await scene.watcher.connection.execute(seed(20_000))
    readings = await meter.round(20)
    assert [reading for reading in readings if reading.rows or reading.entries > 20 * 40] == []


async def test_claim_planned_on_empty_tables_does_not_walk_what_waits(scene: Scene) -> None:
    """Storage rule 17. What an index scan passes over is in no count of rows, but its pages are."""
    meter = Meter(await scene.session())
    await scene.watcher.connection.execute("vacuum analyze")
    for _ in range(8):
        await meter.start(2)
        await meter.claim(10)
    await scene.watcher.connection.execute(seed(20_000))
    async with meter.session.transaction():
        before = await meter.session.connection.fetchval(PAGES)
        tasks, _ = await meter.claim(10)
        pages = await meter.session.connection.fetchval(PAGES) - before
    assert (tasks, pages < 60) == ([], True)


@pytest.mark.parametrize("analyzed", ["before", "after"])
async def test_plans_of_activities_stay_right(scene: Scene, analyzed: str) -> None:
    """Storage rule 21. Beside 20,000 runs, each with an activity that sleeps."""
    meter = Meter(await scene.session())
    await scene.watcher.connection.execute("vacuum analyze")
    for _ in range(8):
        await meter.start(2)
        await meter.activities((await meter.claim(2))[0], 2)
    if analyzed == "after":  # as autovacuum does: there were activities, and none has a deadline
        await scene.watcher.connection.execute("analyze")
    await scene.watcher.connection.execute(seed(20_000))
    await scene.watcher.connection.execute(SLEEPING)
    await meter.start(10)
    tasks, _ = await meter.claim(10)
    readings = await meter.activities(tasks, 20)
    assert [reading for reading in readings if reading.rows or reading.entries > 20 * 40] == []


@pytest.mark.parametrize("analyzed", ["before", "after"])
async def test_plans_of_time_limits_stay_right(scene: Scene, analyzed: str) -> None:
    """Storage rule 21. Beside 20,000 runs that have a deadline far ahead."""
    meter = Meter(await scene.session())
    await scene.watcher.connection.execute("vacuum analyze")
    for _ in range(8):
        await meter.start(2)
        await meter.read("time_out_runs", 100)
    if analyzed == "after":  # as autovacuum does: there are runs, and none has a deadline
        await scene.watcher.connection.execute("analyze")
    await scene.watcher.connection.execute(seed(20_000))
    await scene.watcher.connection.execute(
        "update holdfast.runs set deadline_at = holdfast.now() + interval '1 day' where true"
    )
    reading = await meter.read("time_out_runs", 100)
    assert (reading.rows, reading.entries < 100) == (0, True)


async def test_activities_of_one_run_cost_what_they_are(scene: Scene) -> None:
    """Storage rule 24. Ten times as many never read a hundred times as much."""
    meter = Meter(await scene.session())
    read: list[list[Reading]] = []
    for count in (100, 1000):
        await meter.start(1)
        read.append(await meter.activities((await meter.claim(1))[0], count))
    for few, many in zip(*read, strict=True):
        assert many.rows == 0
        assert many.entries <= 20 * few.entries + 20


async def test_claim_reads_nothing_of_what_is_not_paused(scene: Scene) -> None:
    """B6. Pauses cost a claim nothing where there are none, and little where there are some."""
    meter = Meter(await scene.session())
    _, before = await meter.claim(10)
    assert before == Reading(0, 0)
    for number in range(20):
        await scene.store.set_pause("queue", f"queue-{number}", paused=True)
    _, after = await meter.claim(10)
    assert (after.rows, after.entries < 50) == (0, True)


@pytest.mark.slow
async def test_claim_reads_the_index_at_a_million_waiting_runs(database_url: str) -> None:
    """Storage rule 17. What is due is found without reading what is not."""
    async with Scene.on(database_url) as scene:
        await seed_many(scene.watcher.connection, 1_000_000)
        meter = Meter(await scene.session())
        for _ in range(8):
            await meter.start(5)
            tasks, reading = await meter.claim(10)
            assert len(tasks) == 5
            assert reading.rows == 0
            assert reading.entries < 200
        nothing, reading = await meter.claim(10)
        assert nothing == []
        assert reading.entries < 200


async def test_claim_skips_ranges_that_no_worker_serves(scene: Scene) -> None:
    """Storage rule 17. 20,000 tasks due for another handler cost nothing."""
    await scene.watcher.connection.execute(seed(20_000, handler="ship@1", days=-1))
    meter = Meter(await scene.session())
    await meter.start(3)
    tasks, reading = await meter.claim(10)
    assert len(tasks) == 3
    assert reading.entries < 100


async def test_claim_skips_rows_that_vacuum_may_not_remove(scene: Scene, ann: ManualWorker) -> None:
    """Trap 28, storage rule 18. An old snapshot keeps the dead entries of all that passed."""
    session, meter = await scene.session(), Meter(await scene.session())
    async with session.connection.transaction(isolation="repeatable_read"):
        await session.connection.fetchval("select count(*) from holdfast.runs")
        for _ in range(20):
            await scene.store.start_runs([new_run() for _ in range(200)])
            tasks = (await ann.claim(limit=200)).tasks
            await scene.store.commit("ann", uuid4(), [finished(task) for task in tasks])
        passed = await scene.store.now()
        await meter.start(20)
        claim = ["claim_tasks", "ann", ["default"], ["order@1"], 5, 30.0, 0.0, 0.25, 5]
        everything = await meter.read(*claim)
        behind = await meter.read(*claim, passed)
    assert everything.entries > 4_000
    assert behind.entries < 100
