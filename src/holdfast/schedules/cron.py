"""Cron expressions: read with errors that name the field, and evaluated in a time zone.

`cronsim` knows the calendar: which wall times an expression matches. This module says at which
moments these are, at both edges of daylight saving:

- An expression that names hours (`30 2 * * *`) goes by the wall. A wall time that clocks show
  twice fires the first time only. Wall times that clocks leave out fire once, together, at the
  moment when clocks are set forward.
- An expression for every hour (`*/15 * * * *`) goes by elapsed time. It fires at each moment at
  which clocks show a match: in both passes of a repeated hour, never for a time left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from holdfast.errors import ConfigurationError
from holdfast.schedules.zones import change_of_offset, end_of_gap, moment_of, moments_of, wall_time
from holdfast.values.suggestions import similar_name
from holdfast.values.texts import clipped

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_LONGEST: Final = 500  # characters
_SECOND: Final = timedelta(seconds=1)
# From here, 50 years have all that a calendar can have: each weekday on each day, leap days too.
_LONG_AGO: Final = datetime(2000, 1, 1)
_step = re.compile(r"/([0-9]+)")
_stepped_range = re.compile(r"(\w+-\w+)/0*[1-9][0-9]*")


class _Field(msgspec.Struct, frozen=True):
    name: str
    count: int
    allowed: str


_FIELDS: Final = (
    _Field("second", 60, "0 to 59"),
    _Field("minute", 60, "0 to 59"),
    _Field("hour", 24, "0 to 23"),
    _Field("day-of-month", 31, "1 to 31, L for the last day, LW for the last weekday"),
    _Field("month", 12, "1 to 12, or JAN to DEC"),
    _Field(
        "day-of-week",
        7,
        "0 to 7 (0 and 7 are Sunday), or SUN to SAT, 5L for the last Friday, MON#2 for the "
        "second Monday",
    ),
)


def check_cron(text: str) -> str:
    """Return a cron expression with single spaces. Raises ConfigurationError if it is not valid.

    Five fields: minute, hour, day-of-month, month, day-of-week; six begin with the second. Or an
    alias, such as `@daily`. An expression that never fires is refused.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a cron expression is a text, not {clipped(text)}")
    expression = " ".join(text.split())
    if len(expression) > _LONGEST:
        raise ConfigurationError(
            f"a cron expression has at most {_LONGEST} characters, not {len(expression)}"
        )
    fields = _fields_of(expression)
    try:
        next(_calendar(" ".join(fields)))
    except (CronSimError, StopIteration):
        _refuse_field(expression, fields)
        raise ConfigurationError(
            f"cron expression {expression!r} never fires: no month has such a day"
        ) from None
    _refuse_long_steps(expression, fields)
    return expression


def next_match(expression: str, zone: ZoneInfo, after: int) -> int | None:
    """Return the first moment after another at which an expression fires, None if none follows.

    Both are whole seconds since 1970 UTC. It looks at 50 years. Raises ConfigurationError for an
    expression that `check_cron` refuses: those that were written by SQL alone were not checked.
    """
    try:
        calendar = _calendar(" ".join(_fields_of(expression)))
    except CronSimError:
        check_cron(expression)
        raise
    try:
        if len(calendar.hours) == _FIELDS[2].count:
            return _next_by_elapsed_time(calendar, zone, after)
        return _next_by_the_wall(calendar, zone, after)
    except OverflowError:  # the year 10,000
        return None


def _next_by_the_wall(calendar: CronSim, zone: ZoneInfo, after: int) -> int | None:
    wall = wall_time(zone, after)
    if wall.fold:  # all that clocks show twice has been; continue after it
        first, second = moments_of(zone, wall)
        change = change_of_offset(zone, first, second)
        wall = wall_time(zone, change - 1)
    found = next(_walls_after(calendar, wall), None)
    return None if found is None else moment_of(zone, found)


