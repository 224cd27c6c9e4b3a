"""The ticks of a schedule: the moments that its expression or its interval names.

Moments are microseconds since 1970 UTC. Each function raises ConfigurationError if this machine
cannot evaluate a `When`: it does not know the time zone, or the value was never checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.schedules.cron import next_match
from holdfast.schedules.zones import load_zone
from holdfast.types import When

_MICROS: Final = 1_000_000
_LAST: Final = 253_402_214_400 * _MICROS  # 9999-12-31, which every time zone can show


def next_after(when: When, moment: int) -> int | None:
    """Return the first tick after a moment, None if none follows in 50 years.

    >>> next_after(When(every_seconds=900), 0)
    900000000
    """
    if when.starts_at is not None:
        moment = max(moment, when.starts_at - 1)
    tick = _next(when, moment)
    return None if tick is None or tick > _last(when) else tick


def next_ticks(when: When, moment: int, count: int) -> list[int]:
    """Return the first ticks after a moment: `count` of them, or fewer if no more follow."""
    return ticks_between(when, moment, _LAST, count)


def ticks_between(when: When, after: int, until: int, limit: int) -> list[int]:
    """Return the ticks later than `after` and not later than `until`: the first `limit` of them."""
    return list(islice(_ticks(when, after, until), limit))


def last_ticks(when: When, after: int, until: int, limit: int) -> list[int]:
    """Return the ticks later than `after` and not later than `until`: the last `limit` of them.

    In their order. It looks at a few times `limit` ticks, however many there are.
    """
    if limit == 0:
        return []  # no range is short enough to leave out a tick at `until` itself
    until, width = min(until, _last(when)), _MICROS
    while until - width > after and len(ticks_between(when, until - width, until, limit)) < limit:
        width *= 2
    low, high = max(after, until - width), until
    found = ticks_between(when, low, until, limit + 1)
    while len(found) > limit:  # a shorter range, by bisection
        middle = (low + high) // 2
        fewer = ticks_between(when, middle, until, limit + 1)
        if len(fewer) < limit:
            high = middle
        else:
            low, found = middle, fewer
    return found


def _ticks(when: When, after: int, until: int) -> Iterator[int]:
    tick = next_after(when, after)
    while tick is not None and tick <= until:
        yield tick
        tick = next_after(when, tick)


def _next(when: When, moment: int) -> int | None:
    if when.cron is not None:
        found = next_match(when.cron, load_zone(when.timezone), moment // _MICROS)
        return None if found is None else found * _MICROS
    every, anchor = round((when.every_seconds or 0) * _MICROS), when.anchor or 0
    if every < _MICROS:
        raise ConfigurationError("a schedule needs a cron expression, or an interval of a second")
    return anchor + ((moment - anchor) // every + 1) * every


def _last(when: When) -> int:
    return _LAST if when.ends_at is None else min(when.ends_at, _LAST)
