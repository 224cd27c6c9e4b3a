"""A run's log as its turn sees it: what is durable, then what is in flight, then what is fresh."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.runtime.log.details import (
    FORKED,
    GUESTS,
    STEP_COMPLETED,
    STEP_FAILED,
    TERMINAL,
    TIMER_FIRED,
    WORKER_LOST,
    read_worker_lost,
)
from holdfast.types import Event

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# What a worker writes and feeds to the code, which goes on from it.
_DELIVERED: Final = frozenset({STEP_COMPLETED, STEP_FAILED, TIMER_FIRED})
_stamp = re.compile(r'\{"python":"([^"]+)"')


class VirtualLog:
    """The three parts of a log.

    `durable` is None once it was forgotten; `durable_length` is kept. `python` is the version
    that the run's first commit was made with, None before it.
    """

    __slots__ = ("_clock", "committing", "durable", "durable_length", "flight", "fresh", "python")

    def __init__(self, durable: Sequence[Event], clock: Callable[[], int]) -> None:
        self._clock = clock
        self.durable: list[Event] | None = list(durable)
        self.durable_length = len(durable)
        self.flight: list[Event] = []
        self.fresh: list[Event] = []
        self.committing = False
        self.python = _python_of(durable)

    @property
    def length(self) -> int:
        """The length of the whole."""
        return self.durable_length + len(self.flight) + len(self.fresh)

    def note(self, kind: str, key: str | None, text: str | None) -> None:
        """Add a fact."""
        self.fresh.append(Event(kind, key, text, self._clock()))

    def extend(self, tail: Sequence[Event]) -> None:
        """Add what others have made durable."""
        self.durable_length += len(tail)
        if self.durable is not None:
            self.durable += tail

    def launch(self) -> list[Event]:
        """Begin to commit all that is fresh. A run's first commit says which Python it was."""
        self.flight, self.fresh = self.fresh, []
        if self.python is None:
            _sign(self.flight)
        self.committing = True
        return self.flight

    def land(self) -> None:
        """Take what was in flight for durable."""
        flight, self.flight = self.flight, []
        self.committing = False
        self.extend(flight)
        if self.python is None:
            self.python = PYTHON

    def refused(self) -> list[Event]:
        """Take back all that is not durable, and return it."""
        undurable = self.flight + self.fresh
        self.flight, self.fresh = [], []
        self.committing = False
        return undurable

    def replace(self, durable: Sequence[Event]) -> None:
        """Put a whole log in the durable part's place."""
        self.durable, self.durable_length = list(durable), len(durable)

    def forget(self) -> None:
        """Keep no durable events, only their number."""
        self.durable = None


def count_replayed(log: Sequence[Event]) -> int:
    """Return how many events, from the start, some worker's code has gone on from before.

    At the end of what a fork has of its origin, nobody has: that the origin did is cut off.
    """
    forked = False
    for place in range(len(log), 0, -1):
        kind = log[place - 1].type
        if kind not in GUESTS:
            return place - (forked and kind in _DELIVERED)
        forked = forked or kind == FORKED
    return 0


def is_taken_away(events: Sequence[Event], lease_no: int) -> bool:
    """Say whether the run has ended, or the holder of this lease has lost it."""
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
        if event.type not in GUESTS:
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
