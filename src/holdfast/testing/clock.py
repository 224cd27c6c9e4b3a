"""Virtual time for workers, and a watchdog for code that holds the thread of a test."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from itertools import count

from holdfast.errors import DeterminismError
from holdfast.store.memory import MemoryStore
from holdfast.worker.clock import Cancellable
from holdfast.worker.event_loop import LoopProbe
from holdfast.worker.holds import find_hold, held_too_long
from holdfast.worker.watchdog import ThreadClock

_BLOCKED_SECONDS = 0.1  # between looks for workflow code that holds the thread


class Alarm:
    """A callback at a moment of virtual time."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback, self.cancelled = callback, False

    def cancel(self) -> None:
        """Do not call it."""
        self.cancelled = True

    def go_off(self) -> None:
        """Call it, unless it was cancelled."""
        if not self.cancelled:
            self.callback()


class StoreClock:
    """The store's virtual time as a worker's clock. `draw` decides between alarms of one moment."""

    def __init__(self, store: MemoryStore, draw: Callable[[], float] = lambda: 0) -> None:
        self._store, self._draw = store, draw
        self._alarms: list[tuple[int, float, int, Alarm]] = []
        self._sequence = count()

    def now(self) -> int:
        """Return the store's time."""
        return self._store.time()

    def local(self) -> int:
        """Return the store's time."""
        return self._store.time()

    def observe(self, sent: int, answered: int, now: int) -> None:
        """Do nothing: this is the store's own clock."""

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call back at a moment."""
        alarm = Alarm(callback)
        heapq.heappush(self._alarms, (at, self._draw(), next(self._sequence), alarm))
        return alarm

    def next_at(self) -> int | None:
        """Return when the next alarm goes off, None for never."""
        while self._alarms and self._alarms[0][-1].cancelled:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def fire(self) -> None:
        """Let the alarms go off that are due."""
        loop = asyncio.get_running_loop()
        while (at := self.next_at()) is not None and at <= self.now():
            alarm = heapq.heappop(self._alarms)[-1]
            loop.call_soon(alarm.go_off)


class Watchdog:
    """Makes a run stuck whose code holds the thread too long, as a worker's own watchdog does."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the thread that calls this, in which an event loop runs."""
        watched = (threading.get_ident(), asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._main, args=watched, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _main(self, watched: int, loop_of_thread: asyncio.AbstractEventLoop) -> None:
        clock, probe, seen, held = ThreadClock(watched), LoopProbe(loop_of_thread), None, 0.0
        while not self._ended.wait(_BLOCKED_SECONDS):
            spent = clock.spent()
            if probe.answers():
                seen, held = None, 0.0
                continue
            hold = find_hold(watched)
            loop = None if hold.debugged else hold.loop
            now = None if loop is None else (id(loop), loop.progress)
            held = held + spent if now == seen else 0.0
            seen = now
            if loop is not None and held >= loop.limit_seconds and loop.broken is None:
                loop.broken = DeterminismError(held_too_long(loop, hold.place))
