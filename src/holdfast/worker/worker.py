"""The worker: claims runs, drives them, and keeps their leases. Wiring only.

```
                      ┌▶ dispatcher ──▶ drivers ──parts──▶ committer ─┐
claimer ─▶ workload ──┤        └──── reader ────┘                      ├─▶ store
   ▲           │      └▶ activity executor ──────ends──▶ reporter ─────┘
   └─ room, due┘                                         notifier ◀── notices
resources: opened before all, closed after the drain
heartbeat (own thread): leases out, news in        maintenance: deadlines, dead workers
watchdog (own thread): gives back what held code would starve
```
"""

from __future__ import annotations

import asyncio
import contextlib
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
from holdfast.errors import ConfigurationError
from holdfast.ids import uuid7
from holdfast.runtime.turn.checking import Check
from holdfast.store.notifier import Notifier
from holdfast.store.port import WORK_TOPIC, Store, worker_topic
from holdfast.types import Lease, Release, ThreadUse, WorkerInfo
from holdfast.worker.activities import ActivityExecutor
from holdfast.worker.attempts import Launcher
from holdfast.worker.claimer import Claimer
from holdfast.worker.clock import Clock, EngineClock
from holdfast.worker.committer import Committer
from holdfast.worker.heartbeat import HeartbeatService
from holdfast.worker.last_calls import LastCalls
from holdfast.worker.log_reader import LogReader
from holdfast.worker.reporter import Reporter
from holdfast.worker.resources import Resources
from holdfast.worker.runs import Dispatcher
from holdfast.worker.services.app_sign_on import AppSignOn
from holdfast.worker.services.maintenance import Maintenance
from holdfast.worker.steps import StepRunner
from holdfast.worker.threads import ThreadBook, claimable_by_threads
from holdfast.worker.turn_cache import TurnCache
from holdfast.worker.watchdog import Process, Watchdog
from holdfast.worker.workload import Workload

STEP_THREADS = "holdfast-step"  # begins the names of threads that run steps and activities

logger = logging.getLogger("holdfast.worker")

