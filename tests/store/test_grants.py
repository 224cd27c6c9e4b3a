"""Rights of a role that does not own the schema: given by a migration, and kept by the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast import App, Client, Context
from holdfast.database.grants import lacking
from holdfast.database.migrate import MigrationReport, migrate, plan
from holdfast.database.scripts import load_scripts
from holdfast.errors import DatabaseUnavailable, InsufficientRights
from holdfast.insight.doctor import check_rights
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker

app = App("shop")


@app.workflow
async def checkout(ctx: Context) -> str:
    return "done"


@pytest.fixture
async def owner(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def role_called(owner: asyncpg.Connection, name: str) -> AsyncIterator[str]:
    """Make a role, and drop it at the end with all that is its own."""
    await owner.execute(f'create role "{name}" login')
    yield name
    await owner.execute(f'drop owned by "{name}"')
    await owner.execute(f'drop role "{name}"')


@pytest.fixture
async def role(owner: asyncpg.Connection) -> AsyncIterator[str]:
    async with role_called(owner, f"Shop worker {uuid4().hex[:8]}") as name:
        yield name


def url_of(url: str, role: str) -> str:
    from urllib.parse import quote

    parts = urlsplit(url)
    server = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role)}@{server}"))


async def test_a_role_that_was_granted_works_and_keeps_its_rights(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    """Also on tables that a later migration makes."""
    scripts = load_scripts()
    older = replace(scripts, migrations=scripts.migrations[:-1], functions=())
    await migrate(owner, "holdfast", older, grant_to=[role])
    assert (await migrate(owner, "holdfast")).migrations
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    assert await lacking(visitor, "holdfast") == []
    await visitor.close()
    store = PostgresStore(url_of(empty_database_url, role))
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store) as client:
        assert await client.run(checkout, wait="30s") == "done"
        await client.queues.create("letters")
        await client.topics.subscribe("letter.*", queue="letters")  # its number is drawn
    await worker.stop(0)
    await store.merge_stats()
    await store.close()
    left = await owner.fetchval("select brin_summarize_new_values('holdfast.events_by_time')")
    assert left == 0  # maintenance did it, although only the owner may


async def test_rights_that_were_given_by_hand_are_carried_on(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    scripts = load_scripts()
    await migrate(
        owner, "holdfast", replace(scripts, migrations=scripts.migrations[:-1], functions=())
    )
    await owner.execute(f'grant usage on schema holdfast to "{role}"')
    await owner.execute(f'grant select, insert on all tables in schema holdfast to "{role}"')
    await migrate(owner, "holdfast")
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    assert await lacking(visitor, "holdfast") == []
    await visitor.close()


OWNERS = """
select relowner::regrole::text from pg_class where relnamespace = 'holdfast'::regnamespace
union select proowner::regrole::text from pg_proc where pronamespace = 'holdfast'::regnamespace
"""


async def owners(connection: asyncpg.Connection) -> list[str]:
    return [row[0].strip('"') for row in await connection.fetch(OWNERS)]


async def test_what_a_member_of_the_owner_migrates_belongs_to_the_owner(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    """Fault: it belonged to the member, and the owner could not migrate again."""
    scripts = load_scripts()
    older = replace(scripts, migrations=scripts.migrations[:-1], functions=scripts.functions[:1])
    await owner.execute(f'create schema holdfast authorization "{role}"')
    await migrate(owner, "holdfast", older)  # a superuser
    assert await owners(owner) == [role]
    await owner.execute(f'create role member login in role "{role}"')
    try:
        visitor = await asyncpg.connect(url_of(empty_database_url, "member"))
        assert (await migrate(visitor, "holdfast")).migrations
        assert await owners(owner) == [role]
        assert await visitor.fetchval("select current_user") == "member"
        await visitor.close()
    finally:
        await owner.execute("drop role member")
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    await visitor.execute("update holdfast.schema_functions set checksum = ''")
    assert (await migrate(visitor, "holdfast")).functions
    await visitor.close()


@pytest.mark.parametrize(
    "what", ["table holdfast.schema_migrations", "function holdfast.list_pauses"]
)
async def test_a_schema_with_several_owners_is_migrated_by_one_who_may(
    owner: asyncpg.Connection, role: str, what: str
) -> None:
    """An earlier release let a member of the owner's role own what it made."""
    scripts = load_scripts()
    await migrate(owner, "holdfast", replace(scripts, functions=scripts.functions[:-1]))
    await owner.execute(f'alter {what} owner to "{role}"')
    assert (await migrate(owner, "holdfast")).functions


