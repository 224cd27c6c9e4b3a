"""Moments in the tests of schedules: written as people read them on a clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from holdfast.schedules import parse_when, ticks_between
from holdfast.types import When
from holdfast.values.moments import to_datetime, to_micros


def at(text: str) -> int:
    """Return the microseconds of an ISO 8601 moment; in UTC unless it has an offset."""
    moment = datetime.fromisoformat(text)
    return to_micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def shown(moments: Iterable[int], zone: str = "UTC") -> list[str]:
    """Return moments as clocks of a time zone show them, with their offset."""
    return [
        to_datetime(moment).astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M:%S %z")
        for moment in moments
    ]


def ticks(cron: str, zone: str, day: str, days: int = 1) -> list[str]:
    """Return the ticks of an expression on some days of a time zone, as its clocks show them."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    when = parse_when(cron, timezone=zone)
    return shown(
        ticks_between(
            when, to_micros(begin) - 1, to_micros(begin + timedelta(days=days)) - 1, 9999
        ),
        zone,
    )


def first_ticks(when: When, after: int, count: int, zone: str = "UTC") -> list[str]:
    """Return the first ticks after a moment, as clocks show them."""
    return shown(ticks_between(when, after, at("9999-01-01"), count), zone)
