"""Sweeps: workers that work for a limited time, and what remains after them (T7)."""

from __future__ import annotations

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import WorkerInfo

from .actors import ORDER, SECOND, ManualWorker, log_types, start

SILENT = 8.0
QUEUES = ("default",)


def info(worker_id: str) -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id,
        hostname="host",
        pid=1,
        queues=QUEUES,
        handlers=ORDER,
        concurrency=1,
        holdfast_version="0",
    )


async def reap(store: Store, observer: str) -> list[str]:
    gone, _ = await store.reap_workers(observer=observer, silent_seconds=SILENT)
    return gone


async def test_a_sweep_signs_on_like_a_worker(store: Store) -> None:
    await store.begin_sweep(info("sweep"), seconds=20)
    assert [each.worker_id for each in await store.list_workers()] == ["sweep"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0])
async def test_a_sweep_lasts_a_day_at_most(store: Store, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="a sweep lasts between 0 and 86400"):
        await store.begin_sweep(info("sweep"), seconds=seconds)


async def test_the_work_of_a_killed_sweep_is_free_for_the_next_one(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, T7. The next sweep has just begun: it has observed nothing, and need not have."""
    run_id = await start(store)
    await store.begin_sweep(info("ann"), seconds=20)
    await ann.beat()
    await ann.take()
    await clock.advance(19.0)
    await store.begin_sweep(info("bob"), seconds=20)
    assert await reap(store, "bob") == []  # it may still work
    await clock.advance(2.0)
    assert await reap(store, "bob") == ["ann"]
    assert [each.run_id for each in [await bob.take()]] == [run_id]
    assert await log_types(store, run_id) == ["WorkflowStarted", "WorkerLost"]


async def test_a_sweep_that_is_heard_is_left_alone_though_it_is_late(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.begin_sweep(info("ann"), seconds=20)
    await clock.advance(15.0)
    await ann.beat()
    await clock.advance(6.0)
    await store.begin_sweep(info("bob"), seconds=20)
    assert await reap(store, "bob") == []
    await clock.advance(4.0)
    assert await reap(store, "bob") == ["ann"]


async def test_a_heartbeat_does_not_change_when_a_sweep_ends(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.begin_sweep(info("ann"), seconds=20)
    await ann.beat()
    now, next_due_at = await store.next_due("bob", QUEUES, ORDER)
    assert next_due_at == now + 20 * SECOND


async def test_a_sweep_knows_what_remains(store: Store, clock: Clock, ann: ManualWorker) -> None:
    assert (await store.next_due("ann", QUEUES, ORDER))[1] is None
    await start(store)
    now, next_due_at = await store.next_due("ann", QUEUES, ORDER)
    assert next_due_at is not None
    assert next_due_at <= now
    assert (await store.next_due("ann", QUEUES, ("other@1",)))[1] is None
    assert (await store.next_due("ann", ("other",), ORDER))[1] is None
    await ann.take()
    assert (await store.next_due("ann", QUEUES, ORDER))[1] is None


async def test_paused_work_does_not_remain(store: Store) -> None:
    await start(store)
    await store.set_pause("queue", "default", paused=True)
    assert (await store.next_due("ann", QUEUES, ORDER))[1] is None


async def test_its_own_end_is_not_what_comes_due(store: Store) -> None:
    await store.begin_sweep(info("ann"), seconds=20)
    assert (await store.next_due("ann", QUEUES, ORDER))[1] is None
