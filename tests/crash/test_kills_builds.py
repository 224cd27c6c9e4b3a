"""Workers of two builds, one killed: pinned runs stay with their build, the others move."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from holdfast.types import BuildInfo
from holdfast.worker import WorkerOptions
from tests.crash.processes import processes
from tests.crash.worker import work_on

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

PATIENCE_SECONDS = 60


def shop(build: str) -> App:
    """Return the shop as it is in one build: its steps say which build executed them."""
    app = App("shop", build=build)

    @app.step
    async def act(place: str) -> str:
        return f"{place} in {build}"

    async def work(ctx: Context) -> list[str]:
        done = [await act("first")]
        await ctx.wait_for_signal("go")
        return [*done, await act("second")]

    app.workflow(name="stays", pinned=True)(work)
    app.workflow(name="moves")(work)

    @app.workflow(pinned=True)
    async def parent(ctx: Context) -> list[str]:
        await ctx.wait_for_signal("go")
        child: list[str] = await ctx.child("stays")
        return child

    return app


def serve(url: str, build: str) -> None:
    """Work until killed."""

    async def run() -> None:
        options = WorkerOptions(heartbeat_seconds=0.3, lease_seconds=1.2, silent_seconds=1.0)
        _ = await work_on(shop(build), url, options)
        await asyncio.Event().wait()

    asyncio.run(run())


def started(url: str, build: str) -> ForkServerProcess:
    process = processes.Process(target=serve, args=(url, build), daemon=True)
    process.start()
    return process


def kill(process: ForkServerProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, 9)
    process.join()


async def test_a_pinned_run_ends_on_its_build_and_another_moves(server: EmbeddedServer) -> None:
    url, shards = server.url, len(split_urls(server.url))
    workers = [started(url, "b1")]
    try:
        async with Client(url) as client, asyncio.timeout(PATIENCE_SECONDS):

            async def until(build: str, holds: Callable[[BuildInfo], bool]) -> BuildInfo:
                while True:
                    for each in await client.builds.list(app="shop"):
                        if each.build == build and holds(each):
                            return each
                    await asyncio.sleep(0.05)

            await until("b1", lambda build: build.workers == shards)
            stays, moves = await client.start("shop/stays"), await client.start("shop/moves")
            parent = await client.start("shop/parent")
            for handle in (stays, moves, parent):
                while (await client.runs.get(handle.run_id)).state != "waiting":
                    await asyncio.sleep(0.05)
            workers.append(started(url, "b2"))
            await until("b2", lambda build: build.workers == shards)
            assert await client.builds.promote("b2") is True
            newer = await client.start("shop/stays")
            kill(workers.pop(0))
            for handle in (stays, moves, newer, parent):
                await handle.signal("go")
            # The run that is not pinned, and the new one, need no worker of the first build.
            assert await moves.result() == ["first in b1", "second in b2"]
            assert await newer.result() == ["first in b2", "second in b2"]
            left = await until("b1", lambda build: build.workers == 0)
            assert (left.open_runs, left.safe_to_stop) == (2, False)
            assert "it stays with build b1" in (await client.why(stays.run_id)).because
            workers.append(started(url, "b1"))
            assert await stays.result() == ["first in b1", "second in b1"]
            while not (children := (await client.runs.list(parent=parent.run_id)).runs):
                await asyncio.sleep(0.05)
            [child] = children
            kill(workers.pop())  # also the child of a pinned run waits for its parent's build
            await client.signal(child.run_id, "go")
            workers.append(started(url, "b1"))
            assert await parent.result() == ["first in b1", "second in b1"]
            await until("b1", lambda build: build.safe_to_stop)
    finally:
        for process in workers:
            kill(process)
