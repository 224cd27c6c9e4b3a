"""Lengths of time as people read them."""

from __future__ import annotations

from datetime import datetime

import pytest

from holdfast.insight.wording import ago, length, length_of, moment, several, shorten
from holdfast.values.moments import to_datetime


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0.0 ms"),
        (3_240, "3.2 ms"),
        (99_460, "99.5 ms"),
        (99_600, "100 ms"),
        (999_499, "999 ms"),
        (999_600, "1.0 s"),
        (59_949_999, "59.9 s"),
        (59_960_000, "1 m"),
        (125_000_000, "2 m 5 s"),
        (7_500_000_000, "2 h 5 m"),
        (90_000_000_000, "1 d 1 h"),
        (-5, "0.0 ms"),
    ],
)
def test_lengths_have_their_two_largest_units(microseconds: int, text: str) -> None:
    assert length(microseconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.2512, "251 ms"), (2, "2 s"), (2.5, "2.5 s"), (60, "1 m"), (3_600, "1 h")],
)
def test_lengths_that_people_chose_are_written_as_they_are(seconds: float, text: str) -> None:
    """Fault: logs and alerts had `3600 s`."""
    assert length_of(seconds) == text


def test_moments_are_in_the_past_or_in_the_future() -> None:
    assert ago(1_000_000, 3_000_000) == "2.0 s ago"
    assert ago(3_000_000, 1_000_000) == "in 2.0 s"


def test_a_moment_says_its_offset_from_utc() -> None:
    at = 1_795_830_770_000_000
    written = moment(at)
    assert datetime.fromisoformat(written) == to_datetime(at)
    assert moment(at, at + 1) == written.partition(" ")[2]
    assert moment(at, 0) == written


def test_texts_become_one_line_of_a_width() -> None:
    assert shorten("a\n  b", 10) == "a b"
    assert shorten("abcdefgh", 5) == "abcd…"


def test_numbers_agree_with_their_nouns() -> None:
    assert (several(1, "run"), several(2_000, "run")) == ("1 run", "2,000 runs")
