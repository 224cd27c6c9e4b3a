"""A run's log as its turn sees it: entries that are durable, then in flight, then fresh.

Fresh entries are not in a commit yet; those in flight are in a commit that was not answered yet.

Entries are delivered to the code in the order of the log, with one exception. While a worker's
entries are in flight, other processes may append to the log. If such a foreign entry can wait (a
signal, the end of a command), it is delivered after the worker's entries, although it is before
them in the log: the code has seen those already, and to replay the whole log for each signal would
bring a run to a halt. The worker's entries say in their details, as `seen`, how many entries of the
log the code had seen: foreign entries from that index on are delivered after them.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

from holdfast.events import (
    DELIVERED,
    EVENT_SUBSCRIBED,
    EXTERNAL,
    FORKED,
    MARKED,
    STREAM_WRITTEN,
    TERMINAL,
    VALUE_RECORDED,
    WEBHOOK_OPENED,
    WORKER_LOST,
    YIELDED,
    is_after_others,
    is_in_transaction,
    mark_after_others,
    mark_seen,
    read_seen,
    read_worker_lost,
)
from holdfast.types import Event, count_bearable

Tells = Literal["nothing", "how many", "which"]
"""What a log says of the exceptions of its own that its code has handled."""

_PROOFS: Final = DELIVERED | {YIELDED}
_BARS: Final = frozenset({EVENT_SUBSCRIBED, WEBHOOK_OPENED, STREAM_WRITTEN})
BEGUN: Final = "begun:"  # before the key of a call, in the key of the entry that it has begun
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# How the first entry of a run's first commit begins, after its mark. The second field says that the
# log has an entry for each exception of its own that the code handles. It is left out if workers of
# another release may continue the run. Earlier releases left it out, too, or wrote `true` for
# entries that do not say which exceptions.
_SIGNED: Final = f'"python":"{PYTHON}"'
_TELLS_WHICH: Final = ',"caught":2'
_TELLS: Final[dict[str, Tells]] = {"true": "how many", "2": "which"}
# What comes before that, and what it says.
_stamp = re.compile(r'\{(?:"seen":\d+,)?(?:"python":"([^"]+)"(?:,"caught":(true|2))?)?')


class VirtualLog:
    """The three parts of a log.

    `forget` sets `durable` to None and keeps `durable_length` and the hash of the `last` durable
    entry. `last_at` is the moment of that entry, 0 while there is only the first. `python` is the
    version of Python that made the run's first commit, None before it.

    The code has been fed all three parts. Only the first `certain` entries that it was fed cannot
    be taken back by a crash. That may be less than the durable part: foreign entries may be durable
    while entries that the code was fed before them are still in flight.
    """

    __slots__ = (
        "_certain",
        "_clock",
        "_newest",
        "_split",
        "_tells",
        "barred",
        "committing",
        "durable",
        "durable_length",
        "flight",
        "fresh",
        "last",
        "last_at",
        "python",
    )

    def __init__(
        self, durable: Sequence[Event], clock: Callable[[], int], tells: Tells = "which"
    ) -> None:
        self._clock = clock
        self._tells: Tells = tells
        self.durable: list[Event] | None = list(durable)
        self.durable_length = len(durable)
        self.flight: list[Event] = []
        self.fresh: list[Event] = []
        self.committing = False
        self._certain: int | None = None
        self.barred = False  # True: `record` was given an entry that steps wait for
        self._split = False  # True: the code saw the fresh entries, too, before others wrote
        self._newest: Event | None = None  # the last durable one, after `forget`
        self.last: int | None = None
        self.last_at = 0
        self.python: str | None = None
        if self.durable_length > 1:  # more than its first entry
            self.last_at, self.python = _last_at(durable), _python_of(durable)

    @property
    def length(self) -> int:
        """The number of entries of all three parts."""
        return self.durable_length + len(self.flight) + len(self.fresh)

    @property
    def certain(self) -> int:
        """How many of the entries that the code has been fed no crash can take back."""
        return self.durable_length if self._certain is None else self._certain

    def record(self, kind: str, key: str | None, text: str | None) -> None:
        """Add a fresh entry, with the time of now.

        What the code records about itself comes directly after what it was fed last.
        """
        fresh, event = self.fresh, Event(kind, key, text, self._clock())
        if kind == VALUE_RECORDED:
            place = len(fresh)
            while place and fresh[place - 1].type not in DELIVERED:
                place -= 1
            fresh.insert(place, event)
            if _bars(event):
                self.barred = True
        else:
            fresh.append(event)
            if kind in _BARS:
                self.barred = True

    @property
    def bars_steps(self) -> bool:
        """True while a subscription or a webhook is not durable, whose answer a step may bring.

        Or what the code has written to a stream, after which a step may write; or that a
        transaction has begun.
        """
        unsure = (*self.flight, *self.fresh)
        self.barred = any(map(_bars, unsure))
        return self.barred

    def extend(self, tail: Sequence[Event]) -> None:
        """Add durable entries of others."""
        if not tail:
            return
        self.durable_length += len(tail)
        self.last_at = tail[-1].at
        if self.durable is not None:
            self.durable += tail
        else:
            self._newest = tail[-1]

    def bearable(self, *, singly: bool, mark: int | None = None) -> int:
        """Return how many of the fresh entries fit into one commit: their values may be long.

        With `singly` only the first, with a `mark` only those that must be durable before so many
        are certain. What the code recorded about itself is in the commit of the entry that led to
        it.
        """
        fresh = self.fresh
        if len(fresh) < 2:
            return len(fresh)
        count = 1 if singly else count_bearable([len(event.details or "") for event in fresh])
        if mark is not None:
            count = min(count, max(1, mark - self.certain))
        while count < len(fresh) and fresh[count].type == VALUE_RECORDED:
            count += 1
        return count

    def commit_sent(self, count: int | None = None, *, after_others: bool) -> list[Event]:
        """Move fresh entries into flight, and return them for the commit.

        With `after_others` the commit may be appended after entries of others, so each of its
        entries says what the code had seen. With a `count` only the first so many are moved. The
        first commit of a run says which Python made it.
        """
        if count is None:
            self.flight, self.fresh, self._split = self.fresh, [], False
        else:
            self.flight, self.fresh = self.fresh[:count], self.fresh[count:]
            self._split = bool(self.fresh)
        if self.python is None and self.flight:
            _sign(self.flight, self._tells)
        if after_others:
            self.flight = [mark_after_others(each, self.durable_length) for each in self.flight]
        self.committing = True
        return self.flight

    def signed(self, events: list[Event]) -> list[Event]:
        """Return events to commit. Those of a run's first commit say which Python made them."""
        if events and self.python is None:
            _sign(events, self._tells)
        return events

    def commit_done(self, ahead: Sequence[Event]) -> None:
        """Make what was in flight durable, after `ahead`: entries of others, still to be fed."""
        flight, self.flight = self.flight, []
        if not ahead and not self._split and self._certain is None:  # no others wrote meanwhile
            self.committing = False
            self.extend(flight)
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
        """Put what the code has seen after `tail`: entries of others, still to be fed."""
        self._certain = self.certain
        self.fresh = [mark_seen(event, self.durable_length) for event in undurable]
        self.extend(tail)

    def refused(self) -> list[Event]:
        """Remove all entries that are not durable, and return them."""
        undurable = self.flight + self.fresh
        self.flight, self.fresh = [], []
        self.committing = False
        return undurable

    def rely(self) -> None:
        """Make all durable entries certain: the code is fed again, in the order of the log."""
        self._certain = None

    def replace(self, durable: Sequence[Event]) -> None:
        """Replace the durable part with a whole log."""
        self.durable, self.durable_length = list(durable), len(durable)
        self.last_at = _last_at(durable)

    def forget(self) -> None:
        """Drop the durable entries; keep their number, and the hash of the last one."""
        newest = self.durable[-1] if self.durable else self._newest
        self.last, self._newest, self.durable = hash(newest), None, None


