"""A database that takes a call and does not answer it: heartbeats, stops and last words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import App, Context
from holdfast.client import Client, waiting
from holdfast.store import shared_calls
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.shared_calls import Notifier
from holdfast.types import Heartbeat, Lease, Notice, Release, WorkerInfo
from holdfast.worker import Worker, heartbeat, releases
from holdfast.worker.clock import EngineClock
from holdfast.worker.heartbeat import HeartbeatService
from tests.runtime.desk import Nobody, info

app = App("mute")
started = asyncio.Event()


@app.step
async def hang() -> None:
    started.set()
    await asyncio.sleep(3600)


@app.workflow
async def hanging(ctx: Context) -> None:
    await hang()


class Mute(MemoryStore):
    """Never answers the calls of the names in `mute`; `asked` says how often each was made."""

    def __init__(self, *mute: str, times: int = 1_000_000) -> None:
        super().__init__()
        self.mute, self.times = set(mute), times
        self.asked: dict[str, int] = {}

    async def _pass(self, name: str) -> None:
        self.asked[name] = self.asked.get(name, 0) + 1
        if name in self.mute and self.asked[name] <= self.times:
            await asyncio.Event().wait()

    async def heartbeat(
        self, info: WorkerInfo, leases: Sequence[Lease], **intervals: float
    ) -> Heartbeat:
        await self._pass("heartbeat")
        return await super().heartbeat(info, leases, **intervals)

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        await self._pass("release_tasks")
        return await super().release_tasks(worker_id, releases)

    async def remove_worker(self, worker_id: str, *, with_messages: bool = False) -> None:
        await self._pass("remove_worker")
        await super().remove_worker(worker_id, with_messages=with_messages)

    async def forget_waits(self, topic: str) -> None:
        await self._pass("forget_waits")
        await super().forget_waits(topic)

    async def notify(self, notices: Sequence[Notice]) -> None:
        await self._pass("notify")
        await super().notify(notices)


async def test_a_heartbeat_that_is_not_answered_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one must be in time: a worker that is not heard of looks dead."""
    monkeypatch.setattr(heartbeat, "_LEAST_ANSWER_SECONDS", 0.05)
    store = Mute("heartbeat", times=2)
    service = HeartbeatService(
        lambda: store, info(), Nobody(), EngineClock(), interval_seconds=0.02, lease_seconds=30
    )
    await service.start()
    async with asyncio.timeout(30):
        while not await store.list_workers():
            await asyncio.sleep(0.01)
    await service.stop()
    assert store.asked["heartbeat"] >= 3


async def test_a_heartbeat_that_is_not_answered_is_late() -> None:
    store = Mute("heartbeat")
    service = HeartbeatService(
        lambda: store, info(), Nobody(), EngineClock(), interval_seconds=0.02, lease_seconds=30
    )
    assert service.late_seconds == 0
    await service.start()
    async with asyncio.timeout(30):
        while service.late_seconds < 0.1:
            await asyncio.sleep(0.01)
    await service.stop()
    assert service.late_seconds == 0


async def test_messages_that_cannot_be_kept_do_not_delay_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a worker with a consumer would look dead, and its runs begin elsewhere."""
    monkeypatch.setattr(heartbeat, "_LEAST_ANSWER_SECONDS", 0.05)

    async def keep(_: Store) -> None:
        await asyncio.Event().wait()

    store = Mute()
    service = HeartbeatService(
        lambda: store,
        info(),
        Nobody(),
        EngineClock(),
        keep_messages=keep,
        interval_seconds=0.02,
        lease_seconds=30,
    )
    await service.start()
    async with asyncio.timeout(30):
        while store.asked.get("heartbeat", 0) < 3:
            await asyncio.sleep(0.01)
    await service.stop()


async def stopped(store: Mute, monkeypatch: pytest.MonkeyPatch, *, farewell_seconds: float) -> None:
    """Stop a worker that holds a run."""
    monkeypatch.setattr(releases, "_TRY_SECONDS", 0.1)
    monkeypatch.setattr(releases, "_FAREWELL_SECONDS", farewell_seconds)
    monkeypatch.setattr(shared_calls, "_LAST_SECONDS", 0.1)
    started.clear()
    ann = Worker(app, store)
    await ann.start()
    async with Client(store=store, app=app) as client:
        await client.start(hanging)
    async with asyncio.timeout(30):
        while not started.is_set():  # an event that is waited for belongs to one event loop
            await asyncio.sleep(0.01)
        await ann.stop(0)


async def test_calls_without_an_answer_at_a_stop_are_tried_over_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Mute("release_tasks", "remove_worker", times=1)
    await stopped(store, monkeypatch, farewell_seconds=30)
    assert await store.list_workers() == []
    async with Client(store=store) as client:
        assert [run.state for run in (await client.runs.list()).runs] == ["queued"]


async def test_a_database_that_never_answers_does_not_hold_up_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker continues when the leases have expired."""
    store = Mute("release_tasks", "remove_worker", "notify")
    await stopped(store, monkeypatch, farewell_seconds=0.3)
    assert store.asked["release_tasks"] >= 1
    assert len(await store.list_workers()) == 1


async def test_a_client_that_closes_waits_for_no_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_FORGET_SECONDS", 0.1)
    monkeypatch.setattr(shared_calls, "_LAST_SECONDS", 0.1)
    store = Mute("forget_waits", "notify")
    async with asyncio.timeout(30):
        async with Client(store=store, app=app) as client:
            handle = await client.start(hanging)
            result = asyncio.create_task(handle.result())
            await asyncio.sleep(0)
        await asyncio.wait([result])


async def test_a_notifier_that_is_stopped_gives_up_what_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_calls, "_LAST_SECONDS", 0.05)
    sender = Notifier(Mute("notify").notify)
    sender.submit([Notice("work", "default")])
    async with asyncio.timeout(30):
        await sender.stop()
    assert sender.idle
