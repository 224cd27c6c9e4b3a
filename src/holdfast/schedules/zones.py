"""Time zones: what clocks show at a moment, and the moments at which they show a time.

A *wall time* is a datetime without a time zone, as a clock on a wall shows it. A *moment* is
whole seconds since 1970 UTC. Clocks that are set forward leave wall times out (a gap); clocks
that are set back show some of them twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from holdfast.errors import ConfigurationError
from holdfast.values.suggestions import similar_name

_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
# Each machine has its own file of this name, so workers would disagree.
_OF_THE_MACHINE: Final = frozenset({"localtime", "posixrules"})


def load_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name, such as Europe/Berlin. Raises ConfigurationError."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a time zone is a text, such as Europe/Berlin, not {name!r}")
    if name not in _OF_THE_MACHINE:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder
            pass
    known = {each.lower(): each for each in available_timezones()}
    near = similar_name(name.lower(), known)
    hint = "write an IANA name, such as Europe/Berlin" if near is None else f"{known[near]}?"
    raise ConfigurationError(f"unknown time zone {name!r}: {hint}")


def wall_time(zone: ZoneInfo, moment: int) -> datetime:
    """Return what clocks show at a moment. `fold` is 1 if they show it for the second time.

    Raises OverflowError beyond the year 9999.
    """
    return zone.fromutc((_EPOCH + moment * _SECOND).replace(tzinfo=zone)).replace(tzinfo=None)


def moments_of(zone: ZoneInfo, wall: datetime) -> tuple[int, ...]:
    """Return the moments at which clocks show a wall time: none in a gap, else one or two."""
    first, second = _moment(zone, wall, 0), _moment(zone, wall, 1)
    if first == second:
        return (first,)
    return (first, second) if first < second else ()


def moment_of(zone: ZoneInfo, wall: datetime) -> int:
    """Return the first moment at which clocks show a wall time, or the end of the gap it is in."""
    shown = moments_of(zone, wall)
    return shown[0] if shown else end_of_gap(zone, wall)


def end_of_gap(zone: ZoneInfo, wall: datetime) -> int:
    """Return the moment at which clocks are set forward over a wall time that they never show."""
    return change_of_offset(zone, _moment(zone, wall, 1), _moment(zone, wall, 0))


def change_of_offset(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the moment in (low, high] at which clocks are set. There must be exactly one."""
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _moment(zone: ZoneInfo, wall: datetime, fold: int) -> int:
    """Return when clocks show a wall time by the offset before (0) or after (1) they are set."""
    offset = wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()
    return (wall - _EPOCH - offset) // _SECOND


def _offset(zone: ZoneInfo, moment: int) -> timedelta:
    return (_EPOCH + moment * _SECOND).replace(tzinfo=UTC).astimezone(zone).utcoffset() or (
        timedelta()
    )
