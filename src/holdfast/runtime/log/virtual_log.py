"""A run's log as its turn sees it: what is durable, then what is in flight, then what is fresh.

Its entries are delivered to the code in the order of the log, with one exception. While a worker's
entries are on their way to the log, others may append to it. What they say then, if it can wait,
is delivered after those entries, although it stands ahead of them: the code has seen them already,
and a replay of the whole log for each signal would bring a run to a halt. Such an entry says in
its details, as `seen`, how many entries of the log the code had seen: those of others from there
on are delivered after it.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.events import (
    CAN_WAIT,
    DELIVERED,
    EXTERNAL,
    FORKED,
    TERMINAL,
    WORKER_LOST,
    mark_seen,
    read_seen,
    read_worker_lost,
)
from holdfast.types import Event, count_bearable

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_stamp = re.compile(r'\{(?:"seen":\d+,)?"python":"([^"]+)"')


class VirtualLog:
    """The three parts of a log.

    `durable` is None once it was forgotten; `durable_length` is kept, and the hash of the `last`
    of it. `python` is the version that the run's first commit was made with, None before it.

    The code has been fed all three. What others made durable while something was in flight is
    fed after that, although it stands ahead of it in the log: until it has landed, not all that
    is durable is `certain`.
    """

    __slots__ = (
        "_certain",
        "_clock",
        "_newest",
        "_split",
        "committing",
        "durable",
        "durable_length",
        "flight",
        "fresh",
        "last",
        "python",
    )

    def __init__(self, durable: Sequence[Event], clock: Callable[[], int]) -> None:
        self._clock = clock
        self.durable: list[Event] | None = list(durable)
        self.durable_length = len(durable)
        self.flight: list[Event] = []
        self.fresh: list[Event] = []
        self.committing = False
        self._certain: int | None = None
        self._split = False  # what is fresh was fed before others wrote, as what is in flight
        self._newest: Event | None = None  # of those that are durable, once they are forgotten
        self.last: int | None = None
        self.python = _python_of(durable)

    @property
    def length(self) -> int:
        """The length of the whole."""
        return self.durable_length + len(self.flight) + len(self.fresh)

    @property
    def certain(self) -> int:
        """How much of what the code has been fed, from its start, no crash can take back."""
        return self.durable_length if self._certain is None else self._certain

    def record(self, kind: str, key: str | None, text: str | None) -> None:
        """Add a fact."""
        self.fresh.append(Event(kind, key, text, self._clock()))

    def extend(self, tail: Sequence[Event]) -> None:
        """Add what others have made durable."""
        self.durable_length += len(tail)
        if self.durable is not None:
            self.durable += tail
        elif tail:
            self._newest = tail[-1]

    def bearable(self) -> int:
        """Return how many of the fresh events one commit takes: their values may be long."""
        fresh = self.fresh
        if len(fresh) < 2:
            return len(fresh)
        return count_bearable([len(event.details or "") for event in fresh])

    def commit_sent(self, count: int | None = None, *, after_others: bool) -> list[Event]:
        """Begin to commit what is fresh. A run's first commit says which Python it was.

        With `after_others` it may stand after what they write, and says what the code had seen.
        With a `count` only the first events go: the others, which the code has seen later, stay
        fresh.
        """
        if count is None:
            self.flight, self.fresh, self._split = self.fresh, [], False
        else:
            self.flight, self.fresh = self.fresh[:count], self.fresh[count:]
            self._split = bool(self.fresh)
        if self.python is None:
            self.flight = self.signed(self.flight)
        if after_others:
            self.flight = [mark_seen(event, self.durable_length) for event in self.flight]
        self.committing = True
        return self.flight

    def signed(self, events: list[Event]) -> list[Event]:
        """Return events to commit; those of a run's first commit say which Python it was."""
        if events and self.python is None:
            _sign(events)
        return events

    def commit_done(self, ahead: Sequence[Event]) -> None:
        """Take what was in flight for durable, and what stands `ahead` of it, still to be fed."""
        flight, self.flight = self.flight, []
        if not ahead and not self._split and self._certain is None:  # no others wrote meanwhile
            self.committing = False
            self.durable_length += len(flight)
            if self.durable is not None:
                self.durable += flight
            elif flight:
                self._newest = flight[-1]
            if self.python is None:
                self.python = PYTHON
            return
        seen, certain = self.durable_length, self.certain + len(flight)
        fed_after = ahead or (self._split and self._certain is not None)
        self.committing = False
        self.extend(ahead)
        self.extend(flight)
        self._certain = certain if fed_after and self.fresh else None
        if ahead:
            self.fresh = [mark_seen(event, seen) for event in self.fresh]
        if self.python is None:
            self.python = PYTHON

    def put_after(self, undurable: Sequence[Event], tail: Sequence[Event]) -> None:
        """Keep what the code has seen, after what others wrote, which is still to be fed."""
        self._certain = self.certain
        self.fresh = [mark_seen(event, self.durable_length) for event in undurable]
        self.extend(tail)

    def refused(self) -> list[Event]:
        """Take back all that is not durable, and return it."""
        undurable = self.flight + self.fresh
        self.flight, self.fresh = [], []
        self.committing = False
        return undurable

    def rely(self) -> None:
        """Take all that is durable for certain: the code is fed again, in the order of the log."""
        self._certain = None

    def replace(self, durable: Sequence[Event]) -> None:
        """Replace the durable part with a whole log."""
        self.durable, self.durable_length = list(durable), len(durable)

    def forget(self) -> None:
        """Keep no durable events, only their number."""
        newest = self.durable[-1] if self.durable else self._newest
        self.last, self._newest, self.durable = hash(newest), None, None


