"""Migrations: through the runner, through psql, and raced."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from holdfast import Client
from holdfast.database.connection import connect
from holdfast.database.embedded.account import account_for
from holdfast.database.embedded.binaries import binaries_for
from holdfast.database.migrate import _WAIT_SECONDS, _Attempt, migrate, plan, prepare_schema, render
from holdfast.database.schema import check_schema
from holdfast.database.scripts import FOLDERS, Scripts, in_schema, load_scripts
from holdfast.errors import (
    InsufficientRights,
    InvalidSchemaName,
    MigrationFailed,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
)

HEADER = """\
begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));
"""
FIRST = (
    HEADER
    + """\
create schema if not exists holdfast;
create table if not exists holdfast.schema_migrations (
    version int primary key,
    name text not null,
    applied_at timestamptz not null default now()
);
insert into holdfast.schema_migrations (version, name) values (1, 'first');
create table holdfast.schema_functions (
    signature text primary key,
    checksum text not null,
    release text not null
);
create function holdfast.is_even(p_n int) returns boolean immutable language sql
as $$ select p_n % 2 = 0 $$;
create table holdfast.numbers (n int primary key check (holdfast.is_even(n)));
commit;
"""
)
SECOND = (
    HEADER
    + """\
insert into holdfast.schema_migrations (version, name) values (2, 'second');
create table holdfast.letters (letter text primary key);
commit;
"""
)
COUNT = """\
-- It isn't holdfast's business what is counted: holdfast.numbers.
create or replace function holdfast.count_numbers() returns text language plpgsql as $$
begin
    return format('%s holdfast.numbers', (select count(*) from holdfast.numbers));
end
$$;
"""
TWICE = """\
create or replace function holdfast.twice(p_n int) returns int language sql as 'select p_n * 2';
"""
COMMIT = """\
create or replace function holdfast.commit() returns int language plpgsql as $$
begin
    perform from holdfast.numbers;
    return holdfast.twice(2);
end
$$;
"""
TOUCHING = SECOND.replace(
    "create",
    """\
alter table holdfast.numbers add column more int;
alter table holdfast.schema_functions add column more int;
create""",
)


class Release:
    """A directory of SQL files that a test grows as releases would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("migrations/0001_first.sql", FIRST)
        self.write("functions/core/count.sql", COUNT)
        self.write("functions/core/twice.sql", TWICE)

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def scripts(self) -> Scripts:
        load_scripts.cache_clear()
        return load_scripts(self.directory)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


@pytest.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


async def functions(connection: asyncpg.Connection, schema: str = "holdfast") -> list[str]:
    rows = await connection.fetch(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where n.nspname = $1 order by 1",
        schema,
    )
    return [row[0] for row in rows]


