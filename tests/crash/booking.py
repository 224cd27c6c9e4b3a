"""A process that runs a transactional step, and kills itself before or after a statement of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import UUID

import asyncpg
import psycopg

from holdfast import App, Context
from holdfast.store.postgres import PostgresStore, asyncpg_connector, connectors
from holdfast.worker import Worker
from tests.crash.sweeper import Switch

# Beside that of the code. Only asyncpg commits in the message of the record.
STATEMENTS: Final = {
    asyncpg_connector.AsyncpgSession: ("begin", "commit_with"),
    connectors._Psycopg: ("begin", "execute", "finish"),
}
BY_PSYCOPG: Final = 10  # rooms from this one on

app = App("crash")
switch = Switch(0)


@app.transaction
async def book(connection: asyncpg.Connection, room: int) -> int:
    await connection.execute("insert into public.rooms values ($1)", room)
    switch.pass_point()
    return room


@app.transaction
async def book_by_psycopg(connection: psycopg.AsyncConnection, room: int) -> int:
    await connection.execute("insert into public.rooms values (%s)", [room])
    switch.pass_point()
    return room


@app.workflow
async def stay(ctx: Context, room: int) -> int:
    return await (book if room < BY_PSYCOPG else book_by_psycopg)(room)


def watch(session: type, name: str) -> None:
    """Let the process pass a point before and after a statement."""
    call = getattr(session, name)

    async def watched(*given: Any) -> Any:
        switch.pass_point()
        answer = await call(*given)
        switch.pass_point()
        return answer

    setattr(session, name, watched)


async def work(url: str, run_id: UUID, kill_at: int) -> int:
    """Finish a run; die at a point, 0 for none. Return the number of points."""
    global switch
    switch = Switch(kill_at)
    for session, names in STATEMENTS.items():
        for name in names:
            watch(session, name)
    store = PostgresStore(url, connections=2)
    await store.open()
    worker = Worker(app, store)
    await worker.start()
    while (await store.get_runs([run_id]))[run_id].status == "running":
        await asyncio.sleep(0.01)
    await worker.stop(grace=1)
    await store.close()
    return max(1, switch.points)  # 0 is said of one that died
