"""Transactional steps on PostgreSQL: the rows of the code and the record are one commit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from contract.actors import ManualWorker, log, log_types, start
from django.db.backends.base.base import BaseDatabaseWrapper
from pooler import needs_pgbouncer, pgbouncer
from psycopg.pq import DiagnosticField
from scene import Scene, turn
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from tests.proxy import Proxy

from holdfast import App, Client, Context, Database, Retry, current_step
from holdfast.database.migrate import render_results
from holdfast.database.sessions import direct_question
from holdfast.database.urls import read_url
from holdfast.definitions.transactions import Isolation
from holdfast.errors import ConfigurationError, RunFailed, StepFailed
from holdfast.payloads import payloads_of
from holdfast.store.port.transactions import AlreadyRecorded, is_away, is_refusal, lease_of
from holdfast.store.postgres import PostgresStore, asyncpg_connector, connectors, open_transaction
from holdfast.store.postgres.conninfo import conninfo
from holdfast.store.postgres.database import Database as PostgresDatabase
from holdfast.testing import Environment
from holdfast.testing.crashes import crashes
from holdfast.testing.plan import same_each_time
from holdfast.types import Event, Finish
from holdfast.worker import Worker, WorkerOptions, transactions

ONCE = Retry(attempts=1)


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


async def rooms(scene: Scene) -> list[int]:
    found = await scene.watcher.connection.fetch("select room from public.rooms order by room")
    return [row[0] for row in found]


@asynccontextmanager
async def working(app: App, url: str, **options: Any) -> AsyncIterator[Client]:
    """Run a worker, and give a client."""
    store = PostgresStore(url, tells=True)
    worker = Worker(app, store, WorkerOptions(poll_seconds=0.1, **options))
    await worker.start()
    try:
        async with asyncio.timeout(60), Client(store=store, app=app) as client:
            yield client
    finally:
        await worker.stop(0)
        await store.close()


def hotel(step: Callable[..., Any], **options: Any) -> tuple[App, Any]:
    """Return an app whose workflow calls one transactional step."""
    app = App("hotel")
    book = app.transaction(**options)(step)

    @app.workflow
    async def stay(ctx: Context, room: int) -> int | str:
        result: int | str = await book(room)
        return result

    return app, stay


async def insert(connection: asyncpg.Connection, room: int) -> int:
    await connection.execute("insert into public.rooms values ($1)", room)
    return room


async def results(scene: Scene) -> Database:
    """Return a database for data with its table of results: the same one, in another schema."""
    await scene.watcher.connection.execute(render_results("apart"))
    return Database(scene.url, schema="apart")


# Who holds the run


def recorded(key: str = "book") -> Event:
    details = '{"name":"book","args":1,"result":7,"started_at":1,"transaction":true}'
    return Event("StepCompleted", key, details, 1_700_000_000_000_000)


async def record(session: Any, worker: str, run_id: UUID, lease_no: int, *expected: int) -> None:
    """Record a step; without an expected index as workers of earlier releases do."""
    event = recorded()
    given = (worker, run_id, lease_no, event.key, event.details, event.at, 30.0)
    await session.call("record_step", *given, *expected)


async def test_a_worker_whose_lease_went_to_another_commits_nothing(scene: Scene) -> None:
    """Its transaction is under way while another worker takes the run over."""
    take_over = "update holdfast.tasks set worker = 'bob', lease_no = lease_no + 1"
    session = await scene.session()
    ann = ManualWorker(scene.store, "ann")
    for _ in range(10):
        run_id = await start(scene.store)
        task = await ann.take()
        async with session.transaction():
            await scene.watcher.connection.execute(take_over)
            with pytest.raises(asyncpg.PostgresError, match=f"ann does not hold run {run_id}"):
                await record(session, "ann", run_id, task.lease_no)
        assert "StepCompleted" not in await log_types(scene.store, run_id)


async def test_who_takes_over_waits_for_a_commit_under_way(scene: Scene) -> None:
    """The record is written, and not committed yet: then the next worker finds it."""
    ann, bob = ManualWorker(scene.store, "ann"), ManualWorker(scene.store, "bob")
    run_id = await start(scene.store)
    task = await ann.take()
    session, other = await scene.session(), await scene.session()
    held = session.transaction()
    await held.start()
    await record(session, "ann", run_id, task.lease_no)
    takes = other.connection.execute(
        "update holdfast.tasks set worker = null, visible_at = holdfast.now() where run_id = $1",
        run_id,
    )
    await scene.while_blocked(takes, held.commit)
    assert (await bob.take()).log_length == 2


async def test_a_commit_of_the_run_follows_the_record(scene: Scene) -> None:
    """A plain step ends meanwhile: its commit waits, and is refused with the record."""
    ann = ManualWorker(scene.store, "ann")
    run_id = await start(scene.store)
    task = await ann.take()
    session, committer = await scene.session(), await scene.session()
    held = session.transaction()
    await held.start()
    await record(session, "ann", run_id, task.lease_no)
    row = await scene.while_blocked(committer.commit("ann", turn(task)), held.commit)
    assert '"conflict"' in row["refused"]
    moved = msgspec.structs.replace(turn(task), after_others=True)
    committed = await scene.store.commit("ann", uuid4(), [moved])
    assert [event.key for event in committed.ahead[run_id].tail] == ["book"]
    assert [event.key for event in (await log(scene.store, run_id))[1:]] == ["book", "charge"]


async def test_a_signal_is_not_behind_all_transactions_of_its_run(scene: Scene) -> None:
    """Another one begins to wait after the signal, while the first is not committed."""
    ann = ManualWorker(scene.store, "ann")
    run_id = await start(scene.store)
    task = await ann.take()
    first, other, asks = await scene.session(), await scene.session(), await scene.session()
    held, later = first.transaction(), other.transaction()
    await held.start()
    await later.start()
    await record(first, "ann", run_id, task.lease_no)
    records: list[asyncio.Future[Any]] = []

    async def go_on() -> None:
        records.append(asyncio.ensure_future(record(other, "ann", run_id, task.lease_no)))
        await scene.until_blocked(2)
        await held.commit()

    signalled = asks.connection.execute(
        "select from holdfast.tasks where run_id = $1 for update", run_id
    )
    async with asyncio.timeout(20):
        await scene.while_blocked(signalled, go_on)
    await records[0]
    await later.commit()


async def test_a_record_renews_a_lease_that_no_heartbeat_could(scene: Scene) -> None:
    ann = ManualWorker(scene.store, "ann")
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    for left, renewed in ((1000, False), (10, True)):
        before = await scene.value(
            "update holdfast.tasks set visible_at = holdfast.now() + $1 * interval '1 s' "
            "returning visible_at",
            left,
        )
        await record(session, "ann", run_id, task.lease_no)
        longer = await scene.value("select visible_at - $1 from holdfast.tasks", before)
        assert longer >= timedelta(seconds=20) if renewed else longer == timedelta()


# Where the record is


@pytest.mark.parametrize(("expected", "told"), [((), ["1"]), ((1,), []), ((2,), ["1"])])
async def test_a_notice_tells_of_an_index_that_is_not_the_expected_one(
    scene: Scene, expected: tuple[int, ...], told: list[str]
) -> None:
    """A worker of an earlier release expects none, and is always told."""
    notices, session, ann = list[str](), await scene.session(), ManualWorker(scene.store, "ann")
    session.connection.add_log_listener(lambda _, notice: notices.append(notice.message))
    run_id = await start(scene.store)
    task = await ann.take()
    await record(session, "ann", run_id, task.lease_no, *expected)
    assert notices == told


@pytest.mark.parametrize("signalled", [False, True])
async def test_a_run_continues_after_a_record_that_a_signal_has_moved(
    scene: Scene, signalled: bool
) -> None:
    """Or that none has. The code has turned notices off, which does not hold for the record."""
    app, notices = App("hotel"), list[str]()

    @app.transaction(retry=ONCE)
    async def book(connection: asyncpg.Connection, room: int) -> int:
        connection.add_log_listener(lambda _, notice: notices.append(notice.message))
        await connection.execute("set local client_min_messages = error")
        await insert(connection, room)
        if signalled and room == 4:
            await handle.signal("hello", 7)
        return room

    @app.workflow
    async def stay(ctx: Context) -> list[int]:
        first = await book(4)
        second = await ctx.wait_for_signal("hello", type=int) if signalled else 7
        return [first, second, await book(5)]

    async with working(app, scene.url) as client:
        handle = await client.start(stay, delay="0.2s")
        assert await handle.result() == [4, 7, 5]
    between = ["SignalReceived"] if signalled else []
    types = ["WorkflowStarted", *between, "StepCompleted", "StepCompleted", "WorkflowCompleted"]
    assert await log_types(scene.store, handle.run_id) == types
    assert (notices, await rooms(scene)) == (["2"] if signalled else [], [4, 5])


async def test_a_notice_of_the_data_is_not_that_of_the_record(scene: Scene) -> None:
    """A trigger that is put off to the commit says a number, as the record may."""
    notices = list[str]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        connection.add_log_listener(lambda _, notice: notices.append(notice.message))
        return await insert(connection, room)

    await scene.watcher.connection.execute(AT_COMMIT.format(then="return null"))
    app, stay = hotel(book)
    async with working(app, scene.url) as client:
        handle = await client.start(stay, 4)
        assert await handle.result() == 4
    await scene.watcher.connection.execute("drop function public.refuse cascade")
    types = ["WorkflowStarted", "StepCompleted", "WorkflowCompleted"]
    assert await log_types(scene.store, handle.run_id) == types
    assert (notices, await rooms(scene)) == (["9"], [4])


async def test_a_step_whose_lease_was_lost_is_repeated_by_the_next_holder(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what happened, and blames no code."""
    calls = list[int]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(room)
        if len(calls) == 1:
            await scene.watcher.connection.execute("""
                update holdfast.tasks set worker = null, lease_no = lease_no + 1,
                    visible_at = holdfast.now()
            """)
        return await insert(connection, room)

    app, stay = hotel(book)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (calls, await rooms(scene)) == ([4, 4], [4])
    told = [each for each in caplog.messages if "step book" in each]
    [line] = told
    assert "the transaction of step book was rolled back: this worker does not hold" in line


