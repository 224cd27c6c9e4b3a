"""What lists of runs read among many runs, counted by the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from holdfast.store.postgres import PostgresStore
from holdfast.types import RunFilter

pytestmark = pytest.mark.fresh_database

RUNS = 60_000
BOUND = 5_000
FIRST_PART = 204  # four times a page of 50 and one more: runs looked at before the clock is
# Ended runs of one busy workflow, and a few of all else. Runs are a millisecond apart.
SEED = f"""
    with numbers as (
        select n, holdfast.new_run_id() as run_id,
            holdfast.now() - (interval '1 ms' * ({RUNS} - n)) as created_at
        from generate_series(1, {RUNS}) as n
    ), added as (
        insert into holdfast.runs (run_id, name, version, queue, priority, status, input, tags,
            created_at, completed_at, parent_run_id, parent_key, parent_close, build)
        select run_id, 'shop/order', 1, case when n = 1 then 'slow' else 'default' end, 2,
            case when n % 5000 = 0 then 'failed' when n % 3 = 0 then 'running'
                else 'completed' end,
            json_build_object('customer', n),
            case when n = 2 then array['vip'] else '{{}}' end, created_at,
            case when n % 5000 = 0 or n % 3 <> 0 then created_at end,
            case when n % 20 = 0 then '00000000-0000-7000-8000-000000000001'::uuid end,
            case when n % 20 = 0 then 'child#' || n end, case when n % 20 = 0 then 'cancel' end,
            case when n <= 300 then 'b1' end
        from numbers
    ), described as (  -- half of the runs are of one stage, and each 1,000th of one customer
        insert into holdfast.attributes (run_id, name, value, created_at)
        select n.run_id, a.name, a.value, n.created_at
        from numbers n
        cross join lateral (
            select 'stage', '"live"'::json where n.n % 2 = 0
            union all
            select 'customer', to_json('c' || n.n % 1000)
        ) as a (name, value)
    )
    insert into holdfast.tasks (run_id, queue, handler, priority, visible_at)
    select run_id, 'default', 'shop/order@1', 2, holdfast.now() + interval '1 day'
    from numbers where n % 3 = 0 and n % 5000 <> 0
"""
ASK = """
    insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at, payload,
        started_at)
    select t.run_id, 'approve', 'approval', t.queue, '', 2, 'infinity', '{"title": "Well?"}',
        holdfast.now() - interval '1 s' * (hashtext(t.run_id::text) % 1000)
    from holdfast.tasks t where t.key = ''
"""
READ = """
    select coalesce(sum(seq_tup_read), 0)::int
        + coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::int
    from pg_stat_xact_user_tables t join pg_index i on i.indrelid = t.relid
    where t.schemaname = 'holdfast' and t.relname in ('runs', 'tasks', 'events', 'attributes')
"""
PARENT = UUID("00000000-0000-7000-8000-000000000001")


class Counted:
    """Lists runs, and says how many rows and entries the server read for it."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    async def read(
        self, where: RunFilter, *, seconds: float | None = None
    ) -> tuple[list[asyncpg.Record], int]:
        """List runs in a transaction of its own; by default without a look at the clock."""
        async with self.connection.transaction():
            return await self.read_within(where, seconds=seconds)

    async def read_within(
        self, where: RunFilter, *, seconds: float | None = None
    ) -> tuple[list[asyncpg.Record], int]:
        """List runs in the transaction that there is."""
        arguments = (
            list(where.states) or None,
            list(where.names) or None,
            list(where.queues) or None,
            list(where.tags) or None,
            where.key,
            where.since,
            where.until,
            where.parent_run_id,
            where.input_contains,
            None,
            None,
            where.limit + 1,
            False,
            json.dumps(where.attributes) if where.attributes else None,
            where.build,
        )
        places = ", ".join(f"${n}" for n in range(1, len(arguments) + 1))
        before = await self.connection.fetchval(READ)
        rows = await self.connection.fetch(
            f"select * from holdfast.list_runs({places}, p_seconds => $16)", *arguments, seconds
        )
        return rows, await self.connection.fetchval(READ) - before


async def seed(url: str, statistics: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "truncate holdfast.runs, holdfast.events, holdfast.tasks, holdfast.attributes"
        )
        if statistics == "stale":  # the planner believes that the tables are all but empty
            await connection.execute("alter table holdfast.runs set (autovacuum_enabled = off)")
            await connection.execute("alter table holdfast.tasks set (autovacuum_enabled = off)")
            await connection.execute(
                "alter table holdfast.attributes set (autovacuum_enabled = off)"
            )
            await connection.execute("analyze holdfast.runs, holdfast.tasks, holdfast.attributes")
        await connection.execute(SEED)
        if statistics == "fresh":
            await connection.execute("analyze holdfast.runs, holdfast.tasks, holdfast.attributes")
    finally:
        await connection.close()


