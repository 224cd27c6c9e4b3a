"""The worker: claims runs and activities, drives them, and keeps their leases. Wiring only.

```
        ┌▶ runs ──▶ drivers ──parts──▶ committer ─┐
claimer ┤    └──── log reader                     ├─▶ store
   ▲    ├▶ activities ──────ends──▶ reporter ─────┤
   │    └▶ steps of flows ──ends──▶ reporter ─────┘
   └─ room, due_at ─ all of them          notifier ◀── notices
workload: all of them as one, for heartbeat, watchdog and drain
resources: opened before all else, closed after the drain
heartbeat (own thread): renews leases, and tells the workload what happened to them
watchdog (own thread): gives leases back if code blocks the event loop
consumers: receive messages from queues, by themselves, and call functions with them
duties: the services, one duty each, such as deadlines and dead workers
```

Each part is given the parts that it calls, so it is made after them. The claimer is the exception:
it is given the parts for which it claims when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

from holdfast._version import __version__
from holdfast.definitions.app import App
from holdfast.definitions.entity_access import ACCESS, access_to
from holdfast.errors import ConfigurationError
from holdfast.payloads import Payloads, with_payloads
from holdfast.store.port import (
    DELIVERIES_TOPIC,
    FORWARDS_TOPIC,
    SCHEDULES_TOPIC,
    WORK_TOPIC,
    Store,
    worker_topic,
)
from holdfast.store.shared_calls import Notifier
from holdfast.types import Heartbeat, Lease, Release, WorkerInfo
from holdfast.values.durations import Duration, seconds
from holdfast.values.numbers import is_a
from holdfast.values.retention import max_retention_seconds
from holdfast.values.waits import to_the_end
from holdfast.worker.activities import Activities, Reporter
from holdfast.worker.agenda import Agenda
from holdfast.worker.attempts import Launcher, StepRunner
from holdfast.worker.batches import Batches
from holdfast.worker.claimer import Claimable, Claimer
from holdfast.worker.clock import Clock, EngineClock
from holdfast.worker.consumers import Consumers
from holdfast.worker.duties import Duties
from holdfast.worker.fitting import Fitting
from holdfast.worker.heartbeat import HeartbeatService
from holdfast.worker.hinted_claimer import HintedClaimer
from holdfast.worker.late_flows import LateFlows
from holdfast.worker.log_reader import LogReader
from holdfast.worker.observing import Observer, Observing, WorkerLoad
from holdfast.worker.options import WorkerOptions, given_options
from holdfast.worker.recording import Committer
from holdfast.worker.releases import LastCalls, Releases
from holdfast.worker.resources import Resources
from holdfast.worker.run_logs import RunLogs
from holdfast.worker.runs import Runs, TurnCache
from holdfast.worker.services.service import ServiceContext
from holdfast.worker.shard import Shard, is_home
from holdfast.worker.statistics import Statistics
from holdfast.worker.step_tasks import StepReporter, StepTasks
from holdfast.worker.streams import Streams
from holdfast.worker.threads import (
    STEP_THREADS,
    ThreadBook,
    claimable_by_threads,
    handlers_in_threads,
)
from holdfast.worker.tracer import Tracer
from holdfast.worker.transactions import Transactions
from holdfast.worker.watchdog import Process, Watchdog
from holdfast.worker.workload import Workload

_FLUSH_SECONDS = 2.0  # for the answers to calls in flight after the drain
_LEFT_SECONDS = 1.0  # within this time a stop begins if all tasks of the loop are cancelled
_CLOCK_SAMPLES = 3  # the first also prepares the query; the clock uses the best one


class Worker:
    """One worker process's share of the engine.

    ```python
    worker = Worker(app, store)
    await worker.start()
    ...
    await worker.stop(grace="30s")
    ```
    """

    _clean_up_seconds = 5.0  # for async steps and activities that the drain has cancelled
    _launcher_type: ClassVar[type[Launcher]] = Launcher

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
        tracer: Tracer | None = None,
        observers: Sequence[Observer] = (),
        shard: Shard | None = None,
    ) -> None:
        """`heartbeat_store` makes the stores for the threads of the heartbeat and the watchdog;
        with None it has neither thread, its leases run out, and it takes over nothing from workers
        that died: for tests alone. `process` lets the watchdog end it, and `tracer` makes spans.

        `origin` says where the app's code is. With it, `start` refuses an app if the database has
        another app of the same name from another origin. `observers` are told what the worker does,
        `shard` says which of several databases `store` is.
        """
        self.options = options = given_options(options)
        stored, store = store, with_payloads(store, is_a(App, app, "app").payloads)
        max_retention_seconds()  # a wrong value is refused now, not when a run starts a child
        self.info = info = _introduce(app, options, shard)
        self.worker_id = info.worker_id
        self._store, self._clock = store, (clock := clock or EngineClock())
        self._statistics = Statistics(app.name, self._clock.now)
        self._observing = observing = Observing(self._clock.now, self._statistics, *observers)
        self._notifier, self._last_calls, self._shard = Notifier(store.notify), LastCalls(), shard
        notify = self._notifier.submit
        self._releases = Releases(store, info.worker_id, notify, self._last_calls)
        self._reader, self._tracer = LogReader(store), tracer
        self._resources = self._make_resources(app)
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix=STEP_THREADS)
        book = ThreadBook(options.threads, app.registry.layers.threads)
        self._streams = Streams(store, info.worker_id, clock, notify)
        self._launcher = self._make_launcher(app, book)
        self._agenda = Agenda(
            heartbeat_seconds=options.heartbeat_seconds, silent_seconds=options.silent_seconds
        )
        self._duties = self._make_duties(app, stored, origin)
        claimer = self._claimer = self._make_claimer(app, book)
        recorder = (store, info.worker_id, clock, notify, claimer.room.lending)
        self._committer = Committer(*recorder, observing, claimer.suspects, claimer.committed)
        self._reporter = Reporter(*recorder)
        self._steps, runs = self._step_tasks(app), self._runs(app)
        given, beats = (app, store, info, options, clock), heartbeat_store is not None
        self._consumers = Consumers(*given, self._launcher, notify, has_heartbeat=beats)
        tasks = (runs, self._activities(app), self._steps, self._late_flows(app))
        self._workload = Workload(*tasks, self._consumers)
        self._run_logs = self._make_run_logs(runs) if options.run_logs else None
        self._heartbeat: HeartbeatService | None = None
        self._watchdog: Watchdog | None = None
        if heartbeat_store is not None:
            make_store = partial(_encoding_store, heartbeat_store, app.payloads)
            self._heartbeat = self._make_heartbeat(make_store, book)
            self._claimer.leases_in_doubt = self._heartbeat.suspect
            self._watchdog = self._make_watchdog(make_store, process or Process(), self._heartbeat)
        self._listening: list[Callable[[], Awaitable[None]]] = []
        self._unlisten = self._listening  # what a stop still has to call
        self._stopping: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()  # held by a start: what comes meanwhile waits for its end

    def _make_resources(self, app: App) -> Resources:
        """Return what steps are given: through it they reach what is in any shard."""
        around, self._around = self._store, self._notifier
        if self._shard is not None:
            around = with_payloads(self._shard.store, app.payloads)
            self._around = Notifier(around.notify)
        own = {ACCESS: access_to(around, self._around.submit)}
        return Resources(app.registry.lifespans, own)

    def _make_launcher(self, app: App, book: ThreadBook) -> Launcher:
        seals = app.payloads is not None
        self._transactions = Transactions(
            self._store, self.worker_id, self._clock, self.options, seals=seals
        )
        return self._launcher_type(
            self._threads,
            self._resources.values,
            book,
            self._tracer,
            self._observing,
            self._streams,
            self._transactions.begin,
        )

    def _make_duties(self, app: App, store: Store, origin: str | None) -> Duties:
        context = ServiceContext(
            store,
            self.worker_id,
            self._clock,
            self._notifier.submit,
            self.options.maintenance_seconds,
            self._observing,
            self._agenda,
        )
        return Duties(context, app, self.info, self.options, origin, self._shard)

    def _make_claimer(self, app: App, book: ThreadBook) -> Claimer:
        info = self.info
        hints = self._store.read_hints(info.worker_id, info.queues, info.handlers)
        by_threads = claimable_by_threads(book, info.handlers, handlers_in_threads(app))
        return (Claimer if hints is None else partial(HintedClaimer, hints))(
            self._store,
            info,
            self.options,
            self._clock,
            self._notifier.submit,
            self._duties.deadlines.due_at,
            self._limit_claims(by_threads),
            self._observing,
        )

    def _runs(self, app: App) -> Runs:
        return Runs(
            app,
            self._clock,
            self._committer,
            StepRunner(self._launcher, self._clock, app.registry.layers.steps),
            self._reader,
            TurnCache(self.options.cache if self.options.check == "no" else 0),
            self._notifier.submit,
            agenda=self._agenda,
            release=self._releases.submit,
            room=self._claimer.room,
            due_at=self._claimer.due_at,
            check=self.options.check,
            tracer=self._tracer,
            observing=self._observing,
        )

    def _make_run_logs(self, runs: Runs) -> RunLogs:
        notify = self._notifier.submit
        return RunLogs(self._store, self._clock, notify, self._streams, runs.knows)

    def _activities(self, app: App) -> Activities:
        layers = app.registry.layers.activities
        return Activities(
            app.activities,
            layers,
            self._clock,
            self._launcher,
            self._reporter,
            batching=Batches(self._launcher, layers, self._clock).element,
            release=self._releases.submit,
            room=self._claimer.room,
        )

    def _late_flows(self, app: App) -> LateFlows:
        return LateFlows(
            self._store,
            self.worker_id,
            {flow.handler for flow in app.flows.values()},
            self._notifier.submit,
            self._releases.submit,
            self._clock.now,
        )

    def _step_tasks(self, app: App) -> StepTasks:
        reporter = partial(
            StepReporter,
            self._store,
            self.worker_id,
            self._clock,
            self._notifier.submit,
            self._claimer.room.lending,
            self._claimer.taker,
        )
        return StepTasks(
            app.flows.values(),
            app.registry.layers.steps,
            self._clock,
            self._launcher,
            reporter,
            has_fitted=Fitting(self._store, self.worker_id, self._clock).has_fitted,
            release=self._releases.submit,
            room=self._claimer.room,
        )

    def _make_heartbeat(
        self, make_store: Callable[[], Store], book: ThreadBook
    ) -> HeartbeatService:
        return HeartbeatService(
            make_store,
            self.info,
            self._workload,
            self._clock,
            book.look,
            self._store.hint_use,
            self._consumers.extend,
            self._statistics,
            self._agenda,
            interval_seconds=self.options.heartbeat_seconds,
            lease_seconds=self.options.lease_seconds,
        )

    def _make_watchdog(
        self, make_store: Callable[[], Store], process: Process, heartbeat: HeartbeatService
    ) -> Watchdog:
        return Watchdog(
            self.worker_id,
            make_store,
            self._workload,
            process,
            end_heartbeat=heartbeat.end,
            executing=lambda: self.executing,
            is_left=self._is_left,
            grace_seconds=self.options.grace_seconds,
        )

    def _is_left(self) -> bool:
        """Return True if all tasks of the loop were cancelled, and no stop is under way.

        One that was cut off, or has failed, is not. Safe from any thread.
        """
        if self._stopping is not None:
            return self._stopping.done()  # a watchdog of a stop that was made has ended
        waits = self.options.grace_seconds if self._launcher.book.busy else _LEFT_SECONDS
        return self._launcher.loop_end.seconds > waits

    async def declare(self) -> None:
        """Write what the app's code declares into the open store, before the worker starts.

        Raises ConfigurationError as `start` does.
        """
        await self._duties.sign_on()

    async def start(self) -> None:
        """Open the store and the app's lifespans, sign on, and claim from now on. Idempotent.

        Raises ConfigurationError if a lifespan cannot be opened, if the database has another app of
        the same name from another origin, if a flow has another shape than the database has for its
        version, or if the worker was stopped: make another one.
        """
        async with self._starting:
            if self._stopping is not None:
                raise ConfigurationError(
                    f"worker {self.worker_id} was stopped, and does not start again: make another "
                    "Worker"
                )
            if not self._listening:
                await self._start()

    async def _start(self) -> None:
        await self._store.open()
        if self._shard is not None:
            await self._shard.store.open()
        self._streams.start()
        if self._tracer is not None:
            await self._tracer.start(self._store, self._clock.now)
        await self._resources.start()
        try:
            await self._sign_on()
        except BaseException:
            await to_the_end(self._sign_off(), self._resources.end_grace)
            raise
        if self._heartbeat is not None:
            await self._heartbeat.start()
        if self._watchdog is not None:
            self._watchdog.start()
        self._launcher.loop_end.start()
        await self._start_services()
        if self._run_logs is not None:
            self._run_logs.start()
        self._claimer.holds = self._workload.knows
        await self._claimer.start(self._workload.takers)

    async def _sign_on(self) -> None:
        """Read the clock, enter the app and the worker in the database, and listen."""
        for _ in range(_CLOCK_SAMPLES):
            sent = self._clock.local()
            now = await self._store.now()
            self._clock.observe(sent, self._clock.local(), now)
        await self._duties.sign_on()
        await self._enter()
        heard: dict[str, Callable[[str], None]] = {
            WORK_TOPIC: self._claimer.notified,
            SCHEDULES_TOPIC: self._duties.scheduler.notified,
            DELIVERIES_TOPIC: self._duties.deliverer.notified,
            worker_topic(self.worker_id): self._workload.notified,
        }
        if (forwarder := self._duties.forwarder) is not None:
            heard[FORWARDS_TOPIC] = forwarder.notified
        for topic, notified in heard.items():
            self._listening.append(await self._store.listen(topic, notified))

    async def _sign_off(self) -> None:
        """End what a start has begun that failed or was cut off."""
        listening, self._listening = self._listening, []
        listening.append(partial(self._store.remove_worker, self.worker_id))
        for call in listening:
            await self._last_calls.make(call, "a start that failed was not undone as a whole")
        await self._resources.stop()

    async def _enter(self) -> None:
        """Enter the worker in the database, and hear which duties may have something to do."""
        answer = await self._beat([], silent_seconds=self.options.silent_seconds)
        self._agenda.tell(answer.duties)

    async def _start_services(self) -> None:
        await self._duties.start()
        await self._consumers.start()

    def _limit_claims(self, claimable: Claimable | None) -> Claimable | None:
        """Return what limits the claims, given how the worker's threads limit them."""
        return claimable

    async def stop(self, grace: Duration | None = None) -> None:
        """Drain: stop claiming, wait for running work for the grace period, release the rest.

        Then the lifespans are closed. `end_grace` ends the grace period of a drain under way, and
        so does a cancellation, which is raised when all is done. Idempotent; after a stop that was
        cut off, because all tasks of the loop were cancelled, it does what that one has not done.
        A start that is under way ends first.
        """
        grace_seconds = self.options.grace_seconds if grace is None else seconds(grace)
        if self._starting.locked():
            await to_the_end(self._stop_started(grace_seconds), self.end_grace)
        elif self._listening:
            self.expect_stop(grace_seconds)
            self._unlisten, self._listening = self._listening, []
            self._stopping = asyncio.create_task(self._stop(grace_seconds))
        elif self._stopping is not None and self._stopping.cancelling():
            self._stopping = asyncio.create_task(self._stop_after(self._stopping))
        if self._stopping is not None:
            await to_the_end(self._stopping, self.end_grace)

    async def _stop_started(self, grace_seconds: float) -> None:
        async with self._starting:
            pass
        await self.stop(grace_seconds)

    async def _stop_after(self, cut_off: asyncio.Task[None]) -> None:
        await asyncio.wait({cut_off})
        await self._stop(0.0)

    async def _stop(self, grace_seconds: float) -> None:
        await self._claimer.stop()
        if self._launcher.loop_end.has_begun() and not self._launcher.book.busy:
            grace_seconds = 0.0  # nothing is left that could end in it
        releases, _ = await asyncio.gather(
            self._workload.drain(grace_seconds, self._save),
            self._consumers.drain(grace_seconds, self._last_calls),
        )
        self._last_calls.begin_farewell()
        await self._duties.stop()
        await self._reader.stop()
        await asyncio.gather(self._flush(releases), self._stop_heartbeat())
        await self._streams.stop()
        if self._run_logs is not None:
            await self._run_logs.stop()
        await self._committer.stop()
        await self._reporter.stop()
        await self._steps.stop()
        await self._launcher.wait_for_cleanup(self._clean_up_seconds)
        await self._launcher.loop_end.stop()
        await self._transactions.close()
        await self._resources.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        for unlisten in self._unlisten:
            await self._last_calls.make(unlisten)
        if self._statistics.waiting:
            await self._last_calls.make(lambda: self._beat([]))
        remove = partial(self._store.remove_worker, self.worker_id)
        ended = self._launcher.loop_end.has_begun()  # with all calls of the loop, a receive too
        await self._last_calls.make(lambda: remove(with_messages=ended))
        await self._notifier.stop()
        if self._shard is not None:
            await self._around.stop()
            await self._shard.store.close()
        if self._watchdog is not None:
            await self._watchdog.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def active(self) -> int:
        """The number of runs and activities that are leased to this worker."""
        return self._claimer.room.taken

    @property
    def load(self) -> WorkerLoad:
        """How full and how late it is. Safe from any thread."""
        beats, tracer = self._heartbeat, self._tracer
        return WorkerLoad(
            self.active,
            self._workload.cached,
            self._launcher.book.use(),
            None if beats is None else beats.late_seconds,
            None if beats is None else beats.loop_lag.seconds,
            None if tracer is None else tracer.dropped,
            self._store.hint_use(),
        )

    @property
    def executing(self) -> bool:
        """True if a step or an activity runs."""
        return self._workload.executing or self._consumers.executing

    @property
    def busy(self) -> bool:
        """True if something is under way that continues without input and without waiting."""
        return (
            self._workload.busy
            or self._consumers.busy
            or not self._committer.idle
            or not self._streams.idle
            or (self._run_logs is not None and not self._run_logs.idle)
            or not self._claimer.idle
            or self._duties.scheduler.busy
            or not self._notifier.idle
            or not self._releases.idle
        )

    async def maintain(self) -> None:
        """Run every service once, now."""
        await self._duties.run_once()

    def end_grace(self) -> None:
        """End the grace period of a drain under way."""
        self.expect_stop(0)
        self._workload.end_grace()
        self._consumers.end_grace()
        self._resources.end_grace()

    def expect_stop(self, grace_seconds: float) -> None:
        """Announce that `stop` will be called. Safe in a signal handler and in any thread.

        If user code blocks the event loop, `stop` never runs. Then the watchdog gives back what the
        worker holds, after the grace period.
        """
        if self._watchdog is not None:
            self._watchdog.expect_end(grace_seconds)

    async def _flush(self, releases: list[Release]) -> None:
        """Wait for the answers to commits and reports in flight, then release the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await asyncio.gather(
                    self._committer.flush(), self._reporter.flush(), self._steps.flush()
                )
        if releases:
            await self._releases.send(releases)
        await self._releases.flush()

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.stop()

    async def _save(self, leases: list[Lease]) -> None:
        """Store the last details of activities, for their next attempts."""
        await self._last_calls.make(lambda: self._beat(leases))

    async def _beat(self, leases: list[Lease], silent_seconds: float | None = None) -> Heartbeat:
        return await self._store.heartbeat(
            self.info,
            leases,
            lease_seconds=self.options.lease_seconds,
            interval_seconds=self.options.heartbeat_seconds,
            stats=self._statistics.take(),
            silent_seconds=silent_seconds,
        )


def _introduce(app: App, options: WorkerOptions, shard: Shard | None) -> WorkerInfo:
    """Return the information with which this worker signs on, with a new worker id.

    Raises ConfigurationError for an app that has nothing to run, or that cannot have shards.
    """
    if shard is not None and app.payloads is not None and app.payloads.large is not None:
        from holdfast.store.shards import NO_OBJECTS

        raise ConfigurationError(NO_OBJECTS)
    if not app.handlers() and not app.consumers:
        raise ConfigurationError(
            f"the app {app.name!r} has no workflow, no activity and no consumer to run"
        )
    hostname, pid = socket.gethostname(), os.getpid()
    return WorkerInfo(
        worker_id=f"{hostname[:40]}-{pid}-{os.urandom(4).hex()}",
        hostname=hostname,
        pid=pid,
        queues=options.queues or app.queues(),
        handlers=app.handlers(),
        concurrency=options.concurrency,
        holdfast_version=__version__,
        consumes=tuple(sorted({each.queue for each in app.consumers.values()}))
        if is_home(shard)
        else (),
    )


def _encoding_store(make_store: Callable[[], Store], payloads: Payloads | None) -> Store:
    """Return a new store that encodes payloads as the app's codec does."""
    return with_payloads(make_store(), payloads)