# Failures


async def test_an_error_rolls_back_and_counts_as_an_attempt(scene: Scene) -> None:
    async def book(connection: asyncpg.Connection, room: int) -> int:
        await insert(connection, room)
        if current_step().attempt == 1:
            raise OSError("gone")
        return current_step().attempt

    app, stay = hotel(book, retry=Retry(attempts=2, base=0.01))
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 2
    assert await rooms(scene) == [4]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_serialization_failure_is_no_attempt(
    scene: Scene, isolation: Isolation, apart: bool
) -> None:
    calls = list[int]()
    await scene.watcher.connection.execute("insert into public.rooms values (1)")

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        await connection.fetch("select * from public.rooms")
        if len(calls) == 1:
            await scene.watcher.connection.execute("update public.rooms set room = 2")
        await connection.execute("update public.rooms set room = room + $1", room)
        return room

    place = await results(scene) if apart else None
    app, stay = hotel(book, isolation=isolation, retry=ONCE, database=place)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (calls, await rooms(scene)) == ([1, 1], [6])


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_snapshot_may_be_older_than_the_lease_and_the_log(
    scene: Scene, isolation: Isolation
) -> None:
    """A heartbeat renews the lease, and a signal is appended, while the code works."""
    calls = list[int]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        await insert(connection, room)
        await scene.watcher.connection.execute(
            "update holdfast.tasks set visible_at = visible_at + interval '1 second'"
        )
        await handle.signal("hello")
        return room

    app, stay = hotel(book, isolation=isolation, retry=ONCE)
    async with working(app, scene.url) as client:
        handle = await client.start(stay, 4, key="k", delay="0.2s")
        assert await handle.result() == 4
    assert (calls, await rooms(scene)) == ([1], [4])


async def test_strict_transactions_of_one_run_are_not_in_the_way_of_each_other(
    scene: Scene,
) -> None:
    app, calls = App("hotel"), list[int]()

    @app.transaction(isolation="serializable", retry=ONCE)
    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(room)
        return await insert(connection, room)

    @app.workflow
    async def stay(ctx: Context) -> list[int]:
        return await asyncio.gather(*map(book, range(20)))

    async with working(app, scene.url) as client:
        assert await client.run(stay) == list(range(20))
    assert (sorted(calls), await rooms(scene)) == (list(range(20)), list(range(20)))