def _next_by_elapsed_time(calendar: CronSim, zone: ZoneInfo, after: int) -> int | None:
    wall = wall_time(zone, after)
    found = _first_shown(calendar, zone, wall, after)
    shown = moments_of(zone, wall)
    if len(shown) == 2 and not wall.fold:  # clocks will be set back to before this wall time
        change = change_of_offset(zone, *shown)
        again = _first_shown(calendar, zone, wall_time(zone, change) - _SECOND, change - 1)
        return min((at for at in (found, again) if at is not None), default=None)
    return found


def _first_shown(calendar: CronSim, zone: ZoneInfo, wall: datetime, after: int) -> int | None:
    """Return when clocks first show a match that is later than a wall time, after a moment."""
    found = next(_walls_after(calendar, wall), None)
    while found is not None:
        at = next((each for each in moments_of(zone, found) if each > after), None)
        if at is not None:
            return at
        shown_next = wall_time(zone, end_of_gap(zone, found))
        found = next(_walls_after(calendar, shown_next - _SECOND), None)
    return None


def _walls_after(calendar: CronSim, wall: datetime) -> Iterator[datetime]:
    """Return the wall times that match, later than one. It ends after 50 years without any."""
    matches = copy(calendar)
    matches.dt = wall.replace(fold=0)
    return matches


@lru_cache(maxsize=10_000)
def _calendar(fields: str) -> CronSim:
    return CronSim(fields, _LONG_AGO - _SECOND)


def _fields_of(expression: str) -> list[str]:
    """Return the fields of an expression or of what an alias means. Raises ConfigurationError.

    A range of one value loses its step: `cronsim` takes `9-9/2` for `9/2`, which goes on to 23.
    """
    if expression.startswith("@"):
        if expression.lower() not in ALIASES:
            _refuse_alias(expression)
        expression = ALIASES[expression.lower()]
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise ConfigurationError(
            f"cron expression {expression!r} has {len(fields)} field{'s' * (len(fields) != 1)}: "
            "write five (minute hour day-of-month month day-of-week), or six with the second first"
        )
    return [
        ",".join(_without_idle_step(kind, part) for part in field.split(","))
        for kind, field in zip(list(Field)[-len(fields) :], fields, strict=True)
    ]


def _without_idle_step(kind: Field, part: str) -> str:
    match = _stepped_range.fullmatch(part)
    try:
        return match[1] if match and len(kind.parse(match[1].upper())) == 1 else part
    except CronSimError:
        return part  # refused with the expression


def _refuse_alias(expression: str) -> None:
    name = expression.split()[0].lower()
    if name == "@every":
        hint = f"write every={expression[len(name) + 1 :]!r} in place of a cron expression"
    elif name == "@reboot":
        hint = "a schedule goes by the clock, not by the start of a machine"
    else:
        near = similar_name(name, ALIASES)
        hint = f"write {', '.join(ALIASES)}" if near is None else f"{near}?"
    raise ConfigurationError(f"unknown cron alias {expression!r}: {hint}")


def _refuse_field(expression: str, fields: list[str]) -> None:
    """Raise ConfigurationError for the first field that is not valid on its own."""
    known = _FIELDS[-len(fields) :]
    for at, (field, text) in enumerate(zip(known, fields, strict=True)):
        alone = ["*"] * len(fields)
        alone[at] = text
        try:
            CronSim(" ".join(alone), _LONG_AGO)
        except CronSimError:
            raise ConfigurationError(
                f"cron expression {expression!r}: the {field.name} cannot be {text!r}; it may be "
                f"{field.allowed}; also lists (1,3), ranges (1-5), steps (*/2) and *"
            ) from None


def _refuse_long_steps(expression: str, fields: list[str]) -> None:
    """Raise ConfigurationError for `*/90` minutes, which would fire every hour."""
    for field, text in zip(_FIELDS[-len(fields) :], fields, strict=True):
        for step in map(int, _step.findall(text)):
            if step > field.count:
                raise ConfigurationError(
                    f"cron expression {expression!r}: the {field.name} has a step of {step}, but "
                    f"only {field.count} values: an interval (every='90m') may be longer"
                )
