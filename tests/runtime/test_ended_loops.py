"""A program ends the event loop of its worker in the middle, and continues.

`asyncio.run` cancels all tasks of its loop when its function has returned or raised. Attempts that
end so are made again by another worker, as if their own had been killed: none of them counts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias
from unittest.mock import AsyncMock

import pytest

from holdfast import App, Batch, Context, Retry
from holdfast.client import Client, RunHandle
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import Heartbeat, Lease, Receive, Received, WorkerInfo
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.agenda import Agenda
from holdfast.worker.clock import EngineClock
from holdfast.worker.heartbeat import HeartbeatService
from tests.runtime.desk import Nobody, eventually, info

app = App("left")
once = Retry(attempts=1)
OPTIONS = WorkerOptions(
    heartbeat_seconds=0.2, lease_seconds=0.8, silent_seconds=1, maintenance_seconds=0.5
)


class Effects:
    """What the attempts of a test do: the first waits for ever, each later one ends at once."""

    def __init__(self) -> None:
        self.attempts = 0
        self.begun = threading.Event()

    async def attempt(self) -> int:
        """Make one attempt."""
        self.attempts += 1
        self.begun.set()
        if self.attempts == 1:
            await asyncio.Event().wait()
        return self.attempts


effects = Effects()


@pytest.fixture(autouse=True)
def new_effects() -> None:
    effects.attempts = 0
    effects.begun.clear()


class OpenStore(MemoryStore):
    """Opened and closed by each worker and its threads."""

    def __init__(self) -> None:
        super().__init__(wall_clock)

    async def close(self) -> None:
        """Stay open."""


@app.step(retry=once)
async def plain() -> int:
    return await effects.attempt()


@app.step(retry=once, timeout=60)
async def limited() -> int:
    return await effects.attempt()


@app.step(retry=once)
async def translated() -> int:
    """Turn the cancellation into an error of its own, as many drivers do."""
    try:
        return await effects.attempt()
    except asyncio.CancelledError:
        raise ConnectionError("the connection was closed") from None


@app.step(retry=once)
async def unmarked() -> int:
    """Take the cancellation back before it is turned into an error."""
    try:
        return await effects.attempt()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        raise ConnectionError("the connection was closed") from error


@app.step(retry=once)
async def grouped() -> int:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(effects.attempt())
    return task.result()


@app.activity(retry=once)
async def acted() -> int:
    return await effects.attempt()


@app.activity(retry=once, batch=Batch(size=1, within=1))
async def batched(items: list[int]) -> list[int]:
    return [await effects.attempt() for _ in items]


@app.workflow
async def calls(ctx: Context, name: str) -> int:
    return await {
        "plain": plain,
        "limited": limited,
        "translated": translated,
        "grouped": grouped,
        "acted": acted,
        "batched": lambda: batched(1),
        "unmarked": unmarked,
    }[name]()


graph = app.flow("graph", input=int)


@graph.step(attempts=1)
async def node() -> int:
    return await effects.attempt()


@app.consumer("post")
async def consume(message: int) -> None:
    await effects.attempt()


async def leave(store: MemoryStore, begin: Callable[[Client], Awaitable[object]]) -> None:
    """Return, without a stop of the worker, when the first attempt has begun."""
    await Worker(app, store, OPTIONS, heartbeat_store=lambda: store).start()
    async with Client(store=store) as client:
        await begin(client)
        await asyncio.to_thread(effects.begun.wait, 60)


async def serve(store: MemoryStore, started: asyncio.Event) -> None:
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        await worker.stop()


async def leave_served(store: MemoryStore, begin: Callable[[Client], Awaitable[object]]) -> None:
    """Return while a task serves, which stops its worker when it is cancelled with all others."""
    started = asyncio.Event()
    task = asyncio.create_task(serve(store, started))
    await started.wait()
    async with Client(store=store) as client:
        await begin(client)
        await asyncio.to_thread(effects.begun.wait, 60)
    assert not task.done()


def claimer_is_stopped() -> bool:
    return all(task.get_name() != "holdfast claimer" for task in asyncio.all_tasks())


async def leave_stopping(store: MemoryStore, begin: Callable[[Client], Awaitable[object]]) -> None:
    """Return in the middle of a stop, as after a second Ctrl-C."""
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    async with Client(store=store) as client:
        await begin(client)
        await asyncio.to_thread(effects.begun.wait, 60)
    stopping = asyncio.create_task(worker.stop(60))
    await eventually(claimer_is_stopped)
    assert not stopping.done()


Way: TypeAlias = Callable[
    [MemoryStore, Callable[[Client], Awaitable[object]]], Coroutine[None, None, None]
]
ways = pytest.mark.parametrize("way", [leave, leave_served, leave_stopping])
names = ["plain", "limited", "translated", "unmarked", "grouped", "acted", "batched", "graph"]


@ways
@pytest.mark.parametrize("name", names)
async def test_an_attempt_that_ends_with_its_loop_is_made_again(way: Way, name: str) -> None:
    async def start(client: Client) -> RunHandle[object]:
        if name == "graph":
            return await client.start(graph, 1, key="one")
        return await client.start(calls, name, key="one")

    store = OpenStore()
    await asyncio.to_thread(asyncio.run, way(store, start))
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    try:
        async with Client(store=store) as client:
            output = await (await start(client)).result(timeout=60)
    finally:
        await worker.stop(0)
    assert output == ({"node": 2} if name == "graph" else 2)


@ways
async def test_a_message_whose_consumer_is_stopped_with_its_loop_comes_again(way: Way) -> None:
    """It has one receive alone: one that counted would make it a dead letter."""

    async def send(client: Client) -> None:
        await client.queues.create("post", max_receives=1)
        await client.queues.send("post", 1)

    store = OpenStore()
    await asyncio.to_thread(asyncio.run, way(store, send))
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    try:
        await eventually(lambda: effects.attempts == 2)
    finally:
        await worker.stop(0)


class LostReceive(OpenStore):
    """The first receive that finds something has no answer before its loop ends."""

    async def receive_messages(self, receive: Receive) -> Received:
        received = await super().receive_messages(receive)
        if received.deliveries and not effects.begun.is_set():
            effects.begun.set()
            await asyncio.Event().wait()
        return received


@ways
async def test_a_message_that_is_received_while_its_loop_ends_comes_again(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call has seen it: as a dead letter it would be lost."""
    monkeypatch.setattr("holdfast.worker.consumer_loop._POLL_SECONDS", 0.2)

    async def send(client: Client) -> None:
        await client.queues.create("post", max_receives=1)
        await client.queues.send("post", 1)

    store = LostReceive()
    await asyncio.to_thread(asyncio.run, way(store, send))
    assert effects.attempts == 0
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    try:
        await eventually(lambda: effects.attempts == 1)
    finally:
        await worker.stop(0)


