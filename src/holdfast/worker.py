"""The worker: claims runs, drives them, and keeps their leases. Wiring only.

```
claimer ──tasks──▶ dispatcher ──▶ drivers ──parts──▶ committer ──▶ store
   ▲                   │  ▲            │                   │
   └──── room, due ────┘  └── reader ──┘      notifier ◀───┘
heartbeat (own thread): leases out, news in        maintenance: deadlines, dead workers
```
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec

from holdfast._version import __version__
from holdfast.definitions.app import App
from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError, DatabaseError
from holdfast.ids import uuid7
from holdfast.runtime.cache import TurnCache
from holdfast.runtime.clock import Clock, EngineClock
from holdfast.runtime.committer import Committer
from holdfast.runtime.dispatcher import Dispatcher
from holdfast.runtime.execution import StepRunner
from holdfast.runtime.reader import LogReader
from holdfast.services.claimer import Claimer
from holdfast.services.heartbeat import HeartbeatService
from holdfast.services.maintenance import Maintenance
from holdfast.store.notifier import Notifier
from holdfast.store.port import WORK_TOPIC, Store, worker_topic
from holdfast.types import Release, WorkerInfo

STEP_THREADS = "holdfast-step"  # the beginning of the names of threads that run steps

logger = logging.getLogger("holdfast.worker")

_CLOCK_SAMPLES = 3  # the first also prepares the question; the clock keeps the sharpest


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Durations are seconds.

    `queues` empty: the queues of the app's workflows. `concurrency` bounds the runs held at
    once, `threads` the sync steps that run at once, `cache` the suspended runs kept in memory.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 200
    threads: int = 32
    cache: int = 1000
    grace: float = 30.0
    lease: float = 30.0
    heartbeat: float = 2.0
    silent: float = 8.0
    poll: float = 2.0
    maintenance: float = 4.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "threads", "lease", "heartbeat", "poll", "maintenance"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"a worker's {name} must be more than 0")
        if self.lease < 3 * self.heartbeat:
            raise ConfigurationError(
                f"a lease of {self.lease:g} s is too short for a heartbeat every "
                f"{self.heartbeat:g} s: it should last for three"
            )


class Worker:
    """One worker process's share of the engine.

    ```python
    worker = Worker(app, store)
    await worker.start()
    ...
    await worker.stop(grace="30s")
    ```
    """

    def __init__(
        self,
        app: App,
        store: Store,
        options: WorkerOptions | None = None,
        *,
        heartbeat_store: Callable[[], Store] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`heartbeat_store` makes the store of the heartbeat's thread; None: no heartbeat."""
        self.options = options = options or WorkerOptions()
        self.info = info = _introduce(app, options)
        self.worker_id = info.worker_id
        self._store, self._clock = store, (clock := clock or EngineClock())
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix=STEP_THREADS)
        self._notifier = Notifier(store.notify)
        self._committer = Committer(store, self.worker_id, clock, self._notifier.submit)
        self._reader = LogReader(store)
        self._dispatcher = Dispatcher(
            app,
            clock,
            self._committer,
            StepRunner(self._threads, clock),
            self._reader,
            TurnCache(options.cache),
            concurrency=options.concurrency,
            release=self._release,
            capacity_changed=lambda: self._claimer.room(),
            due=lambda at: self._claimer.due_at(at),
        )
        self._claimer = Claimer(
            store,
            self.worker_id,
            info.queues,
            info.handlers,
            self._dispatcher,
            clock,
            self._notifier.submit,
            lambda at: self._maintenance.due_at(at),
            concurrency=options.concurrency,
            lease_seconds=options.lease,
            poll_seconds=options.poll,
        )
        self._maintenance = Maintenance(
            store,
            clock,
            self._notifier.submit,
            interval_seconds=options.maintenance,
            silent_seconds=options.silent,
        )
        self._heartbeat = heartbeat_store and HeartbeatService(
            heartbeat_store,
            self.info,
            self._dispatcher,
            self._entered,
            interval_seconds=options.heartbeat,
            lease_seconds=options.lease,
        )
        self._listening: list[Callable[[], Awaitable[None]]] = []
        self._releases: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the store, sign on, and begin to claim. Idempotent."""
        if self._listening:
            return
        await self._store.open()
        for _ in range(_CLOCK_SAMPLES):
            sent = self._clock.local()
            now = await self._store.now()
            self._clock.observe(sent, self._clock.local(), now)
        await self._store.heartbeat(self.info, [], lease_seconds=self.options.lease)
        self._listening = [
            await self._store.listen(WORK_TOPIC, self._work_arrived),
            await self._store.listen(worker_topic(self.worker_id), self._news_arrived),
        ]
        if self._heartbeat is not None:
            await self._heartbeat.start()
        await self._maintenance.start()
        await self._claimer.start()

    async def stop(self, grace: Duration | None = None) -> None:
        """Drain: no new claims, running steps get the grace period, the rest is released.

        Idempotent. `hurry` ends the grace period of a drain under way.
        """
        grace_seconds = self.options.grace if grace is None else seconds(grace)
        if not self._listening:
            return
        listening, self._listening = self._listening, []
        await self._claimer.stop()
        releases = await self._dispatcher.drain(grace_seconds)
        await self._maintenance.stop()
        await self._reader.stop()
        await self._gently(self._settle(releases))
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        await self._committer.stop()
        for unlisten in listening:
            await self._gently(unlisten())
        await self._gently(self._store.remove_worker(self.worker_id))
        await self._notifier.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def held(self) -> int:
        """How many runs this worker holds now."""
        return self._dispatcher.held

    @property
    def executing(self) -> bool:
        """Say whether a step runs now."""
        return self._dispatcher.executing

    @property
    def busy(self) -> bool:
        """Say whether anything is under way that goes on without the passing of time."""
        return (
            self._dispatcher.busy
            or not self._committer.idle
            or not self._claimer.idle
            or bool(self._releases)
        )

    async def maintain(self) -> None:
        """Look for deadlines and dead workers now."""
        await self._maintenance.run_once()

    def hurry(self) -> None:
        """End the grace period of a drain under way."""
        self._dispatcher.hurry()

    def _work_arrived(self, queue: str) -> None:
        if not queue or queue in self.info.queues:
            self._claimer.wake()

    def _news_arrived(self, run_id: str) -> None:
        if run_id:
            self._dispatcher.news(UUID(run_id))
        else:  # wake-ups may have been missed while the connection was away
            for lease in self._dispatcher.leases():
                self._dispatcher.news(lease.run_id)

    def _entered(self) -> str | None:
        driver = self._dispatcher.entered
        return None if driver is None else f"{driver.turn.info.name} {driver.run_id}"

    def _release(self, release: Release) -> None:
        task = asyncio.create_task(self._gently(self._release_all([release])))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _settle(self, releases: list[Release]) -> None:
        """Let commits in flight be answered, then release what is left."""
        for _ in range(200):
            if self._committer.idle:
                break
            await asyncio.sleep(0.01)
        if releases:
            await self._release_all(releases)
        if self._releases:
            await asyncio.wait(self._releases)

    async def _release_all(self, releases: list[Release]) -> None:
        self._notifier.submit(await self._store.release_tasks(self.worker_id, releases))

    @staticmethod
    async def _gently(work: Awaitable[None]) -> None:
        """Do what is good to do; without it the leases run out by themselves."""
        try:
            await work
        except DatabaseError as error:
            logger.warning("left to the leases' end: %s", error)


def _introduce(app: App, options: WorkerOptions) -> WorkerInfo:
    """Say who this worker is, under an id that no other has.

    Raises ConfigurationError for an app without workflows.
    """
    if not app.handlers():
        raise ConfigurationError(f"the app {app.name!r} has no workflow to run")
    hostname, pid = socket.gethostname(), os.getpid()
    return WorkerInfo(
        worker_id=f"{hostname[:40]}-{pid}-{uuid7().hex[-8:]}",
        hostname=hostname,
        pid=pid,
        queues=options.queues or tuple(sorted({w.queue for w in app.workflows.values()})),
        handlers=app.handlers(),
        concurrency=options.concurrency,
        holdfast_version=__version__,
    )