@pytest.mark.parametrize("apart", [None, "repeatable read", "elsewhere"])
@pytest.mark.parametrize("reached", [True, False])
async def test_a_commit_without_an_answer_has_one_outcome(
    scene: Scene,
    reached: bool,
    apart: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection is lost at the commit: after the server has carried it out, or before."""
    losses = list[None]()

    def losing(commit: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def lose(session: Any, *given: object) -> object:
            if losses:
                return await commit(session, *given)
            losses.append(None)
            session.sent = True
            if reached:
                await commit(session, *given)
            session._raw.terminate()
            raise ConnectionResetError("the answer is lost")

        return lose

    calls = list[int]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        return await insert(connection, room)

    for name in ("commit_with", "finish"):  # with the record in one message, and alone
        given = getattr(asyncpg_connector.AsyncpgSession, name)
        monkeypatch.setattr(asyncpg_connector.AsyncpgSession, name, losing(given))
    options = {"database": await results(scene)} if apart == "elsewhere" else {"isolation": apart}
    app, stay = hotel(book, retry=ONCE, **options)
    app.payloads = payloads_of(Reversing())
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (calls, await rooms(scene)) == ([1] if reached else [1, 1], [4])
    assert "middleware" not in caplog.text


@pytest.mark.parametrize("first", [True, False])
async def test_a_commit_that_arrives_after_its_connection_was_lost_has_one_outcome(
    scene: Scene, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way while the next try is made, and arrives before the record of that, or after.

    Fault: both were committed, and the run was stuck with two ends of one step.
    """
    sent, calls = list[tuple[Any, ...]](), list[int]()
    commit = asyncpg_connector.AsyncpgSession.commit_with
    late = await asyncpg.connect(scene.url)

    async def arrive() -> None:
        """Carry out what was sent before."""
        for statement, *values in sent:
            marks = [f"'{value}'" for _, value in values]
            async with late.transaction():
                await late.execute("insert into public.rooms values (9)")
                await late.execute(statement.format(*marks, schema="holdfast"))

    async def lose(session: Any, expected: int, statement: str, *values: Any) -> int:
        if not sent:
            sent.append((statement, *values))
            session.sent = True
            session._raw.terminate()
            raise ConnectionResetError("the answer is lost")
        if first:
            await arrive()
        return await commit(session, expected, statement, *values)

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(room)
        await insert(connection, room)
        return room + len(calls)

    monkeypatch.setattr(asyncpg_connector.AsyncpgSession, "commit_with", lose)
    app, stay = hotel(book, retry=ONCE)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == (5 if first else 6)
        if not first:
            with pytest.raises(asyncpg.PostgresError):
                await arrive()
        [run] = (await client.runs.list()).runs
        log = [each.event.type for each in await client.handle(run.run_id).log()]
    assert log.count("StepCompleted") == 1
    assert await rooms(scene) == ([9] if first else [4])
    assert calls == [4, 4]
    await late.close()


async def test_a_step_ends_once_in_a_log(scene: Scene) -> None:
    """Also while the run continues after it, and others stand where the record was expected."""
    session, ann = await scene.session(), ManualWorker(scene.store, "ann")
    run_id = await start(scene.store)
    task = await ann.take()
    await record(session, "ann", run_id, task.lease_no, 1)
    for expected in (1, 0):
        with pytest.raises(asyncpg.PostgresError, match="the log has the end of step book"):
            await record(session, "ann", run_id, task.lease_no, expected)
    assert (await log_types(scene.store, run_id)).count("StepCompleted") == 1


@pytest.mark.parametrize("apart", [None, "repeatable read", "elsewhere"])
async def test_a_time_out_before_the_answer_to_a_commit_is_lost(
    scene: Scene, apart: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has committed, so the step has its result, and is not repeated."""
    calls = list[int]()

    def late(commit: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def wait(session: Any, *given: object) -> object:
            answer = await commit(session, *given)
            await asyncio.sleep(1)
            return answer

        return wait

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        return await insert(connection, room)

    for name in ("commit_with", "finish"):
        given = getattr(asyncpg_connector.AsyncpgSession, name)
        monkeypatch.setattr(asyncpg_connector.AsyncpgSession, name, late(given))
    options = {"database": await results(scene)} if apart == "elsewhere" else {"isolation": apart}
    app, stay = hotel(book, timeout="0.5s", retry=ONCE, **options)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (calls, await rooms(scene)) == ([1], [4])


async def test_a_time_out_while_the_server_commits_has_one_outcome(scene: Scene) -> None:
    """The first commit of each kind of connection takes longer than its step may."""
    then = "if nextval('public.commits') = 1 then perform pg_sleep(3); end if; return null"
    await scene.watcher.connection.execute("create sequence public.commits")
    await scene.watcher.connection.execute(AT_COMMIT.format(then=then))
    for kind in (insert, with_psycopg, with_connection, with_session):
        app, stay = hotel(kind, timeout="0.5s", retry=Retry(attempts=5, base=0.01))
        async with working(app, scene.url) as client:
            assert await client.run(stay, 4) == 4
        assert await rooms(scene) == [4]
        await scene.watcher.connection.execute("truncate public.rooms")
        await scene.watcher.connection.execute("alter sequence public.commits restart")
    await scene.watcher.connection.execute("drop function public.refuse cascade")
    await scene.watcher.connection.execute("drop sequence public.commits")


async def test_an_attempt_that_times_out_is_rolled_back_before_the_next(scene: Scene) -> None:
    async def book(connection: asyncpg.Connection, room: int) -> int:
        await insert(connection, room)
        if current_step().attempt == 1:
            await asyncio.sleep(3600)
        return room

    app, stay = hotel(book, timeout="0.2s", retry=Retry(attempts=2, base=0.01))
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert await rooms(scene) == [4]


async def test_a_thread_that_has_timed_out_does_not_commit(scene: Scene) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def book(connection: psycopg.Connection, room: int) -> int:
        connection.execute("insert into public.rooms values (%s)", [room])
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return room

    app, stay = hotel(book, timeout="0.1s", retry=ONCE)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="ran longer"):
            await client.run(stay, 4)
        released.set()
        idle = """
            select count(*) from pg_stat_activity
            where datname = current_database() and state like 'idle in%'
        """
        await scene.until(idle, lambda count: count == 0)
    assert await rooms(scene) == []


async def test_a_thread_that_is_cancelled_between_two_tries_does_not_commit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is refused while the code of the workflow stops to wait for it."""
    record, calls = connectors._Psycopg.record, list[int]()

    async def refused(*given: Any) -> int | None:
        if len(calls) == 1:
            assert current_step().wait_cancelled(30)
            raise psycopg.errors.SerializationFailure
        return await record(*given)

    monkeypatch.setattr(connectors._Psycopg, "record", refused)
    app = App("hotel")

    @app.transaction
    def book(connection: psycopg.Connection, room: int) -> int:
        calls.append(room)
        return in_psycopg(connection, room)

    @app.workflow
    async def stay(ctx: Context) -> str:
        booking = asyncio.ensure_future(book(4))
        await ctx.wait_for_signal("cancel")
        booking.cancel()
        await ctx.wait_for_signal("stop")
        return "late"

    store = PostgresStore(scene.url, tells=True)
    worker = Worker(app, store, WorkerOptions(poll_seconds=0.1))
    await worker.start()
    async with asyncio.timeout(60), Client(store=store, app=app) as client:
        handle = await client.start(stay)
        while not calls:
            await asyncio.sleep(0.01)
        await handle.signal("cancel")
        while worker._launcher.book.use().taken:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        await handle.signal("stop")
        assert await handle.result() == "late"
    await worker.stop(0)
    await store.close()
    assert (calls, await rooms(scene)) == ([4], [])


class Reversing:
    """A codec that no one takes for JSON."""

    name, key_id = "reversing", None

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        return data[::-1]


@pytest.mark.parametrize("apart", [None, "repeatable read", "elsewhere"])
async def test_a_result_that_is_too_large_rolls_back(scene: Scene, apart: str | None) -> None:
    async def book(connection: asyncpg.Connection, room: int) -> str:
        await insert(connection, room)
        return "x" * 1000

    options = {"database": await results(scene)} if apart == "elsewhere" else {"isolation": apart}
    app, stay = hotel(book, **options)
    app.payloads = payloads_of(None, 500)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="max_payload_bytes"):
            await client.run(stay, 4)
    assert await rooms(scene) == []


async def test_connections_that_the_server_has_closed_cost_no_attempt(scene: Scene) -> None:
    app = App("hotel")
    steps: list[Any] = [app.transaction(retry=ONCE)(kind) for kind in [insert, *KINDS]]

    @app.workflow
    async def stay(ctx: Context, times: int) -> None:
        await asyncio.gather(*(step(n) for n in range(1, 1 + times) for step in steps))

    async with working(app, scene.url) as client:
        await client.run(stay, 5)
        await scene.watcher.connection.execute("""
            select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and query ~* '^(commit|rollback)|; commit$'
        """)
        await client.run(stay, 1)
    assert len(await rooms(scene)) == 6 * len(steps)


async def test_a_connection_whose_begin_was_cancelled_is_not_lent_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the server had begun, and the next step got a connection within a transaction."""
    connector = scene.store.connector("asyncpg", asyncpg.Connection, 1)
    start = asyncpg.transaction.Transaction.start
    sent = asyncio.Event()

    async def start_slowly(transaction: Any) -> None:
        sent.set()
        await asyncio.sleep(0)  # the caller is cancelled while the answer is on its way
        await start(transaction)

    async def use(transaction: Any) -> int:
        return int(await transaction.connection.fetchval("select pg_backend_pid()"))

    first = await connector.within(use, None)
    monkeypatch.setattr(asyncpg.transaction.Transaction, "start", start_slowly)
    begins = asyncio.create_task(connector.within(use, None))
    await sent.wait()
    await asyncio.sleep(0)
    begins.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begins
    monkeypatch.undo()
    assert await connector.within(use, None) != first
    idle = "select count(*) from pg_stat_activity where state = 'idle in transaction'"
    idle += " and datname = current_database()"
    await scene.until(idle, lambda count: count == 0)  # its server learns a little later of the end
    await connector.close()


@pytest.mark.parametrize(
    ("kind", "factory"), [("asyncpg", asyncpg.Connection), ("psycopg", psycopg.AsyncConnection)]
)
async def test_a_connection_whose_commit_was_not_answered_is_not_lent_again(
    scene: Scene, kind: Any, factory: Any
) -> None:
    """The log had the end. Fault: the driver began each later transaction by a savepoint."""
    connector = scene.store.connector(kind, factory, 1)

    async def use(transaction: Any) -> str:
        return str((await transaction.execute("select pg_backend_pid()::text"))[0][0])

    async def use_to_the_end(transaction: Any) -> str:
        await transaction.connection.execute("commit")  # of which the library does not learn
        transaction.sent = True
        return "the log has it"

    assert await connector.within(use, None)
    assert await connector.within(use_to_the_end, None) == "the log has it"
    assert [await connector.within(use, None) for _ in range(2)]
    await connector.close()


async def test_a_lost_connection_that_the_code_caught_costs_no_attempt(scene: Scene) -> None:
    app, seen = App("hotel"), list[str]()

    @app.transaction(retry=ONCE)
    async def book(session: AsyncSession, room: int) -> None:
        with suppress(DBAPIError):
            await session.execute(text("insert into public.rooms values (:room)"), {"room": room})
        seen.append("booked")

    @app.workflow
    async def stay(ctx: Context, room: int) -> None:
        await book(room)

    async with working(app, scene.url) as client:
        await client.run(stay, 1)
        await scene.watcher.connection.execute("""
            select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and query ~* '^(commit|rollback)|; commit$'
        """)
        await client.run(stay, 2)
    assert (await rooms(scene), len(seen)) == ([1, 2], 3)


async def test_a_connection_lost_after_a_statement_costs_an_attempt(scene: Scene) -> None:
    app, backends = App("hotel"), list[int]()

    @app.transaction(retry=Retry(attempts=2))
    async def book(session: AsyncSession) -> int:
        backends.append((await session.execute(text("select pg_backend_pid()"))).scalar_one())
        if len(backends) == 1:
            await scene.value("select pg_terminate_backend($1)", backends[0])
        await session.execute(text("insert into public.rooms values (4)"))
        return current_step().attempt

    @app.workflow
    async def stay(ctx: Context) -> int:
        return await book()

    async with working(app, scene.url) as client:
        assert await client.run(stay) == 2
    assert (await rooms(scene), len(backends)) == ([4], 2)


async def test_a_record_stands_in_a_message_whatever_its_text(scene: Scene) -> None:
    """And whatever the code has set: its quotes, backslashes and marks mean nothing."""
    texts = ["it's", "\\", "\\'; drop table public.rooms; --", "$1 %s {0} :p1 ?", "E'\\n\u2028'"]

    async def book(connection: asyncpg.Connection, room: int) -> str:
        await connection.execute("set local standard_conforming_strings = off")
        await connection.execute("set local client_min_messages = error")
        await insert(connection, room)
        return json.dumps(texts)

    app, stay = hotel(book)
    async with working(app, scene.url) as client:
        await client.run(stay, 4)
    recorded = "select details ->> 'result' from holdfast.events where key = 'book'"
    assert json.loads(await scene.value(recorded)) == texts
    assert await rooms(scene) == [4]


@pytest.mark.parametrize(
    ("encoding", "result"),
    [
        ("LATIN1", "h\u00f4tel \\ '"),
        ("SJIS", "\u8868\u8868\\'"),
        ("LATIN1", "\u8868"),
        ("SQL_ASCII", "h\u00f4tel"),
    ],
)
@pytest.mark.parametrize("apart", [None, "repeatable read"])
async def test_a_record_has_its_text_whatever_encoding_the_code_has_set(
    scene: Scene, encoding: str, result: str, apart: Isolation | None
) -> None:
    """Fault: the driver sends statements in UTF-8, which the server took for that encoding.

    Apart from the log the driver did not encode the result.
    """
    change = f"set local client_encoding = '{encoding}'"

    async def book(connection: asyncpg.Connection, room: int) -> str:
        await connection.execute(change)
        return result

    async def by_psycopg(connection: psycopg.AsyncConnection, room: int) -> str:
        await connection.execute(change)
        return result

    def by_session(session: Session, room: int) -> str:
        session.execute(text(change))
        return result

    async def by_async_session(session: AsyncSession, room: int) -> str:
        await session.execute(text(change))
        return result

    for each in (book, by_psycopg, by_session, by_async_session):
        app, stay = hotel(each, retry=ONCE, isolation=apart)
        async with working(app, scene.url) as client:
            assert await client.run(stay, 4) == result
        recorded = "select details ->> 'result' from holdfast.events where key = $1"
        assert await scene.value(recorded, each.__name__) == result


AT_COMMIT = """
create function public.refuse() returns trigger language plpgsql as
$$ begin raise info '9'; {then}; end $$;
create constraint trigger refuse after insert on public.rooms
deferrable initially deferred for each row execute function public.refuse();
"""


@pytest.mark.parametrize("code", ["22012", "42501", "42P01", "25P02"])
@pytest.mark.parametrize("kind", ["asyncpg", "sqlalchemy"])
async def test_an_error_at_the_commit_is_not_one_of_the_record(
    scene: Scene, code: str, kind: str
) -> None:
    """Fault: a deferred trigger's error was named as if the result could not be recorded."""
    calls = list[int]()

    async def insert_in(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        return await insert(connection, room)

    async def add_in(connection: AsyncConnection, room: int) -> int:
        calls.append(current_step().attempt)
        return await with_connection(connection, room)

    book = insert_in if kind == "asyncpg" else add_in
    error = {
        "asyncpg": r"asyncpg\.exceptions\.\w+: no room$",
        "sqlalchemy": r"sqlalchemy\.exc\.\w+: \([\w.]+\.asyncpg\.\w+\) .*no room",
    }[kind]
    refuse = f"raise exception 'no room' using errcode = '{code}'"
    await scene.watcher.connection.execute(AT_COMMIT.format(then=refuse))
    app, stay = hotel(book, retry=Retry(attempts=2, base=0.01))
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match=error):
            await client.run(stay, 4)
    await scene.watcher.connection.execute("drop function public.refuse cascade")
    assert (calls, await rooms(scene)) == ([1, 2], [])


async def test_a_statement_that_is_under_way_at_the_end_fails_the_attempt(scene: Scene) -> None:
    """Fault: the driver sent nothing, and the code was called ten times for the lost answer."""
    calls, tasks = list[int](), list[asyncio.Future[str]]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(current_step().attempt)
        await insert(connection, room)
        tasks.append(asyncio.ensure_future(connection.execute("select pg_sleep(60)")))
        await asyncio.sleep(0)
        return room

    app, stay = hotel(book, retry=Retry(attempts=2, base=0.01))
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="another operation is in progress"):
            await client.run(stay, 4)
    await asyncio.gather(*tasks, return_exceptions=True)
    # A cancel that comes before the statement begins does not end it.
    await scene.watcher.connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and query = 'select pg_sleep(60)'"
    )
    assert (calls, await rooms(scene)) == ([1, 2], [])


