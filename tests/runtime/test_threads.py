"""The threads of a worker: what is claimed for them, and what is said of a shortage."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, Context, Retry
from holdfast.client import Client
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.types import ThreadUse
from holdfast.worker import threads
from tests.runtime.desk import Desk, eventually, working

NEVER = 1e6  # seconds between two polls: what is not woken is not claimed


async def test_activities_are_claimed_only_as_far_as_threads_can_begin_them(store: Store) -> None:
    """The others are left to other workers; async ones need no thread."""
    app, let_go, begun = App("media"), threading.Event(), list[str]()
    desk = await Desk(store, "media").open()

    @app.activity
    def convert() -> None:
        begun.append(threading.current_thread().name)
        assert let_go.wait(60)

    @app.activity
    async def tell() -> str:
        return "told"

    keys = [f"convert#{number}" for number in range(5)]
    for key in keys:
        await desk.order(key, activity="convert")
    try:
        async with working(app, store, threads=2, poll_seconds=NEVER) as first:
            await eventually(lambda: len(begun) == 2)
            await desk.order("tell")
            assert await desk.result("tell") == "told"
            assert first.active == 2
            async with working(app, store, threads=8, poll_seconds=NEVER) as second:
                await eventually(lambda: len(begun) == 5)
                assert second.active == 3
                let_go.set()
                for key in keys:
                    await desk.result(key)
    finally:
        let_go.set()


async def test_a_task_that_comes_due_while_all_threads_are_used_does_not_hold_the_loop(
    store: Store,
) -> None:
    """It is claimed when a thread is free again; meanwhile the worker answers."""
    app, let_go, begun = App("later"), threading.Event(), list[str]()
    flow = app.flow("later", input=str)

    @flow.step
    def write(run: str) -> str:
        begun.append(run)
        if run == "long":
            assert let_go.wait(60)
        return run

    loop = asyncio.get_running_loop()
    try:
        async with Client(store=store) as client, working(app, store, threads=1):
            for delay in (0.4, 2, 10):  # a slow machine may need more to begin the long one first
                begun.clear()
                let_go.clear()
                later = await client.start(flow, "short", delay=delay)
                due = loop.time() + delay
                long = await client.start(flow, "long")
                await eventually(lambda: "long" in begun)
                if begun == ["long"] and loop.time() < due:
                    break
                let_go.set()
                await asyncio.gather(later.result("60s"), long.result("60s"))
            await asyncio.sleep(due - loop.time() + 0.4)
            assert loop.time() - due < 30
            assert begun == ["long"]
            let_go.set()
            assert await later.result("60s") == {"write": "short"}
    finally:
        let_go.set()


async def test_threads_that_hang_do_not_hold_tasks_of_steps(store: Store) -> None:
    """Their worker gives back what waits for them, and leaves the rest of the map to others."""
    app, let_go, begun = App("pictures"), threading.Event(), list[int]()
    flow = app.flow("pictures", input=list[int])

    @flow.map(flow.run)
    def draw(number: int) -> int:
        begun.append(number)
        if 50 < len(begun) <= 52:  # the threads of the first worker, after it was quick
            assert let_go.wait(60)
        return number

    @flow.map(draw)
    def frame(number: int) -> int:
        return number

    try:
        async with Client(store=store) as client, working(app, store, threads=2) as first:
            run = await client.start(flow, list(range(200)))
            await eventually(lambda: len(begun) == 52)
            await eventually(lambda: first.active == 2)
            async with working(app, store, threads=4) as second:
                await eventually(lambda: len(begun) == 200 and second.active == 0)
                assert await client.run(flow, [20, 21], wait="30s") == {"frame": [20, 21]}
                let_go.set()
                assert await run.result("120s") == {"frame": list(range(200))}
                assert first.active == 0
        assert sorted(begun[:200]) == list(range(200)), "a task that was given back ran twice"
    finally:
        let_go.set()


async def test_a_thread_that_is_free_again_takes_an_activity(store: Store) -> None:
    """Also one that a step had. No poll is needed."""
    app, let_go, begun = App("freed"), threading.Event(), threading.Event()
    desk = await Desk(store, "freed").open()

    @app.activity
    def convert() -> str:
        return "converted"

    @app.step
    def hold() -> None:
        begun.set()
        assert let_go.wait(60)

    @app.workflow
    async def holds(ctx: Context) -> None:
        await hold()

    try:
        async with (
            working(app, store, threads=1, poll_seconds=NEVER) as worker,
            Client(store=store) as client,
        ):
            run = await client.start(holds)
            await eventually(begun.is_set)
            await desk.order("convert")
            await eventually(lambda: not worker.busy or worker.active == 1)
            assert "ActivityCompleted" not in await desk.types("convert")
            let_go.set()
            assert await desk.result("convert") == "converted"
            await run.result(timeout=60)
    finally:
        let_go.set()


async def test_exhausted_threads_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those named that have timed out: nobody can stop a thread."""
    monkeypatch.setattr(threads, "_LONG_SECONDS", 0.0)
    app, let_go, store = App("short"), threading.Event(), MemoryStore(wall_clock)

    @app.step(timeout=0.05, retry=Retry.NEVER)
    def charge() -> None:
        assert let_go.wait(60)

    @app.step
    def mail() -> None:
        """Return at once."""

    @app.workflow
    async def charges(ctx: Context) -> str:
        try:
            await charge()
        except Exception:
            await mail()
        return "done"

    def warnings() -> list[str]:
        return [each.message for each in caplog.records if "threads" in each.message]

    try:
        async with working(app, store, threads=2) as worker, Client(store=store) as client:
            book = worker._launcher.book
            assert book.use() == ThreadUse(2, 0, 0, 0)
            runs = [await client.start(charges) for _ in range(2)]
            await eventually(lambda: book.use() == ThreadUse(2, 2, 2, 2))
            book.warn()
            book.warn()
            [warning] = warnings()
            assert "all 2 threads for steps and activities are in use, by charge" in warning
            assert "2 attempt(s) wait" in warning
            assert "2 of the threads run attempts that have timed out" in warning
            let_go.set()
            assert await asyncio.gather(*(run.result(timeout=60) for run in runs)) == ["done"] * 2
            await eventually(lambda: book.use() == ThreadUse(2, 0, 0, 0))
            book.warn()
            assert len(warnings()) == 1
    finally:
        let_go.set()
