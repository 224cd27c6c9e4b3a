"""The watchdog, on a thread of its own: it gives leases back while user code blocks the event loop.

Workflow code that computes or blocks, without an await that waits, holds the worker's thread: no
other run continues, and no signal arrives. In this order the watchdog does the following:

1. After half of the app's `blocking_limit` it warns.
2. After the limit it gives the run back as stuck, with the line that its code executes. It also
   gives back the runs that have no step under way, so that other workers drive them.
3. It gives back everything else, and ends the process if it may: at once if no step runs, else
   after the grace period. A process that it may not end gets the grace period in any case.

It also ends a process that was asked to stop and whose thread does not answer, and gives back what
a worker holds whose event loop was closed, whose tasks were all cancelled, or whose stop was cut
off. Time during which a debugger has stopped the thread, or the whole process was stopped, does not
count: a process at a debugger's prompt ends only if it is asked to stop at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from holdfast.errors import DatabaseError
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger
from holdfast.values.waits import in_own_thread
from holdfast.worker.event_loop import LoopProbe
from holdfast.worker.giving_back import GivenUp, MessageEnds, give_back, give_back_messages
from holdfast.worker.holds import Hold, find_hold, held_too_long
from holdfast.worker.workload import Workload

logger = get_logger("holdfast.worker")

_TICK_SECONDS: Final = 0.25
_ASLEEP: Final = 0.05  # a thread that uses less processor time than this share sleeps, or waits
# A stop is forced if the event loop does not answer for this long. Code outside of workflows, such
# as that of a lifespan, may take longer.
_SILENT_SECONDS: Final = 1.0
_OTHER_SILENT_SECONDS: Final = 5.0
_RELEASE_SECONDS: Final = 5.0  # what takes longer is left: the leases expire by themselves
_JOIN_SECONDS: Final = 2.0 * _RELEASE_SECONDS


class Process:
    """How the watchdog may end the worker's process. By default it may not."""

    can_end: ClassVar[bool] = False

    def end(self) -> None:
        """End the process at once, if it may be ended."""

    @property
    def orphaned(self) -> bool:
        """True if the process that supervises this one is gone."""
        return False


