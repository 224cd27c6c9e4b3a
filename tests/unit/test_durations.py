"""Lengths of time as people write them."""

import math
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.values.durations import seconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 7d ", 604800),
        ("2w", 1209600),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_read_as_seconds(written: Any, expected: float) -> None:
    assert seconds(written) == pytest.approx(expected)


@pytest.mark.parametrize(
    "written",
    ["", "5", "m", "-5s", "5 minutes", "5s later", "٣s", -1, math.nan, math.inf, True, None, [],
     timedelta(-1)],
)  # fmt: skip
def test_an_invalid_duration_is_refused(written: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a duration"):
        seconds(written)
