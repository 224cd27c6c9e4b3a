"""T6: what people write of when a schedule fires, and errors that name the field and its range."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.schedules import last_ticks, next_after, parse_when, ticks_between
from holdfast.types import When
from tests.unit.schedules.moments import at, first_ticks, shown


def refused(*cron: str, **options: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_when(*cron, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("cron", "field", "value", "allowed"),
    [
        ("60 * * * *", "minute", "60", "0 to 59"),
        ("* 24 * * *", "hour", "24", "0 to 23"),
        ("* * 0 * *", "day-of-month", "0", "1 to 31"),
        ("* * * 13 *", "month", "13", "1 to 12, or JAN to DEC"),
        ("* * * * 8", "day-of-week", "8", "0 to 7 (0 and 7 are Sunday), or SUN to SAT"),
        ("61 * * * * *", "second", "61", "0 to 59"),
        ("* 5-1 * * * *", "minute", "5-1", "0 to 59"),
        ("*/0 * * * *", "minute", "*/0", "0 to 59"),
        ("* * ? * *", "day-of-month", "?", "1 to 31"),
        ("1,,2 * * * *", "minute", "1,,2", "0 to 59"),
    ],
)
def test_a_bad_field_is_named_with_its_range(
    cron: str, field: str, value: str, allowed: str
) -> None:
    message = refused(cron)
    assert f"{cron!r}: the {field} cannot be {value!r}; it may be {allowed}" in message


def test_the_number_of_fields_is_checked() -> None:
    assert "'* * * *' has 4 fields: write five" in refused("* * * *")
    assert "'' has 0 fields" in refused("")
    assert "'hello' has 1 field:" in refused("hello")


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 * MON#2"])
def test_an_expression_that_never_fires_is_refused(cron: str) -> None:
    assert f"{cron!r} never fires" in refused(cron)


def test_a_rare_expression_is_not_refused() -> None:
    leap_mondays = parse_when("0 0 * 2 MON#5")
    assert first_ticks(leap_mondays, at("2026-01-01"), 1) == ["02-29 00:00:00 +0000"]


@pytest.mark.parametrize(
    ("cron", "same"),
    [
        ("0 9-9/2 * * *", "0 9 * * *"),
        ("0 09-9/2 * * *", "0 9 * * *"),
        ("0 1,9-9/3,12-14/2 * * *", "0 1,9,12,14 * * *"),
        ("0 0 1 jan-1/2 *", "0 0 1 1 *"),
        ("0 0 * * 1-mon/2", "0 0 * * 1"),
        ("5-5/5 0 0 * * *", "5 0 0 * * *"),
        ("0 9/7 * * *", "0 9,16,23 * * *"),
    ],
)
def test_a_range_of_one_value_does_not_go_on(cron: str, same: str) -> None:
    assert first_ticks(parse_when(cron), at("2026-01-01"), 5) == first_ticks(
        parse_when(same), at("2026-01-01"), 5
    )


def test_a_step_longer_than_its_field_is_refused() -> None:
    assert "the minute has a step of 90, but only 60 values" in refused("*/90 * * * *")


def test_a_long_text_is_refused() -> None:
    assert "at most 500 characters, not 6007" in refused("1" + ",1" * 2999 + " * * * *")


@pytest.mark.parametrize(
    ("alias", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
    ],
)
def test_an_alias_fires_as_its_expression(alias: str, fields: str) -> None:
    begin, end = at("2025-12-30"), at("2028-01-05")
    expected = ticks_between(parse_when(fields), begin, end, 100)
    assert expected
    assert ticks_between(parse_when(alias), begin, end, 100) == expected
    assert parse_when(alias).cron == alias


def test_unknown_aliases_say_what_to_write() -> None:
    assert "'@dayly': @daily?" in refused("@dayly")
    assert "write every='15m' in place of" in refused("@every 15m")
    assert "not by the start of a machine" in refused("@reboot")


def test_names_last_days_and_numbered_weekdays_are_known() -> None:
    assert first_ticks(parse_when("0 0 L * *"), at("2028-02-01"), 1) == ["02-29 00:00:00 +0000"]
    assert first_ticks(parse_when("0 0 LW * *"), at("2026-05-01"), 1) == ["05-29 00:00:00 +0000"]
    assert first_ticks(parse_when("0 0 * mar fri#2"), at("2026-01-01"), 1) == [
        "03-13 00:00:00 +0000"
    ]
    assert first_ticks(parse_when("0 0 * * 5L"), at("2026-05-01"), 1) == ["05-29 00:00:00 +0000"]


def test_days_of_both_fields_fire_unless_one_begins_with_a_star() -> None:
    either = parse_when("0 0 13 * 5")
    assert len(ticks_between(either, at("2026-02-01") - 1, at("2026-02-28"), 99)) == 4  # 13 is one
    both = parse_when("0 0 */13 * 5")
    assert first_ticks(both, at("2026-02-01"), 2) == [
        "02-27 00:00:00 +0000",
        "03-27 00:00:00 +0000",
    ]


def test_spaces_do_not_matter() -> None:
    assert parse_when("  0   9 * *\t1-5 ") == parse_when("0 9 * * 1-5")


@pytest.mark.parametrize(
    "options", [{}, {"cron": "@daily", "every": "1h"}], ids=["neither", "both"]
)
def test_one_of_cron_and_every_is_needed(options: dict[str, object]) -> None:
    assert "needs a cron expression or every=, and not both" in refused(**options)


def test_an_interval_counts_from_1970_in_utc() -> None:
    when = parse_when(every="15m", timezone="Asia/Kolkata")
    assert first_ticks(when, at("2026-05-01T10:01"), 2) == [
        "05-01 10:15:00 +0000",
        "05-01 10:30:00 +0000",
    ]


def test_an_interval_counts_from_its_start_or_its_anchor_in_both_directions() -> None:
    from_start = parse_when(every="1d", start="2026-03-01T09:00", timezone="Europe/Berlin")
    assert first_ticks(from_start, 0, 1, "Europe/Berlin") == ["03-01 09:00:00 +0100"]
    anchored = parse_when(every="1h", anchor=datetime(2026, 3, 1, 0, 20, tzinfo=UTC))
    assert first_ticks(anchored, at("2020-01-01"), 1) == ["01-01 00:20:00 +0000"]


def test_an_interval_is_at_least_a_second() -> None:
    assert "every: '250ms' is shorter than a second" in refused(every="250ms")
    assert "every: not a duration: 'often'" in refused(every="often")
    assert parse_when(every=timedelta(seconds=1.5)).every_seconds == 1.5


def test_an_anchor_is_of_intervals_only() -> None:
    assert "anchor: only intervals have one" in refused("@daily", anchor="2026-01-01")


def test_ticks_at_start_and_end_themselves_fire() -> None:
    when = parse_when("0 9 * * *", start="2026-03-02T09:00", end="2026-03-04T09:00")
    assert first_ticks(when, 0, 9) == [f"03-0{day} 09:00:00 +0000" for day in (2, 3, 4)]
    assert next_after(when, at("2026-03-04T09:00")) is None


def test_texts_without_a_zone_are_read_in_the_schedules() -> None:
    when = parse_when("@daily", timezone="Asia/Kolkata", start="2026-03-02")
    assert when.starts_at == at("2026-03-01T18:30")
    assert parse_when("@daily", start="2026-03-02T00:00+02:00").starts_at == at("2026-03-01T22:00")


def test_moments_that_cannot_be_read_are_refused() -> None:
    assert "start: not a moment: 'soon'" in refused("@daily", start="soon")
    assert "end: 2026-01-01T00:00:00 has no time zone" in refused(
        "@daily", end=datetime(2026, 1, 1)
    )
    day: Any = date(2026, 1, 1)
    assert "start: not a moment: datetime.date(2026, 1, 1)" in refused("@daily", start=day)


def test_an_end_before_any_tick_is_refused() -> None:
    assert "end: it is before start" in refused("@daily", start="2026-01-02", end="2026-01-01")
    assert "no tick is between" in refused("@yearly", start="2026-01-02", end="2026-12-01")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berlim", "Europe/Berlin?"),
        ("europe/berlin", "Europe/Berlin?"),
        ("Europe", "Europe"),
        ("../etc/passwd", "write an IANA name"),
        ("", "write an IANA name"),
        ("localtime", "'localtime'"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_one_that_is_like_it(name: str, hint: str) -> None:
    message = refused("@daily", timezone=name)
    assert message.startswith(f"timezone: unknown time zone {name!r}: ")
    assert hint in message


def test_it_is_plain_values_that_a_database_can_hold() -> None:
    when = parse_when("0 9 * * 1-5", timezone="Europe/Berlin", start="2026-01-01")
    assert msgspec.json.decode(msgspec.json.encode(when), type=When) == when


def test_the_last_ticks_are_those_before_the_end_in_their_order() -> None:
    hour_of_seconds = parse_when("* * 3 * * *")
    found = last_ticks(hour_of_seconds, 0, at("2026-01-02T02:00"), 2)
    assert shown(found) == ["01-01 03:59:58 +0000", "01-01 03:59:59 +0000"]
    assert last_ticks(hour_of_seconds, at("2026-01-01T04:00"), at("2026-01-02T02:00"), 2) == []
    every = When(every_seconds=1.5, ends_at=at("2026-01-01"))
    assert last_ticks(every, 0, at("2026-06-01"), 1) == [at("2026-01-01")]
    assert last_ticks(every, 0, at("2026-06-01"), 0) == []


def test_a_value_that_was_never_checked_is_refused_when_it_is_evaluated() -> None:
    for when in (
        When(),
        When(every_seconds=0.1),
        When(cron="x"),
        When(cron="@daily", timezone="y"),
    ):
        with pytest.raises(ConfigurationError):
            next_after(when, 0)
    with pytest.raises(ConfigurationError, match="minute cannot be '99'"):
        next_after(When(cron="99 * * * *"), 0)


def test_a_limit_bounds_the_ticks_and_the_last_year_ends_them() -> None:
    seconds = parse_when("* * * * * *")
    assert len(ticks_between(seconds, 0, at("9999-01-01"), 7)) == 7
    for when in (seconds, parse_when(every="1s"), parse_when("@yearly", timezone="Asia/Tokyo")):
        assert next_after(when, at("9999-12-31T12:00")) is None


_pieces = st.text("0123456789*/-,#?@LWSUNJAN ", max_size=20)


@given(_pieces | st.builds(" ".join, st.lists(_pieces, min_size=5, max_size=6)) | st.text())
@example("L/2 * * * *")
@example("* * LW/5,L * *")
@example("* * * * 5L#2")
def test_any_text_is_refused_as_a_mistake_or_fires(text: str) -> None:
    try:
        when = parse_when(text)
    except ConfigurationError:
        return
    assert next_after(when, at("2026-01-01")) is not None
