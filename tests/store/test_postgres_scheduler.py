"""T6. The scheduler of a worker on a database: it is told of what changes, and does not poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from contract.actors import ManualWorker
from contract.schedule_actors import NAME, ORDER, new_schedule, run_of
from scene import Scene

from holdfast.errors import DatabaseUnavailable, LockTimeout
from holdfast.store.port import SCHEDULES_TOPIC
from holdfast.types import Bucket, Notice, When
from holdfast.worker.clock import EngineClock
from holdfast.worker.services import scheduler
from holdfast.worker.services.scheduler import Scheduler
from holdfast.worker.services.service import ServiceContext

HOUR = 3600.0


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found, is found because the scheduler was told."""
    monkeypatch.setattr(scheduler, "_BUFFERED_SECONDS", HOUR)


def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick be computed an hour before it. A sweep would take that for a clock set back."""
    monkeypatch.setattr(scheduler, "_AHEAD", HOUR + 1)
    monkeypatch.setattr(scheduler, "_SWEEP_SECONDS", float("inf"))


@asynccontextmanager
async def scheduling(scene: Scene) -> AsyncIterator[list[Notice]]:
    """Run a scheduler for the length of the block; give the notices that it sends."""
    sent: list[Notice] = []
    context = ServiceContext(scene.store, "sally", EngineClock(), sent.extend, HOUR)
    service = Scheduler(context)
    stop = await scene.store.listen(SCHEDULES_TOPIC, service.notified)
    await service.start()
    yield sent
    await service.stop()
    await stop()


async def until(scene: Scene, query: str) -> None:
    await scene.until(f"select exists ({query})", bool)


async def newest(scene: Scene, name: str = NAME) -> Bucket:
    [bucket] = await scene.store.list_buckets(name, limit=1)
    return bucket


async def test_a_schedule_from_sql_is_computed_at_once(scene: Scene) -> None:
    """Also beside one that cannot be."""
    async with scheduling(scene):
        await until(scene, "select from pg_stat_activity where query like '%next_look%'")
        for name, cron in (("bad", "at dawn"), ("good", "0 3 * * *")):
            await scene.value(
                "select holdfast.create_schedule($1, 'shop/order', p_cron => $2)", name, cron
            )
        await until(scene, "select from holdfast.schedules where next_tick_at < 'infinity'")
        await until(scene, "select from holdfast.schedules where error like '%at dawn%'")


async def test_a_tick_fires_and_tells_workers(scene: Scene) -> None:
    async with scheduling(scene) as sent:
        await scene.store.create_schedule(new_schedule(when=When(every_seconds=1)))
        await until(scene, "select from holdfast.schedule_buckets where outcome = 'started'")
        while not sent:
            await asyncio.sleep(0.005)
        assert Notice("work", "default") in sent


async def test_the_end_of_a_run_starts_the_tick_that_waits(scene: Scene) -> None:
    ann = ManualWorker(scene.store, "ann")
    await scene.store.create_schedule(new_schedule(overlap="buffer_all"))
    async with scheduling(scene):
        for _ in range(3):
            await scene.store.trigger_schedule(NAME)
        for number in (2, 1):
            answer = await ann.finish(await ann.take(handlers=ORDER))
            await scene.store.notify(answer.notices)
            await until(scene, f"select from holdfast.schedules where buffered = {number - 1}")
        assert run_of(await newest(scene))


async def test_a_tick_that_waits_starts_when_listening_is_possible_again(scene: Scene) -> None:
    """The notice of the end was sent while nobody heard it."""
    ann = ManualWorker(scene.store, "ann")
    await scene.store.create_schedule(new_schedule(overlap="buffer_all"))
    async with scheduling(scene):
        for _ in range(2):
            await scene.store.trigger_schedule(NAME)
        await until(scene, "select from holdfast.schedules where next_tick_at < 'infinity'")
        await ann.finish(await ann.take(handlers=ORDER))
        await scene.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where (query ilike 'listen%' or query = 'select 1') and datname = current_database()"
        )
        await until(scene, "select from holdfast.schedules where buffered = 0")


async def test_a_tick_that_waits_starts_soon_after_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice of the end is used up when the database fails; nothing else tells of it."""
    monkeypatch.setattr(scheduler, "_BUFFERED_SECONDS", 0.1)
    ann = ManualWorker(scene.store, "ann")
    await scene.store.create_schedule(new_schedule(overlap="buffer_all"))
    async with scheduling(scene):
        await until(scene, "select from holdfast.schedules where next_tick_at < 'infinity'")
        for _ in range(2):
            await scene.store.trigger_schedule(NAME)
        turn = await ann.take(handlers=ORDER)
        start_buffered = scene.store.start_buffered
        calls = 0

        async def failing(**options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise DatabaseUnavailable("it restarts")
            return await start_buffered(**options)

        monkeypatch.setattr(scene.store, "start_buffered", failing)
        await scene.store.notify((await ann.finish(turn)).notices)
        await until(scene, "select from holdfast.schedules where buffered = 0")
        assert calls > 1


async def test_a_tick_that_waits_starts_soon_after_a_lock_was_in_the_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice of the end is not used up by the look that gave up."""
    ann = ManualWorker(scene.store, "ann")
    await scene.store.create_schedule(new_schedule(overlap="buffer_all"))
    async with scheduling(scene):
        await until(scene, "select from holdfast.schedules where next_tick_at < 'infinity'")
        for _ in range(2):
            await scene.store.trigger_schedule(NAME)
        turn = await ann.take(handlers=ORDER)
        start_buffered = scene.store.start_buffered
        asked: list[Any] = []

        async def busy(**options: Any) -> Any:
            if options["run_ids"] is None:  # the look every five seconds
                return 0, []
            asked.append(options["run_ids"])
            if len(asked) == 1:
                raise LockTimeout("another transaction has the run")
            return await start_buffered(**options)

        monkeypatch.setattr(scene.store, "start_buffered", busy)
        await scene.store.notify((await ann.finish(turn)).notices)
        await until(scene, "select from holdfast.schedules where buffered = 0")
        assert asked == [[turn.run_id]] * 2


async def test_a_schedule_that_another_session_holds_is_not_asked_for_again_and_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses between looks grow; when it is free, it is computed."""
    looks = 0
    next_look = scene.store.next_look

    async def counted() -> Any:
        nonlocal looks
        looks += 1
        return await next_look()

    monkeypatch.setattr(scene.store, "next_look", counted)
    await scene.store.create_schedule(new_schedule())
    session = await scene.session()
    async with session.transaction():
        await session.connection.execute("select from holdfast.schedules for update")
        async with scheduling(scene):
            while looks < 3:
                await asyncio.sleep(0.01)
            before = looks
            await asyncio.sleep(0.5)
            assert looks - before < 10
    async with scheduling(scene):
        await until(scene, "select from holdfast.schedules where next_tick_at < 'infinity'")


async def test_a_schedule_that_cannot_be_fired_shows_it_and_holds_up_no_other(scene: Scene) -> None:
    """Something is wrong with it that nobody could foresee."""
    for name in ("shop/a", "shop/bad", "shop/c"):
        await scene.store.create_schedule(new_schedule(name, when=When(every_seconds=1)))
    await scene.value(
        "update holdfast.schedules set tags = '5' where name = 'shop/bad' returning 1"
    )
    async with scheduling(scene):
        for name in ("shop/a", "shop/c"):
            await until(scene, f"select from holdfast.schedule_buckets where schedule = '{name}'")
        await until(scene, "select from holdfast.schedules where error like '%array%'")
    query = "select count(*) from holdfast.schedule_buckets where schedule = 'shop/bad'"
    assert await scene.value(query) == 0


async def test_a_backfill_from_sql_begins_at_once(scene: Scene) -> None:
    await scene.store.create_schedule(new_schedule(overlap="allow"))
    async with scheduling(scene):
        await scene.value(
            "select holdfast.backfill_schedule('nightly', holdfast._micros(hour) - 7200000000 + 1,"
            " holdfast._micros(hour)) from date_trunc('hour', holdfast.now()) as hour"
        )
        await until(scene, "select from holdfast.schedule_backfills where ended_at is not null")
    query = "select count(*) from holdfast.schedule_buckets where origin = 'backfill'"
    assert await scene.value(query) == 120


async def test_a_scheduler_that_stops_gives_back_what_it_was_given(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has computed the tick ahead of time; others need not wait until its lease ends."""
    far_ahead(monkeypatch)
    when = When(every_seconds=HOUR, anchor=await scene.store.now())
    async with scheduling(scene):
        await scene.store.create_schedule(new_schedule(when=when))
        await until(scene, "select from holdfast.schedules where look_at > next_tick_at")
    assert await scene.value("select look_at = next_tick_at from holdfast.schedules")


async def test_a_scheduler_that_stops_while_it_is_given_schedules_gives_them_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has given them, and the answer comes after the stop has begun."""
    far_ahead(monkeypatch)
    when = When(every_seconds=HOUR, anchor=await scene.store.now())
    due_schedules = scene.store.due_schedules
    given, stopping = asyncio.Event(), asyncio.Event()

    async def late(**options: Any) -> Any:
        answer = await due_schedules(**options)
        if answer and answer[0].expected is not None:
            given.set()
            await stopping.wait()
        return answer

    monkeypatch.setattr(scene.store, "due_schedules", late)
    async with scheduling(scene):
        await scene.store.create_schedule(new_schedule(when=when))
        await given.wait()
        asyncio.get_running_loop().call_later(0.05, stopping.set)
    assert await scene.value("select look_at = next_tick_at from holdfast.schedules")