_POSITIVE = (
    "concurrency",
    "threads",
    "lease_seconds",
    "heartbeat_seconds",
    "poll_seconds",
    "maintenance_seconds",
)
_CLEAN_UP_SECONDS = 5.0  # for async steps and activities that the drain has stopped
_SETTLE_SECONDS = 2.0  # for the answers to what is in flight after the drain
_CLOCK_SAMPLES = 3  # the first also prepares the question; the clock keeps the sharpest


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works.

    `queues` empty: the queues of the app's workflows and activities. `concurrency` bounds the
    runs and activities held at once, `threads` the sync steps and activities that run at once,
    `cache` the suspended runs kept in memory. With `check`, which is for tests and development,
    none is kept: each run is replayed whenever it wakes and before it ends, and its code is watched
    for calls of clocks and chance, which are warned of or refused.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 200
    threads: int = 32
    cache: int = 1000
    grace_seconds: float = 30.0
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 2.0
    silent_seconds: float = 8.0
    poll_seconds: float = 2.0
    maintenance_seconds: float = 4.0
    check: Check = "no"

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"a worker's {name} must be more than 0")
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ConfigurationError(
                f"a lease of {self.lease_seconds:g} s is too short for a heartbeat every "
                f"{self.heartbeat_seconds:g} s: it should last for three"
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
        origin: str | None = None,
        process: Process | None = None,
    ) -> None:
        """`heartbeat_store` makes the stores of the heartbeat's and the watchdog's threads; None:
        there are none. `process` may end the process for the watchdog.

        `origin` says where the app's code lies, where an app of this name from elsewhere is not
        to share the database: `start` refuses it then.
        """
        self.options = options = options or WorkerOptions()
        self.info = info = _introduce(app, options)
        self.worker_id = info.worker_id
        self._store, self._clock = store, (clock := clock or EngineClock())
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix=STEP_THREADS)
        self._notifier = Notifier(store.notify)
        self._committer = Committer(store, self.worker_id, clock, self._notifier.submit)
        self._reporter = Reporter(store, self.worker_id, clock, self._notifier.submit)
        self._reader = LogReader(store)
        self._resources = Resources(app.registry.lifespans)
        self._workload = self._take_work(app)
        self._app_sign_on = AppSignOn(store, app, info.queues, origin)
        self._claimer = Claimer(
            store,
            self.worker_id,
            info.queues,
            info.handlers,
            self._workload,
            clock,
            self._notifier.submit,
            lambda at: self._maintenance.due_at(at),
            claimable_by_threads(
                self._launcher.book,
                info.handlers,
                {each.handler for each in app.activities.values() if not each.is_async},
                lambda: self._claimer.wake(),
            ),
            concurrency=options.concurrency,
            lease_seconds=options.lease_seconds,
            poll_seconds=options.poll_seconds,
        )
        self._maintenance = Maintenance(
            store,
            self.worker_id,
            clock,
            self._notifier.submit,
            info.handlers,
            self._app_sign_on.adopt,
            interval_seconds=options.maintenance_seconds,
            silent_seconds=options.silent_seconds,
        )
        self._heartbeat = heartbeat_store and HeartbeatService(
            heartbeat_store,
            self.info,
            self._workload,
            self._look_at_threads,
            interval_seconds=options.heartbeat_seconds,
            lease_seconds=options.lease_seconds,
        )
        self._watchdog = heartbeat_store and Watchdog(
            self.worker_id,
            heartbeat_store,
            self._workload,
            process or Process(),
            grace_seconds=options.grace_seconds,
        )
        self._listening: list[Callable[[], Awaitable[None]]] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._last_calls = LastCalls()

    def _take_work(self, app: App) -> Workload:
        """Wire those who hold what is claimed: runs with their steps, and activities."""
        book = ThreadBook(self.options.threads)
        launcher = self._launcher = Launcher(self._threads, self._resources.values, book)
        self._dispatcher = Dispatcher(
            app,
            self._clock,
            self._committer,
            StepRunner(launcher, self._clock, app.registry.layers.steps),
            self._reader,
            TurnCache(self.options.cache if self.options.check == "no" else 0),
            self._notifier.submit,
            release=self._release,
            capacity_changed=lambda: self._claimer.room(),
            due=lambda at: self._claimer.due_at(at),
            check=self.options.check,
        )
        activities = ActivityExecutor(
            app.activities,
            app.registry.layers.activities,
            self._clock,
            launcher,
            self._reporter,
            release=self._release,
            capacity_changed=lambda: self._claimer.room(),
        )
        return Workload(self._dispatcher, activities, self.options.concurrency)

    async def start(self) -> None:
        """Open the store and the app's lifespans, sign on, and begin to claim. Idempotent.

        Raises ConfigurationError for a lifespan that cannot be opened, and for an app whose name
        another one has that lies elsewhere.
        """
        if self._listening:
            return
        await self._store.open()
        await self._resources.start()
        try:
            await self._sign_on()
        except BaseException:
            await self._resources.stop()
            raise
        if self._heartbeat is not None:
            await self._heartbeat.start()
        if self._watchdog is not None:
            self._watchdog.start()
        await self._maintenance.start()
        await self._claimer.start()

    async def _sign_on(self) -> None:
        """Read the clock, become known, and listen."""
        for _ in range(_CLOCK_SAMPLES):
            sent = self._clock.local()
            now = await self._store.now()
            self._clock.observe(sent, self._clock.local(), now)
        await self._app_sign_on.run()
        await self._beat([])
        self._listening = [
            await self._store.listen(WORK_TOPIC, self._work_arrived),
            await self._store.listen(worker_topic(self.worker_id), self._news_arrived),
        ]

    async def stop(self, grace: Duration | None = None) -> None:
        """Drain: no new claims, what runs gets the grace period, the rest is released.

        Then the lifespans are closed. Idempotent. `hurry` ends the grace period of a drain
        under way.
        """
        grace_seconds = self.options.grace_seconds if grace is None else seconds(grace)
        if not self._listening:
            return
        listening, self._listening = self._listening, []
        self.expect_stop(grace_seconds)
        await self._claimer.stop()
        releases = await self._workload.drain(grace_seconds, self._save)
        self._last_calls.begin_farewell()
        await self._maintenance.stop()
        await self._reader.stop()
        await asyncio.gather(self._settle(releases), self._stop_heartbeat())
        await self._committer.stop()
        await self._reporter.stop()
        await self._launcher.settle(_CLEAN_UP_SECONDS)
        await self._resources.stop()
        for unlisten in listening:
            await self._last_calls.make(unlisten)
        await self._last_calls.make(lambda: self._store.remove_worker(self.worker_id))
        await self._notifier.stop()
        if self._watchdog is not None:
            await self._watchdog.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def held(self) -> int:
        """How many runs and activities this worker holds now."""
        return self._workload.held

    @property
    def executing(self) -> bool:
        """Say whether a step or an activity runs now."""
        return self._workload.executing

    @property
    def busy(self) -> bool:
        """Say whether anything is under way that goes on without the passing of time."""
        return (
            self._workload.busy
            or not self._committer.idle
            or not self._claimer.idle
            or not self._notifier.idle
            or bool(self._releases)
        )

    async def maintain(self) -> None:
        """Look for deadlines and dead workers now."""
        await self._maintenance.run_once()

    def hurry(self) -> None:
        """End the grace period of a drain under way."""
        self.expect_stop(0)
        self._workload.hurry()

    def expect_stop(self, grace_seconds: float) -> None:
        """Say that `stop` will be called; safe in a signal handler and in any thread.

        Where user code holds the event loop, `stop` would never run. The watchdog gives back what
        the worker holds then, after the grace period.
        """
        if self._watchdog is not None:
            self._watchdog.expect_end(grace_seconds)

    def _look_at_threads(self) -> ThreadUse | None:
        """Warn of attempts that wait for a thread, and return how threads are used."""
        self._launcher.book.warn()
        return self._launcher.book.use()

    def _work_arrived(self, queue: str) -> None:
        if not queue or queue in self.info.queues:
            self._claimer.wake()

    def _news_arrived(self, payload: str) -> None:
        run_id, _, key = payload.partition(" ")
        if key:
            self._workload.call_off(UUID(run_id), key)
        elif run_id:
            self._workload.news(UUID(run_id))
        else:  # wake-ups may have been missed while the connection was away
            self._workload.missed()

    def _release(self, release: Release) -> None:
        task = asyncio.create_task(self._last_calls.make(lambda: self._release_all([release])))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _settle(self, releases: list[Release]) -> None:
        """Let commits and reports in flight be answered, then release what is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await asyncio.gather(self._committer.settle(), self._reporter.settle())
        if releases:
            await self._last_calls.make(lambda: self._release_all(releases))
        if self._releases:
            await asyncio.wait(self._releases)

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.stop()

    async def _save(self, leases: list[Lease]) -> None:
        """Record what activities said last, for those who go on with them."""
        await self._last_calls.make(lambda: self._beat(leases))

    async def _beat(self, leases: list[Lease]) -> None:
        await self._store.heartbeat(
            self.info,
            leases,
            lease_seconds=self.options.lease_seconds,
            interval_seconds=self.options.heartbeat_seconds,
        )

    async def _release_all(self, releases: list[Release]) -> None:
        self._notifier.submit(await self._store.release_tasks(self.worker_id, releases))


def _introduce(app: App, options: WorkerOptions) -> WorkerInfo:
    """Say who this worker is, under an id that no other has.

    Raises ConfigurationError for an app that has nothing to run.
    """
    if not app.handlers():
        raise ConfigurationError(f"the app {app.name!r} has no workflow to run, and no activity")
    hostname, pid = socket.gethostname(), os.getpid()
    return WorkerInfo(
        worker_id=f"{hostname[:40]}-{pid}-{uuid7().hex[-8:]}",
        hostname=hostname,
        pid=pid,
        queues=options.queues or app.queues(),
        handlers=app.handlers(),
        concurrency=options.concurrency,
        holdfast_version=__version__,
    )
