"""The heartbeat, on a thread and a connection of its own.

User code that blocks the worker's event loop must not look like a dead worker. The thread renews
the leases in one call, sends the details of activities, and brings back what happened to them, and
the database's time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from holdfast.errors import DatabaseError, DatabaseUnavailable
from holdfast.store.port import Store
from holdfast.types import Heartbeat, HintUse, Lease, MinuteCounts, ThreadUse, WorkerInfo
from holdfast.values.loggers import get_logger
from holdfast.values.waits import in_own_thread
from holdfast.worker.agenda import Agenda
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.giving_back import release_free
from holdfast.worker.outage import OUTAGE
from holdfast.worker.statistics import Statistics
from holdfast.worker.workload import Workload

logger = get_logger("holdfast.heartbeat")

_JOIN_SECONDS = 5.0  # the thread is a daemon: a beat over a dead connection ends by itself
_ANSWER_BEATS, _LEAST_ANSWER_SECONDS = 2, 1.5  # an answer that takes longer will not come
_STRAY_BEATS = 4  # a lease that was not renewed for so many heartbeats is not known here


class HeartbeatService:
    """Send a heartbeat every `interval_seconds` until stopped."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        info: WorkerInfo,
        workload: Workload,
        clock: Clock,
        look_at_threads: Callable[[], ThreadUse | None] = lambda: None,
        look_at_hints: Callable[[], HintUse | None] = lambda: None,
        keep_messages: Callable[[Store], Awaitable[None]] | None = None,
        statistics: Statistics | None = None,
        agenda: Agenda | None = None,
        *,
        interval_seconds: float,
        lease_seconds: float,
    ) -> None:
        self._open_store, self._info, self._workload = open_store, info, workload
        self._clock = clock
        self._look_at_threads, self._look_at_hints = look_at_threads, look_at_hints
        self._keep_messages, self._statistics = keep_messages, statistics
        self._agenda = agenda
        self._interval, self._lease_seconds = interval_seconds, lease_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.loop_lag = LoopLag()
        self._answered_at = time.monotonic()  # or when it was started
        self._suspicious_until = -math.inf  # leases may be stray

    @property
    def late_seconds(self) -> float:
        """For how long an answer to a heartbeat is overdue. Safe from any thread."""
        if self._thread is None:
            return 0.0
        return max(time.monotonic() - self._answered_at - self._interval, 0.0)

    async def start(self) -> None:
        """Send heartbeats from now on. Idempotent."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._answered_at = time.monotonic()
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._main, name="holdfast heartbeat", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        """Stop sending heartbeats. Idempotent."""
        await in_own_thread(self.end)

    def end(self) -> None:
        """Stop, and wait for an answer that is under way. Idempotent, for any other thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(_JOIN_SECONDS)

    def suspect(self) -> None:
        """Look for stray leases for a while: an answer of the database was lost, or a connection.

        Safe from any thread.
        """
        self._suspicious_until = time.monotonic() + self._lease_seconds

    def _main(self) -> None:
        # Debug mode would warn of each beat that its event loop was blocked.
        with asyncio.Runner(debug=False) as runner:
            runner.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        store, backoff, failed = self._open_store(), Backoff(limit=self._interval), False
        try:
            while not self._stop.is_set():
                try:
                    await store.open()
                    await self.run_once(store)
                    backoff.reset()
                    if failed:
                        OUTAGE.end(logger)
                    failed, pause = False, self._interval
                except DatabaseError as error:
                    self.suspect()
                    OUTAGE.tell(logger, "heartbeat failed", error)
                    failed, pause = True, backoff.take()
                except Exception:
                    logger.exception("heartbeat failed")
                    pause = self._interval
                self._stop.wait(pause)  # nothing else uses this event loop: it may be blocked
        finally:
            await store.close()

    async def run_once(self, store: Store) -> None:
        """Send one heartbeat; pass the time to the clock, and the answer to the workload."""
        leases, sent = self._workload.leases(), self._clock.local()
        if self._loop is not None:
            self.loop_lag.measure(self._loop)
        answer = await self._beat(store, leases)
        self._answered_at = time.monotonic()
        self._clock.observe(sent, self._clock.local(), answer.now)
        self._workload.renewed(leases)
        if self._agenda is not None:
            self._tell(self._agenda.tell, answer.duties)
        if answer.lost or answer.unread or answer.cancelled:
            self._pass_on(answer, leases)
        if self._keep_messages is not None:
            async with self._in_time():
                await self._keep_messages(store)
        if time.monotonic() < self._suspicious_until:
            async with self._in_time():
                await self._release_strays(store, leases)

    async def _release_strays(self, store: Store, leases: Sequence[Lease]) -> None:
        """Give back what the database has leased to this worker without its knowing."""
        since = _STRAY_BEATS * self._interval
        worker_id = self._info.worker_id
        found = await store.stray_leases(
            worker_id, leases, lease_seconds=self._lease_seconds, since_seconds=since
        )
        strays = [each for each in found if not self._workload.knows(each.run_id, each.key)]
        if strays:
            logger.warning(
                "%d tasks are given back: this worker does not know of its leases", len(strays)
            )
            _, notices = await release_free(store, worker_id, strays)
            await store.notify(notices)

    async def _beat(self, store: Store, leases: list[Lease]) -> Heartbeat:
        """Send a heartbeat."""
        stats = [] if self._statistics is None else self._statistics.take()
        try:
            return await self._send(store, leases, stats)
        except BaseException:
            if self._statistics is not None:
                self._statistics.give_back(stats)
            raise

    async def _send(
        self, store: Store, leases: list[Lease], stats: list[MinuteCounts]
    ) -> Heartbeat:
        use = self._look_at_hints()
        info = msgspec.structs.replace(
            self._info,
            threads=self._look_at_threads(),
            hints=None if use is None else use.works,
            listens=None if use is None else use.listens,
        )
        async with self._in_time():
            return await store.heartbeat(
                info,
                leases,
                lease_seconds=self._lease_seconds,
                interval_seconds=self._interval,
                stats=stats,
                silent_seconds=None if self._agenda is None else self._agenda.silent_seconds,
            )

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        """Limit the time of a call, so that one over a dead connection delays no other."""
        limit = max(_LEAST_ANSWER_SECONDS, _ANSWER_BEATS * self._interval)
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            raise DatabaseUnavailable(f"no answer within {limit:g} s; it is sent again") from None

    def _pass_on(self, answer: Heartbeat, leases: list[Lease]) -> None:
        numbers = {(lease.run_id, lease.key): lease.lease_no for lease in leases}
        for run_id, key in answer.lost:
            self._tell(self._workload.lose, run_id, key, numbers[(run_id, key)])
        for run_id in answer.unread:
            self._tell(self._workload.unread, run_id)
        for run_id, key in answer.cancelled:
            self._tell(self._workload.request_cancel, run_id, key)

    def _tell(self, call: Callable[..., object], *values: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the watchdog gives back
                self._loop.call_soon_threadsafe(call, *values)


class LoopLag:
    """Measures how long an event loop takes to begin a call that another thread sends it.

    It is more than an instant if code blocks the loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, 0.0
        self._sent_at: float | None = None  # of a call that the loop has not got to

    def measure(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send a call through the loop, unless one is under way. Safe from any thread."""
        if self._sent_at is None:
            self._sent_at = self._clock()
            with suppress(RuntimeError):  # the loop is closed: the worker has stopped
                loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        if self._sent_at is not None:
            self._last, self._sent_at = self._clock() - self._sent_at, None

    @property
    def seconds(self) -> float:
        """How long the last call took; longer if one is under way for longer. From any thread."""
        sent_at = self._sent_at
        return self._last if sent_at is None else max(self._last, self._clock() - sent_at)
