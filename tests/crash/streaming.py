"""A process that runs what writes streams, and kills itself before or after a call."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, Final
from uuid import UUID

from holdfast import App, Context, Retry, current_activity, current_step
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions
from tests.crash.sweeper import Switch

VALUES: Final = 3

app = App("crash")


async def write(out: Any) -> None:
    """Write values that say which process writes them, each in a call of its own."""
    for number in range(VALUES):
        await out.write(f"{os.getpid()} {number}")
        await asyncio.sleep(0.05)


@app.step
async def speak() -> None:
    await write(current_step().stream("tokens"))


@app.step(retry=Retry(attempts=3, base=0.01))
async def falter() -> None:
    """Write in the first attempt alone, which fails."""
    if current_step().attempt == 1:
        await write(current_step().stream("tokens"))
        raise OSError("gone")


@app.activity(retry=Retry(attempts=5, base=0.01))
async def shout() -> None:
    await write(current_activity().stream("tokens"))


@app.workflow
async def talk(ctx: Context) -> None:
    await speak()
    await falter()
    await ctx.stream("tokens").write("code")
    await shout()


log = logging.getLogger("crash")


@app.step
async def mutter() -> None:
    log.info("step of %d", os.getpid())


@app.workflow
async def grumble(ctx: Context) -> None:
    """Log, with a replay in the middle of it."""
    log.info("one")
    await mutter()
    log.info("two")
    await ctx.sleep(0.05)
    log.info("three")


class WatchedStore(PostgresStore):
    """A store whose writes are points at which the process may die."""

    def __init__(self, url: str, switch: Switch) -> None:
        super().__init__(url, connections=2)
        watched: Any = switch.over(super())
        for name in ("write_streams", "write_logs", "commit", "end_activities"):
            setattr(self, name, getattr(watched, name))


async def work(url: str, run_id: UUID, kill_at: int) -> int:
    """Finish a run; die at a point, 0 for none. Return the number of points."""
    switch = Switch(kill_at)
    store = WatchedStore(url, switch)
    await store.open()
    log.setLevel(logging.INFO)
    worker = Worker(app, store, WorkerOptions(run_logs=True, cache=1))
    await worker.start()
    while (await store.get_runs([run_id]))[run_id].status == "running":
        await asyncio.sleep(0.02)
    await worker.stop(grace=1)
    await store.close()
    return max(1, switch.points)  # 0 is said of one that died