async def test_a_large_result_has_the_time_of_a_slow_connection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: record and commit were cut off after the time of a commit, each time."""
    calls = list[int]()

    async def book(connection: asyncpg.Connection, room: int) -> str:
        calls.append(current_step().attempt)
        await insert(connection, room)
        proxy.delay(0.05)  # for each 64 KiB
        return "x" * 1_500_000

    monkeypatch.setattr(asyncpg_connector, "_COMMIT_SECONDS", 0.5)
    monkeypatch.setattr(asyncpg_connector, "call_seconds", lambda weight: 0.5 + weight / 2**18)
    app, stay = hotel(book, retry=ONCE)
    with Proxy(scene.url) as proxy:
        async with working(app, proxy.url) as client:
            assert len(await client.run(stay, 4)) == 1_500_000
    assert (calls, await rooms(scene)) == ([1], [4])


async def test_arguments_may_have_any_name(scene: Scene) -> None:
    app = App("hotel")

    @app.transaction(retry=ONCE)
    async def book(connection: asyncpg.Connection, *, call: int, way: int) -> int:
        return await insert(connection, call + way)

    @app.workflow
    async def stay(ctx: Context) -> int:
        return await book(call=2, way=2)

    async with working(app, scene.url) as client:
        assert await client.run(stay) == 4


# What joins, and each library


async def test_starts_and_sends_join_the_transaction(scene: Scene) -> None:
    app = App("hotel")

    @app.workflow
    async def clean(ctx: Context, room: int) -> int:
        return room

    @app.transaction(retry=ONCE)
    async def book(connection: asyncpg.Connection, room: int) -> UUID:
        await insert(connection, room)
        handle = await client.start(clean, room, key=f"clean-{room}", connection=connection)
        await client.topics.publish("booked", room, connection=connection)
        if room == 13:
            raise ValueError("no such room")
        return handle.run_id

    @app.workflow
    async def stay(ctx: Context) -> UUID:
        with suppress(StepFailed):
            await book(13)
        return await book(4)

    async with working(app, scene.url) as client:
        run_id = await client.run(stay)
        assert await client.handle(run_id).result() == 4
    assert await rooms(scene) == [4]
    assert await scene.value("select count(*) from holdfast.runs") == 2


def kept(room: int) -> int:
    """Fail at the end of the code if the room is negative."""
    assert room > 0
    return room


async def with_psycopg(connection: psycopg.AsyncConnection, room: int) -> int:
    await connection.execute("insert into public.rooms values (%s)", [room])
    return kept(room)


def in_psycopg(connection: psycopg.Connection, room: int) -> int:
    connection.execute("insert into public.rooms values (%s)", [room])
    return kept(room)


ADD = text("insert into public.rooms values (:room)")


async def with_session(session: AsyncSession, room: int) -> int:
    await session.execute(ADD, {"room": room})
    await session.commit()  # which only flushes here
    return kept(room)


async def with_connection(connection: AsyncConnection, room: int) -> int:
    await connection.execute(ADD, {"room": room})
    return kept(room)


def in_session(session: Session, room: int) -> int:
    session.execute(ADD, {"room": room})
    return kept(room)


def in_connection(connection: sqlalchemy.Connection, room: int) -> int:
    connection.execute(ADD, {"room": room})
    return kept(room)


KINDS = [with_psycopg, in_psycopg, with_session, with_connection, in_session, in_connection]


async def test_each_kind_of_connection_commits_with_the_record_or_not_at_all(scene: Scene) -> None:
    app = App("hotel")
    steps: list[Any] = [app.transaction(retry=ONCE)(kind) for kind in KINDS]

    @app.workflow
    async def stay(ctx: Context) -> list[int]:
        booked = list[int]()
        for number, step in enumerate(steps, 1):
            with pytest.raises(StepFailed, match="AssertionError"):
                await step(-number)
            booked.append(await step(number))
        return booked

    async with working(app, scene.url) as client:
        assert await client.run(stay) == [1, 2, 3, 4, 5, 6]
    assert await rooms(scene) == [1, 2, 3, 4, 5, 6]
    marked = "select count(*) from holdfast.events where details ->> 'transaction' = 'true'"
    assert await scene.value(marked) == len(KINDS)


async def test_sqlalchemy_over_asyncpg_commits_with_the_record_in_one_message(scene: Scene) -> None:
    """And its connection is in order for the next transaction: the pool gives the same one."""
    queries, connections = list[str](), set[int]()

    async def book(connection: AsyncConnection, room: int) -> int:
        raw = (await connection.get_raw_connection()).driver_connection
        if id(raw) not in connections:
            raw.add_query_logger(lambda record: queries.append(record.query))
        connections.add(id(raw))
        return await with_connection(connection, room)

    app, stay = hotel(book, retry=ONCE)
    async with working(app, scene.url) as client:
        for room in (1, 2, 3):
            assert await client.run(stay, room) == room
    ends = [each for each in queries if "commit" in each.lower()]
    assert len(ends) == 3
    assert all("record_step" in each for each in ends)
    assert (len(connections), await rooms(scene)) == (1, [1, 2, 3])


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("kind", [with_connection, with_session])
async def test_a_commit_over_sqlalchemy_without_an_answer_has_one_outcome(
    scene: Scene, kind: Callable[..., Any], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, calls, commit = list[None](), list[int](), connectors.commit_in_one

    async def lose(session: Any, raw: Any, *given: Any) -> int:
        if losses:
            return await commit(session, raw, *given)
        losses.append(None)
        session.sent = True
        if reached:
            await commit(session, raw, *given)
        raw.terminate()
        raise ConnectionResetError("the answer is lost")

    async def book(connection: Any, room: int) -> int:
        calls.append(current_step().attempt)
        result: int = await kind(connection, room)
        return result

    book.__annotations__["connection"] = kind.__annotations__[kind.__code__.co_varnames[0]]
    monkeypatch.setattr(connectors, "commit_in_one", lose)
    app, stay = hotel(book, retry=ONCE)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
        assert await client.run(stay, 5) == 5
    assert (calls[:-1], await rooms(scene)) == ([1] if reached else [1, 1], [4, 5])


# Another database


async def test_results_in_another_database_go_once_the_log_has_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour later; what the log of an open run does not have stays, or of one that failed.

    Its retry takes it. What may be of another shard or engine, or of an earlier run of the same id,
    stays for 30 days: its worker may be away with the only record.
    """
    ann = ManualWorker(scene.store, "ann")
    run_id = await start(scene.store)
    await ann.commit(await ann.take())  # of the step "charge"
    completed = await start(scene.store)
    await ann.finish(await ann.take())
    failed = await start(scene.store)
    end = Event("WorkflowFailed", None, None, 0)
    await ann.commit(await ann.take(), end, then=Finish("failed", error='{"kind":"E"}'))
    place = await results(scene)
    add = """
        insert into apart.step_results
        select r, k, '7', now() - a
        from unnest($1::uuid[], $2::text[], $3::interval[]) as u (r, k, a)
    """
    hours, month = timedelta(hours=2), timedelta(days=31)
    marks = [
        await scene.value("select holdfast._results_mark($1)", each)
        for each in (run_id, completed, failed)
    ]
    of_open, of_completed, of_failed = marks
    rows = [
        (run_id, "charge" + of_open, hours),
        (run_id, "book" + of_open, month),
        (failed, "failed" + of_failed, month),
        (completed, "completed" + of_completed, hours),
        (completed, "of another engine" + of_open, hours),
        (completed, "of before", hours),
        (uuid4(), "of another", hours),
        (uuid4(), "of another once", month),
    ]
    ages = [age + timedelta(seconds=place) for place, (*_, age) in enumerate(rows)]
    rows = [(run_id, key, age) for (run_id, key, _), age in zip(rows, ages, strict=True)]
    await scene.watcher.connection.execute(add, *zip(*rows, strict=True))
    monkeypatch.setattr(open_transaction, "_MOST_CLEANED", 2)
    app, stay = hotel(insert, database=place)
    async with working(app, scene.url) as client:
        for room in (4, 5, 6, 7):
            assert await client.run(stay, room) == room
    left = "select key from apart.step_results where recorded_at < now() - interval '1 h'"
    left += " order by key"
    kept = [row[0].partition(" 1")[0] for row in await scene.watcher.connection.fetch(left)]
    assert kept == ["book", "failed", "of another", "of another engine", "of before"]
    assert await rooms(scene) == [4, 5, 6, 7]


