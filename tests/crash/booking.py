"""A process that runs a transactional step, and kills itself before or after a statement of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import UUID

import asyncpg

from holdfast import App, Context
from holdfast.store.postgres import PostgresStore, connectors
from holdfast.worker import Worker
from tests.crash.sweeper import Switch

STATEMENTS: Final = ("begin", "append", "finish")  # and that of the code

app = App("crash")
switch = Switch(0)


@app.transaction
async def book(connection: asyncpg.Connection, room: int) -> int:
    await connection.execute("insert into public.rooms values ($1)", room)
    switch.pass_point()
    return room


@app.workflow
async def stay(ctx: Context, room: int) -> int:
    return await book(room)


def watch(name: str) -> None:
    """Let the process pass a point before and after a statement."""
    call = getattr(connectors._Asyncpg, name)

    async def watched(*given: Any) -> Any:
        switch.pass_point()
        answer = await call(*given)
        switch.pass_point()
        return answer

    setattr(connectors._Asyncpg, name, watched)


async def work(url: str, run_id: UUID, kill_at: int) -> int:
    """Finish a run; die at a point, 0 for none. Return the number of points."""
    global switch
    switch = Switch(kill_at)
    for name in STATEMENTS:
        watch(name)
    store = PostgresStore(url, connections=2)
    await store.open()
    worker = Worker(app, store)
    await worker.start()
    while (await store.get_runs([run_id]))[run_id].status == "running":
        await asyncio.sleep(0.01)
    await worker.stop(grace=1)
    await store.close()
    return max(1, switch.points)  # 0 is said of one that died