class ThreadClock:
    """Measure how long a thread has worked or slept since the last look.

    Time in which it waited for a processor of a busy machine does not count. A jump of the clock
    means that the whole process or the machine was stopped; it counts as one tick.
    """

    def __init__(self, thread: int) -> None:
        get_clock = getattr(time, "pthread_getcpuclockid", None)  # not on every system
        self._clock: int | None = None if get_clock is None else get_clock(thread)
        self._wall, self._cpu = time.monotonic(), self._processor_time()
        self.passed = 0.0  # all seconds between the last look and the one before

    def spent(self) -> float:
        """Return the seconds since the last look, without those waited for the processor."""
        wall, cpu = time.monotonic(), self._processor_time()
        passed, worked = min(wall - self._wall, 2 * _TICK_SECONDS), cpu - self._cpu
        self.passed = passed
        self._wall, self._cpu = wall, cpu
        if self._clock is None or worked < _ASLEEP * passed:
            return passed
        return min(worked, passed)

    def _processor_time(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


class Watchdog:
    """Watch the thread that starts it, until stopped."""

    def __init__(
        self,
        worker_id: str,
        open_store: Callable[[], Store],
        workload: Workload,
        process: Process,
        *,
        end_heartbeat: Callable[[], None],
        executing: Callable[[], bool],
        is_left: Callable[[], bool],
        grace_seconds: float,
    ) -> None:
        """`executing` returns True while a step, an activity or a consumer runs.

        `is_left` returns True if all tasks of the loop were cancelled, and no stop is under way.
        """
        self._worker_id, self._open_store, self._workload = worker_id, open_store, workload
        self._end_heartbeat, self._executing, self._is_left = end_heartbeat, executing, is_left
        self._process, self._grace_seconds = process, grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._stop = threading.Event()
        self._seen: tuple[int, int] | None = None  # a drain of a workflow loop, and its progress
        self._held = 0.0  # seconds since that progress
        self._ends_at = 0.0  # by the monotonic clock: once a run is given up, all is given back
        self._stage = 0  # 1: has warned, 2: has given up the run, 3: has given back all
        self._stop_within: float | None = None  # seconds; None: not asked to stop
        self._ends_within: float | None = None  # seconds; None: it may work until it is stopped
        self._stop_at_once = False  # asked to stop without a grace period, or for a second time
        self._silent, self._told = 0.0, False  # seconds without an answer; True if that was logged

    def start(self) -> None:
        """Watch this thread, which runs the worker's event loop, from now on. Idempotent."""
        if self._thread is None:
            self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
            self._stop.clear()
            thread = threading.Thread(target=self._main, name="holdfast watchdog", daemon=True)
            self._thread = thread
            thread.start()

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            await in_own_thread(lambda: thread.join(_JOIN_SECONDS))

    def expect_end(self, grace_seconds: float) -> None:
        """Record that the worker was asked to stop. Safe in a signal handler and in any thread."""
        left = self._stop_within
        self._stop_at_once |= grace_seconds <= 0
        self._stop_within = grace_seconds if left is None else min(left, grace_seconds)

    def end_within(self, seconds: float) -> None:
        """Record that the worker's time is over then, whether it was asked to stop or not."""
        self._ends_within = seconds

    def _main(self) -> None:
        assert self._loop is not None, "it was started"
        clock, probe = ThreadClock(self._watched), LoopProbe(self._loop)
        while not self._stop.wait(_TICK_SECONDS):
            if self._loop.is_closed() or self._is_left():
                self._clear_up()
                return
            try:
                self._look(clock.spent(), clock.passed, answers=probe.answers())
            except Exception:
                logger.exception("the watchdog failed; it tries again")

    def _look(self, spent: float, passed: float, *, answers: bool) -> None:
        if self._process.orphaned:
            self.expect_end(self._grace_seconds)
        if self._ends_within is not None:
            self._ends_within -= passed
            if self._ends_within <= 0:
                self.expect_end(0)
        if self._stop_within is not None:
            self._stop_within -= passed  # in real time, as the caller of the stop counts
        if answers:
            self._silent, self._told = 0.0, False
            self._begin_hold(None)
            return
        hold = find_hold(self._watched)
        self._silent += spent
        self._watch_code(hold, spent)
        if self._stop_within is not None:
            self._watch_stop(hold, self._stop_within)

    # Code that holds the thread

    def _begin_hold(self, seen: tuple[int, int] | None) -> None:
        if self._stage > 1:
            logger.warning(
                "the event loop is free again after about %.0f s; what was given back belongs to "
                "other workers",
                self._held,
            )
        self._seen, self._held, self._stage = seen, 0.0, 0

    def _watch_code(self, hold: Hold, spent: float) -> None:
        loop = hold.loop
        seen = None if loop is None or hold.debugged else (id(loop), loop.progress)
        if seen is None or seen != self._seen:
            self._begin_hold(seen)
            return
        assert loop is not None, "a drain has a loop"
        self._held += spent
        limit = loop.limit_seconds
        if self._stage == 0 and self._held >= limit / 2:
            self._stage = 1
            logger.warning(
                "%s has held the event loop for %.1f s without an await that waits, at %s. Move "
                "the work into a step; after %g s the run is given up as stuck",
                hold,
                self._held,
                hold.place,
                limit,
            )
        if self._stage == 1 and self._held >= limit:
            self._stage = 2
            self._give_up(hold)
        if self._stage == 2 and time.monotonic() >= self._ends_at:
            self._stage = 3
            self._abandon(f"{hold} still holds the event loop, at {hold.place}")

    def _give_up(self, hold: Hold) -> None:
        """Give back the run as stuck, and the other runs that have no step under way."""
        loop = hold.loop
        assert loop is not None, "a drain has a loop"
        reason = held_too_long(loop, hold.place)
        # In real time, because the run is tried again in real time: after this process has ended.
        # Until then it can take no other run, and its steps may still run here.
        waits = self._executing() or not self._process.can_end
        grace = self._grace_seconds if waits else 0.0
        self._ends_at = time.monotonic() + grace
        logger.error(
            "%s is given up as stuck: %s. The worker gives its other runs back; %s",
            hold,
            reason,
            f"steps that run now have {grace:g} s to end" if waits else "no step runs",
        )
        pause = grace + _RELEASE_SECONDS if waits else 0.0
        stuck = hold.run_id and self._workload.give_up_stuck(hold.run_id, reason, pause)
        idle = self._workload.give_up_idle()
        self._give_back([stuck, *idle] if stuck else idle)

    # A stop that the thread does not answer

    def _watch_stop(self, hold: Hold, left: float) -> None:
        if hold.debugged and not (self._stop_at_once or self._process.orphaned):
            return
        limit = _OTHER_SILENT_SECONDS if hold.loop is None else _SILENT_SECONDS
        if self._silent < limit or self._stage == 3:
            return
        if left <= 0:
            self._stage = 3
            self._abandon(f"asked to stop, and the event loop is held, at {hold.place}")
        elif not self._told:
            self._told = True
            logger.warning(
                "worker %s was asked to stop, but the event loop is held, at %s. The worker waits "
                "for it for %.0f s; a second signal ends it at once",
                self._worker_id,
                hold.place,
                left,
            )

    # Giving back

    def _clear_up(self) -> None:
        """Give back what the worker holds: nothing of it can end without the event loop."""
        assert self._loop is not None, "it was started"
        logger.warning(
            "worker %s had not stopped when its event loop was left: what it holds is given back",
            self._worker_id,
        )
        self._end_heartbeat()  # also if the database cannot be reached now
        try:
            self._give_back(self._workload.give_up(), self._workload.give_up_messages())
        finally:
            while self._process.can_end and not self._loop.is_closed():
                if self._stop.wait(_TICK_SECONDS):
                    break
            if self._loop.is_closed() and not self._stop.wait(_OTHER_SILENT_SECONDS):
                self._process.end()  # a thread of a step holds it

    def _abandon(self, why: str) -> None:
        logger.error(
            "worker %s: %s. It gives back all that it holds. If the command line started it, its "
            "process ends, and its supervisor starts another",
            self._worker_id,
            why,
        )
        self._give_back(self._workload.give_up(), self._workload.give_up_messages())
        self._process.end()

    def _give_back(self, given_up: Sequence[GivenUp], ends: MessageEnds | None = None) -> None:
        """Give back leases. With `ends`, also messages: that is all, and the worker signs off."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._workload.forget_given_up)
        try:
            asyncio.run(self._send(given_up, ends))
        except (DatabaseError, TimeoutError, OSError) as error:
            logger.warning("leases were not given back, and expire by themselves: %s", error)

    async def _send(self, given_up: Sequence[GivenUp], ends: MessageEnds | None) -> None:
        async with asyncio.timeout(_RELEASE_SECONDS):
            store = self._open_store()
            try:
                await store.open()
                await give_back(store, self._worker_id, given_up)
                if ends is not None:
                    await give_back_messages(store, ends)
                    self._end_heartbeat()  # one that is under way would sign on again
                    await store.remove_worker(self._worker_id, with_messages=True)
            finally:
                await store.close()