async def test_a_failure_keeps_attempts_of_earlier_leases_from_committing(scene: Scene) -> None:
    """And of no later one: a worker that has lost its run may fail as well."""
    place, run_id = await results(scene), uuid4()
    data = place.url, place.schema
    connector = scene.store.connector("asyncpg", asyncpg.Connection, 1, data)

    async def fail(lease_no: int) -> str | None:
        async def give_up(transaction: Any) -> Any:
            return await transaction.give_up(run_id, "book", lease_no)

        return await connector.within(give_up, None)

    async def commit(lease_no: int) -> None:
        async def keep(transaction: Any) -> None:
            await transaction.keep(run_id, recorded(), lease_no)

        await connector.within(keep, None)

    assert await fail(2) is None
    with pytest.raises(AlreadyRecorded):
        await commit(1)
    assert await fail(3) is None
    assert await fail(3) is None
    with pytest.raises(AlreadyRecorded):
        await commit(2)
    assert lease_of(await fail(2) or "") == 3
    await commit(3)
    for lease_no in (2, 3, 4):
        assert await fail(lease_no) == recorded().details
        with pytest.raises(AlreadyRecorded):
            await commit(lease_no)
    await connector.close()


async def test_each_kind_of_connection_keeps_results_apart(scene: Scene) -> None:
    app = App("hotel")
    place = await results(scene)
    steps: list[Any] = [app.transaction(database=place)(kind) for kind in KINDS]

    @app.workflow
    async def stay(ctx: Context) -> list[int]:
        return [await step(number) for number, step in enumerate(steps, 1)]

    async with Environment(app) as env:
        assert await env.run(stay) == [1, 2, 3, 4, 5, 6]
    assert await rooms(scene) == [1, 2, 3, 4, 5, 6]
    kept = await scene.watcher.connection.fetch("select result::text from apart.step_results")
    assert sorted(json.loads(row[0])["result"] for row in kept) == [1, 2, 3, 4, 5, 6]


