"""What lists read among runs of flows with many tasks, counted by the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
from test_postgres_lists import READ

from holdfast.store.postgres import PostgresStore
from holdfast.types import RunFilter, RunRecord, State

pytestmark = pytest.mark.fresh_database

WIDE = 60_000  # elements of a map
# Runs of one flow: in each state one, two of them with a wide map; and many that wait.
SEED = f"""
    with added as (
        insert into holdfast.runs (run_id, kind, name, version, key, queue, priority, status, input,
            created_at)
        select holdfast.new_run_id(), 'flow', 'resize', 1, k.key, 'default', 2, 'running', '1',
            holdfast.now() - interval '1 s'
        from (
            select unnest(array['due', 'leased', 'later', 'paused', 'held', 'tiny']) as key
            union all
            select 'w' || n from generate_series(1, 2000) as n
        ) as k
        returning run_id, key
    ), turns as (
        insert into holdfast.tasks (run_id, kind, queue, handler, priority, visible_at, paused)
        select run_id, 'flow', 'default', 'resize@1', 2, 'infinity', key in ('paused', 'held')
        from added
    )
    insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at, worker,
        lease_no, paused)
    select run_id, 'page:' || n, 'step', 'default', 'resize@1', 2,
        case when key = 'later' then holdfast.now() + interval '1 day' else holdfast.now() end,
        case when key = 'leased' and n = {WIDE} or key = 'held' then 'ann' end, 1,
        key in ('paused', 'held')
    from added
    cross join lateral generate_series(
        1, case when key in ('due', 'leased', 'later') then {WIDE} else 1 end) as n
    where key not like 'w%'
    union all
    select run_id, 'page', 'step', 'default', 'resize@1', 2, holdfast.now() + interval '1 day',
        null, 0, false
    from added where key like 'w%'
"""
STATES = {
    "due": "queued",
    "tiny": "queued",
    "leased": "running",
    "held": "running",
    "later": "waiting",
    "paused": "paused",
}


@pytest.fixture(scope="module")
def seeded(module_database_url: str) -> str:
    async def seed() -> None:
        connection = await asyncpg.connect(module_database_url)
        await connection.execute(SEED)
        await connection.close()

    asyncio.run(seed())
    return module_database_url


async def every(store: PostgresStore, state: State) -> AsyncIterator[RunRecord]:
    """Yield all runs in a state: a page may be short where so many tasks are in it."""
    where = RunFilter(states=(state,))
    while True:
        page = await store.list_runs(where)
        for run in page.runs:
            yield run
        if page.cursor is None:
            return
        where = msgspec.structs.replace(where, cursor=page.cursor)


async def test_a_flow_is_in_the_state_of_its_tasks(seeded: str) -> None:
    store = PostgresStore(seeded)
    await store.open()
    try:
        page = await store.list_runs(RunFilter(limit=3000))
        runs = {run.key: run for run in page.runs}
        assert {key: runs[key].state for key in STATES} == STATES
        assert {run.kind for run in page.runs} == {"flow"}
        states: tuple[State, ...] = ("running", "queued", "paused")
        for state in states:
            keys = sorted([run.key or "" async for run in every(store, state)])
            assert keys == sorted(key for key, each in STATES.items() if each == state)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("state", "most"), [("running", 5_000), ("queued", 60_000), ("paused", 1_000)]
)
async def test_a_list_by_state_reads_a_bounded_part_of_wide_maps(
    seeded: str, state: str, most: int
) -> None:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(seeded)
    try:
        async with connection.transaction():
            before = await connection.fetchval(READ)
            rows = await connection.fetch(
                "select * from holdfast.list_runs($1, null, null, null, null, null, null, null, "
                "null, null, null, 50)",
                [state],
            )
            read = await connection.fetchval(READ) - before
        assert len(rows) == len({row["run_id"] for row in rows})
        assert read <= most
    finally:
        await connection.close()


async def test_what_nobody_serves_is_counted_without_reading_every_task(seeded: str) -> None:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(seeded)
    try:
        async with connection.transaction():
            before = await connection.fetchval(READ)
            rows = await connection.fetch("select * from holdfast.unserved()")
            read = await connection.fetchval(READ) - before
        assert [(row["handler"], row["tasks"]) for row in rows] == [("resize@1", 1000)]
        assert read <= 20_000
    finally:
        await connection.close()


async def test_the_open_tasks_of_a_wide_map_read_its_step_once(seeded: str) -> None:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(seeded)
    looks = "select pg_stat_get_xact_numscans('holdfast.steps_pkey'::regclass)"
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            "insert into holdfast.steps (handler, step_slug, step_index, step_type) "
            "values ('resize@1', 'page', 1, 'map')"
        )
        before = await connection.fetchval(looks)
        [row] = await connection.fetch(
            "select t.* from holdfast.runs r, holdfast.open_step_tasks(r.run_id) t "
            "where r.key = 'due'"
        )
        assert (row["step_slug"], row["phase"], row["tasks"]) == ("page", "due", WIDE)
        assert await connection.fetchval(looks) - before == 1
    finally:
        await transaction.rollback()
        await connection.close()
