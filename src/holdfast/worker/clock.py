"""Engine time on a worker: the database's clock, read through the machine's monotonic one.

A worker's wall clock is never trusted. Answers to heartbeats, commits and reports say what the
database's time was. The sample with the shortest round trip decides how far the local monotonic
clock is from it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

_SAMPLE_LIFETIME = 60 * 1_000_000  # µs; clocks drift, so after this a less exact sample replaces it
_STEP = 1_000_000  # µs; if two samples differ by more, one of the two clocks was set
_SPIN = 0.001  # seconds: event loops round their timers to milliseconds
_LONGEST_SLEEP = 10.0  # seconds after which an alarm looks again: the clock may have been set


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Clock(Protocol):
    """Engine time, and calls at moments of it."""

    def now(self) -> int:
        """Return engine time, microseconds since 1970 UTC.

        It goes backward only if the database's clock was set back by more than a second.
        """
        ...

    def observe(self, sent: int, answered: int, now: int) -> None:
        """Learn that the database said `now` between two local moments (see `local`).

        Safe from any thread.
        """
        ...

    def local(self) -> int:
        """Return the time of the local clock, for `observe`, in microseconds."""
        ...

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` at a moment of engine time, from a plain callback of the event loop."""
        ...


class EngineClock:
    """The clock of a worker in production."""

    def __init__(self, local_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`local_ns` is the clock of the machine, in nanoseconds."""
        self._local_ns = local_ns
        self._offset = time.time_ns() // 1000 - self.local()
        self._round_trip: int | None = None
        self._sampled_at = 0
        self._set_at = 0  # when an answer came that showed that a clock was set
        self._last = 0
        self._sampling = threading.Lock()

    def now(self) -> int:
        """Return engine time, microseconds since 1970 UTC.

        A sharper sample that is earlier lets it stand still, for a second at most. If it differs
        by more, the database's clock was set back.
        """
        now = self._local_ns() // 1000 + self._offset
        last = self._last
        if now < last and last - now <= _STEP:
            return last
        self._last = now
        return now

    def local(self) -> int:
        """Return the time of the machine's clock in microseconds."""
        return self._local_ns() // 1000

    def observe(self, sent: int, answered: int, now: int) -> None:
        """Use a sample if its round trip is at most as long as that of the best recent one.

        One that no round trip explains is used as well: the database's clock was set, or this
        machine slept. What was asked before that answer came may say the time of before.
        """
        round_trip, offset = answered - sent, now - (sent + answered) // 2
        with self._sampling:
            best = self._round_trip
            if best is None:
                self._last = 0  # until the first sample it was the time of the wall clock
            elif abs(offset - self._offset) > round_trip + _STEP:
                if sent < self._set_at:
                    return
                self._set_at, best = answered, None
            if best is None or round_trip <= best or answered - self._sampled_at > _SAMPLE_LIFETIME:
                self._offset = offset
                self._round_trip, self._sampled_at = round_trip, answered

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` at a moment of engine time, within a fraction of a millisecond."""
        return _Alarm(self, at, callback)


class _Alarm:
    """A timer that sleeps until just before its moment, then checks in each cycle of the loop."""

    __slots__ = ("_at", "_callback", "_clock", "_handle", "_loop")

    def __init__(self, clock: EngineClock, at: int, callback: Callable[[], None]) -> None:
        self._clock, self._at, self._callback = clock, at, callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_soon(self._look)

    def _look(self) -> None:
        seconds = (self._at - self._clock.now()) / 1e6
        if seconds <= 0:
            self._callback()
        elif seconds <= _SPIN:
            self._handle = self._loop.call_soon(self._look)
        else:
            self._handle = self._loop.call_later(min(seconds - _SPIN, _LONGEST_SLEEP), self._look)

    def cancel(self) -> None:
        self._handle.cancel()
