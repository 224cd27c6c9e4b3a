"""What people write of when a schedule fires, checked and turned into a `When`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.schedules.cron import check_cron
from holdfast.schedules.ticks import next_after
from holdfast.schedules.zones import load_zone, moment_of
from holdfast.types import When
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import Moment, checked_micros, to_micros

_MICROS: Final = 1_000_000
_SHORTEST_SECONDS: Final = 1


def parse_when(
    cron: str | None = None,
    *,
    every: Duration | None = None,
    anchor: Moment | None = None,
    timezone: str = "UTC",
    start: Moment | None = None,
    end: Moment | None = None,
) -> When:
    """Return when a schedule fires, from what people write. Raises ConfigurationError.

    Give a cron expression or `every`, at least a second. Intervals count from `anchor`; without
    one from `start`, else from 1970-01-01 00:00 UTC, so that `every="15m"` fires on the quarters
    of an hour. Ticks at `start` and `end` themselves fire.

    >>> parse_when("0 9 * * 1-5", timezone="Europe/Berlin").cron
    '0 9 * * 1-5'
    """
    if (cron is None) == (every is None):
        raise ConfigurationError(
            "a schedule needs a cron expression or every=, and not both: "
            '"0 9 * * 1-5", or every="15m"'
        )
    if anchor is not None and every is None:
        raise ConfigurationError(
            "anchor: only intervals have one; the fields of a cron expression say when it fires"
        )
    with _named("timezone"):
        load_zone(timezone)
    starts_at, ends_at = _moment("start", start, timezone), _moment("end", end, timezone)
    anchored_at = _moment("anchor", anchor, timezone)
    when = When(
        cron=None if cron is None else check_cron(cron),
        every_seconds=None if every is None else _interval(every),
        anchor=None if every is None else (starts_at if anchor is None else anchored_at),
        timezone=timezone,
        starts_at=starts_at,
        ends_at=ends_at,
    )
    _check_range(when)
    return when


def _check_range(when: When) -> None:
    if when.starts_at is None or when.ends_at is None:
        return
    if when.ends_at < when.starts_at:
        raise ConfigurationError("end: it is before start")
    if next_after(when, when.starts_at - 1) is None:
        raise ConfigurationError("the schedule never fires: no tick is between start and end")


def _interval(every: Duration) -> float:
    with _named("every"):
        length = seconds(every)
        if length < _SHORTEST_SECONDS:
            raise ConfigurationError(f"{every!r} is shorter than a second")
    return length


def parse_moment(moment: Moment, timezone: str) -> int:
    """Return the microseconds since 1970 UTC of a moment. Raises ConfigurationError."""
    if not isinstance(moment, str):
        return checked_micros(moment)
    written = _read(moment)
    if written.tzinfo is not None:
        return to_micros(written)
    whole = written.replace(microsecond=0)
    return moment_of(load_zone(timezone), whole) * _MICROS + written.microsecond


def _moment(name: str, moment: Moment | None, timezone: str) -> int | None:
    if moment is None:
        return None
    with _named(name):
        return parse_moment(moment, timezone)


def _read(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"not a moment: {text!r}; write ISO 8601, such as 2030-01-31 or 2030-01-31T12:00+01:00"
        ) from None


@contextmanager
def _named(name: str) -> Generator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
