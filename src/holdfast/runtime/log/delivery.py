"""In which order the entries of a log are delivered to the code.

It is the order of the log, with one exception. While a worker's entries are on their way to the
log, others may append to it. What they say then, if it can wait, is delivered after those entries,
although it stands ahead of them: the code has seen them already, and a replay of the whole log
for each signal would bring a run to a halt. Such an entry says in its details, as `seen`, how many
entries of the log the code had seen: those of others from there on are delivered after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast.events import CAN_WAIT, DELIVERED, EXTERNAL, read_seen
from holdfast.types import Event

__all__ = ["can_wait", "in_delivery_order"]


def can_wait(tail: Sequence[Event]) -> bool:
    """Return True if all of what others wrote may be delivered after a worker's own entries.

    A cancel, a pause and a decision may not: who wrote them was told that they hold.
    """
    return all(event.type in CAN_WAIT for event in tail)


def in_delivery_order(events: Sequence[Event], first: int = 0) -> Sequence[Event]:
    """Return entries, which stand in a log from index `first` on, as the code is to see them."""
    marks = [
        (place, seen)
        for place, event in enumerate(events)
        if event.type in DELIVERED and (seen := read_seen(event)) is not None
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
            if event.type in EXTERNAL and index >= seen:
                waiting.append((index, event))
            else:
                found.append(event)
        begin = place + 1
    return found