async def test_things_of_others_in_the_schema_own_nothing(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    """Fault: a role that may create there could not migrate, because an extension was there."""
    await owner.execute("create schema holdfast")
    await owner.execute("create table holdfast.notes (note text)")
    await owner.execute("create function holdfast.similarity() returns int language sql return 1")
    await owner.execute(f'grant usage, create on schema holdfast to "{role}"')
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    scripts = load_scripts()
    older = replace(scripts, migrations=scripts.migrations[:-1], functions=scripts.functions[:1])
    assert not (await plan(visitor, "holdfast", older)).is_empty
    await migrate(visitor, "holdfast", older)
    assert (await migrate(owner, "holdfast")).migrations  # a superuser, who acts as the role
    await visitor.execute("update holdfast.schema_functions set checksum = ''")
    assert (await migrate(visitor, "holdfast")).functions
    await visitor.close()
    theirs = "select relname from pg_class where relowner = $1::regrole and relname = any ($2)"
    rows = await owner.fetch(theirs, f'"{role}"', ["runs", "notes", "schema_functions"])
    assert {row[0] for row in rows} == {"runs", "schema_functions"}


@pytest.mark.parametrize("recorded", [False, True])
async def test_functions_of_extensions_and_users_stay(
    owner: asyncpg.Connection, role: str, empty_database_url: str, recorded: bool
) -> None:
    """Fault: those with the name of one of holdfast's were recorded, as `set_limit` of pg_trgm.

    The next release, which was to drop them, could not be migrated to.
    """
    await owner.execute("create schema holdfast")
    await owner.execute("create function holdfast.set_limit() returns int language sql return 1")
    await owner.execute("alter extension plpgsql add function holdfast.set_limit()")
    await owner.execute("create function holdfast.pop() returns int language sql return 1")
    await owner.execute(f'grant usage, create on schema holdfast to "{role}"')
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    try:
        await migrate(visitor, "holdfast")
        if recorded:  # by an earlier release
            await visitor.execute(
                "insert into holdfast.schema_functions (signature, checksum, release) "
                "select 'holdfast.set_limit()', checksum, release "
                "from holdfast.schema_functions limit 1"
            )
        for connection in (owner, visitor):
            await visitor.execute("update holdfast.schema_functions set checksum = ''")
            assert (await migrate(connection, "holdfast")).functions
        assert await owner.fetchval("select holdfast.set_limit() + holdfast.pop()") == 2
    finally:
        await visitor.close()
        await owner.execute("alter extension plpgsql drop function holdfast.set_limit()")


@pytest.mark.parametrize("step", [plan, migrate])
@pytest.mark.parametrize("has", ["nothing", "an empty schema", "the schema"])
async def test_a_role_that_may_not_migrate_is_refused_before_anything_is_tried(
    owner: asyncpg.Connection,
    role: str,
    empty_database_url: str,
    step: Callable[..., Awaitable[MigrationReport]],
    has: str,
) -> None:
    """Fault: a dry run said what would be applied by a role that may apply nothing."""
    if has == "the schema":
        scripts = load_scripts()
        older = replace(scripts, migrations=scripts.migrations[:-1], functions=())
        await migrate(owner, "holdfast", older, grant_to=[role])
    elif has == "an empty schema":
        await owner.execute("create schema holdfast")
        await owner.execute(f'grant usage on schema holdfast to "{role}"')
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    with pytest.raises(InsufficientRights, match=r"schema 'holdfast'.*nothing was changed"):
        await step(visitor, "holdfast")
    await visitor.close()


@pytest.mark.parametrize("step", [plan, migrate])
async def test_a_database_that_takes_no_writes_is_refused_before_anything_is_tried(
    owner: asyncpg.Connection, step: Callable[..., Awaitable[MigrationReport]]
) -> None:
    await owner.execute("set default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match=r"nothing was changed.*takes no writes"):
        await step(owner, "holdfast")


async def test_what_a_role_lacks_is_named(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    await migrate(owner, "holdfast", grant_to=[role])
    await owner.execute(f'revoke insert on holdfast.apps from "{role}"')
    await owner.execute(f'revoke all on all sequences in schema holdfast from "{role}"')
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    apps, *sequences = await lacking(visitor, "holdfast")
    assert apps == "apps"
    assert "sequence subscriptions_subscription_id_seq" in sequences
    await visitor.close()


@pytest.fixture
async def accountant(owner: asyncpg.Connection) -> AsyncIterator[str]:
    async with role_called(owner, f"accountant_{uuid4().hex[:8]}") as name:
        yield name


async def test_things_of_others_in_the_schema_are_neither_granted_nor_asked_for(
    owner: asyncpg.Connection, role: str, accountant: str, empty_database_url: str
) -> None:
    """Fault: a role for workers could read and change each table that stood there."""
    await migrate(owner, "holdfast")
    await owner.execute("create table holdfast.salaries (id int generated always as identity)")
    for name in ("pay()", "publish(int)"):  # holdfast has another `publish`
        await owner.execute(f"create function holdfast.{name} returns int language sql return 1")
        await owner.execute(f"revoke execute on function holdfast.{name} from public")
        await owner.execute(f"alter function holdfast.{name} owner to {accountant}")
    await migrate(owner, "holdfast", grant_to=[role])
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    assert await lacking(visitor, "holdfast") == []
    calls = ("select holdfast.pay()", "select holdfast.publish(1)")
    for statement in ("table holdfast.salaries", *calls):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await visitor.execute(statement)
    await owner.execute("alter table holdfast.salaries enable row level security")
    assert (await check_rights(visitor, "holdfast")).level == "ok"
    await visitor.close()


async def test_nothing_of_holdfast_is_left_out_of_a_grant(
    owner: asyncpg.Connection, role: str, empty_database_url: str
) -> None:
    await migrate(owner, "holdfast", grant_to=[role])
    visitor = await asyncpg.connect(url_of(empty_database_url, role))
    left_out = await visitor.fetch(
        """
        select relname::text from pg_class
        where relnamespace = 'holdfast'::regnamespace and case relkind
            when 'S' then not has_sequence_privilege(oid, 'usage')
            when 'r' then not (has_table_privilege(oid, 'select')
                and has_table_privilege(oid, 'insert') and has_table_privilege(oid, 'update')
                and has_table_privilege(oid, 'delete'))
            else relkind not in ('i', 'c') end
        union all select proname from pg_proc
        where pronamespace = 'holdfast'::regnamespace and proacl is null
        """
    )
    assert left_out == []
    for kind in ("tables", "sequences", "functions"):
        await owner.execute(f'revoke all on all {kind} in schema holdfast from public, "{role}"')
    expected = await owner.fetchval(
        """
        select (select count(*) from pg_proc where pronamespace = 'holdfast'::regnamespace)
            + count(*) from pg_class
        where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'S')
        """
    )
    assert len(await lacking(visitor, "holdfast")) == expected
    await visitor.close()


async def test_a_missing_role_is_refused(owner: asyncpg.Connection) -> None:
    with pytest.raises(InsufficientRights, match="'nobody_at_all'"):
        await migrate(owner, "holdfast", grant_to=["nobody_at_all"])
    assert await owner.fetchval("select to_regnamespace('holdfast')") is None
