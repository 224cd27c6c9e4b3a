"""Processes that delete and archive runs are killed: no run is lost from database and archive."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import TupleRow

from holdfast.retention import Archive
from tests.crash import sweeper
from tests.crash.processes import points_of, processes
from tests.objects import environment

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

RUNS = 30
BATCH = 1000
DUE = """
    with run as (
        insert into holdfast.runs (run_id, name, version, queue, priority, status, input, output,
            retention, created_at, completed_at, delete_after)
        select holdfast.new_run_id(), 'order', 1, 'default', 2, 'completed', 'null', '7',
            interval '1 day', e.at, e.at, e.at + interval '1 day'
        from (select now() - interval '2 days' as at from generate_series(1, %s)) as e
        returning run_id, created_at
    )
    insert into holdfast.events (run_id, idx, event_type, at)
    select r.run_id, e.idx, e.event_type, r.created_at from run r cross join (
        values (0, 'WorkflowStarted'), (1, 'ValueSet'), (2, 'WorkflowCompleted')
    ) as e (idx, event_type)
    returning run_id
"""
ORPHANS = """
    select count(*) from holdfast.events e
    where not exists (select from holdfast.runs r where r.run_id = e.run_id)
"""

WAITING = """
    select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
"""


def due_runs(url: str, count: int = RUNS) -> set[UUID]:
    """Write runs that have ended, and whose retention is over."""
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute(DUE, (count,)).fetchall()}


def kept(url: str) -> set[UUID]:
    """Return the runs of the database; each must have its whole log."""
    with psycopg.connect(url) as connection:
        connection.execute("update holdfast.runs set delete_after = now() - interval '1 s'")
        rows = connection.execute(
            "select run_id, count(*) from holdfast.events group by run_id"
        ).fetchall()
        assert {count for _, count in rows} <= {3}
        found = {row[0] for row in connection.execute("select run_id from holdfast.runs")}
        assert found == {row[0] for row in rows}
        return found


def in_process(url: str) -> None:
    """Sweep to the end."""
    asyncio.run(sweeper.sweep(url, "", 0))


def hold_up_second_batch(connection: psycopg.Connection[TupleRow], runs: list[UUID]) -> None:
    """Have one run, which is due after a batch of others, wait for the end of a transaction."""
    later = "update holdfast.runs set delete_after = delete_after + %s where run_id = any(%s)"
    connection.execute(later, (timedelta(seconds=1), [runs[BATCH]]))
    connection.execute(later, (timedelta(seconds=2), runs[BATCH + 1 :]))
    connection.commit()
    connection.execute("select from holdfast.events where run_id = %s for update", [runs[BATCH]])


def sweep(url: str, place: str, kill_at: int, more: dict[str, str]) -> int:
    """Sweep in a process of its own; return how many points it passed, 0 if it died."""
    return points_of(sweeper.sweep, url, place, kill_at, env=more)


async def test_a_sweeper_killed_at_every_point_leaves_no_hole(
    database_url: str, tmp_path: Path
) -> None:
    """S16, B8. Each run is in the database with its whole log, or in the archive, or in both."""
    place = f"file://{tmp_path}/archive"
    runs = due_runs(database_url)
    kill_at = 1
    while not sweep(database_url, place, kill_at, {}):
        there = kept(database_url)
        archived = await Archive(place).find(runs)
        assert there | archived.keys() == runs, f"killed at point {kill_at}"
        kill_at += 1
    assert kill_at > 12, "too few points: the test shows nothing"
    assert kept(database_url) == set()
    found = await Archive(place).find(runs)
    assert found.keys() == runs
    assert {len(each.events) for each in found.values()} == {3}


async def test_a_sweeper_killed_between_calls_of_s3_leaves_no_hole(
    database_url: str, s3_server: str, s3_bucket: str
) -> None:
    """S16. After the object, after its index, and before the deletion."""
    place = f"{s3_bucket}/crash"
    runs = due_runs(database_url)
    for kill_at in (8, 9, 10, 11, 12, 0):
        sweep(database_url, place, kill_at, environment(s3_server))
        archived = await Archive(place).find(runs)
        assert kept(database_url) | archived.keys() == runs, f"killed at point {kill_at}"
    assert kept(database_url) == set()
    assert (await Archive(place).find(runs)).keys() == runs


def test_a_sweeper_killed_in_a_transaction_leaves_whole_runs(database_url: str) -> None:
    """B8. What is left of a batch is all or nothing."""
    runs = due_runs(database_url, 3 * BATCH)
    with (
        psycopg.connect(database_url) as holding,
        psycopg.connect(database_url, autocommit=True) as watching,
    ):
        hold_up_second_batch(holding, sorted(runs))
        process = processes.Process(target=in_process, args=(database_url,), daemon=True)
        process.start()
        while watching.execute(WAITING).fetchone() != (1,):
            assert process.exitcode is None
            time.sleep(0.01)
        process.kill()
        process.join()
        assert watching.execute(ORPHANS).fetchone() == (0,)
        holding.rollback()  # the server ends the statement, or sees that nobody waits for it
        assert watching.execute(ORPHANS).fetchone() == (0,)
    assert 0 < len(kept(database_url)) < len(runs)
    assert sweep(database_url, "", 0, {}) > 0
    assert kept(database_url) == set()
