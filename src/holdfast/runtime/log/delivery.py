"""In which order the entries of a log are delivered to the code.

It is the order of the log, with one exception. While a worker's entries are on their way to the
log, others may append to it. What they say then, if it can wait, is delivered after those entries,
although it stands ahead of them: the code has seen them already, and a replay of the whole log
for each signal would bring a run to a halt. Such an entry says in its details, as `seen`, how many
entries of the log the code had seen: those of others from there on are delivered after it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from holdfast.runtime.log.details import (
    GUESTS,
    STEP_COMPLETED,
    STEP_FAILED,
    TIMER_FIRED,
)
from holdfast.types import CAN_WAIT, Event

# What a worker writes and feeds to the code, which goes on from it.
DELIVERED: Final = frozenset({STEP_COMPLETED, STEP_FAILED, TIMER_FIRED})

_BEGINNINGS: Final = ('{"seen":', '{"python":')
_seen = re.compile(r'\{(?:"python":"[^"]*",)?"seen":(\d+),')


def can_wait(tail: Sequence[Event]) -> bool:
    """Return True if all of what others wrote may be delivered after a worker's own entries.

    A cancel, a pause and a decision may not: who wrote them was told that they hold.
    """
    return all(event.type in CAN_WAIT for event in tail)


def mark_seen(event: Event, seen: int) -> Event:
    """Return an entry that says how many entries the code had seen; an earlier mark stands."""
    text = event.details or ""
    if event.type not in DELIVERED or _read_seen(text) is not None:
        return event
    return Event(event.type, event.key, f'{{"seen":{seen},{text[1:]}', event.at)


def without_mark(event: Event) -> Event:
    """Return an entry as it is delivered in its own place."""
    text = event.details or ""
    if event.type not in DELIVERED or _read_seen(text) is None:
        return event
    return Event(event.type, event.key, re.sub(r'"seen":\d+,', "", text, count=1), event.at)


def in_delivery_order(events: Sequence[Event], first: int = 0) -> Sequence[Event]:
    """Return entries, which stand in a log from index `first` on, as the code is to see them."""
    marks = [
        (place, seen)
        for place, event in enumerate(events)
        if event.type in DELIVERED and (seen := _read_seen(event.details or "")) is not None
    ]
    if not marks:
        return events
    found: list[Event] = []
    waiting: deque[tuple[int, Event]] = deque()
    begin = 0
    for place, seen in [*marks, (len(events), first + len(events))]:
        while waiting and waiting[0][0] < seen:
            found.append(waiting.popleft()[1])
        for index, event in enumerate(events[begin : place + 1], first + begin):
            if event.type in GUESTS and index >= seen:
                waiting.append((index, event))
            else:
                found.append(event)
        begin = place + 1
    return found


def _read_seen(text: str) -> int | None:
    if not text.startswith(_BEGINNINGS):
        return None
    found = _seen.match(text)
    return None if found is None else int(found[1])