async def test_a_database_without_the_table_is_named_with_the_command(scene: Scene) -> None:
    app, stay = hotel(insert, retry=ONCE, database=Database(scene.url, schema="apart"))
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="holdfast migrate --results URL"):
            await env.run(stay, 4)
    assert await rooms(scene) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("XX000", "could not write init file"),  # the disk is full
        ("53300", "sorry, too many clients already"),
        ("53100", "No space left on device"),
        ("25006", "cannot execute it in a read-only transaction"),
    ],
)
async def test_a_connection_that_cannot_be_opened_now_is_no_attempt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: str, text: str
) -> None:
    """Fault: such answers of the server, and of poolers, used up the attempts at once."""
    connect, refused = PostgresDatabase.connect_unlimited, list[str]()

    async def full(database: PostgresDatabase) -> Any:
        if len(refused) < 2:
            refused.append(code)
            raise asyncpg.PostgresError.new({"S": "FATAL", "V": "FATAL", "C": code, "M": text})
        return await connect(database)

    monkeypatch.setattr(PostgresDatabase, "connect_unlimited", full)
    app, stay = hotel(insert, retry=ONCE)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert refused == [code, code]


@contextmanager
def no_connection(monkeypatch: pytest.MonkeyPatch, *owners: Any) -> Iterator[list[str]]:
    """Refuse connections within the block, as a server with a full disk does."""
    refused, is_full = list[str](), True

    def patch(owner: Any) -> None:
        name = "connect_unlimited" if owner is PostgresDatabase else "connect"
        connect = getattr(owner, name)

        def full(*given: Any, **named: Any) -> Any:
            if not is_full:
                return connect(*given[owner is not PostgresDatabase :], **named)
            refused.append(name)
            error = {"S": "FATAL", "V": "FATAL", "C": "XX000", "M": "could not write init file"}
            raise asyncpg.PostgresError.new(error)

        monkeypatch.setattr(owner, name, full if owner is PostgresDatabase else classmethod(full))

    monkeypatch.setattr(transactions, "_FIRST_PAUSE", 0.0005)
    for owner in owners:
        patch(owner)
    try:
        yield refused
    finally:
        is_full = False


@pytest.mark.parametrize("kind", [asyncpg.Connection, psycopg.Connection])
async def test_a_transaction_waits_as_long_as_its_database_takes_no_connection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Fault: a few seconds were an attempt, and such a disk is full for as long as it is."""
    app, stay = hotel(insert if kind is asyncpg.Connection else in_psycopg, retry=ONCE)
    async with working(app, scene.url) as client:
        with no_connection(monkeypatch, PostgresDatabase, psycopg.Connection) as refused:
            handle = await client.start(stay, 4)
            while len(refused) < 50:
                await asyncio.sleep(0.01)
        assert await handle.result() == 4
    assert await rooms(scene) == [4]


async def test_a_library_alone_that_gets_no_connection_fails_its_attempt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are perhaps wrong: nobody would be told."""
    app, stay = hotel(in_psycopg, retry=ONCE)
    async with working(app, scene.url) as client:
        with no_connection(monkeypatch, psycopg.Connection):
            with pytest.raises(RunFailed, match="no transaction can be begun: could not write"):
                await client.run(stay, 4)


@pytest.mark.parametrize("kind", [asyncpg.Connection, psycopg.Connection])
async def test_a_transaction_that_waits_for_its_database_is_over_in_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """A thread, too, tries no more then."""
    run, over = transactions._Tries.run, list[str]()

    async def told(*given: Any) -> object:
        try:
            return await run(*given)
        finally:
            over.append("over")

    monkeypatch.setattr(transactions._Tries, "run", told)
    step = insert if kind is asyncpg.Connection else in_psycopg
    app, stay = hotel(step, retry=ONCE, timeout=0.5)
    async with working(app, scene.url) as client:
        with no_connection(monkeypatch, PostgresDatabase, psycopg.Connection):
            with pytest.raises(RunFailed, match=r"ran longer than 0\.5 s"):
                await client.run(stay, 4)
            while not over:
                await asyncio.sleep(0.01)
    assert await rooms(scene) == []


