"""Workers are killed after each statement of a transactional step: one row, and one record."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from holdfast.client import Client
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker
from tests.crash import booking, stale_transactions
from tests.crash.processes import points_of

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

# The points after begin, the code's statement, and the record with the commit, or one by one.
AFTER = (2, 3, 5, *(booking.BY_PSYCOPG + point for point in (2, 3, 5, 7)))
LAST = (5, booking.BY_PSYCOPG + 7)  # it is committed


async def test_a_kill_after_each_statement_leaves_one_row_and_one_record(database_url: str) -> None:
    store = PostgresStore(database_url)
    await store.open()
    watcher = await asyncpg.connect(database_url)
    await watcher.execute("create table public.rooms (room int)")
    async with Client(database_url, app=booking.app) as client:
        handles = []
        for room in AFTER:
            handle = await client.start(booking.stay, room)
            given = (booking.work, database_url, handle.run_id, room % booking.BY_PSYCOPG)
            assert await asyncio.to_thread(points_of, *given) == 0, "it died"
            workers = [each.worker_id for each in await store.list_workers()]
            await store.pause_runs([handle.run_id])  # for the next one that is to die
            await store.reap_workers(worker_ids=workers)
            handles.append(handle)
        rows = await watcher.fetch("select room from public.rooms order by room")
        assert [row[0] for row in rows] == list(LAST)
        await store.resume_runs([handle.run_id for handle in handles])
        worker = Worker(booking.app, store)
        await worker.start()
        assert [await handle.result() for handle in handles] == list(AFTER)
        await worker.stop(grace=1)
    rows = await watcher.fetch("select room from public.rooms order by room")
    assert [row[0] for row in rows] == list(AFTER)
    ends = await watcher.fetch("select run_id from holdfast.events where key like 'book%'")
    assert sorted(row[0] for row in ends) == sorted(handle.run_id for handle in handles)
    await watcher.execute("drop table public.rooms")
    await watcher.close()
    await store.close()


async def test_a_stopped_worker_whose_lease_went_to_another_commits_nothing(
    database_url: str,
) -> None:
    contest = stale_transactions.Contest(database_url)
    await contest.run(stale_transactions.rooms_of(16))
    assert contest.seen["taken over"] >= 8, "at the points before the record"
