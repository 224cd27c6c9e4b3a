"""A session that a test has used is another's only as new; nothing runs on in the loop."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import psycopg
import pytest
from tests.sessions import SharedLoop, shared_loop

LEAVE = """
listen news; set work_mem = '7MB'; set statement_timeout = '9 s'; prepare q as select 1;
create temporary table left_behind (); select pg_advisory_lock(7);
declare c cursor with hold for select 1; set role pg_monitor;
"""
STATE = """
select (select count(*) from pg_prepared_statements where name = 'q'),
    (select count(*) from pg_listening_channels()),
    (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'),
    (select count(*) from pg_cursors where name = 'c'),
    to_regclass('pg_temp.left_behind'), current_setting('work_mem'),
    current_setting('statement_timeout'), session_user = current_user
"""
PREPARED = "select count(*) from pg_prepared_statements"
SLEEP = "do $$ begin raise notice 'begun'; perform pg_sleep(60); end $$"


async def again(url: str, connection: asyncpg.Connection) -> bool:
    """Close a connection; return whether the next one has its session."""
    pid = connection.get_server_pid()
    await connection.close()
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError):
        await connection.execute("select 1")
    another = await asyncpg.connect(url)
    try:
        return bool(another.get_server_pid() == pid)
    finally:
        await another.close()


async def test_the_next_connection_has_the_session_as_new(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    before = await connection.fetchrow(STATE)
    await connection.execute(LEAVE)
    await connection.add_listener("more", print)
    assert await connection.fetchrow(STATE) != before
    assert await again(database_url, connection)
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchrow(STATE) == before
    await connection.close()


@pytest.mark.parametrize("others", [0, 1])
async def test_statements_stay_prepared_if_the_driver_has_prepared_all(
    database_url: str, others: int
) -> None:
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval(PREPARED) == 1
    if others:
        await connection.execute("prepare q as select 1")
    assert await again(database_url, connection)
    connection = await asyncpg.connect(database_url)
    assert len(connection._stmt_cache) == 1 - others
    assert await connection.fetchval(PREPARED) == 1
    await connection.close()


async def test_other_arguments_are_another_session(database_url: str) -> None:
    settings = {"application_name": "another"}
    connection = await asyncpg.connect(database_url, server_settings=settings)
    assert not await again(database_url, connection)


async def test_a_session_that_is_not_as_new_is_closed(database_url: str) -> None:
    inside = await asyncpg.connect(database_url)
    await inside.execute("begin")
    assert not await again(database_url, inside)
    coded = await asyncpg.connect(database_url)
    await coded.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    assert not await again(database_url, coded)
    busy, begun = await asyncpg.connect(database_url), asyncio.Event()
    busy.add_log_listener(lambda *_: begun.set())
    call = asyncio.create_task(busy.execute(SLEEP))
    await begun.wait()  # a cancel that comes before is ignored
    call.cancel()
    await asyncio.wait([call])
    assert not await again(database_url, busy)


async def test_a_session_that_the_server_ended_is_not_used(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    pid = connection.get_server_pid()
    await connection.close()
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", [pid])
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select pg_backend_pid()") != pid
    await connection.close()


def test_the_loop_is_lent_to_one_at_a_time() -> None:
    def given() -> asyncio.AbstractEventLoop:
        with asyncio.Runner(loop_factory=shared_loop) as runner:
            return runner.get_loop()

    with asyncio.Runner(loop_factory=shared_loop) as runner:
        loop = runner.get_loop()
        assert given() is not loop
    assert given() is given() is loop
    with ThreadPoolExecutor() as threads:
        assert threads.submit(given).result() is not loop


@pytest.mark.usefixtures("runs_share_the_loop")
async def test_heartbeats_have_one_session_after_another(database_url: str) -> None:
    async def beat() -> int:
        connection = await asyncpg.connect(database_url)
        try:
            return int(await connection.fetchval("select pg_backend_pid()"))
        finally:
            await connection.close()

    here = await beat()
    with ThreadPoolExecutor() as threads:
        first, second = [threads.submit(asyncio.run, beat()).result() for _ in range(2)]
    assert first == second != here


@pytest.mark.usefixtures("runs_share_the_loop")
def test_runs_of_a_test_share_its_sessions(database_url: str) -> None:
    async def pid() -> int:
        connection = await asyncpg.connect(database_url)
        try:
            return connection.get_server_pid()
        finally:
            await connection.close()

    assert asyncio.run(pid()) == asyncio.run(pid())


def test_nothing_that_a_test_left_runs_on_in_the_loop() -> None:
    loop = SharedLoop()
    ran: list[str] = []
    ours, theirs = socket.socketpair()

    async def leave() -> asyncio.Task[None]:
        running = asyncio.get_running_loop()
        running.call_later(0.01, ran.append, "later")
        running.call_soon(running.call_soon, ran.append, "soon")
        running.add_reader(ours, ran.append, "reader")
        running.set_exception_handler(lambda *_: ran.append("handler"))
        await asyncio.to_thread(int)
        return asyncio.create_task(asyncio.sleep(60), name="left")

    async def look() -> int:
        theirs.send(b"x")
        await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().get_exception_handler() is None
        await asyncio.to_thread(int)
        return len(asyncio.all_tasks())

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        task = runner.run(leave())
    assert task.cancelled()
    ran.clear()  # what had its turn before the test ended
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(look()) == 1
    assert ran == []
    loop.end()
    ours.close()
    theirs.close()
