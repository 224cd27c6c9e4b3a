"""Bring a schema up to date: pending migrations, and the functions when they changed.

All of it is one transaction under one advisory lock, so any number of processes may call
`migrate` at once: one does the work, the others wait and find nothing to do. `render` writes
the same work as a script for psql.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import msgspec

from holdfast import sql
from holdfast._version import __version__
from holdfast.database.connection import connected
from holdfast.database.grants import act_as_owner, check_role, grant
from holdfast.database.schema import Connection, SchemaState, read_state
from holdfast.database.scripts import (
    DEFAULT_SCHEMA,
    Migration,
    Scripts,
    check_schema_name,
    in_schema,
    load_scripts,
    named_by,
)
from holdfast.database.waiting import describe_holders, describe_place, locked_tables
from holdfast.errors import InsufficientRights, MigrationFailed
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.database")

# For the locks of tables. What works meanwhile is held up for so long at most, and then the
# migration gives way. The longest wait is longer than `deadlock_timeout` usually is: then a server
# ends an autovacuum that is in the way.
_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 1.5
_PATIENCE_SECONDS = 120.0

# The wait for another migration holds up nobody.
_MIGRATION_SECONDS = 2.0
_SILENT_SECONDS = 2.0
_WORD_SECONDS = 15.0  # between two words on what it waits for

_LOCK_NAME = "holdfast.migrate"
_LOCK = f"select pg_advisory_xact_lock(hashtext('{_LOCK_NAME}'));"

# PostgreSQL wants the right to make schemas for it even if there is the schema.
_MAKE_SCHEMA = "create schema if not exists holdfast;"

# What a lock meets that is taken later than those of these tables: functions look at others, too.
_MET = (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)

# The tables that files name, also by an index of theirs.
_NAMED = """
select distinct coalesce(i.indrelid, c.oid)::regclass::text as name
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_index i on i.indexrelid = c.oid
where n.nspname = $1 and c.relkind in ('r', 'i') and c.relname = any ($2::text[])
order by 1
"""

# A call that waits for a table is in the middle of a function of before, and would look for others
# of before when the migration is over. Where that would lose what a worker has done, or fail all
# that a client of an earlier release waits for, the call is cancelled: it is made again.
_CANCEL_CALLS = r"""
select pg_cancel_backend(pid) from pg_stat_activity
where datname = current_database() and wait_event = 'relation'
    and query ~ '\.(commit|end_activities|end_step_tasks|wait_for_end)\('
    and pg_backend_pid() = any (pg_blocking_pids(pid))
"""

# So that the recorded signatures are the same for every role that migrates.
_FIX_PATH = "set local search_path = pg_catalog;"

# Databases and roles may have it off: then a backslash in a literal begins an escape.
_STANDARD = "standard_conforming_strings = on;"

# All functions that an earlier release recorded are dropped before those of this one are made:
# `create or replace` can neither change a result's columns nor remove an overload.
# Functions of migrations and of users are not recorded, and stay.
_DROP_RECORDED = """\
do $body$
declare
    v_signatures text := (
        select string_agg(f.signature, ', ')
        from holdfast.schema_functions f
        where to_regprocedure(f.signature) is not null and not exists (
            select from pg_catalog.pg_depend d  -- of an extension: earlier releases recorded it
            where d.objid = to_regprocedure(f.signature) and d.deptype = 'e'
                and d.classid = 'pg_catalog.pg_proc'::regclass));
begin
    if v_signatures is not null then  -- together: some are made of others
        execute 'drop routine ' || v_signatures;
    end if;
end
$body$;
"""

_RECORD = """\
delete from holdfast.schema_functions;
insert into holdfast.schema_functions (signature, checksum, release)
select p.oid::regprocedure::text, '{checksum}', '{release}'
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = '{schema}' and p.proname = any ('{{{names}}}'::text[])
    and p.xmin = pg_current_xact_id()::xid;  -- not those of others that have such a name