def psql(url: str, script: str) -> subprocess.CompletedProcess[str]:
    program = binaries_for(account_for(Path("/"))) / "psql"
    return subprocess.run(
        [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", url],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )


def catalog(url: str) -> list[tuple[object, ...]]:
    """Everything that makes two schemas equal, in a comparable form."""
    with psycopg.connect(url) as connection:
        return connection.execute(CATALOG).fetchall()


CATALOG = """
    select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        a.attnotnull::text, pg_get_expr(d.adbin, d.adrelid)
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'holdfast'::regnamespace
    union all
    select 'relation', c.relname, c.relkind::text, c.relpersistence::text,
        c.reloptions::text, pg_get_indexdef(i.indexrelid)
    from pg_class c left join pg_index i on i.indexrelid = c.oid
    where c.relnamespace = 'holdfast'::regnamespace
    union all
    select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
    from pg_constraint where connamespace = 'holdfast'::regnamespace
    union all
    select 'function', oid::regprocedure::text, pg_get_functiondef(oid), '', '', ''
    from pg_proc where pronamespace = 'holdfast'::regnamespace
    union all
    select 'migration', version::text, name, '', '', '' from holdfast.schema_migrations
    union all
    select 'recorded', signature, checksum, release, '', '' from holdfast.schema_functions
    order by 1, 2, 3, 4
"""


async def test_migrate_installs_everything_once(
    connection: asyncpg.Connection, release: Release
) -> None:
    """T12. Numbered files, a table that records them."""
    first = await migrate(connection, scripts=release.scripts)
    assert (first.migrations, first.functions) == (("0001_first",), True)
    assert await functions(connection) == ["count_numbers", "is_even", "twice"]
    assert (await migrate(connection, scripts=release.scripts)).is_empty
    assert await connection.fetchval("select count(*) from holdfast.schema_migrations") == 1


async def test_pending_migrations_and_changed_functions_are_applied_together(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", SECOND)
    release.write("functions/core/twice.sql", TWICE.replace("* 2", "+ p_n"))
    planned = await plan(connection, scripts=release.scripts)
    assert (planned.migrations, planned.functions) == (("0002_second",), True)
    assert await migrate(connection, scripts=release.scripts) == planned
    assert await connection.fetchval("select to_regclass('holdfast.letters')") is not None


async def test_plan_changes_nothing(connection: asyncpg.Connection, release: Release) -> None:
    planned = await plan(connection, scripts=release.scripts)
    assert planned.migrations == ("0001_first",)
    assert await connection.fetchval("select to_regnamespace('holdfast')") is None


async def test_a_failing_migration_leaves_the_schema_as_it_was(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", SECOND)
    release.write("functions/core/twice.sql", TWICE.replace("language sql", "language nothing"))
    with pytest.raises(MigrationFailed, match=r"functions/core/twice\.sql.*language"):
        await migrate(connection, scripts=release.scripts)
    assert await connection.fetchval("select to_regclass('holdfast.letters')") is None


async def test_what_depends_on_functions_of_holdfast_is_named_and_not_dropped(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    await connection.execute("create view public.four as select holdfast.twice(2)")
    release.write("functions/core/twice.sql", TWICE.replace("* 2", "+ p_n"))
    with pytest.raises(MigrationFailed, match=r"view (public\.)?four depends on .*twice") as caught:
        await migrate(connection, scripts=release.scripts)
    assert "Drop what depends on holdfast, migrate, and create it again" in str(caught.value)
    assert "CASCADE" not in str(caught.value)
    assert await connection.fetchval("table public.four") == 4
    await connection.execute("drop view public.four")
    await migrate(connection, scripts=release.scripts)


@pytest.fixture
async def others(empty_database_url: str) -> AsyncIterator[tuple[asyncpg.Connection, ...]]:
    """Two sessions beside that of the migration."""
    async with AsyncExitStack() as stack:
        made = [await asyncpg.connect(empty_database_url) for _ in range(2)]
        for each in made:
            stack.push_async_callback(each.close)
        yield tuple(made)


async def test_a_migration_gives_way_to_a_worker_that_has_what_it_waits_for(
    connection: asyncpg.Connection, others: tuple[asyncpg.Connection, ...], release: Release
) -> None:
    """Fault: an upgrade under load deadlocked with one worker after another until it gave up."""
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", TOUCHING)
    worker, gate = others
    for each in (connection, worker):  # no server ends a deadlock: one of them has to give way
        await each.execute("set deadlock_timeout = '1h'")
    await worker.execute("begin; select count(*) from holdfast.schema_functions")
    migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
    await _until_a_lock_is_waited_for(gate, "relation")  # that of `numbers` is the migration's
    await worker.execute("select count(*) from holdfast.numbers")
    assert not migrating.done()
    await worker.execute("commit")
    assert (await migrating).migrations == ("0002_second",)
    assert await connection.fetchval("select to_regclass('holdfast.letters')") is not None
    assert await connection.fetchval("show lock_timeout") == "0"


async def test_a_migration_that_waits_for_one_table_after_another_ends_no_call_of_others(
    connection: asyncpg.Connection,
    others: tuple[asyncpg.Connection, ...],
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: each wait was short, all of them were longer than what makes a server end a call."""
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", TOUCHING)
    monkeypatch.setattr("holdfast.database.migrate._WAIT_SECONDS", 1.5)
    worker, gate = others
    for each in (connection, worker):
        await each.execute("set deadlock_timeout = '1s'")
    await gate.execute("begin; select from holdfast.schema_functions")
    await worker.execute("begin; lock table holdfast.schema_migrations in row exclusive mode")
    migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
    await _until_a_lock_is_waited_for(gate, "relation")  # that of `numbers` is the migration's
    call = asyncio.create_task(worker.execute("select from holdfast.numbers"))
    await asyncio.sleep(0.75)
    await gate.execute("commit")
    await call
    await worker.execute("commit")
    assert (await migrating).migrations == ("0002_second",)


async def test_a_migration_that_was_waited_for_while_it_waited_ends_no_call_of_others(
    connection: asyncpg.Connection,
    others: tuple[asyncpg.Connection, ...],
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: the call that stood behind its request had a part of deadlock_timeout behind it."""
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", TOUCHING)
    monkeypatch.setattr("holdfast.database.migrate._WAIT_SECONDS", 5.0)
    worker, gate = others
    for each in (connection, worker):
        await each.execute("set deadlock_timeout = '1s'")
    await gate.execute("begin; select from holdfast.numbers")
    await worker.execute("begin; select from holdfast.schema_functions")
    migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
    await _until_a_lock_is_waited_for(gate, "relation")
    call = asyncio.create_task(worker.execute("select from holdfast.numbers"))
    await asyncio.sleep(0.8)
    await gate.execute("commit")
    await call
    await worker.execute("commit")
    assert (await migrating).migrations == ("0002_second",)


async def test_a_migration_holds_up_others_for_a_moment_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: after a minute it waited for up to 20 s with tables that others wanted."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    attempt = _Attempt(_WAIT_SECONDS)
    for _ in range(50):
        attempt = await replace(attempt, began=0.0).give_way(["numbers"])
    assert 1 < attempt.wait < 2, "one second ends an autovacuum that is in the way"


async def test_a_migration_learns_in_which_order_others_take_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: it knew the last table alone, and two kinds of calls kept it waiting in turn."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    attempt = _Attempt(_WAIT_SECONDS)
    for table in ("runs", "tasks", "limits", "tasks"):
        attempt = await attempt.give_way([table])
    assert attempt.held == ["tasks", "limits", "runs"]


async def test_a_migration_that_deadlocks_with_a_worker_is_repeated(
    connection: asyncpg.Connection, others: tuple[asyncpg.Connection, ...], release: Release
) -> None:
    """What a migration locks beside tables, the server has to find out."""
    await migrate(connection, scripts=release.scripts)
    locks = "select pg_advisory_xact_lock(8); select pg_advisory_xact_lock(7);\nalter"
    release.write("migrations/0002_second.sql", TOUCHING.replace("alter", locks, 1))
    await connection.execute("set deadlock_timeout = '10ms'")  # so that it is the one that ends
    worker, gate = others
    await gate.execute("select pg_advisory_lock(8)")
    await worker.execute("begin; set local deadlock_timeout = '1h'")
    await worker.execute("select pg_advisory_xact_lock(7)")
    migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
    await _until_a_lock_is_waited_for(gate, "advisory")
    reading = asyncio.create_task(worker.execute("select count(*) from holdfast.numbers"))
    await _until_a_lock_is_waited_for(gate, "relation")
    await gate.execute("select pg_advisory_unlock(8)")
    await reading
    await worker.execute("commit")
    assert (await migrating).migrations == ("0002_second",)


@pytest.mark.parametrize("call", ["commit", "wait_for_end"])
async def test_a_call_that_waits_for_a_migration_meets_no_function_of_before(
    connection: asyncpg.Connection, empty_database_url: str, release: Release, call: str
) -> None:
    """Fault: a worker's report looked for a function that was gone, and its step ran again.

    What clients of 0.1.0 waited for failed with a DatabaseError.
    """
    calling = COMMIT.replace("commit", call)
    release.write("functions/core/commit.sql", calling)
    await migrate(connection, scripts=release.scripts)
    more = TWICE.replace("p_n int)", "p_n int, p_more int)")
    release.write("functions/core/twice.sql", more)
    release.write("functions/core/commit.sql", calling.replace("twice(2)", "twice(2, 0)"))
    locks = "select pg_advisory_xact_lock(8);\nalter"
    release.write("migrations/0002_second.sql", TOUCHING.replace("alter", locks, 1))
    async with AsyncExitStack() as stack:
        gate, worker, client, person = [
            await asyncpg.connect(empty_database_url, server_settings={"application_name": name})
            for name in ("gate", "shop", "holdfast", "psql")  # a URL may name its programs
        ]
        for each in (gate, worker, client, person):
            stack.push_async_callback(each.close)
        await gate.execute("select pg_advisory_lock(8)")
        migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
        await _until_a_lock_is_waited_for(gate, "advisory")
        asked = asyncio.create_task(worker.fetchval(f"select holdfast.{call}()"))
        count = "select holdfast.count_numbers()"
        others = [asyncio.create_task(each.fetchval(count)) for each in (client, person)]
        await _until_a_lock_is_waited_for(gate, "relation", 3)
        await gate.execute("select pg_advisory_unlock(8)")
        with pytest.raises(asyncpg.QueryCanceledError):  # workers and clients call again after it
            await asked
        assert (await migrating).functions
        assert await asyncio.gather(*others) == ["0 holdfast.numbers"] * 2
        assert await worker.fetchval(f"select holdfast.{call}()") == 4


async def test_sessions_that_may_not_be_cancelled_stop_no_migration(
    connection: asyncpg.Connection, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that may see the sessions of all may not cancel those of a superuser."""
    refusal = "do $$ begin raise insufficient_privilege; end $$"
    monkeypatch.setattr("holdfast.database.migrate._CANCEL_CALLS", refusal)
    await migrate(connection, scripts=release.scripts)
    assert await functions(connection) == ["count_numbers", "is_even", "twice"]


HOLDING = {
    "numbers": "select count(*) from holdfast.numbers",
    "schema_migrations": "lock table holdfast.schema_migrations",
    "the lock of migrations": "select pg_advisory_xact_lock(hashtext('holdfast.migrate'))",
}


@pytest.mark.parametrize("what", HOLDING)
async def test_who_has_what_a_migration_waits_for_is_said(
    connection: asyncpg.Connection,
    others: tuple[asyncpg.Connection, ...],
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", TOUCHING)
    for name in ("_WAIT_SECONDS", "_MIGRATION_SECONDS", "_SILENT_SECONDS"):
        monkeypatch.setattr(f"holdfast.database.migrate.{name}", 0.01)
    other = others[0]
    await other.execute(f"set application_name = 'report'; begin; {HOLDING[what]}")
    pid = other.get_server_pid()

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.database.migrate._PATIENCE_SECONDS", 0.1)
        with pytest.raises(MigrationFailed, match="nothing was changed") as caught:
            await migrate(connection, scripts=release.scripts)
    about = r"report, role \w+, idle in transaction, in a transaction since .+ UTC"
    assert re.search(rf"process {pid} \({about}\) has [\w.]*{what}", str(caught.value))
    assert f"select pg_terminate_backend({pid}) ends it" in str(caught.value)
    assert await connection.fetchval("select to_regclass('holdfast.letters')") is None
    assert not connection.is_in_transaction()

    caplog.clear()
    migrating = asyncio.create_task(migrate(connection, scripts=release.scripts))
    while f"process {pid} (report" not in caplog.text:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await other.execute("commit")
    assert (await migrating).migrations == ("0002_second",)
    database = await connection.fetchval("select current_database()")
    place = (
        rf"the migration of schema 'holdfast' of database '{database}'( at [\w.:]+)?"  # of several
    )
    assert re.search(f"{place} needs: process", str(caught.value))
    words = [each for each in caplog.records if re.match(f"{place} waits, ", each.message)]
    assert len(words) == 1, "one word in fifteen seconds"


async def test_a_migration_waits_briefly_for_tables_that_functions_look_at(
    connection: asyncpg.Connection,
    others: tuple[asyncpg.Connection, ...],
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: it waited for ever, and held up all who came to a table that it had changed."""
    await migrate(connection, scripts=release.scripts)
    release.write("migrations/0002_second.sql", SECOND)
    looking = "language sql as 'select count(*)::int from holdfast.numbers'"
    release.write(
        "functions/core/twice.sql", TWICE.replace("language sql as 'select p_n * 2'", looking)
    )
    for name in ("_LONGEST_WAIT_SECONDS", "_PATIENCE_SECONDS"):
        monkeypatch.setattr(f"holdfast.database.migrate.{name}", 0.1)
    await others[0].execute("begin; lock table holdfast.numbers")
    with pytest.raises(MigrationFailed, match=rf"process {others[0].get_server_pid()} .*numbers"):
        await migrate(connection, scripts=release.scripts)
    await others[0].execute("commit")
    assert (await migrate(connection, scripts=release.scripts)).functions


async def test_migrations_lock_no_table_that_they_do_not_name(
    connection: asyncpg.Connection,
) -> None:
    """Such a lock would be taken late, and could deadlock. An index is a name of its table, too."""
    tables = "select coalesce(array_agg(oid), '{}') from pg_class where relkind = 'r'"
    locked = """
        select c.relname as name, array(select i.indexrelid::regclass::text
            from pg_index i where i.indrelid = c.oid) as indexes
        from pg_locks l join pg_class c on c.oid = l.relation
        where l.pid = pg_backend_pid() and c.oid = any ($1::oid[])
            and c.relnamespace = 'holdfast'::regnamespace
            and l.mode in ('AccessExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')
    """
    for migration in load_scripts().migrations:
        words = set(re.findall(r"holdfast\.(\w+)", migration.body))
        async with connection.transaction():
            before = await connection.fetchval(tables)
            await connection.execute(migration.body)
            for row in await connection.fetch(locked, before):
                names = {row["name"], *(each.rpartition(".")[2] for each in row["indexes"])}
                assert names & words, (migration.version, row["name"])


async def _until_a_lock_is_waited_for(
    connection: asyncpg.Connection, kind: str, times: int = 1
) -> None:
    waiting = """
        select count(*) from pg_locks l join pg_database d on d.oid = l.database
        where not l.granted and l.locktype = $1 and d.datname = current_database()
    """  # other tests have databases of the same server
    async with asyncio.timeout(60):
        while await connection.fetchval(waiting, kind) < times:
            await asyncio.sleep(0.01)


async def test_functions_that_are_gone_are_dropped_and_strangers_stay(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    await connection.execute(
        "create function holdfast.mine() returns int language sql as 'select 1'"
    )
    (release.directory / "functions/core/twice.sql").unlink()
    await migrate(connection, scripts=release.scripts)
    assert await functions(connection) == ["count_numbers", "is_even", "mine"]


async def test_a_changed_signature_leaves_no_overload_behind(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    release.write("functions/core/twice.sql", TWICE.replace("p_n int)", "p_n int, p_more int = 0)"))
    await migrate(connection, scripts=release.scripts)
    assert await functions(connection) == ["count_numbers", "is_even", "twice"]


async def test_an_upgrade_changes_what_a_function_returns(
    connection: asyncpg.Connection, release: Release
) -> None:
    """A set of functions of before, in which `twice` had one column less."""
    columns = "returns table (n int{}) language sql as 'select p_n * 2{}'"
    older = TWICE.replace("returns int language sql as 'select p_n * 2'", columns.format("", ""))
    newer = older.replace(columns.format("", ""), columns.format(", m int", ", 1"))
    release.write("functions/core/twice.sql", older)
    await migrate(connection, scripts=release.scripts)
    assert dict(await connection.fetchrow("select * from holdfast.twice(2)") or {}) == {"n": 4}
    release.write("functions/core/twice.sql", newer)
    assert (await migrate(connection, scripts=release.scripts)).functions
    upgraded = await connection.fetchrow("select * from holdfast.twice(2)")
    assert dict(upgraded or {}) == {"n": 4, "m": 1}


async def test_a_refused_upgrade_leaves_the_functions_of_before(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    release.write("functions/core/twice.sql", TWICE.replace("p_n * 2", "p_m * 2"))
    with pytest.raises(MigrationFailed):
        await migrate(connection, scripts=release.scripts)
    assert await connection.fetchval("select holdfast.twice(2)") == 4


async def test_another_schema_gets_all_objects_and_keeps_quoted_names(
    connection: asyncpg.Connection, release: Release
) -> None:
    """T12. The schema's name is overridable."""
    await migrate(connection, "shop_1", scripts=release.scripts)
    assert await connection.fetchval("select to_regnamespace('holdfast')") is None
    assert await connection.fetchval("select shop_1.count_numbers()") == "0 holdfast.numbers"
    assert (await migrate(connection, "shop_1", scripts=release.scripts)).is_empty
    await check_schema(connection, "shop_1", release.scripts)


@pytest.mark.parametrize("schema", ["user", "select", "table", "x" * 63])
async def test_reserved_words_serve_as_schema_names(
    connection: asyncpg.Connection, release: Release, schema: str
) -> None:
    await migrate(connection, schema, scripts=release.scripts)
    assert await functions(connection, schema) == ["count_numbers", "is_even", "twice"]
    await check_schema(connection, schema, release.scripts)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "x" * 64,
        "Shop",
        "1st",
        "a-b",
        "a.b",
        "a b",
        "a\n",
        'a"; drop schema public; --',
        "a'; select 1; --",
        "$$",
        "ä",
        "pg_shop",
        "information_schema",
        "public",
    ],
)
async def test_injection_through_the_schema_name_is_refused(
    connection: asyncpg.Connection, release: Release, schema: str
) -> None:
    """T12. Safe against injection, at each place that takes the name."""
    with pytest.raises(InvalidSchemaName):
        await migrate(connection, schema, scripts=release.scripts)
    with pytest.raises(InvalidSchemaName):
        await plan(connection, schema, scripts=release.scripts)
    with pytest.raises(InvalidSchemaName):
        await check_schema(connection, schema, release.scripts)
    with pytest.raises(InvalidSchemaName):
        render(schema, release.scripts)


@pytest.mark.parametrize(
    ("written", "rewritten"),
    [
        ("select holdfast.now()", 'select "shop".now()'),
        ("set search_path = holdfast, pg_temp", 'set search_path = "shop", pg_temp'),
        ("create schema holdfast;", 'create schema "shop";'),
        ("current_setting('holdfast.fake_now')", "current_setting('holdfast.fake_now')"),
        ("E'it\\'s holdfast' || holdfast.x", "E'it\\'s holdfast' || \"shop\".x"),
        ("'it''s holdfast', holdfast.x", "'it''s holdfast', \"shop\".x"),
        ("-- isn't holdfast\nholdfast.x", '-- isn\'t holdfast\n"shop".x'),
        ("/* isn't */ holdfast.x", '/* isn\'t */ "shop".x'),
        ('"holdfast" holdfast.x', '"holdfast" "shop".x'),
        ("holdfast_runs holdfast.x", 'holdfast_runs "shop".x'),
        ("$$ select holdfast.x, 'holdfast' $$", "$$ select \"shop\".x, 'holdfast' $$"),
    ],
)
def test_only_the_bare_word_is_the_schema(written: str, rewritten: str) -> None:
    assert in_schema(written, "shop") == rewritten
    assert in_schema(written, "holdfast") == written


async def test_install_by_psql_equals_install_by_the_runner(
    empty_database_url: str, database_url: str
) -> None:
    """T12. psql alone can apply the files."""
    result = psql(empty_database_url, render())
    assert result.returncode == 0, result.stderr
    connection = await asyncpg.connect(database_url)
    await connection.execute("drop schema holdfast cascade")
    await migrate(connection)
    await connection.close()
    assert catalog(empty_database_url) == catalog(database_url)


@pytest.mark.parametrize("way", ["runner", "psql"])
async def test_a_database_whose_literals_have_escapes_gets_the_same_schema(
    empty_database_url: str, database_url: str, way: str
) -> None:
    connection = await asyncpg.connect(empty_database_url)
    name = await connection.fetchval("select current_database()")
    await connection.execute(f'alter database "{name}" set standard_conforming_strings = off')
    await connection.close()
    if way == "runner":
        await prepare_schema(empty_database_url)
    else:
        result = psql(empty_database_url, render())
        assert result.returncode == 0, result.stderr
    async with Client(empty_database_url) as client:
        await client.queues.create("boxes")
        await client.topics.subscribe("box.*", queue="boxes")
        await client.topics.publish("box.sent", "\x7f\\")
        [box] = await client.queues.receive("boxes")
        assert box.payload == "\x7f\\"
        assert await box.ack()
        await client.start("shop/order", {"path": "\x7f\\u0000"})
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(f'alter database "{name}" reset standard_conforming_strings')
    await connection.close()
    assert catalog(empty_database_url) == catalog(database_url)


def test_each_migration_file_applies_by_psql_as_it_is(
    empty_database_url: str, release: Release
) -> None:
    release.write("migrations/0002_second.sql", SECOND)
    for path in sorted(release.directory.glob("migrations/*.sql")):
        result = psql(empty_database_url, path.read_text())
        assert result.returncode == 0, result.stderr


async def test_a_file_applied_twice_by_psql_is_refused_and_changes_nothing(
    empty_database_url: str, connection: asyncpg.Connection
) -> None:
    await migrate(connection)
    before = catalog(empty_database_url)
    result = psql(empty_database_url, load_scripts().migrations[0].text)
    assert "duplicate key" in result.stderr
    assert "schema_migrations" in result.stderr
    assert catalog(empty_database_url) == before


async def test_the_runner_continues_where_psql_stopped(
    empty_database_url: str, connection: asyncpg.Connection, release: Release
) -> None:
    psql(empty_database_url, FIRST)
    release.write("migrations/0002_second.sql", SECOND)
    report = await migrate(connection, scripts=release.scripts)
    assert (report.migrations, report.functions) == (("0002_second",), True)


async def test_functions_in_the_database_are_those_of_the_files(
    connection: asyncpg.Connection,
) -> None:
    """No drift between what runs and what is read."""
    await migrate(connection)
    recorded = await connection.fetch(
        "select distinct split_part(split_part(signature, '(', 1), '.', 2) "
        "from holdfast.schema_functions"
    )
    assert sorted(row[0] for row in recorded) == list(load_scripts().function_names)
    assert set(load_scripts().function_names) <= set(await functions(connection))


RACER = """
import asyncio, sys, asyncpg
from holdfast.database.migrate import migrate

async def race():
    connection = await asyncpg.connect(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    report = await migrate(connection)
    await connection.close()
    print(len(report.migrations), report.functions)

asyncio.run(race())
"""


async def test_twenty_processes_migrate_at_once_and_one_does_the_work(
    empty_database_url: str,
) -> None:
    """Trap 27. Migrations raced by 20 processes apply each file once."""
    racers = await asyncio.gather(*(start_racer(empty_database_url) for _ in range(20)))
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(racer.communicate(b"\n") for racer in racers))
    assert [racer.returncode for racer in racers] == [0] * 20
    reports = sorted(output.split() for output, _ in outputs)
    assert reports[:19] == [[b"0", b"False"]] * 19
    assert reports[19] == [str(len(load_scripts().migrations)).encode(), b"True"]


async def start_racer(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RACER,
        url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_check_schema_tells_missing_older_and_newer_apart(
    connection: asyncpg.Connection, release: Release
) -> None:
    """T12. Each its own error, which says what to do."""
    with pytest.raises(SchemaMissing, match="holdfast migrate"):
        await check_schema(connection, scripts=release.scripts)
    await migrate(connection, scripts=release.scripts)
    await check_schema(connection, scripts=release.scripts)

    release.write("functions/core/twice.sql", TWICE.replace("* 2", "+ p_n"))
    with pytest.raises(SchemaOutdated, match=r"functions of another build.*holdfast migrate"):
        await check_schema(connection, scripts=release.scripts)
    older = release.scripts
    release.write("migrations/0002_second.sql", SECOND)
    with pytest.raises(SchemaOutdated, match=r"0002_second.*holdfast migrate"):
        await check_schema(connection, scripts=release.scripts)

    await migrate(connection, scripts=release.scripts)
    with pytest.raises(SchemaTooNew, match=r"migration 2.*upgrade holdfast"):
        await check_schema(connection, scripts=older)
    with pytest.raises(SchemaTooNew):
        await migrate(connection, scripts=older)


async def test_a_schema_is_checked_in_two_queries(database_url: str) -> None:
    """Each is two round trips, of every command, worker and client that connects."""
    connection, asked = await connect(database_url), list[str]()
    with connection.query_logger(lambda record: asked.append(record.query)):
        await check_schema(connection)
    await connection.close()
    assert len(asked) == 2


async def test_functions_of_a_later_release_are_not_replaced(
    connection: asyncpg.Connection, release: Release
) -> None:
    await migrate(connection, scripts=release.scripts)
    await connection.execute(
        "update holdfast.schema_functions set release = '999.0.0', checksum = 'other'"
    )
    with pytest.raises(SchemaTooNew, match=r"999\.0\.0"):
        await migrate(connection, scripts=release.scripts)


async def test_a_role_without_rights_is_told_so(
    connection: asyncpg.Connection, release: Release
) -> None:
    await connection.execute("create role stranger")
    try:
        await connection.execute("set session authorization stranger")
        with pytest.raises(InsufficientRights, match="schema 'holdfast'"):
            await migrate(connection, scripts=release.scripts)
        await connection.execute("reset session authorization")
        await migrate(connection, scripts=release.scripts)
        await connection.execute("set session authorization stranger")
        with pytest.raises(InsufficientRights, match=r"stranger.*schema 'holdfast'"):
            await check_schema(connection, scripts=release.scripts)
    finally:
        await connection.execute("reset session authorization; drop role stranger")


async def test_migrate_refuses_an_open_transaction(
    connection: asyncpg.Connection, release: Release
) -> None:
    async with connection.transaction():
        with pytest.raises(MigrationFailed, match="commit yours first"):
            await migrate(connection, scripts=release.scripts)


async def test_every_server_takes_the_schema(any_database_url: str) -> None:
    """The SQL holds on the embedded PostgreSQL and on the system's, from 14 on."""
    connection = await asyncpg.connect(any_database_url)
    await check_schema(connection)
    assert (await migrate(connection)).is_empty
    await connection.close()


def test_functions_are_applied_folder_by_folder_and_then_by_name(release: Release) -> None:
    release.write("functions/activities/00_first.sql", "")
    release.write("functions/workers/claims.sql", "")
    names = [file.name for file in release.scripts.functions]
    assert names == [
        "core/count.sql",
        "core/twice.sql",
        "workers/claims.sql",
        "activities/00_first.sql",
    ]


@pytest.mark.parametrize("stray", ["stray.sql", "elsewhere/stray.sql", "core/below/stray.sql"])
def test_a_file_of_functions_in_no_known_folder_is_refused(release: Release, stray: str) -> None:
    release.write(f"functions/{stray}", "")
    with pytest.raises(MigrationFailed, match=f"functions/{stray}"):
        _ = release.scripts


def test_each_folder_of_functions_has_files() -> None:
    used = {file.name.partition("/")[0] for file in load_scripts().functions}
    assert used == set(FOLDERS)
