"""The watchdog, on a thread of its own: a worker whose thread is held by user code still lets go.

Workflow code that computes or blocks without an await that waits holds the worker's thread: no
other run moves, and no signal is heard. In this order the watchdog

1. warns, after half of the app's `blocking_limit`;
2. after the limit gives the run up as stuck, with the place where its code stands, and gives back
   the runs that have no step under way, so that other workers drive them;
3. after the grace period gives back all that is left, and ends the process where that is wanted.

It also ends a process that was asked to stop and whose thread does not answer. Time in which a
debugger has stopped the thread, or the whole process was stopped, does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import UUID

from holdfast.errors import DatabaseError
from holdfast.runtime.loop.holding import Hold, find_hold
from holdfast.store.port import Store
from holdfast.worker.given_up import GivenUp
from holdfast.worker.giving_back import give_back

logger = logging.getLogger("holdfast.worker")

_TICK_SECONDS: Final = 0.25
_ASLEEP: Final = 0.05  # the share of processor time below which a thread sleeps, or waits
# For so long the loop must be deaf before a stop is forced. Other code than a workflow's, as what
# closes a lifespan, may take a while.
_DEAF_SECONDS: Final = 1.0
_OTHER_DEAF_SECONDS: Final = 5.0
_RELEASE_SECONDS: Final = 5.0  # what takes longer is left to the leases' end
_JOIN_SECONDS: Final = 2.0 * _RELEASE_SECONDS


class Holder(Protocol):
    """Who holds the leases of the worker, and lets go of what is to be given back.

    All but the last is called from the watchdog's thread. What was given up does not go on here
    when the event loop is free again: it may be another worker's by then.
    """

    def give_up(self) -> list[GivenUp]:
        """Return all that is held now."""
        ...

    def give_up_resting(self) -> list[GivenUp]:
        """Return the runs that have no step under way."""
        ...

    def give_up_stuck(self, run_id: UUID, reason: str, pause_seconds: float) -> GivenUp | None:
        """Return what gives a run back as stuck, None where it is not held.

        It is tried again after the pause or later.
        """
        ...

    def forget_given_up(self) -> None:
        """Let go of what was given up; called on the event loop."""
        ...


class Process:
    """What a worker's process wants of the watchdog. By default it is never ended."""

    def end(self) -> None:
        """End the process at once, where it may be ended."""

    @property
    def orphaned(self) -> bool:
        """Whether the process that supervises this one is gone."""
        return False