def can_wait(tail: Sequence[Event]) -> bool:
    """Return True if all of what others wrote may be delivered after a worker's own entries.

    A cancel, a pause and a decision may not: who wrote them was told that they hold.
    """
    return all(event.type in CAN_WAIT for event in tail)


def in_delivery_order(events: Sequence[Event], first: int = 0) -> Sequence[Event]:
    """Return entries, which stand in a log from index `first` on, as the code is to see them."""
    marks = [
        (position, seen)
        for position, event in enumerate(events)
        if event.type in DELIVERED and (seen := read_seen(event)) is not None
    ]
    if not marks:
        return events
    found: list[Event] = []
    waiting: deque[tuple[int, Event]] = deque()
    begin = 0
    for position, seen in [*marks, (len(events), first + len(events))]:
        while waiting and waiting[0][0] < seen:
            found.append(waiting.popleft()[1])
        for index, event in enumerate(events[begin : position + 1], first + begin):
            if event.type in EXTERNAL and index >= seen:
                waiting.append((index, event))
            else:
                found.append(event)
        begin = position + 1
    return found


def count_replayed(log: Sequence[Event]) -> int:
    """Return how many events, from the start, some worker's code has gone on from before.

    At the end of what a fork has of its origin, none has: what the origin did then is cut off.
    """
    forked = False
    for position in range(len(log), 0, -1):
        kind = log[position - 1].type
        if kind not in EXTERNAL:
            return position - (forked and kind in DELIVERED)
        forked = forked or kind == FORKED
    return 0


def is_taken_away(events: Sequence[Event], lease_no: int) -> bool:
    """Return True if the run has ended, or the holder of this lease has lost it."""
    for event in events:
        if event.type in TERMINAL:
            return True
        if event.type == WORKER_LOST:
            loss = read_worker_lost(event.details or "{}")
            if loss.task_key == "" and loss.lease_no >= lease_no:
                return True
    return False


def _python_of(log: Sequence[Event]) -> str | None:
    for event in log:
        if event.type not in EXTERNAL:
            found = _stamp.match(event.details or "")
            return PYTHON if found is None else found[1]
    return None


def _sign(events: list[Event]) -> None:
    first = events[0]
    text = first.details
    if first.type in TERMINAL or _stamp.match(text or ""):
        return  # a run that has ended is not replayed
    signed = f'{{"python":"{PYTHON}"' + ("}" if text is None else f",{text[1:]}")
    events[0] = Event(first.type, first.key, signed, first.at)