def test_an_internal_error_that_ends_the_session_says_nothing_of_a_commit() -> None:
    for severity, refuses in (("ERROR", True), ("FATAL", False), ("PANIC", False)):
        said = {"S": severity, "V": severity, "C": "XX000", "M": "server is gone"}
        of_psycopg = {DiagnosticField.SEVERITY_NONLOCALIZED: severity.encode()}
        plain = psycopg.errors.InternalError_("server is gone", info=of_psycopg)
        for error in (asyncpg.PostgresError.new(said), plain, DBAPIError("commit", {}, plain)):
            assert is_refusal(error) is refuses
            assert is_away(error) is not refuses


async def test_a_database_that_is_away_is_named_without_its_password(scene: Scene) -> None:
    data = Database("postgresql://app:secret@127.0.0.1:1/accounts")
    app, stay = hotel(insert, retry=ONCE, database=data)
    async with Environment(app) as env:
        with pytest.raises(RunFailed) as failure:
            await env.run(stay, 4)
    assert "holdfast.errors.DatabaseUnavailable: postgresql://app:***@127.0.0.1:1" in str(
        failure.value
    )


# Bad input


@pytest.mark.parametrize("statement", ["commit", "rollback"])
async def test_code_that_ends_its_transaction_is_named(scene: Scene, statement: str) -> None:
    calls = list[int]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        calls.append(room)
        await connection.execute(statement)
        return room

    app, stay = hotel(book)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="has committed or rolled back itself"):
            await client.run(stay, 4)
    assert calls == [4]  # it is not tried again


def commits_with_psycopg(connection: psycopg.Connection, room: int) -> int:
    assert current_step().attempt == 1
    connection.commit()
    return room


async def rolls_back_with_psycopg(connection: psycopg.AsyncConnection, room: int) -> int:
    assert current_step().attempt == 1
    await connection.rollback()
    return room


@pytest.mark.parametrize("code", [commits_with_psycopg, rolls_back_with_psycopg])
async def test_an_end_that_the_library_refuses_is_named_and_not_tried_again(
    scene: Scene, code: Callable[..., Any]
) -> None:
    app, stay = hotel(code)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="has committed or rolled back itself"):
            await client.run(stay, 4)


async def commits(session: AsyncSession, room: int) -> int:
    await session.execute(text("commit"))
    await session.execute(ADD, {"room": room})
    return room


def commits_in_thread(session: Session, room: int) -> int:
    session.execute(text("commit"))
    session.execute(ADD, {"room": room})
    return room


@pytest.mark.parametrize("code", [commits, commits_in_thread])
async def test_a_commit_in_sql_below_sqlalchemy_is_noticed(
    scene: Scene, code: Callable[..., Any]
) -> None:
    app, stay = hotel(code)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="has committed or rolled back itself"):
            await client.run(stay, 4)


async def refused(session: AsyncSession, room: int) -> int:
    with suppress(DBAPIError):
        await session.execute(text("select 1 / 0"))
    return room


async def refused_in_savepoint(session: AsyncSession, room: int) -> int:
    with suppress(DBAPIError):
        async with session.begin_nested():
            await session.execute(text("select 1 / 0"))
    await session.execute(ADD, {"room": room})
    return room


async def test_code_that_catches_an_error_of_a_statement_is_led_to_a_savepoint(
    scene: Scene,
) -> None:
    app, stay = hotel(refused, retry=ONCE)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match=r"session\.begin_nested"):
            await client.run(stay, 4)
    app, stay = hotel(refused_in_savepoint, retry=ONCE)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert await rooms(scene) == [4]


async def test_code_that_keeps_its_connection_is_refused(scene: Scene) -> None:
    kept = list[Any]()

    async def book(connection: asyncpg.Connection, room: int) -> int:
        kept.append(connection)
        return room

    app, stay = hotel(book)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
        with pytest.raises(asyncpg.InterfaceError, match="released"):
            await kept[0].fetch("select 1")


async def test_a_transaction_in_another_one_is_refused(scene: Scene) -> None:
    app = App("hotel")
    inner = app.transaction(name="inner")(insert)

    @app.transaction(retry=ONCE)
    async def book(connection: asyncpg.Connection, room: int) -> int:
        await insert(connection, room)
        return await inner(room)

    @app.workflow
    async def stay(ctx: Context, room: int) -> int:
        return await book(room)

    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match=r"call inner\.fn\(connection"):
            await client.run(stay, 4)
    assert await rooms(scene) == []


async def test_a_role_without_rights_is_named(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def book(connection: asyncpg.Connection, room: int) -> int:
        await connection.execute("set local role pg_read_all_data")
        return room

    app, stay = hotel(book, retry=ONCE)
    async with working(app, scene.url) as client:
        with pytest.raises(RunFailed, match="holdfast migrate --grant"):
            await client.run(stay, 4)


def untyped(connection, room: int) -> int:  # type: ignore[no-untyped-def]
    return room


def alone() -> int:
    return 1


def synchronous(connection: asyncpg.Connection, room: int) -> int:
    return room


async def asynchronous(session: Session, room: int) -> int:
    return room


async def of_django(connection: BaseDatabaseWrapper, room: int) -> int:
    return room


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (untyped, "is not a connection that holdfast can give"),
        (alone, "takes no connection"),
        (synchronous, "must be async def"),
        (asynchronous, "must be a plain def"),
        (of_django, "must be a plain def"),
    ],
)
def test_a_function_that_cannot_be_a_transaction_is_refused(
    step: Callable[..., object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        App("hotel").transaction(step)


def test_an_isolation_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="repeatable read"):
        App("hotel").transaction(isolation="snapshot")(insert)  # type: ignore[arg-type]


def test_psycopg_notices_a_peer_that_is_gone_as_the_store_does() -> None:
    given = conninfo(read_url("postgresql://app@db/shop?keepalives_idle=7"))
    assert (given["keepalives_idle"], given["tcp_user_timeout"]) == (7, 20_000)
    off = conninfo(read_url("postgresql://app@db/shop?keepalives=0"))
    assert off["keepalives"] == 0


def test_psycopg_gives_the_options_of_the_url_to_the_server_as_they_are() -> None:
    given = conninfo(read_url("postgresql://app@db/shop?options=-c%20jit%3Doff&work_mem=8MB"))
    assert given["options"] == "-c jit=off -c work_mem=8MB"
    assert "options" not in conninfo(read_url("postgresql://app@db/shop"))


# When the server ends a session

SETTINGS = """
select json_object_agg(name, setting) from pg_settings
where name = 'idle_in_transaction_session_timeout' or name like 'tcp%' and source = 'session'
"""
TOLD = {
    "tcp_keepalives_count": "0",  # they are those of TCP, and the socket here is another one
    "tcp_keepalives_idle": "0",
    "tcp_keepalives_interval": "0",
    "tcp_user_timeout": "0",
}
IDLE = "idle_in_transaction_session_timeout"


async def settings(connection: asyncpg.Connection) -> dict[str, str]:
    return json.loads(await connection.fetchval(SETTINGS))


async def psycopg_settings(connection: psycopg.AsyncConnection) -> dict[str, str]:
    found = await (await connection.execute(SETTINGS)).fetchall()
    return found[0][0]


def settings_in_psycopg(connection: psycopg.Connection) -> dict[str, str]:
    return connection.execute(SETTINGS).fetchall()[0][0]


async def session_settings(session: AsyncSession) -> dict[str, str]:
    return await session.scalar(text(SETTINGS))


async def connection_settings(connection: AsyncConnection) -> dict[str, str]:
    return await connection.scalar(text(SETTINGS))


def settings_in_session(session: Session) -> dict[str, str]:
    return session.scalar(text(SETTINGS))


def settings_in_connection(connection: sqlalchemy.Connection) -> dict[str, str]:
    return connection.scalar(text(SETTINGS))


LOOKS = [
    settings,
    psycopg_settings,
    settings_in_psycopg,
    session_settings,
    connection_settings,
    settings_in_session,
    settings_in_connection,
]


async def all_settings(url: str) -> list[dict[str, str]]:
    """Return what each kind of session is told, in its second transaction."""
    app = App("hotel")
    steps: list[Any] = [app.transaction(retry=ONCE)(look) for look in LOOKS]

    @app.workflow
    async def look(ctx: Context) -> list[dict[str, str]]:
        for step in steps:
            await step()
        return [await step() for step in steps]

    async with working(app, url) as client:
        return await client.run(look)


def with_parameters(url: str, parameters: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{parameters}"


async def test_the_server_ends_a_session_of_each_kind_that_holds_locks_and_is_idle(
    scene: Scene,
) -> None:
    assert await all_settings(scene.url) == [{IDLE: "30000", **TOLD}] * len(LOOKS)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (f"{IDLE}=7s", {IDLE: "7000", **TOLD}),
        (f"{IDLE}=0&keepalives=0", {IDLE: "0"}),
        (f"options=-c%20{IDLE}%3D5min&keepalives=0", {IDLE: "300000"}),
        ("options=--idle-in-transaction-session-timeout%3D0&keepalives=0", {IDLE: "0"}),
    ],
)
async def test_what_the_url_sets_for_sessions_wins(
    scene: Scene, parameters: str, told: dict[str, str]
) -> None:
    found = await all_settings(with_parameters(scene.url, parameters))
    assert found == [told] * len(LOOKS)


