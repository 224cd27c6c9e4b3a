"""What a log says of the exceptions that a run's own code has raised, and then handled.

An entry says how many entries of the log the code had seen, and which exceptions there were.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.events import read_value_set
from holdfast.types import Event

CAUGHT: Final = "caught:"  # before the position, in the key of an entry


class Raised(NamedTuple):
    """The name of an exception's type, and of the function that has raised it."""

    kind: str
    function: str


class Noted(NamedTuple):
    """How many entries code has come to, and how often to each exception."""

    entries: int
    each: Counter[Raised]


class RaisedLog:
    """The entries of one log, and what the code that runs here has `noted` of them.

    `last` is the position of the last entry; `are_named` is False if an earlier release has written
    one: it did not say which exceptions there were.
    """

    __slots__ = ("_all", "_at", "_here", "_noted_here", "are_named", "last", "noted")

    def __init__(self) -> None:
        self._here, self._noted_here = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        self._at = Counter[int]()
        self._all, self.noted = Noted(0, Counter()), Noted(0, Counter())
        self.last, self.are_named = -1, True

    def learn(self, event: Event) -> None:
        """Learn an entry of the log."""
        place = (event.key or "").removeprefix(CAUGHT).partition("#")[0]
        # An earlier release wrote the key of a call, which says nothing of where others were.
        position = int(place) if place.isdecimal() else sys.maxsize
        found = read_value_set(event.details or "")
        is_named = found != "true"
        self.are_named = self.are_named and is_named
        self.add(position, msgspec.json.decode(found, type=list[Raised]) if is_named else ())

    def add(self, position: int, raised: Sequence[Raised]) -> str:
        """Add an entry, and return its key."""
        self.last = max(self.last, position)
        self._at[position] += 1
        self._here.update((position, each.kind) for each in raised)
        self._all = _more(self._all, raised)
        count = self._at[position]
        return f"{CAUGHT}{position}" + (f"#{count}" if count > 1 else "")

    def note(self, position: int, raised: Sequence[Raised]) -> None:
        """Count what the code has come to at a position."""
        self.noted = _more(self.noted, raised)
        self._noted_here.update((position, each.kind) for each in raised)

    def so_far(self) -> Noted:
        """Return what the code had come to that has written the log up to now."""
        return Noted(self._all.entries, self._all.each.copy())

    @property
    def has_too_few(self) -> bool:
        """True if the log has fewer entries than the code has come to."""
        return self.noted.entries > self._all.entries

    def has_all(self, position: int, raised: Sequence[Raised]) -> bool:
        """Return True if the log has each of these for what the code has come to at a position."""
        here = {(position, each.kind) for each in raised}
        return all(self._noted_here[each] <= self._here[each] for each in here)

    def has_at(self, position: int, raised: Raised) -> bool:
        """Return True if older code has come to such an exception at a position."""
        return (position, raised.kind) in self._here

    def has_as_often(self, raised: Raised) -> bool:
        """Return True if older code has come to an exception as often as this code."""
        return self.noted.each[raised] <= self._all.each[raised]


def _more(noted: Noted, raised: Sequence[Raised]) -> Noted:
    noted.each.update(raised)
    return noted._replace(entries=noted.entries + 1)
