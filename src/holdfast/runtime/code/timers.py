"""The ledger of timers: which the code has made, which the log has, and which are due."""

from __future__ import annotations

import collections
import heapq
import sys
from typing import ClassVar, Final

import msgspec

from holdfast.details import Timer
from holdfast.events import TIMER_FIRED, TIMER_SCHEDULED, read_timer
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.history import TIMER, Recorded
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.loop.tasks import WorkflowTimer
from holdfast.types import Event
from holdfast.values.moments import to_datetime

# A timer that is this old is recorded, so that it does not begin again after a crash.
RECORD_AFTER: Final = 1_000_000
# Runs are claimed some ms before their timers fire, and wait in memory for the rest.
IN_PLACE: Final = 20_000
MAX_MOMENT: Final = 253_402_300_799_000_000  # the end of the year 9999


class Timers(Ledger, msgspec.Struct, eq=False):
    """The timers of one instance: `live` are those that have neither fired nor been cancelled.

    `kept` has the deadlines that a rebuilt instance takes over from the one before it, by key.
    """

    facts: ClassVar = frozenset({TIMER_SCHEDULED})
    delivers: ClassVar = frozenset({TIMER_FIRED})

    _run: Run
    live: dict[str, WorkflowTimer] = {}
    kept: dict[str, int] = {}
    _new: list[WorkflowTimer] = []
    _due: list[tuple[int, int, WorkflowTimer]] = []  # a heap: fire_at, order of creation
    _young: collections.deque[tuple[int, WorkflowTimer]] | None = None

    # What the log says

    def learn(self, event: Event) -> None:
        """Learn a deadline from the log."""
        key = event.key or ""
        if key not in self.live:
            fact = Recorded(TIMER, timer=read_timer(event.details or ""))
            self._run.history.recorded[key] = fact

    def deliver(self, event: Event) -> None:
        """Fire a timer; keep the event if the code has not made the timer yet.

        Raises DeterminismError if the code has made a timer of another length.
        """
        key = event.key or ""
        timer = self.live.pop(key, None)
        if timer is None:
            self._run.check_unclaimed(key, "a timer")
            self._run.history.keep_end(key, event)
        else:
            self._fire(timer, event)

    def _fire(self, timer: WorkflowTimer, event: Event) -> None:
        self._forget_gone()
        if not timer.recorded:  # else it was compared when it was created
            self._compare(timer, read_timer(event.details or ""))
        self._run.loop.make_ready(timer)

    def called(self, key: str) -> str | None:
        """Describe the open call that the code has made with this key; None if there is none."""
        return "a timer" if key in self.live else None

    # What the code does

    def start(self, timer: WorkflowTimer) -> None:
        """Keep a timer that the code has made; if the log has its deadline, use that."""
        history, key = self._run.history, timer.key
        timer.mark = history.called_at = history.position
        if history.failures is not None:
            history.failures.note_call(key)
        if history.recorded and (recorded := history.recorded.get(key)) is not None:
            history.check(key, str(recorded), "a timer")
            fact = history.recorded.pop(key).timer
            assert fact is not None, "only a timer has a deadline"
            self._compare(timer, fact)
            timer.fire_at, timer.recorded = fact.fire_at, True
        self.live[key] = timer
        self._new.append(timer)
        if history.ends and (event := history.take_end(key)) is not None:
            history.check(key, "a timer" if event.type == TIMER_FIRED else "a step", "a timer")
            del self.live[key]
            self._fire(timer, event)
        if sys.exception() is not None:
            is_open = None if timer.recorded else lambda: self.live.get(key) is timer
            self._run.ledger(Caught).note_call(key, is_open)

    def cancel(self, timer: WorkflowTimer) -> None:
        """Drop a timer that the code has cancelled."""
        if self.live.pop(timer.key, None) is not None:
            self._forget_gone()

    def _forget_gone(self) -> None:
        if not self.live:
            self._due.clear()
            self._new.clear()
            self._young = None

    def _compare(self, timer: WorkflowTimer, recorded: Timer) -> None:
        """Compare a timer with the log: its moment if it has one, else its length."""
        check = self._run.history.check
        if timer.due_at is not None:
            found, logged = _moment(timer.due_at), _moment(recorded.fire_at)
            check(timer.key, f"a timer until {logged}", f"a timer until {found}")
        elif recorded.delay is not None:
            check(timer.key, _length(recorded.delay), _length(timer.delay / 1e6))

    def close(self) -> None:
        """Drop all timers, and let go of the run: it has this ledger."""
        if self.live:
            self.live.clear()
            self._forget_gone()
        del self._run

    # What is due

    def due(self, now: int) -> WorkflowTimer | None:
        """Return the timer to fire: the earliest deadline first, then the first created."""
        if self._new:
            self._adopt(now)
        first = self._first()
        return first if first is not None and (first.fire_at or 0) <= now else None

    def deadlines(self, durable: int) -> dict[str, int]:
        """Return the deadlines of timers that the first `durable` entries of the log led to."""
        return {
            timer.key: timer.fire_at
            for timer in self.live.values()
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

    def due_for_recording(self, now: int) -> list[WorkflowTimer]:
        """Return the timers that are old enough to be recorded and are not recorded yet."""
        found: list[WorkflowTimer] = []
        young = self._young
        while young and young[0][0] <= now:
            _, timer = young.popleft()
            if self._lives(timer) and not timer.recorded:
                found.append(timer)
        return found

    def next_at(self) -> int | None:
        """Return when a timer is next due, or old enough to be recorded."""
        deadline, young = self.first_deadline(), self._young
        while young and (young[0][1].recorded or not self._lives(young[0][1])):
            young.popleft()
        if not young:
            return deadline
        return young[0][0] if deadline is None else min(deadline, young[0][0])

    def unrecorded(self) -> list[WorkflowTimer]:
        """Return the live timers that the log does not have yet."""
        return [timer for timer in self.live.values() if not timer.recorded]

    def _adopt(self, now: int) -> None:
        for timer in self._new:
            if not self._lives(timer):
                continue
            if timer.fire_at is None:
                timer.fire_at = self._deadline(timer, now)
            heapq.heappush(self._due, (timer.fire_at, timer.order, timer))
            if not timer.recorded and timer.delay > RECORD_AFTER:
                if self._young is None:
                    self._young = collections.deque()
                self._young.append((now + RECORD_AFTER, timer))
        self._new.clear()

    def _deadline(self, timer: WorkflowTimer, now: int) -> int:
        if timer.due_at is not None:
            return timer.due_at
        return min(self.kept.get(timer.key, now + timer.delay), MAX_MOMENT)

    def _first(self) -> WorkflowTimer | None:
        due = self._due
        while due and not self._lives(due[0][2]):
            heapq.heappop(due)
        return due[0][2] if due else None

    def _lives(self, timer: WorkflowTimer) -> bool:
        return self.live.get(timer.key) is timer


def _length(seconds: float) -> str:
    text = f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"a timer of {text} s"


def _moment(micros: int) -> str:
    return to_datetime(micros).isoformat()