def test_the_server_probes_a_session_as_the_url_says() -> None:
    url = "postgresql://app@db/shop?keepalives_idle=7&tcp_user_timeout="
    for given, told in (("9000", 30_000), ("60000", 60_000)):
        question = direct_question(1, read_url(url + given).parameters.keepalive)
        assert "('tcp_keepalives_idle', 7)" in question
        assert f"('tcp_user_timeout', {told})" in question


@pytest.mark.parametrize(("set_to", "found"), [("5min", "300000"), ("0", "0"), ("5s", "5000")])
async def test_what_the_role_or_the_database_sets_for_sessions_wins(
    scene: Scene, set_to: str, found: str
) -> None:
    database = await scene.value("select quote_ident(current_database())")
    await scene.watcher.connection.execute(f"alter database {database} set {IDLE} = '{set_to}'")
    own = f"keepalives=0&application_name={set_to}"  # not a session that began before
    told = await all_settings(with_parameters(scene.url, own))
    assert told == [{IDLE: found}] * len(LOOKS)


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_is_told_nothing_for_the_sessions_of_others(
    scene: Scene, tmp_path: Any, mode: str
) -> None:
    with pgbouncer(scene.url, mode, tmp_path) as url:
        assert await all_settings(url) == [{IDLE: "0"}] * len(LOOKS)


async def wait(connection: asyncpg.Connection, room: int) -> int:
    await insert(connection, room)
    if current_step().attempt == 1:
        await asyncio.sleep(0.6)
    return room


async def wait_and_ask(connection: asyncpg.Connection, room: int) -> int:
    await wait(connection, room)
    return await connection.fetchval("select $1::int", room)


async def wait_with_psycopg(connection: psycopg.AsyncConnection, room: int) -> int:
    await with_psycopg(connection, room)
    if current_step().attempt == 1:
        await asyncio.sleep(0.6)
    return room


def wait_in_psycopg(connection: psycopg.Connection, room: int) -> int:
    in_psycopg(connection, room)
    if current_step().attempt == 1:
        time.sleep(0.6)
    return room


async def wait_with_session(session: AsyncSession, room: int) -> int:
    await with_session(session, room)
    if current_step().attempt == 1:
        await asyncio.sleep(0.6)
    return room


def wait_in_session(session: Session, room: int) -> int:
    in_session(session, room)
    if current_step().attempt == 1:
        time.sleep(0.6)
    return room


WAITS = [wait, wait_and_ask, wait_with_psycopg, wait_in_psycopg, wait_with_session, wait_in_session]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("code", WAITS)
async def test_an_attempt_whose_session_was_idle_for_too_long_fails_and_is_retried(
    scene: Scene, code: Callable[..., Any], apart: bool
) -> None:
    """What it says names the setting."""
    url = with_parameters(scene.url, f"{IDLE}=200ms")
    await results(scene)
    data = Database(url, schema="apart") if apart else None
    app, stay = hotel(code, database=data, retry=Retry(attempts=2, base="10ms"))
    once, stay_once = hotel(code, database=data, retry=ONCE)
    async with working(app, url) as client:
        assert await client.run(stay, 4) == 4
    assert await rooms(scene) == [4]
    async with working(once, url) as client:
        with pytest.raises(
            RunFailed, match=f"DatabaseUnavailable: .*sent nothing.*{IDLE}, 30 s by"
        ):
            await client.run(stay_once, 5)
    assert await rooms(scene) == [4]


# Elsewhere


async def test_an_environment_with_a_database_commits_the_data_there(scene: Scene) -> None:
    app, stay = hotel(insert)
    async with Environment(app, database=scene.url) as env:
        assert await env.run(stay, 4) == 4
    assert await rooms(scene) == [4]


async def test_an_environment_does_not_keep_what_was_rolled_back(scene: Scene) -> None:
    """An error of a statement was caught, and nothing can be committed after it."""

    async def book(connection: asyncpg.Connection, room: int) -> int:
        await insert(connection, room)
        with suppress(asyncpg.PostgresError):
            await connection.execute("select 1 / 0")
        return room

    app, stay = hotel(book, retry=ONCE)
    async with Environment(app, database=scene.url) as env:
        with pytest.raises(RunFailed, match="transaction is aborted"):
            await env.run(stay, 4)
    assert await rooms(scene) == []


@pytest.mark.parametrize("apart", [False, True])
async def test_workers_that_are_killed_everywhere_leave_one_row(scene: Scene, apart: bool) -> None:
    """Each try draws the same ids, and finds no results of the try before."""
    app, stay = hotel(insert, database=await results(scene) if apart else None)
    tries = crashes()
    for plan in tries.plans():
        with same_each_time():
            async with Environment(app, database=scene.url, plan=plan) as env:
                assert await env.run(stay, 4) == 4
        assert await rooms(scene) == [4], tries.describe(plan)
        await scene.watcher.connection.execute("delete from public.rooms")


@needs_pgbouncer
@pytest.mark.parametrize("apart", [False, True])
async def test_transactions_commit_through_a_pooler_in_transaction_mode(
    scene: Scene, tmp_path: Any, apart: bool
) -> None:
    """The pooler is before the database of holdfast, or only before that of the data."""
    await results(scene)
    app = App("hotel")
    with pgbouncer(scene.url, "transaction", tmp_path) as url:
        data = Database(url, schema="apart") if apart else None
        steps: list[Callable[..., Awaitable[int]]] = [
            app.transaction(database=data, retry=ONCE)(kind) for kind in (insert, *KINDS)
        ]

        @app.workflow
        async def stay(ctx: Context) -> None:
            for _ in range(3):
                await asyncio.gather(*(step(n) for n in range(1, 9) for step in steps))

        async with working(app, scene.url if apart else url) as client:
            await client.run(stay)
    assert await rooms(scene) == [n for n in range(1, 9) for _ in steps for _ in range(3)]