class ThreadClock:
    """Measures for how long a thread was really at work, or asleep, since the last look.

    A thread that a busy machine keeps waiting is neither. A jump of the clock is a stop of the
    whole process, or of the machine, and counts as one tick.
    """

    def __init__(self, thread: int) -> None:
        get_clock = getattr(time, "pthread_getcpuclockid", None)  # not on every system
        self._clock: int | None = None if get_clock is None else get_clock(thread)
        self._wall, self._cpu = time.monotonic(), self._processor_time()
        self.passed = 0.0  # at the last look, the seconds since the one before, of any kind

    def spent(self) -> float:
        """Return the seconds since the last look, without those that the thread had to wait."""
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
        holder: Holder,
        process: Process,
        *,
        grace_seconds: float,
    ) -> None:
        self._worker_id, self._open_store, self._holder = worker_id, open_store, holder
        self._process, self._grace_seconds = process, grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._stop = threading.Event()
        self._seen: tuple[int, int] | None = None  # a drain, and how far it was
        self._held = 0.0  # seconds since then
        self._stage = 0  # 1: warned, 2: the run given up, 3: all given back
        self._stop_within: float | None = None  # seconds; None: not asked to stop
        self._answered = True
        self._silent = 0.0  # seconds that the loop has not answered
        self._told = False  # that it does not

    def start(self) -> None:
        """Begin to watch this thread, which runs the worker's event loop. Idempotent."""
        if self._thread is None:
            self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._main, name="holdfast watchdog", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            await asyncio.get_running_loop().run_in_executor(None, thread.join, _JOIN_SECONDS)

    def expect_end(self, grace_seconds: float) -> None:
        """Hear that the worker was asked to stop; safe in a signal handler and in any thread."""
        left = self._stop_within
        self._stop_within = grace_seconds if left is None else min(left, grace_seconds)

    def _main(self) -> None:
        clock = ThreadClock(self._watched)
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._look(clock.spent(), clock.passed)
            except Exception:
                logger.exception("the watchdog failed to look; it looks again")

    def _look(self, spent: float, passed: float) -> None:
        if self._process.orphaned:
            self.expect_end(self._grace_seconds)
        hold = find_hold(self._watched)
        self._watch_code(hold, spent)
        if self._stop_within is not None:
            self._watch_stop(hold, spent, passed)

    # Code that holds the thread

    def _watch_code(self, hold: Hold, spent: float) -> None:
        loop = hold.loop
        seen = None if loop is None or hold.debugged else (id(loop), loop.progress)
        if seen is None or seen != self._seen:
            if self._stage > 1:
                logger.warning(
                    "the event loop is free again after about %.0f s; what was given back is "
                    "another worker's",
                    self._held,
                )
            self._seen, self._held, self._stage = seen, 0.0, 0
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
        if self._stage == 2 and self._held >= limit + self._grace_seconds:
            self._stage = 3
            self._abandon(f"{hold} still holds the event loop, at {hold.place}")

    def _give_up(self, hold: Hold) -> None:
        """Release the run as stuck, and the others that nothing keeps here."""
        loop = hold.loop
        assert loop is not None, "a drain has a loop"
        reason = (
            f"its code has held the worker for {loop.limit_seconds:g} s without an await that "
            f"waits, at {hold.place}: move the work into a step"
        )
        logger.error(
            "%s is given up as stuck: %s. The worker gives its other runs back; steps that run now "
            "have %g s left",
            hold,
            reason,
            self._grace_seconds,
        )
        # Tried again when this process is over: else its steps could run here and elsewhere.
        pause = self._grace_seconds + _RELEASE_SECONDS
        stuck = hold.run_id and self._holder.give_up_stuck(hold.run_id, reason, pause)
        resting = self._holder.give_up_resting()
        self._give_back([stuck, *resting] if stuck else resting)

    # A stop that the thread does not hear

    def _watch_stop(self, hold: Hold, spent: float, passed: float) -> None:
        assert self._loop is not None
        assert self._stop_within is not None
        self._stop_within -= passed  # by the clock on the wall: who asked has no other
        if self._answered:
            self._answered, self._silent, self._told = False, 0.0, False
            with contextlib.suppress(RuntimeError):  # the loop is closed: the end is near
                self._loop.call_soon_threadsafe(self._answer)
            return
        self._silent += spent
        if hold.debugged and not self._process.orphaned:
            return
        deaf = _OTHER_DEAF_SECONDS if hold.loop is None else _DEAF_SECONDS
        if self._silent < deaf or self._stage == 3:
            return
        if self._stop_within <= 0:
            self._stage = 3
            self._abandon(f"asked to stop, and the event loop is held, at {hold.place}")
        elif not self._told:
            self._told = True
            logger.warning(
                "worker %s was asked to stop, and the event loop is held, at %s. It is waited for "
                "for %.0f s; asked again, it ends at once",
                self._worker_id,
                hold.place,
                self._stop_within,
            )

    def _answer(self) -> None:
        self._answered = True

    # Giving back

    def _abandon(self, why: str) -> None:
        logger.error(
            "worker %s: %s. It gives back all that it holds; its process ends, if it is one of "
            "the command line, and its supervisor starts another",
            self._worker_id,
            why,
        )
        self._give_back(self._holder.give_up(), sign_off=True)
        self._process.end()

    def _give_back(self, given_up: Sequence[GivenUp], *, sign_off: bool = False) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._holder.forget_given_up)
        try:
            asyncio.run(self._send(given_up, sign_off=sign_off))
        except (DatabaseError, TimeoutError, OSError) as error:
            logger.warning("left to the leases' end: %s", error)

    async def _send(self, given_up: Sequence[GivenUp], *, sign_off: bool) -> None:
        async with asyncio.timeout(_RELEASE_SECONDS):
            store = self._open_store()
            try:
                await store.open()
                await give_back(store, self._worker_id, given_up)
                if sign_off:
                    await store.remove_worker(self._worker_id)
            finally:
                await store.close()
