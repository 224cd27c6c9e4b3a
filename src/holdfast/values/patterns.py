"""Topics and patterns of topics: what they may be, and which patterns fit which topics.

A topic is segments with dots between them: `invoices.17.paid`. In a pattern, `*` stands for one
segment, and `#` for any number of them, also none.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from holdfast.errors import InvalidName

EVENT_SIGNAL: Final = "event:"  # begins the names of signals by which runs are told of events
TOPIC_HEADER: Final = "holdfast-topic"  # of a run that an event has started: the event's topic
EVENT_HEADER: Final = "holdfast-event"  # and its id

_MOST: Final = 255
_topic = re.compile(r"[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*")
_pattern = re.compile(r"([a-zA-Z0-9_-]+|\*|#)(\.([a-zA-Z0-9_-]+|\*|#))*")


def check_topic(topic: str) -> str:
    """Return a topic. Raises InvalidName.

    >>> check_topic("invoices.17.paid")
    'invoices.17.paid'
    """
    # Callers without a type checker pass anything.
    if isinstance(topic, str) and len(topic) <= _MOST and _topic.fullmatch(topic):  # pyright: ignore[reportUnnecessaryIsInstance]
        return topic
    raise InvalidName(
        f"{_cut(topic)} is not a topic: it is segments of the characters a-z, A-Z, 0-9, '_' and "
        f"'-', with dots between them, {_MOST} in all"
    )


def check_pattern(pattern: str) -> str:
    """Return a pattern of topics. Raises InvalidName.

    >>> check_pattern("invoices.*.paid"), check_pattern("#")
    ('invoices.*.paid', '#')
    """
    if isinstance(pattern, str) and len(pattern) <= _MOST and _pattern.fullmatch(pattern):  # pyright: ignore[reportUnnecessaryIsInstance]
        return pattern
    raise InvalidName(
        f"{_cut(pattern)} is not a pattern: it is segments with dots between them, {_MOST} "
        "characters in all; a segment is '*' (any one), '#' (any number of them), or of the "
        "characters a-z, A-Z, 0-9, '_' and '-'"
    )


def fits(pattern: str, topic: str) -> bool:
    """Return True if events of a topic are those that a pattern asks for.

    >>> [fits("a.#.paid", topic) for topic in ("a.paid", "a.1.2.paid", "a")]
    [True, True, False]
    """
    segments = topic.split(".")
    places = {0}  # how many segments of the topic the pattern may have used up
    for wanted in pattern.split("."):
        if wanted == "#":
            places = set(range(min(places), len(segments) + 1))
        else:
            places = {
                place + 1
                for place in places
                if place < len(segments) and wanted in ("*", segments[place])
            }
        if not places:
            return False
    return len(segments) in places


def event_signal(pattern: str, match: str | None) -> str:
    """Return the name of the signal by which a run is told of events; `match` is JSON text.

    No signal of a user can have it: those have no colon. Another condition is another signal.

    >>> event_signal("invoices.*.paid", None)
    'event:invoices.*.paid'
    """
    if match is None:
        return EVENT_SIGNAL + pattern
    return f"{EVENT_SIGNAL}{pattern}?{hashlib.sha256(match.encode()).hexdigest()[:12]}"


def pattern_of(signal: str) -> str | None:
    """Return the pattern of the events that a signal tells of; None for another signal.

    >>> pattern_of(event_signal("invoices.*.paid", "1")), pattern_of("packed")
    ('invoices.*.paid', None)
    """
    if not signal.startswith(EVENT_SIGNAL):
        return None
    return signal.removeprefix(EVENT_SIGNAL).partition("?")[0]


def _cut(name: object) -> str:
    return repr(name if not isinstance(name, str) or len(name) <= 300 else f"{name[:300]}…")