"""


# Once it has a table, who waits for that one may have the next, and a server ends that call when it
# has waited for `deadlock_timeout`. It may have begun to as soon as the migration had asked for the
# first, so the wait for the others is over before that time has passed since then.
_ALL_SECONDS = """
select extract(epoch from current_setting('deadlock_timeout')::interval)::float8 * 0.75
"""


class _HeldByOthers(Exception):
    """Others have what the migration needs: the tables, or without any the lock of migrations."""

    def __init__(self, tables: Sequence[str] = ()) -> None:
        super().__init__(*tables)
        self.tables = tables


class _Attempt(msgspec.Struct, frozen=True):
    """How long an attempt waits for its first table, and which others `held`, last ones first."""

    wait: float
    held: Sequence[str] = ()
    began: float = msgspec.field(default_factory=time.monotonic)

    async def give_way(self, held: Sequence[str]) -> _Attempt:
        """Let others work, as long as they stood at most, and return the next attempt."""
        wait, took = self.wait, time.monotonic() - self.began
        if took >= wait:  # else it had the first table, and others another
            wait = min(wait * 1.5, _LONGEST_WAIT_SECONDS)
        await asyncio.sleep(random.uniform(0, took))
        return _Attempt(wait, list(dict.fromkeys([*held, *self.held])))


class MigrationReport(msgspec.Struct, frozen=True):
    """What `migrate` did, or would do: which migrations, and whether the functions changed."""

    schema: str
    migrations: tuple[str, ...]
    functions: bool

    @property
    def is_empty(self) -> bool:
        """True if the schema was up to date already."""
        return not self.migrations and not self.functions


async def plan(
    connection: Connection, schema: str = DEFAULT_SCHEMA, scripts: Scripts | None = None
) -> MigrationReport:
    """Return what `migrate` would do, and change nothing.

    Raises:
        SchemaTooNew: a later release has migrated the schema.
        InsufficientRights, InvalidSchemaName, ServerTooOld: as `migrate`.
    """
    scripts = scripts or load_scripts()
    state = await read_state(connection, schema)
    state.refuse_newer(scripts)
    report = MigrationReport(
        schema, tuple(map(str, state.missing(scripts))), not state.has_functions(scripts)
    )
    if not report.is_empty:
        async with connection.transaction():
            await act_as_owner(connection, state, named_by(scripts.migrations))
    return report


async def migrate(
    connection: Connection,
    schema: str = DEFAULT_SCHEMA,
    scripts: Scripts | None = None,
    *,
    grant_to: Sequence[str] = (),
) -> MigrationReport:
    """Bring a schema up to date, in one transaction; does nothing when it is.

    Roles that could work with the schema before can work with what is new in it.

    Args:
        connection: one outside of any transaction.
        schema: the schema's name; it is made if it does not exist.
        scripts: the SQL files, those of the package by default.
        grant_to: further roles that are to work with the schema.

    It has the tables that it changes to itself. While others work with them, it waits for short
    times, between which they continue, and logs who has them. So it does with another migration.

    Raises:
        MigrationFailed: a file was refused, or others had a table or migrated for two minutes;
            the schema is as it was.
        SchemaTooNew: a later release has migrated the schema.
        InsufficientRights: the role may not make or change the schema.
        InvalidSchemaName: the name is not a plain identifier.
        ServerTooOld: the server is older than PostgreSQL 14.
    """
    scripts = scripts or load_scripts()
    check_schema_name(schema)
    if connection.is_in_transaction():
        raise MigrationFailed("a migration is a transaction of its own: commit yours first")
    attempt, tables, began = _Attempt(_WAIT_SECONDS), list[str](), time.monotonic()
    word_at = began + _SILENT_SECONDS
    while True:
        try:
            return await _migrate(connection, schema, scripts, grant_to, attempt)
        except _HeldByOthers as error:
            tables = [*error.tables]
            held = await describe_holders(connection, tables, _LOCK_NAME)
        except (MigrationFailed, *_MET) as error:
            if not isinstance(error.__cause__ or error, _MET):
                raise
            locked = await locked_tables(connection, schema)
            held = await describe_holders(connection, locked, _LOCK_NAME) if locked else str(error)
        now = time.monotonic()
        if now > began + _PATIENCE_SECONDS:
            raise MigrationFailed(
                f"nothing was changed, because for {now - began:.0f} s others have had what the "
                f"migration of {await describe_place(connection, schema)} needs: "
                f"{held or 'each time another session'}. End them, or migrate when they have ended"
            )
        if now >= word_at and held:
            word_at = now + _WORD_SECONDS
            left, place = began + _PATIENCE_SECONDS - now, await describe_place(connection, schema)
            logger.warning("the migration of %s waits, %.0f s at most: %s", place, left, held)
        attempt = await attempt.give_way(tables)


async def _migrate(
    connection: Connection,
    schema: str,
    scripts: Scripts,
    grant_to: Sequence[str],
    attempt: _Attempt,
) -> MigrationReport:
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"set local {_STANDARD}")
        async with _waiting(connection, max(attempt.wait, _MIGRATION_SECONDS)):
            await connection.execute(_LOCK)
        applied = [f'"{schema}".schema_migrations', f'"{schema}".schema_functions']
        async with _waiting(connection, attempt.wait, applied):
            state = await read_state(connection, schema)
        state.refuse_newer(scripts)
        missing, stale = state.missing(scripts), not state.has_functions(scripts)
        made = True
        if missing or stale:
            made = await act_as_owner(connection, state, named_by(scripts.migrations))
        await _lock_tables(connection, state, missing, attempt)
        for migration in missing:
            async with _refusals_of(str(migration), state):
                body = migration.body.replace(_MAKE_SCHEMA, "") if made else migration.body
                await connection.execute(in_schema(body, schema))
        if stale:
            await _replace_functions(connection, scripts, state)
        if missing or stale or grant_to:
            await grant(connection, schema, grant_to, scripts.names)
        if stale:
            with suppress(asyncpg.InsufficientPrivilegeError):  # sessions of other roles
                async with connection.transaction():
                    await connection.execute("set local role none")
                    await connection.execute(_CANCEL_CALLS)
    return MigrationReport(schema, tuple(map(str, missing)), stale)


async def _lock_tables(
    connection: Connection, state: SchemaState, missing: Sequence[Migration], attempt: _Attempt
) -> None:
    """Take all locks before anything is changed, first those of tables that others had.

    A lock that is taken later can deadlock with a worker that has it, and waits for one of these.
    """
    names = list(named_by(missing))
    tables = [row["name"] for row in await connection.fetch(_NAMED, state.schema, names)]
    order = {table: place for place, table in enumerate(attempt.held)}
    tables.sort(key=lambda table: order.get(table, len(order)))
    until = time.monotonic() + min(attempt.wait, await connection.fetchval(_ALL_SECONDS))
    for table in tables:
        left = attempt.wait if table == tables[0] else max(until - time.monotonic(), 0)
        lock = f"lock table {table} in access exclusive mode{' nowait' if left < 0.001 else ''}"
        async with _refusals_of(f"locking {table}", state), _waiting(connection, left, [table]):
            await connection.execute(lock)


@asynccontextmanager
async def _waiting(
    connection: Connection, seconds: float, tables: Sequence[str] = ()
) -> AsyncGenerator[None]:
    """Limit how long locks are waited for, also after it; raise what is held by others."""
    await connection.execute(f"set local lock_timeout = {round(seconds * 1000)}")
    try:
        yield
    except asyncpg.LockNotAvailableError as error:
        raise _HeldByOthers(tables) from error
    await connection.execute(f"set local lock_timeout = {round(_LONGEST_WAIT_SECONDS * 1000)}")


async def prepare_schema(url: str, schema: str = DEFAULT_SCHEMA) -> bool:
    """Bring a schema of a database up to date; return True if anything was changed.

    Raises what `connect` and `migrate` raise.
    """
    async with connected(url) as connection:
        return not (await migrate(connection, schema)).is_empty


def render(schema: str = DEFAULT_SCHEMA, scripts: Scripts | None = None) -> str:
    """Write the whole schema as a script that psql can apply to a database without it.

    Raises:
        InvalidSchemaName: the name is not a plain identifier.
    """
    scripts = scripts or load_scripts()
    parts = [f"-- The schema {check_schema_name(schema)!r} of holdfast {__version__}.\n"]
    parts += [f"set {_STANDARD}\n"]
    parts += [f"-- {each}\n{in_schema(each.text, schema)}" for each in scripts.migrations]
    parts += ["-- functions\nbegin;", _LOCK, _FIX_PATH, in_schema(_DROP_RECORDED, schema)]
    parts += [in_schema(file.text, schema) for file in scripts.functions]
    parts += [_record(scripts, schema), "commit;\n"]
    return "\n".join(parts)


def render_results(schema: str = DEFAULT_SCHEMA, grant_to: Sequence[str] = ()) -> str:
    """Write the table of results for a database that has only data of transactions, as a script.

    Raises:
        InvalidSchemaName: the name is not a plain identifier.
        InvalidInput: PostgreSQL cannot have a role of such a name.
    """
    text = (Path(sql.__path__[0]) / "step_results.sql").read_text(encoding="utf-8")
    for role in grant_to:
        quoted = '"' + check_role(role).replace('"', '""') + '"'
        text += (
            f"grant usage on schema holdfast to {quoted};\n"
            f"grant select, insert, update, delete on holdfast.step_results to {quoted};\n"
        )
    return in_schema(text, schema)


async def _replace_functions(connection: Connection, scripts: Scripts, state: SchemaState) -> None:
    await connection.execute(_FIX_PATH)
    async with _refusals_of("dropping the functions of before", state):
        await connection.execute(in_schema(_DROP_RECORDED, state.schema))
    for file in scripts.functions:
        async with _refusals_of(f"functions/{file.name}", state):
            await connection.execute(in_schema(file.text, state.schema))
    await connection.execute(_record(scripts, state.schema))


def _record(scripts: Scripts, schema: str) -> str:
    statements = in_schema(_RECORD, schema)
    return statements.format(
        checksum=scripts.checksum,
        release=__version__,
        schema=schema,
        names=",".join(scripts.function_names),
    )


@asynccontextmanager
async def _refusals_of(what: str, state: SchemaState) -> AsyncGenerator[None]:
    """Name the file that the server refused in the error; the transaction undoes the rest."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise InsufficientRights(
            f"{what} on {state}: {error}; connect as a role that may create there"
        ) from error
    except asyncpg.DependentObjectsStillExistError as error:  # its hint is to drop with cascade
        raise MigrationFailed(
            f"{what} was refused on {state}, and nothing was changed: {error.detail}\nDrop what "
            "depends on holdfast, migrate, and create it again"
        ) from error
    except asyncpg.PostgresError as error:
        raise MigrationFailed(
            f"{what} was refused on {state}, and nothing was changed: {error}"
        ) from error