def _last_at(log: Sequence[Event]) -> int:
    # A claim tells of the first entry what it is, not when.
    return log[-1].at if len(log) > 1 else 0


def _bars(event: Event) -> bool:
    return event.type in _BARS or (
        event.type == VALUE_RECORDED and (event.key or "").startswith(BEGUN)
    )


def is_external(event: Event) -> bool:
    """Return True if no commit of the run's worker wrote the entry."""
    return event.type in EXTERNAL or is_in_transaction(event)


def in_delivery_order(events: Sequence[Event], first: int = 0) -> Sequence[Event]:
    """Return entries of a log, from index `first` on, in the order in which the code sees them."""
    marks = [
        (position, seen)
        for position, event in enumerate(events)
        if event.type in DELIVERED
        and (event.details or "").startswith(MARKED)
        and (seen := read_seen(event)) is not None
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
            if index >= seen and is_external(event):
                waiting.append((index, event))
            else:
                found.append(event)
        begin = position + 1
    return found


def count_replayed(log: Sequence[Event]) -> int:
    """Return after how many events, from the start, some worker's code has continued before.

    The last copied entry of a fork does not count: what the origin did after it was not copied.
    """
    forked = False
    for position in range(len(log), 0, -1):
        event = log[position - 1]
        if not is_external(event):
            return position - (forked and event.type in DELIVERED)
        forked = forked or event.type == FORKED
    return 0


def count_proven(log: Sequence[Event], replayed: int) -> int:
    """Return after how many of the `replayed` events some worker's code has certainly continued.

    Facts and commands of a commit that was appended after entries that the code had not seen yet
    have a mark; earlier releases did not write it. What is delivered is at its own place then, and
    a suspension cannot be appended so.
    """
    for position in range(replayed, 0, -1):
        event = log[position - 1]
        if not is_external(event) and (event.type in _PROOFS or not is_after_others(event)):
            return position
    return 0


def count_called(log: Sequence[Event]) -> int:
    """Return how many events precede the last result of a call that some worker's code has made.

    That may be the only proof of what the code has passed: the last result that a fork has, and
    that of a transaction, do not say that the code has continued after them.
    """
    return next((at for at in range(len(log) - 1, 0, -1) if log[at].type in DELIVERED), 0)


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


def tells_caught(log: Sequence[Event]) -> Tells:
    """Return what a log says of the exceptions of its own that the code has handled."""
    found = _stamp_of(log)
    return "nothing" if found is None or found[2] is None else _TELLS[found[2]]


def _python_of(log: Sequence[Event]) -> str | None:
    if all(map(is_external, log)):
        return None
    found = _stamp_of(log)
    return PYTHON if found is None else found[1] or PYTHON


def _stamp_of(log: Sequence[Event]) -> re.Match[str] | None:
    first = next((event for event in log if not is_external(event)), None)
    return None if first is None else _stamp.match(first.details or "")


def _sign(events: list[Event], tells: Tells) -> None:
    first = events[0]
    if first.type in TERMINAL:
        return  # a run that has ended is not replayed
    text, begin = first.details or "{}", 1
    if text.startswith(MARKED):  # it was in a commit that was refused
        found = _stamp.match(text)
        if found is None or found[1]:
            return
        begin = found.end()
    rest = text[begin:]
    signed = _SIGNED + (_TELLS_WHICH if tells == "which" else "")
    signed = f"{text[:begin]}{signed}{'' if rest == '}' else ','}{rest}"
    events[0] = Event(first.type, first.key, signed, first.at)
