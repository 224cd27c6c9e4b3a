"""When the timers of an instance are due, and which of them the log should know of."""

from __future__ import annotations

import collections
import heapq
from typing import TYPE_CHECKING, Final

from holdfast.runtime.loop.tasks import WorkflowTimer

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

# A timer that has lived this long is recorded, so that a crash does not start it anew.
RECORD_AFTER: Final = 1_000_000
# Runs are claimed some ms before their timers fire: the rest is waited for in memory.
IN_PLACE: Final = 20_000
MAX_MOMENT: Final = 253_402_300_799_000_000  # the end of the year 9999


class Clockwork:
    """The live timers of one instance, by deadline.

    `kept` are deadlines that a rebuilt instance takes over from the one before, by key.
    """

    __slots__ = ("_due", "_kept", "_loop", "_young")

    def __init__(self, loop: WorkflowLoop, kept: dict[str, int]) -> None:
        self._loop, self._kept = loop, kept
        self._due: list[tuple[int, int, WorkflowTimer]] = []  # a heap: fire_at, order of creation
        self._young: collections.deque[tuple[int, WorkflowTimer]] | None = None

    def due(self, now: int) -> WorkflowTimer | None:
        """Return the timer to fire: the earliest deadline first, then the first created."""
        if self._loop.new_timers:
            self._adopt(now)
        first = self._first()
        return first if first is not None and (first.fire_at or 0) <= now else None

    def reset(self) -> None:
        """Forget timers that are gone, where there are no others."""
        if self._due or self._loop.new_timers:
            self._due.clear()
            self._loop.new_timers.clear()
            self._young = None

    def deadlines(self, durable: int) -> dict[str, int]:
        """Return the deadlines of timers that the durable part of the log has created."""
        return {
            timer.key: timer.fire_at
            for timer in self._loop.timers.values()
            if timer.fire_at is not None and timer.mark <= durable
        }

    def first_deadline(self) -> int | None:
        """Return when the next timer is due."""
        first = self._first()
        return None if first is None else first.fire_at

    def fires_soon(self, now: int) -> bool:
        """Return True if a recorded timer fires so soon that a suspension would gain nothing."""
        first = self._first()
        return first is not None and first.recorded and (first.fire_at or 0) <= now + IN_PLACE

    def grown(self, now: int) -> list[WorkflowTimer]:
        """Return the timers that have lived long enough to be recorded, and are not."""
        found: list[WorkflowTimer] = []
        young = self._young
        while young and young[0][0] <= now:
            _, timer = young.popleft()
            if self._lives(timer) and not timer.recorded:
                found.append(timer)
        return found

    def next_at(self) -> int | None:
        """Return when a timer is next due or to be recorded."""
        deadline, young = self.first_deadline(), self._young
        while young and (young[0][1].recorded or not self._lives(young[0][1])):
            young.popleft()
        if not young:
            return deadline
        return young[0][0] if deadline is None else min(deadline, young[0][0])

    def unrecorded(self) -> list[WorkflowTimer]:
        """Return the live timers that the log does not have yet."""
        return [timer for timer in self._loop.timers.values() if not timer.recorded]

    def _adopt(self, now: int) -> None:
        for timer in self._loop.new_timers:
            if not self._lives(timer):
                continue
            if timer.fire_at is None:
                timer.fire_at = self._deadline(timer, now)
            heapq.heappush(self._due, (timer.fire_at, timer.order, timer))
            if not timer.recorded and timer.delay > RECORD_AFTER:
                if self._young is None:
                    self._young = collections.deque()
                self._young.append((now + RECORD_AFTER, timer))
        self._loop.new_timers.clear()

    def _deadline(self, timer: WorkflowTimer, now: int) -> int:
        if timer.due_at is not None:
            return timer.due_at
        return min(self._kept.get(timer.key, now + timer.delay), MAX_MOMENT)

    def _first(self) -> WorkflowTimer | None:
        due = self._due
        while due and not self._lives(due[0][2]):
            heapq.heappop(due)
        return due[0][2] if due else None

    def _lives(self, timer: WorkflowTimer) -> bool:
        return self._loop.timers.get(timer.key) is timer
