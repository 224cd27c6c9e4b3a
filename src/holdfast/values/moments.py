"""Moments: microseconds since 1970 UTC inside, datetimes with a time zone for callers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from holdfast.errors import ConfigurationError

Moment: TypeAlias = datetime | str
"""A datetime with a time zone, or ISO 8601; without a zone it is read in the schedule's."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_datetime(at: int) -> datetime:
    """Return a moment in UTC."""
    return _EPOCH + at * _MICROSECOND


def maybe_datetime(at: int | None) -> datetime | None:
    """Return a moment in UTC; None if there is none."""
    return None if at is None else to_datetime(at)


def to_micros(moment: datetime) -> int:
    """Return the microseconds since 1970 UTC of a moment with a time zone."""
    return (moment - _EPOCH) // _MICROSECOND


def maybe_micros(moment: datetime | None) -> int | None:
    """Return a moment in microseconds, None without one."""
    return None if moment is None else to_micros(moment)


def checked_micros(at: datetime) -> int:
    """Return a moment as microseconds since 1970 UTC. Raises ConfigurationError without a zone."""
    # Callers without a type checker pass anything.
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"not a moment: {at!r}; give a datetime with a time zone")
    if at.tzinfo is None:
        raise ConfigurationError(f"{at.isoformat()} has no time zone: add one, such as UTC")
    return to_micros(at)
