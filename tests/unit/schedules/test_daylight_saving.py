"""T6: both edges of daylight saving. Expressions that name hours go by the wall, others by time."""

from __future__ import annotations

import pytest

from holdfast.schedules import parse_when, ticks_between
from tests.unit.schedules.moments import at, first_ticks, ticks

SPRING = ("Europe/Berlin", "2026-03-29")  # 02:00 becomes 03:00
AUTUMN = ("Europe/Berlin", "2026-10-25")  # 03:00 becomes 02:00


def test_a_time_in_the_skipped_hour_fires_once_at_its_end() -> None:
    assert ticks("30 2 * * *", *SPRING) == ["03-29 03:00:00 +0200"]


def test_all_times_in_the_skipped_hour_fire_once_together() -> None:
    assert ticks("*/15 2 * * *", *SPRING) == ["03-29 03:00:00 +0200"]
    assert ticks("15 30 2 * * *", *SPRING) == ["03-29 03:00:00 +0200"]


def test_a_time_at_the_end_of_the_skipped_hour_is_not_fired_twice() -> None:
    assert ticks("0 2,3 * * *", *SPRING) == ["03-29 03:00:00 +0200"]
    assert ticks("30 2-3 * * *", *SPRING) == ["03-29 03:00:00 +0200", "03-29 03:30:00 +0200"]


def test_the_day_after_the_skipped_hour_is_as_always() -> None:
    assert ticks("30 2 * * *", *SPRING, days=2)[1:] == ["03-30 02:30:00 +0200"]


def test_a_time_in_the_repeated_hour_fires_the_first_time_only() -> None:
    assert ticks("30 2 * * *", *AUTUMN) == ["10-25 02:30:00 +0200"]
    assert ticks("*/20 2 * * *", *AUTUMN) == [
        "10-25 02:00:00 +0200",
        "10-25 02:20:00 +0200",
        "10-25 02:40:00 +0200",
    ]


def test_six_fields_fire_in_the_repeated_hour_once() -> None:
    assert ticks("10,20 30 2 * * *", *AUTUMN) == ["10-25 02:30:10 +0200", "10-25 02:30:20 +0200"]


def test_a_tick_follows_from_within_the_second_pass_of_the_repeated_hour() -> None:
    when = parse_when("30 2,3 * * *", timezone="Europe/Berlin")
    within = at("2026-10-25T02:10:00+01:00")  # the second time that clocks show 02:10
    assert first_ticks(when, within, 2, "Europe/Berlin") == [
        "10-25 03:30:00 +0100",
        "10-26 02:30:00 +0100",
    ]


def test_every_hour_fires_in_both_passes_of_the_repeated_hour() -> None:
    assert ticks("0 * * * *", *AUTUMN)[1:5] == [
        "10-25 01:00:00 +0200",
        "10-25 02:00:00 +0200",
        "10-25 02:00:00 +0100",
        "10-25 03:00:00 +0100",
    ]
    assert len(ticks("@hourly", *AUTUMN)) == 25
    assert len(ticks("*/5 * * * *", *AUTUMN)) == 25 * 12


def test_every_hour_goes_past_the_skipped_hour() -> None:
    assert ticks("0 * * * *", *SPRING)[1:4] == [
        "03-29 01:00:00 +0100",
        "03-29 03:00:00 +0200",
        "03-29 04:00:00 +0200",
    ]
    assert len(ticks("*/5 * * * *", *SPRING)) == 23 * 12


def test_both_passes_are_found_from_within_the_first() -> None:
    when = parse_when("15,45 * * * *", timezone="Europe/Berlin")
    assert first_ticks(when, at("2026-10-25T02:20:00+02:00"), 4, "Europe/Berlin") == [
        "10-25 02:45:00 +0200",
        "10-25 02:15:00 +0100",
        "10-25 02:45:00 +0100",
        "10-25 03:15:00 +0100",
    ]


def test_the_other_side_of_the_ocean_changes_on_other_days() -> None:
    zone = "America/New_York"
    assert ticks("30 2 * * *", zone, "2026-03-08") == ["03-08 03:00:00 -0400"]
    assert ticks("30 1 * * *", zone, "2026-11-01") == ["11-01 01:30:00 -0400"]


def test_half_an_hour_is_skipped_and_repeated_on_lord_howe() -> None:
    zone = "Australia/Lord_Howe"
    assert ticks("15 2 * * *", zone, "2026-10-04") == ["10-04 02:30:00 +1100"]
    assert ticks("*/10 3 * * *", zone, "2026-10-04")[0] == "10-04 03:00:00 +1100"
    assert ticks("45 1 * * *", zone, "2026-04-05") == ["04-05 01:45:00 +1100"]
    assert ticks("*/15 * * * *", zone, "2026-04-05")[6:10] == [
        "04-05 01:30:00 +1100",
        "04-05 01:45:00 +1100",
        "04-05 01:30:00 +1030",
        "04-05 01:45:00 +1030",
    ]


def test_midnight_itself_is_skipped_in_sao_paulo() -> None:
    zone = "America/Sao_Paulo"
    assert ticks("@daily", zone, "2017-10-14", days=2) == [
        "10-14 00:00:00 -0300",
        "10-15 01:00:00 -0200",
    ]
    assert ticks("30 0 15 * *", zone, "2017-10-14", days=3) == ["10-15 01:00:00 -0200"]


def test_midnight_is_repeated_in_sao_paulo() -> None:
    zone = "America/Sao_Paulo"  # at 2018-02-18 00:00 clocks are set back to 23:00 of the 17th
    assert ticks("30 23 * * *", zone, "2018-02-17", days=2) == [
        "02-17 23:30:00 -0200",
        "02-18 23:30:00 -0300",
    ]


def test_a_whole_day_is_skipped_in_apia() -> None:
    zone = "Pacific/Apia"  # 2011-12-30 did not exist
    assert ticks("0 9 * * *", zone, "2011-12-29", days=3) == [
        "12-29 09:00:00 -1000",
        "12-31 00:00:00 +1400",
        "12-31 09:00:00 +1400",
    ]
    assert len(ticks("0 * * * *", zone, "2011-12-29", days=2)) == 24


def test_ramadan_changes_clocks_of_casablanca_on_days_that_no_rule_gives() -> None:
    zone = "Africa/Casablanca"
    assert ticks("30 2 * * *", zone, "2026-02-15") == ["02-15 02:30:00 +0100"]  # repeated
    assert ticks("30 2 * * *", zone, "2026-03-22") == ["03-22 03:00:00 +0100"]  # skipped


@pytest.mark.parametrize(("zone", "day"), [SPRING, AUTUMN])
def test_intervals_go_by_elapsed_time_whatever_clocks_do(zone: str, day: str) -> None:
    when = parse_when(every="1h", anchor=f"{day}T00:00", timezone=zone)
    begin = when.anchor or 0
    assert ticks_between(when, begin, begin + 86_400_000_000, 99) == [
        begin + n * 3_600_000_000 for n in range(1, 25)
    ]