@pytest.mark.parametrize("way", [leave, leave_stopping])
async def test_no_thread_of_a_worker_outlives_its_loop(way: Way) -> None:
    """A heartbeat would keep its runs from others for as long as the program lives."""
    others, store = threading.enumerate(), OpenStore()

    async def start(client: Client) -> object:
        return await client.start(calls, "plain")

    await asyncio.to_thread(asyncio.run, way(store, start))
    for thread in threading.enumerate():
        if thread not in others and thread.name in {"holdfast watchdog", "holdfast heartbeat"}:
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()


class LateBeats(OpenStore):
    """Answers a heartbeat as soon as it is `closed` to whom the answer is for."""

    def __init__(self, closed: threading.Event) -> None:
        super().__init__()
        self.closed, self.asked = closed, threading.Event()

    async def heartbeat(
        self, info: WorkerInfo, leases: Sequence[Lease], **intervals: Any
    ) -> Heartbeat:
        self.asked.set()
        self.closed.wait()
        return await super().heartbeat(info, leases, **intervals)


def test_the_answer_to_a_heartbeat_may_come_after_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = threading.Event()
    store = LateBeats(closed)
    service = HeartbeatService(
        lambda: store,
        info(),
        Nobody(),
        EngineClock(),
        agenda=Agenda(heartbeat_seconds=1, silent_seconds=1),
        interval_seconds=1,
        lease_seconds=30,
    )

    async def start() -> None:
        await service.start()
        await asyncio.to_thread(store.asked.wait, 60)

    asyncio.run(start())
    closed.set()
    service.end()
    assert "heartbeat failed" not in caplog.text


async def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task that stops its worker, as the limit of `asyncio.wait_for` does."""
    task.cancel()


async def cancel_always(task: asyncio.Task[None]) -> None:
    """Cancel it at each `await`, as a scope of anyio does."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def take_over(store: MemoryStore) -> object:
    """Return the output of the run, which another worker of the same loop has to end."""
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    try:
        async with Client(store=store) as client:
            return await (await client.start(calls, "plain", key="one")).result(timeout=60)
    finally:
        await worker.stop(0)


@pytest.mark.parametrize("cancel", [cancel_once, cancel_always])
async def test_a_stop_that_is_cancelled_is_made_to_its_end(
    cancel: Callable[[asyncio.Task[None]], Awaitable[None]],
) -> None:
    """The loop continues, and so would the heartbeat, which keeps the runs from all others."""
    others, store = threading.enumerate(), OpenStore()
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    async with Client(store=store) as client:
        await client.start(calls, "plain", key="one")
        await asyncio.to_thread(effects.begun.wait, 60)
    stopping = asyncio.create_task(worker.stop(60))
    await asyncio.sleep(0)
    await cancel(stopping)
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    left = {thread.name for thread in threading.enumerate() if thread not in others}
    assert not left & {"holdfast watchdog", "holdfast heartbeat"}
    assert await take_over(store) == 2


