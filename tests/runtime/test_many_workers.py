"""What many workers ask of a database, counted while a clock of the test's own passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.store.memory import MemoryStore
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.clock import EngineClock

START_AT = 1_800_000_000_000_000  # µs
SECONDS = 180  # that idle workers are watched
CONCURRENCY = 10
HEARTBEAT, POLL = WorkerOptions().heartbeat_seconds, WorkerOptions().poll_seconds

app = App("many")


@app.workflow
async def waiting(ctx: Context, n: int) -> None:
    await ctx.wait_for_signal("go")


class PassingTime(asyncio.SelectorEventLoop):
    """Time passes when there is nothing to do, to the next moment at which there is."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0

    def time(self) -> float:
        return self._passed

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready and loop._scheduled:
            self._passed = max(self._passed, loop._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class CountedCalls(MemoryStore):
    """Counts the calls of its methods."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(clock=lambda: START_AT + round(loop.time() * 1e6))
        self.calls = Counter[str]()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if asyncio.iscoroutinefunction(found):
            self.calls[name] += 1
        return found

    def since(self, before: Counter[str]) -> Counter[str]:
        """Return the calls that were made since then."""
        return self.calls - before


def passing_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=PassingTime) as runner:
        runner.run(work())


@asynccontextmanager
async def working(store: CountedCalls, count: int) -> AsyncIterator[None]:
    """Let so many workers work, which begin one after the other."""
    loop = asyncio.get_running_loop()
    workers: list[Worker] = []
    beating: list[asyncio.Task[None]] = []
    options = WorkerOptions(concurrency=CONCURRENCY)
    for _ in range(count):
        clock = EngineClock(lambda: round(loop.time() * 1e9))
        workers.append(Worker(app, store, options, clock=clock))
        await workers[-1].start()
        beating.append(asyncio.create_task(beat(store, workers[-1])))
        await asyncio.sleep(HEARTBEAT / count)
    try:
        yield
    finally:
        for task in beating:
            task.cancel()
        for worker in workers:
            await worker.stop(0)


async def beat(store: CountedCalls, worker: Worker) -> None:
    """Send heartbeats, which a thread of a worker does in time that does not pass here."""
    options = worker.options
    while True:
        answer = await store.heartbeat(
            worker.info,
            [],
            lease_seconds=options.lease_seconds,
            interval_seconds=options.heartbeat_seconds,
            silent_seconds=options.silent_seconds,
        )
        worker._agenda.tell(answer.duties)
        await asyncio.sleep(options.heartbeat_seconds)


@pytest.mark.parametrize("count", [1, 40])
def test_an_idle_worker_makes_little_more_than_a_claim_and_a_heartbeat_an_interval(
    count: int,
) -> None:
    """S15: what it asks does not grow with the number of the others."""

    async def work() -> None:
        store = CountedCalls()
        async with working(store, count):
            await asyncio.sleep(60)
            before = store.calls.copy()
            await asyncio.sleep(SECONDS)
            made = store.since(before)
        assert made.pop("claim_tasks") <= count * (SECONDS / POLL + 1)
        assert made.pop("heartbeat") <= count * (SECONDS / HEARTBEAT + 1)
        assert made.total() <= 0.3 * count * SECONDS, made

    passing_time(work)


@pytest.mark.parametrize("count", [16, 100])
@pytest.mark.parametrize("due", [1, 1_000])
def test_a_queue_that_opens_costs_a_claim_of_each_worker_beyond_those_that_are_full(
    count: int, due: int
) -> None:
    """S15: no herd, whether there is work for all of them or for one.

    The runs take no time here: all are claimed, and wait for a signal, before any time passes.
    """

    async def work() -> None:
        store = CountedCalls()
        async with Client(store=store, app=app) as client, working(store, count):
            await client.queues.pause("default")
            await client.start_many(waiting, range(due))
            await asyncio.sleep(5 * POLL)
            assert (await client.runs.list(states="waiting")).runs == []
            before = store.calls.copy()
            await client.queues.resume("default")
            await asyncio.sleep(POLL / 2)
            made = store.since(before)
            waits = await client.runs.list(states="waiting", limit=due)
        assert len(waits.runs) == due
        assert made["claim_tasks"] <= due / CONCURRENCY + 2 * count

    passing_time(work)
