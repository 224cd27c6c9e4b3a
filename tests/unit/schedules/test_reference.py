"""T6: cron evaluation against a slow reference, which looks at each minute or second there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.schedules import last_ticks, next_after, parse_when, ticks_between
from holdfast.values.moments import to_micros

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Apia",
)


@dataclass(frozen=True)
class Expression:
    """A cron expression: its text, and the values that each field has, seconds first."""

    text: str
    values: tuple[frozenset[int], ...]
    both_days: bool  # day-of-month and day-of-week must match, not one of them

    def matches(self, wall: datetime) -> bool:
        second, minute, hour, day, month, weekday = self.values
        on_day, on_weekday = wall.day in day, wall.isoweekday() % 7 in weekday
        return (
            wall.second in second
            and wall.minute in minute
            and wall.hour in hour
            and wall.month in month
            and ((on_day and on_weekday) if self.both_days else (on_day or on_weekday))
        )

    def goes_by_the_wall(self) -> bool:
        return len(self.values[2]) < 24


def reference(expression: Expression, zone: str, begin: datetime, end: datetime) -> list[int]:
    """Return the ticks from `begin` to `end`, by looking at what clocks show at each moment."""
    step = timedelta(seconds=1) if len(expression.text.split()) == 6 else timedelta(minutes=1)
    return list(_fired(expression, ZoneInfo(zone), begin, end, step))


def _fired(
    expression: Expression, zone: ZoneInfo, begin: datetime, end: datetime, step: timedelta
) -> Iterator[int]:
    moment = begin
    before = (begin - step).astimezone(zone).replace(tzinfo=None)
    while moment <= end:
        shown = moment.astimezone(zone)
        wall = shown.replace(tzinfo=None)
        if expression.goes_by_the_wall():
            fires = expression.matches(wall) and not shown.fold
            left_out = before + step
            while not fires and left_out < wall:
                fires = expression.matches(left_out)
                left_out += step
        else:
            fires = expression.matches(wall)
        if fires:
            yield to_micros(moment)
        before, moment = wall, moment + step


@cache
def changes(zone: str, year: int) -> tuple[datetime, ...]:
    """Return the moments of a year at which clocks are set, to the hour; else its middle."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(8760)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    found = [hours[n] for n in range(1, len(hours)) if offsets[n] != offsets[n - 1]]
    return tuple(found) or (datetime(year, 7, 1, tzinfo=UTC),)


@st.composite
def fields(draw: st.DrawFn, low: int, high: int, any_often: bool) -> tuple[str, frozenset[int]]:
    """Draw a field's text and its values."""
    kinds = ["any"] * (3 if any_often else 1) + ["list", "range", "step", "steps of a range"]
    kind = draw(st.sampled_from(kinds))
    if kind == "any":
        return "*", frozenset(range(low, high + 1))
    if kind == "list":
        chosen = draw(st.sets(st.integers(low, high), min_size=1, max_size=3))
        return ",".join(map(str, sorted(chosen))), frozenset(chosen)
    by = draw(st.integers(1, high - low))
    if kind == "step":
        return f"*/{by}", frozenset(range(low, high + 1, by))
    first, last = sorted(draw(st.tuples(st.integers(low, high), st.integers(low, high))))
    if kind == "range":
        return f"{first}-{last}", frozenset(range(first, last + 1))
    if first == last:  # cron reads `5/2` as `5-59/2`
        return str(first), frozenset({first})
    return f"{first}-{last}/{by}", frozenset(range(first, last + 1, by))


@st.composite
def expressions(draw: st.DrawFn, seconds: bool) -> Expression:
    """Draw an expression, one of two of which fires in the small hours, when clocks are set."""
    small = st.sampled_from([("*", range(24)), ("0-4", range(5)), ("1-3", (1, 2, 3))])
    second = draw(fields(0, 59, False)) if seconds else ("0", frozenset({0}))
    minute = draw(fields(0, 59, True))
    hours = small.map(lambda each: (each[0], frozenset(each[1])))
    hour = draw(hours | fields(0, 23, False))
    rest = [draw(fields(1, 31, True)), draw(fields(1, 12, True)), draw(fields(0, 6, True))]
    all_fields = [second, minute, hour, *rest]
    texts = [text for text, _ in all_fields]
    return Expression(
        " ".join(texts if seconds else texts[1:]),
        tuple(values for _, values in all_fields),
        texts[3].startswith("*") or texts[5].startswith("*"),
    )


def agree(
    expression: Expression, zone: str, middle: datetime, reach: timedelta, part: float
) -> None:
    """Compare all ticks around a moment, and the first tick after one within two hours of it."""
    begin, end = middle - reach, middle + reach
    expected = reference(expression, zone, begin, end)
    when = parse_when(expression.text, timezone=zone)
    low, high = to_micros(begin), to_micros(end)
    assert ticks_between(when, low - 1, high, 100_000) == expected
    assert last_ticks(when, low - 1, high, 3) == expected[-3:]
    within = to_micros(middle + part * timedelta(hours=2))
    first = next((tick for tick in expected if tick > within), None)
    found = next_after(when, within)
    assert found == first if first is not None else found is None or found > high


def parsed(expression: Expression) -> bool:
    """Return True unless the expression can never fire, such as on February 30."""
    longest = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    days, months = expression.values[3:5]
    return not expression.both_days or any(min(days) <= longest[each - 1] for each in months)


@settings(max_examples=70, deadline=None)
@given(expressions(False).filter(parsed), st.sampled_from(ZONES), st.data())
def test_five_fields_agree_with_a_reference_that_looks_at_each_minute(
    expression: Expression, zone: str, data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from(changes(zone, data.draw(st.integers(2005, 2035)))))
    agree(expression, zone, changed, timedelta(hours=26), data.draw(st.floats(-1, 1)))


@settings(max_examples=10, deadline=None)
@given(expressions(True).filter(parsed), st.sampled_from(ZONES), st.data())
def test_six_fields_agree_with_a_reference_that_looks_at_each_second(
    expression: Expression, zone: str, data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from(changes(zone, data.draw(st.integers(2005, 2035)))))
    agree(expression, zone, changed, timedelta(minutes=150), data.draw(st.floats(-1, 1)))