async def test_a_worker_stops_although_steps_hold_all_threads_of_the_loop() -> None:
    """They wait for `asyncio.to_thread`, and the loop has few threads."""
    store, done = OpenStore(), threading.Event()
    asyncio.get_running_loop().set_default_executor(threads := ThreadPoolExecutor(1))
    threads.submit(done.wait)
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    stopping = asyncio.create_task(worker.stop(0))
    await asyncio.wait([stopping], timeout=30)
    stopped = stopping.done()
    done.set()
    await stopping
    assert stopped


async def test_a_second_stop_waits_for_the_first() -> None:
    store = OpenStore()
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    async with Client(store=store) as client:
        await client.start(calls, "plain", key="one")
        await asyncio.to_thread(effects.begun.wait, 60)
    stopping = asyncio.create_task(worker.stop(60))
    await asyncio.sleep(0)
    again = asyncio.create_task(worker.stop(0))
    await asyncio.sleep(0.01)
    assert not again.done()
    worker.end_grace()
    await again
    assert stopping.done()


@pytest.mark.parametrize("stops", [False, True])
async def test_work_is_given_back_if_all_tasks_are_cancelled_and_the_loop_continues(
    caplog: pytest.LogCaptureFixture, stops: bool
) -> None:
    """Also if a stop was under way, which is cut off; the next raised a cancellation of its own."""
    store, others = OpenStore(), asyncio.all_tasks()
    worker = Worker(app, store, OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    async with Client(store=store) as client:
        await client.start(calls, "plain", key="one")
        await asyncio.to_thread(effects.begun.wait, 60)
    if stops:
        stopping = asyncio.create_task(worker.stop(60))
        await eventually(claimer_is_stopped)
        assert not stopping.done()
    for task in asyncio.all_tasks() - others:
        task.cancel()
    assert await take_over(store) == 2
    assert "had not stopped when its event loop was left" in caplog.text
    await worker.stop()
    assert not asyncio.all_tasks() - others


@pytest.mark.parametrize("opens", [False, True])
async def test_lifespans_are_closed_before_a_start_that_is_cancelled_has_ended(opens: bool) -> None:
    """Also if it is cancelled again meanwhile."""
    done, own, others = list[str](), App("opens"), asyncio.all_tasks()

    @own.lifespan
    async def slow() -> AsyncGenerator[None]:
        yield
        await asyncio.sleep(0.01)
        done.append("closed")

    @own.lifespan
    async def waits() -> AsyncGenerator[None]:
        if opens:
            await asyncio.Event().wait()
        yield

    @own.workflow
    async def unused(ctx: Context) -> None: ...

    class Silent(OpenStore):
        async def now(self) -> int:
            return await asyncio.Event().wait() and 0

    worker = Worker(own, Silent(), OPTIONS)
    starting = asyncio.create_task(worker.start())
    await eventually(lambda: slow in worker._resources.values)
    await cancel_always(starting)
    assert starting.cancelled()
    assert done == ["closed"]
    assert not [task for task in asyncio.all_tasks() - others if not task.done()]


async def test_lifespans_are_cancelled_that_take_too_long_to_close_in_a_cancelled_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.resources._CLOSE_SECONDS", 0.0)
    closing, own = asyncio.Event(), App("closes")

    @own.lifespan
    async def endless() -> AsyncGenerator[None]:
        yield
        closing.set()
        await asyncio.Event().wait()

    @own.workflow
    async def unused(ctx: Context) -> None: ...

    worker = Worker(own, store := OpenStore(), OPTIONS, heartbeat_store=lambda: store)
    await worker.start()
    stopping = asyncio.create_task(worker.stop(60))
    await closing.wait()
    stopping.cancel()
    await asyncio.wait([stopping], timeout=60)
    assert stopping.cancelled()


async def test_heartbeats_are_quiet_in_the_debug_mode_of_asyncio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their thread waits without its event loop, on purpose."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    beats, store = threading.Semaphore(0), OpenStore()
    monkeypatch.setattr(store, "close", closed := AsyncMock())
    service = HeartbeatService(
        lambda: store,
        info(),
        Nobody(),
        EngineClock(),
        look_at_threads=lambda: beats.release(),
        interval_seconds=0.15,  # a tenth of a second is worth a warning in debug mode
        lease_seconds=30,
    )
    await service.start()
    for _ in range(2):
        await asyncio.to_thread(beats.acquire)
    await service.stop()
    assert closed.called
    assert "Executing" not in caplog.text
