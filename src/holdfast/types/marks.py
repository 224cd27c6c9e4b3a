"""Marks of entries: how much of the log the code had seen before an entry.

An entry of a worker that landed behind what others had appended says in its details, as `seen`,
how many entries of the log the code had seen. Those of others from that index on stand ahead of it
in the log, and the code saw them after it.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.types.base import Event

# What a worker writes and feeds to the code, which continues from it.
DELIVERED: Final = frozenset({"StepCompleted", "StepFailed", "TimerFired"})

_BEGINNINGS: Final = ('{"seen":', '{"python":')
_seen = re.compile(r'\{(?:"python":"[^"]*",)?"seen":(\d+),')


def read_seen(event: Event) -> int | None:
    """Return how many entries the code had seen before this one, None where it does not say so."""
    text = event.details
    if event.type not in DELIVERED or text is None or not text.startswith(_BEGINNINGS):
        return None
    found = _seen.match(text)
    return None if found is None else int(found[1])


def mark_seen(event: Event, seen: int) -> Event:
    """Return an entry that says how many entries the code had seen; an earlier mark stands."""
    if event.type not in DELIVERED or read_seen(event) is not None:
        return event
    return Event(event.type, event.key, f'{{"seen":{seen},{(event.details or "")[1:]}', event.at)


def without_mark(event: Event) -> Event:
    """Return an entry as it is delivered in its own place."""
    if read_seen(event) is None:
        return event
    text = re.sub(r'"seen":\d+,', "", event.details or "", count=1)
    return Event(event.type, event.key, text, event.at)
