"""What the database refuses, as errors of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from contract.actors import new_run, start
from scene import Scene
from tests.ports import refusing_port

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    InsufficientRights,
    InvalidDatabaseURL,
    InvalidInput,
    InvalidSchemaName,
    LockTimeout,
    PayloadError,
    SchemaMissing,
    TransientDatabaseError,
)
from holdfast.store.postgres import PostgresStore, database
from holdfast.store.postgres.database import translated
from holdfast.store.postgres.errors import ended_by_server, is_sound, translate, was_undone
from holdfast.store.shared_calls import MAX_TRIES


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        yield scene


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (asyncpg.DeadlockDetectedError("x"), TransientDatabaseError),
        (asyncpg.SerializationError("x"), TransientDatabaseError),
        (asyncpg.LockNotAvailableError("x"), LockTimeout),
        (asyncpg.AdminShutdownError("x"), DatabaseUnavailable),
        (asyncpg.CannotConnectNowError("x"), DatabaseUnavailable),
        (asyncpg.ConnectionDoesNotExistError("x"), DatabaseUnavailable),
        (asyncpg.TooManyConnectionsError("x"), DatabaseUnavailable),
        (asyncpg.InvalidPasswordError("x"), DatabaseUnavailable),
        (asyncpg.ReadOnlySQLTransactionError("x"), DatabaseUnavailable),
        (asyncpg.InterfaceError("connection is closed"), DatabaseUnavailable),
        (ConnectionRefusedError("x"), DatabaseUnavailable),
        (TimeoutError("x"), DatabaseUnavailable),
        (asyncpg.InsufficientPrivilegeError("x"), InsufficientRights),
        (asyncpg.UndefinedFunctionError("x"), SchemaMissing),
        (
            asyncpg.UndefinedFunctionError("function holdfast.start_one(uuid) does not exist"),
            SchemaMissing,
        ),
        (
            asyncpg.UndefinedFunctionError('function "my shop"._due(uuid[]) does not exist'),
            TransientDatabaseError,
        ),
        (asyncpg.InvalidTextRepresentationError("x"), PayloadError),
        (asyncpg.CheckViolationError("x"), PayloadError),
        (asyncpg.DivisionByZeroError("x"), PayloadError),
        (asyncpg.InternalServerError("x"), DatabaseError),
        (
            asyncpg.InternalServerError("cache lookup failed for function 16791"),
            TransientDatabaseError,
        ),
        (asyncpg.DatatypeMismatchError("x"), DatabaseError),
        (
            asyncpg.DatatypeMismatchError("structure of query does not match function result type"),
            TransientDatabaseError,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_errors_are_translated(raised: Exception, kind: type[HoldfastError]) -> None:
    with pytest.raises(HoldfastError) as caught, translated():
        raise raised
    assert type(caught.value) is kind
    assert caught.value.__cause__ is raised


def test_the_state_of_the_driver_is_said_in_words() -> None:
    state = "cannot switch to state 15; another operation (2) is in progress"
    lost = "the database cannot be reached: the connection was lost before the call"
    assert str(translate(asyncpg.InternalClientError(state))) == lost
    ended = ended_by_server(asyncpg.InternalClientError(state))
    assert "the session of a transaction has ended before its commit: it was lost" in str(ended)


@pytest.mark.parametrize(
    "lost",
    [
        asyncpg.ConnectionDoesNotExistError("connection was closed"),
        asyncpg.AdminShutdownError("terminating connection"),
        TimeoutError(),
    ],
)
def test_a_lost_answer_is_not_a_refusal(lost: Exception) -> None:
    """Fault: it said `TimeoutError`, and `builds roll-back` made again went back twice."""
    error = translate(lost)
    assert isinstance(error, DatabaseUnavailable)
    assert error.unanswered
    assert "may have carried out the call" in str(error)


def test_a_database_that_takes_no_writes_says_where_the_reason_stands() -> None:
    """Fault: it said `cannot execute INSERT in a read-only transaction`, and no way out."""
    said = {"C": "25006", "M": "cannot execute INSERT", "S": "ERROR", "V": "ERROR"}
    text = str(translate(asyncpg.PostgresError.new(said)))
    assert text.startswith("the database takes no writes now (`holdfast doctor` says why): cannot")
    assert text.endswith("(25006)")


def test_a_connection_is_sound_after_a_statement_that_the_server_stopped() -> None:
    """Fault: with a short statement_timeout each call opened a connection."""
    assert is_sound(asyncpg.QueryCanceledError("canceling statement due to statement timeout"))
    assert not is_sound(asyncpg.AdminShutdownError("terminating connection"))


@pytest.mark.parametrize("code", ["25P03", "25P04", "XX000"])
def test_an_error_that_ends_the_session_may_pass(code: str) -> None:
    """By transaction_timeout, or what poolers say with a code of their own: the call is repeated.

    Fault: a commit was given up, and steps were executed again when the leases had run out.
    """
    said = {"C": code, "M": "terminating connection"}
    ending = asyncpg.PostgresError.new({**said, "S": "FATAL", "V": "FATAL"})
    assert type(translate(ending)) is DatabaseUnavailable
    assert not is_sound(ending)
    other = asyncpg.PostgresError.new({**said, "S": "ERROR", "V": "ERROR"})
    assert type(translate(other)) is DatabaseError
    assert is_sound(other)


async def test_no_server_listens_at_the_address() -> None:
    with refusing_port() as port:
        store = PostgresStore(f"postgresql://nobody@127.0.0.1:{port}/none")
        with pytest.raises(DatabaseUnavailable):
            await store.open()


@pytest.mark.parametrize("url", ["localhost/db", "mysql://localhost/db"])
async def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidDatabaseURL):
        await PostgresStore(url).open()


async def test_database_without_the_schema(empty_database_url: str) -> None:
    """T12."""
    with pytest.raises(SchemaMissing):
        await PostgresStore(empty_database_url).open()
    unchecked = PostgresStore(empty_database_url, check=False)
    await unchecked.open()
    with pytest.raises(SchemaMissing):
        await unchecked.start_runs([new_run()])
    await unchecked.close()


@pytest.mark.parametrize("schema", ["Robert'); drop", "public", ""])
def test_an_invalid_schema_name_is_refused(schema: str) -> None:
    with pytest.raises(InvalidSchemaName):
        PostgresStore("postgresql://localhost/db", schema=schema)


async def test_store_serves_again_after_its_connections_were_cut(scene: Scene) -> None:
    """Trap 22. A call in flight is told; the next one finds a new connection."""
    session = await scene.session()
    run_id = await start(scene.store)
    async with session.transaction():
        await session.call("_lock_turns", [run_id])
        hanging = asyncio.create_task(scene.store.cancel_runs([run_id]))
        await scene.until_blocked()
        await scene.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and pid <> all (array[pg_backend_pid(), $1])",
            session.connection.get_server_pid(),
        )
        with pytest.raises(DatabaseUnavailable):
            await hanging
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await scene.store.cancel_runs([run_id])).outcomes == ["delivered"]
                break
            except DatabaseUnavailable:
                continue


# A table that the call comes to last, and one that it has by then.
MEETING: dict[str, tuple[str, str, Callable[[PostgresStore], Coroutine[Any, Any, object]]]] = {
    "a read": ("steps", "flows", lambda store: store.list_flows()),
    "a start": ("tasks", "runs", start),
}


@pytest.mark.parametrize("what", MEETING)
async def test_a_call_that_the_server_ends_as_a_deadlock_is_repeated(
    scene: Scene, what: str
) -> None:
    """Fault: reads that met a migration were answered 503."""
    last, first, call = MEETING[what]
    session = await scene.session()
    await session.connection.execute("set deadlock_timeout = '1h'")  # the call is the one that ends
    async with session.transaction():
        await session.connection.execute(f"lock table holdfast.{last}")
        calling = asyncio.create_task(call(scene.store))
        await scene.until_blocked()
        await session.connection.execute(f"lock table holdfast.{first}")
    await calling


async def test_a_call_that_is_undone_each_time_raises_in_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FIRST_PAUSE", 0.0)
    refusals: list[str] = []

    async def refused(_: object) -> None:
        refusals.append("40001")
        raise asyncpg.SerializationError("could not serialize access")

    with pytest.raises(asyncpg.SerializationError):
        await scene.store._database._call(refused)
    assert len(refusals) == MAX_TRIES


@pytest.mark.parametrize(
    ("raised", "repeated"),
    [
        (asyncpg.SerializationError("x"), True),
        (asyncpg.DeadlockDetectedError("x"), True),
        (asyncpg.UndefinedFunctionError("function holdfast._due(uuid) does not exist"), True),
        (asyncpg.InternalServerError("cache lookup failed for function 99"), True),
        (asyncpg.InternalServerError("x"), False),
        (asyncpg.QueryCanceledError("x"), False),
        (asyncpg.LockNotAvailableError("x"), False),
        (asyncpg.AdminShutdownError("x"), False),
        (asyncpg.UniqueViolationError("x"), False),
    ],
)
def test_what_the_server_undoes_for_another_call_is_repeated(
    raised: asyncpg.PostgresError, repeated: bool
) -> None:
    assert was_undone(raised) is repeated


async def test_open_and_close_are_idempotent(database_url: str) -> None:
    store = PostgresStore(database_url)
    await store.close()
    await store.open()
    await store.open()
    assert await store.find_run("order", str(uuid4())) is None
    await store.close()
    await store.close()
    with pytest.raises(RuntimeError, match="not open"):
        await store.now()
    await store.open()
    assert await store.now() > 0
    await store.close()


async def test_store_that_prepares_nothing_serves_as_well(database_url: str) -> None:
    """Behind a pooler in transaction mode there are no prepared statements of one's own."""
    async with Scene.on(database_url) as scene:
        store = PostgresStore(database_url, connections=1, prepare=False)
        await store.open()
        for _ in range(3):
            await start(store)
        assert await scene.value("select count(*) from holdfast.runs") == 3
        await store.close()


async def test_a_value_that_the_driver_cannot_send_is_named_by_the_argument(scene: Scene) -> None:
    """Not as `$2`, which says nothing to callers: they know the names of the arguments."""
    with pytest.raises(InvalidInput, match=r"^limit \(list_messages\) cannot be 1099511627776 "):
        await scene.store.list_messages("parcels", limit=2**40)
    wrong: Any = "soon"
    with pytest.raises(InvalidInput, match=r"^force \(promote_build\) cannot be 'soon' "):
        await scene.store.promote_build("shop", "a81f", force=wrong)
