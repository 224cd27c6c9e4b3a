"""The database's clock is set forward by an hour, and back: nothing is silent for that hour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from scene import Scene

from holdfast import App, Context
from holdfast.client import Client
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewSchedule, RunTarget, TickPolicy, When
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker import clock as clocks
from holdfast.worker.clock import EngineClock
from holdfast.worker.services import scheduler

pytestmark = pytest.mark.fresh_database

OPTIONS = WorkerOptions(heartbeat_seconds=0.1, maintenance_seconds=0.1)
INSTALL = """
create schema test;
create table test.step (seconds float8 not null);
insert into test.step values (0);
create or replace function holdfast.now() returns timestamptz
language sql stable
as $$ select statement_timestamp() + s.seconds * interval '1 second' from test.step s $$;
"""

app = App("shop")


@app.workflow
async def nap(ctx: Context, seconds: float) -> float:
    await ctx.sleep(seconds)
    return seconds


late = App("late")


@late.workflow
async def greet(ctx: Context) -> str:
    return "hello"


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url) as scene:
        await scene.watcher.connection.execute(INSTALL)
        yield scene


async def set_clock(scene: Scene, seconds: float) -> None:
    """Set the clock, and wait for the statements under way: they say the time of before.

    A timer of a run that such a claim takes is begun at that time.
    """
    await scene.watcher.connection.execute("update test.step set seconds = $1", seconds)
    set_at = await scene.value("select statement_timestamp()")
    await scene.until(
        "select count(*) from pg_stat_activity where datname = current_database()"
        f" and state = 'active' and query_start < '{set_at}'",
        lambda n: n == 0,
    )


async def start(scene: Scene, worker: Worker) -> None:
    """Start a worker, which ends with the scene."""
    await worker.start()
    scene.stack.push_async_callback(worker.stop, 0)


async def test_a_worker_is_not_silent_after_the_clock_was_set_forward_and_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(clocks, "_SAMPLE_LIFETIME", 0)  # it has run for more than a minute
    every_second = NewSchedule(
        name="shop/often",
        when=When(every_seconds=1),
        target=RunTarget(name="shop/nap", input="0.01"),
        policy=TickPolicy(overlap="allow"),
    )
    await scene.store.create_schedule(every_second)
    started = "select exists (select from holdfast.schedule_buckets where handled_at {})"
    clock = EngineClock()
    beats = partial(PostgresStore, scene.url)
    worker = Worker(app, scene.store, OPTIONS, heartbeat_store=beats, clock=clock)
    await start(scene, worker)
    async with Client(store=scene.store, app=app) as client:
        await client.run(nap, 0.01)
        begun_at = await scene.value("select holdfast.now()")
        await set_clock(scene, 3600)
        async with asyncio.timeout(60):
            while clock.now() < time.time() * 1e6 + 1_800_000_000:
                await asyncio.sleep(0.01)
        await client.run(nap, 0.01)
        await scene.until(started.format(f"> '{begun_at}'::timestamptz + interval '1 hour'"), bool)
        await set_clock(scene, 0)
        back_at = await scene.value("select holdfast.now()")
        async with asyncio.timeout(60):
            assert await client.run(nap, 0.01) == 0.01
        await scene.until(
            started.format(
                f"> '{back_at}' and handled_at < '{back_at}'::timestamptz + interval '30 minutes'"
                " and outcome = 'started'"
            ),
            bool,
        )


async def test_a_run_that_was_started_ahead_begins_after_the_clock_was_set_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker of its app was there: one of another app has noticed."""
    monkeypatch.setattr(scheduler, "_SWEEP_SECONDS", 0.05)
    beats = partial(PostgresStore, scene.url)
    other = Worker(app, scene.store, OPTIONS, heartbeat_store=beats, clock=EngineClock())
    await start(scene, other)
    async with Client(store=scene.store, app=late) as client:
        await set_clock(scene, 3600)
        handle = await client.start(greet)
        await scene.until(
            "select count(*) from holdfast.workers where heard_at > now() + interval '30 minutes'",
            bool,
        )
        await set_clock(scene, 0)
        worker = Worker(late, scene.store, OPTIONS, heartbeat_store=beats, clock=EngineClock())
        await start(scene, worker)
        async with asyncio.timeout(60):
            assert await handle.result() == "hello"


async def test_a_timer_that_was_begun_ahead_neither_fires_early_nor_spins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moment stands in the run's log: it is late by as much as the clock was ahead."""
    monkeypatch.setattr(scheduler, "_SWEEP_SECONDS", 0.05)
    beats = partial(PostgresStore, scene.url)
    worker = Worker(app, scene.store, OPTIONS, heartbeat_store=beats, clock=EngineClock())
    await start(scene, worker)
    async with Client(store=scene.store, app=app) as client:
        await set_clock(scene, 3600)
        handle = await client.start(nap, 20)
        await scene.until("select count(*) from holdfast.tasks where claimed_idx > 0", bool)
        await scene.until(
            "select count(*) from holdfast.workers where heard_at > now() + interval '30 minutes'",
            bool,
        )
        await scene.until(
            "select count(*) from holdfast.tasks where worker is null"
            " and visible_at > now() + interval '1 hour'",
            bool,
        )
        await set_clock(scene, 0)
        await scene.until(
            "select count(*) from holdfast.workers where heard_at > now() - interval '1 minute'"
            " and heard_at < now() + interval '1 minute'",
            bool,
        )
        await scene.until("select count(*) from holdfast.clock_steps", lambda n: n == 0)
        await asyncio.sleep(2)  # the worker looks at it, and waits again
        assert await handle.status() == "running"
        assert await scene.value("select lease_no from holdfast.tasks") <= 2
        await set_clock(scene, 3620)  # all of it is over
        async with asyncio.timeout(60):
            assert await handle.result() == 20
