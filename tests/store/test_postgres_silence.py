"""Silence on a clock that is set back, which only a database's can be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from clocks import START_AT, PostgresClock, ThoroughStore
from contract.actors import SECOND, ManualWorker, lease_of, start
from contract.test_schedules_of_code import CHANGED, A, B, ensure, heard
from scene import Scene

HOUR = 3600 * SECOND


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


@pytest.fixture
async def clock(scene: Scene) -> AsyncIterator[PostgresClock]:
    async with PostgresClock.install(scene.url) as clock:
        yield clock


async def reap(scene: Scene) -> list[str]:
    gone, _ = await scene.store.reap_workers(observer="bob", silent_seconds=8.0)
    return gone


async def test_a_worker_that_was_heard_in_the_future_is_reaped(
    scene: Scene, clock: PostgresClock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. It died while the clock was an hour ahead; its runs do not wait for that hour."""
    run_id = await start(scene.store)
    await clock.advance_to(START_AT + HOUR)
    await ann.beat()
    await bob.beat()
    await ann.take()
    await clock.advance_to(START_AT)
    assert await reap(scene) == [], "nobody was heard since the clock was set"
    for _ in range(4):
        await bob.beat()
        assert await reap(scene) == []
        await clock.advance(2)
    await bob.beat()
    assert await reap(scene) == ["ann"]
    assert await bob.claims() == [run_id]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_setting_the_clock_makes_no_worker_silent(
    scene: Scene, clock: PostgresClock, ann: ManualWorker, bob: ManualWorker, jump: int
) -> None:
    """S12. The first worker that beats after it finds the others an hour away."""
    await start(scene.store)
    now = START_AT
    for _ in range(20):
        await ann.beat()
        await bob.beat()
        await clock.advance_to(now := now + 2 * SECOND)
    task = await ann.take()
    await clock.advance_to(now + jump)
    await bob.beat()
    assert await reap(scene) == []
    assert await bob.claims() == []
    assert (await ann.beat(lease_of(task))).lost == []
    assert await reap(scene) == []


@pytest.mark.parametrize("is_judged", [False, True])
async def test_older_code_that_starts_first_after_a_restart_of_the_server_does_not_count(
    scene: Scene, clock: PostgresClock, ann: ManualWorker, bob: ManualWorker, is_judged: bool
) -> None:
    """Fault: it paused what only the newer code has, whose workers were on their way back."""
    restart = "select extract(epoch from pg_postmaster_start_time())::float8"
    back_at = round(float(await scene.value(restart)) * SECOND)
    await clock.advance_to(back_at - 100 * SECOND)
    await ensure(scene.store, A, B)
    await ensure(scene.store, CHANGED)
    await heard(scene.store, ann, back_at - 100 * SECOND)
    await clock.advance_to(back_at + SECOND)
    if is_judged:  # the worker of the newer code, by one of the older code
        await heard(scene.store, bob, back_at + SECOND)
        await scene.store.reap_workers(worker_ids=["ann"])
        await clock.advance_to(back_at + 20 * SECOND)
        await heard(scene.store, bob, back_at + SECOND)
    assert (await ensure(scene.store, A, B, starting=True)).status == "superseded"
    await clock.advance_to(back_at + 601 * SECOND)
    assert (await ensure(scene.store, A, B, starting=True)).status == "written"


async def test_a_beat_that_a_reaper_waits_for_keeps_the_worker(
    scene: Scene, clock: PostgresClock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. The beat is written but not committed when silence is judged."""
    await start(scene.store)
    await ann.beat()
    await bob.beat()
    for _ in range(6):
        await clock.advance(2)
        await bob.beat()
    session = await scene.session()
    beating = session.transaction()
    await beating.start()
    worker = ("ann", "host", 1, ["default"], ["order@1"], 10, "0", None, 30.0)
    await session.call("heartbeat", *worker, [], [], [], [])
    assert await scene.while_blocked(reap(scene), beating.commit) == []