@pytest.fixture(scope="module", params=["fresh", "stale"])
def seeded(request: pytest.FixtureRequest, module_database_url: str) -> str:
    asyncio.run(seed(module_database_url, request.param))
    return module_database_url


@pytest.fixture
async def counted(seeded: str) -> AsyncIterator[Counted]:
    connection = await asyncpg.connect(seeded)
    yield Counted(connection)
    await connection.close()


QUESTIONS = {
    "newest": (RunFilter(), 50),
    "a page": (RunFilter(limit=1000), 1000),
    "of a status": (RunFilter(states=("failed",)), 12),
    "of a workflow and status": (RunFilter(names=("shop/order",), states=("failed",)), 12),
    "of a name that no run has": (RunFilter(names=("shop/odrer",)), 0),
    "of a name given twice": (RunFilter(names=("shop/order", "shop/order")), 50),
    "running": (RunFilter(states=("running",)), 0),
    "queued": (RunFilter(states=("queued",)), 0),
    "stuck": (RunFilter(states=("stuck",)), 0),
    "paused": (RunFilter(states=("paused",)), 0),
    "waiting": (RunFilter(states=("waiting",)), 50),
    "children": (RunFilter(parent_run_id=PARENT), 50),
    "children that failed": (RunFilter(parent_run_id=PARENT, states=("failed",)), 12),
    "of an attribute": (RunFilter(attributes={"customer": "c7"}), 50),
    "of a common attribute": (RunFilter(attributes={"stage": "live"}), 50),
    "of an attribute that no run has": (RunFilter(attributes={"customer": "c"}), 0),
    "of two attributes": (RunFilter(attributes={"stage": "live", "customer": "c8"}), 50),
    "of two that go together never": (RunFilter(attributes={"stage": "live", "customer": "c7"}), 0),
    "of an attribute and a workflow": (
        RunFilter(names=("shop/order",), attributes={"customer": "c9"}),
        50,
    ),
    "open ones of a build": (RunFilter(states=("queued", "waiting"), build="b1"), 50),
    "of a build that no run has": (RunFilter(states=("waiting",), build="b9"), 0),
    "of a key": (RunFilter(names=("shop/order",), key="order-7"), 0),
    "of a key alone": (RunFilter(key="order-7"), 0),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_list_reads_little_more_than_it_shows(counted: Counted, question: str) -> None:
    """Edge case 21 of the server: each filter and each state that an index serves."""
    where, expected = QUESTIONS[question]
    await counted.read(where)  # the first look removes entries of rows that the seed has changed
    rows, read = await counted.read(where)
    found = [row["run_id"] for row in rows if row["run_id"] is not None]
    assert len(found) == len(set(found)) == (expected + 1 if expected == where.limit else expected)
    most = 4 * BOUND if question == "children that failed" else 12 * where.limit + 500
    if len(where.attributes) > 1:
        most += 1_500  # to find out which of them the fewest runs have
    assert read <= most, f"{question}: {read:,} rows and entries"


@pytest.mark.parametrize("names", ["null", "array['shop/order', 'shop/none']"])
async def test_a_count_stops_at_its_limit(counted: Counted, names: str) -> None:
    """A count reads as many entries of an index as it counts, whatever the number of runs."""
    async with counted.connection.transaction():
        before = await counted.connection.fetchval(READ)
        found = await counted.connection.fetch(f"select * from holdfast.count_runs({names}, 1001)")
        read = await counted.connection.fetchval(READ) - before
    counts = {row["status"]: row["runs"] for row in found}
    assert counts == {"completed": 1001, "running": 1001, "failed": 12}
    assert read < 4_500  # of three statuses; an entry may be returned with its row


@pytest.mark.parametrize("where", ["null, null, null, null", "null, null, null, array['none']"])
async def test_a_count_by_state_looks_at_a_bounded_number_of_runs(
    counted: Counted, where: str
) -> None:
    """Its runs are found as those of a list: through an index, or a part at a time."""
    async with counted.connection.transaction():
        before = await counted.connection.fetchval(READ)
        found = await counted.connection.fetch(
            f"select * from holdfast.count_runs_by('state', {where}, null, null, null, null, null, "
            "p_most => 1000, p_bound => 1000, p_seconds => null)"
        )
        read = await counted.connection.fetchval(READ) - before
    assert sum(row["runs"] for row in found) == (0 if "none" in where else 1000)
    assert all(row["stopped_at"] is not None for row in found)
    assert read < 25_000


async def test_edge_21_the_counts_of_the_dashboard_touch_a_bounded_number_of_entries(
    counted: Counted,
) -> None:
    """Edge case 21 of the server. At most 10,001 entries a status are read and counted.

    PostgreSQL counts what is read: of 60,000 runs as little as of 1,000,000.
    """
    most = 10_001
    async with counted.connection.transaction():
        before = await counted.connection.fetchval(READ)
        found = await counted.connection.fetch("select * from holdfast.count_runs(null, $1)", most)
        read = await counted.connection.fetchval(READ) - before
    counts = {row["status"]: row["runs"] for row in found}
    assert counts == {"completed": most, "running": most, "failed": 12}
    assert read <= 2 * (2 * most + 12) + 500  # an entry may be returned with its row


@pytest.mark.parametrize(
    "where",
    [
        RunFilter(tags=("vip",)),
        RunFilter(queues=("slow",)),
        RunFilter(build="b1"),
        RunFilter(input_contains='{"customer": 3}'),
    ],
    ids=["tag", "queue", "build", "input"],
)
async def test_a_filter_without_an_index_searches_a_bounded_number_of_runs(
    counted: Counted, where: RunFilter
) -> None:
    """Edge case 21 of the server: the filters that no index serves."""
    rows, read = await counted.read(where)
    assert [row["run_id"] for row in rows] == [None]
    assert rows[0]["stopped_at"] is not None
    assert read <= 8 * BOUND  # of three statuses, each walked to the bound


@pytest.mark.parametrize("names", [(), ("shop/order", "shop/none")], ids=["alone", "of a workflow"])
async def test_the_runs_of_a_key_are_found_one_after_the_other(
    counted: Counted, names: tuple[str, ...]
) -> None:
    """C19. Of 60,000 runs, those of the chain are read and no others."""
    transaction = counted.connection.transaction()
    await transaction.start()
    try:
        await counted.connection.execute("""
            do $$
            declare
                v_id uuid := holdfast.keyed_run_id('shop/order', 'k');
                v_next uuid;
            begin
                for n in 1 .. 40 loop
                    v_next := case when n % 2 = 0 then holdfast.new_run_id()
                        else holdfast.keyed_run_id('//retry', v_id::text) end;
                    insert into holdfast.runs (run_id, key, name, version, queue, priority, status,
                        input, output, error, tags, created_at, completed_at)
                    values (v_id, case when n = 1 then 'k' end, 'shop/order', 1, 'default', 2,
                        case when n % 2 = 0 then 'continued' else 'failed' end, 'null',
                        case when n % 2 = 0 then json_build_object('run_id', v_next) end,
                        case when n % 2 = 1 then '{}'::json end, '{}',
                        holdfast.now() + n * interval '1 s', holdfast.now() + interval '1 h');
                    v_id := v_next;
                end loop;
            end $$
        """)
        rows, read = await counted.read_within(RunFilter(names=names, key="k"))
        assert [row["status"] for row in rows] == ["continued", "failed"] * 20
        assert read < 1_000
    finally:
        await transaction.rollback()
        # The index has these runs until a search finds that they are dead.
        async with counted.connection.transaction():
            await counted.connection.execute("set local enable_seqscan = off")
            await counted.connection.fetch("select run_id from holdfast.runs order by run_id")


async def test_a_search_that_takes_long_stops_early(counted: Counted) -> None:
    """Large inputs, or rows on a slow disk: the page says how far it came."""
    rows, read = await counted.read(RunFilter(tags=("vip",)), seconds=0.0)
    newest = await counted.connection.fetch(
        "select run_id from holdfast.runs order by created_at desc, run_id desc limit $1",
        FIRST_PART,
    )
    assert [row["stopped_id"] for row in rows] == [newest[-1]["run_id"]]
    assert read <= 8 * FIRST_PART


async def test_a_state_of_too_many_runs_is_searched_like_a_filter_without_an_index(
    counted: Counted,
) -> None:
    """A long queue: its runs are not all looked up and sorted for the newest of them."""
    transaction = counted.connection.transaction()
    await transaction.start()
    try:
        await counted.connection.execute("""
            update holdfast.tasks set visible_at = holdfast.now() - interval '1 minute'
            where ctid in (select ctid from holdfast.tasks limit 8000)
        """)
        rows, read = await counted.read_within(RunFilter(states=("queued",)))
        assert [row["stopped_at"] is not None for row in rows] == [True]
        assert read <= 8 * BOUND
    finally:
        await transaction.rollback()
        # The index has the entries of these updates until a search finds that they are dead.
        await counted.read(RunFilter(states=("queued",)))


async def test_large_inputs_of_runs_that_other_filters_exclude_are_not_read(
    counted: Counted,
) -> None:
    connection = counted.connection
    chunks = """
        select coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::int
        from pg_class c join pg_index i on i.indrelid = c.reltoastrelid
        where c.oid = 'holdfast.runs'::regclass
    """
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("""
            update holdfast.runs set input = (
                select json_build_object('customer', 0, 'note', string_agg(md5(n::text), ''))
                from generate_series(1, 500) as n)
            where run_id in (
                select run_id from holdfast.runs order by created_at desc, run_id desc limit 20)
        """)
        read = []
        for tags in ((), ("vip",)):
            before = await connection.fetchval(chunks)
            await counted.read_within(RunFilter(tags=tags, input_contains='{"customer": -1}'))
            read.append(await connection.fetchval(chunks) - before)
        assert read[0] >= 20
        assert read[1] == 0
    finally:
        await transaction.rollback()


async def test_pages_continue_where_a_search_stopped(seeded: str) -> None:
    store = PostgresStore(seeded)
    await store.open()
    try:
        pages, cursor, found = 0, None, []
        while pages == 0 or cursor is not None:
            page = await store.list_runs(RunFilter(tags=("vip",), cursor=cursor))
            assert (page.searched_until is not None) == (page.cursor is not None)
            found += page.runs
            pages, cursor = pages + 1, page.cursor
        assert [run.tags for run in found] == [("vip",)]
        assert pages >= RUNS // BOUND + 1  # more if the machine was slow
    finally:
        await store.close()


async def test_a_list_has_no_payloads_unless_asked_for(counted: Counted) -> None:
    rows, _ = await counted.read(RunFilter(states=("failed",)))
    assert {row["input"] for row in rows} == {None}


async def test_a_page_of_approvals_reads_a_page(counted: Counted) -> None:
    connection = counted.connection
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(ASK)
        one = await connection.fetchval("select max(run_id::text)::uuid from holdfast.tasks")
        for run_id, most, listed in ((None, 10, 10), (one, 10, 1)):
            before = await connection.fetchval(READ)
            found = await connection.fetch(
                "select * from holdfast.list_approvals($1, $2)", run_id, most
            )
            read = await connection.fetchval(READ) - before
            assert len(found) == listed
            assert found == sorted(found, key=lambda row: (row["requested_at"], row["run_id"]))
            assert read < 100
    finally:
        await transaction.rollback()


async def test_the_newest_events_are_summarized_by_themselves(counted: Counted) -> None:
    options = await counted.connection.fetchval(
        "select reloptions from pg_class where oid = 'holdfast.events_by_time'::regclass"
    )
    assert "autosummarize=on" in options


async def test_what_happened_since_a_moment_reads_a_part_of_the_table(
    counted: Counted, seeded: str
) -> None:
    """C21. A worker's maintenance summarizes what is new, unless something else works on it.

    If the moment is long ago, what came after the answer is not read.
    """
    connection = counted.connection

    async def read(since: int) -> int:
        blocks = "select pg_stat_get_xact_blocks_fetched('holdfast.events'::regclass)"
        async with connection.transaction():
            before = await connection.fetchval(blocks)
            rows = await connection.fetch("select * from holdfast.recent_events($1, 100)", since)
            assert len(rows) == 100
            return int(await connection.fetchval(blocks)) - before

    await connection.execute("truncate holdfast.events")
    vacuum = await asyncpg.connect(seeded)
    try:
        async with vacuum.transaction():
            await vacuum.execute("lock table holdfast.events in share update exclusive mode")
            await connection.execute("""
                insert into holdfast.events (run_id, idx, event_type, at)
                select '00000000-0000-7000-8000-000000000002', n, 'StepCompleted',
                    holdfast.now() - interval '1 ms' * (200000 - n)
                from generate_series(0, 200000) as n
            """)
            first, last = await connection.fetchrow(
                "select holdfast._micros(min(at)), holdfast._micros(max(at)) from holdfast.events"
            )
            await connection.execute("select holdfast.merge_stats()")
            assert await read(last - 1_000_000) > 1_500
        await connection.execute("select holdfast.merge_stats()")
        for since in (last - 1_000_000, first, first - 3_600_000_000, 0):
            assert await read(since) <= 300  # of 1,800
    finally:
        await vacuum.close()
