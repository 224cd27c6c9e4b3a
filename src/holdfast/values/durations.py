"""Lengths of time as people write and read them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from holdfast.errors import ConfigurationError

Duration: TypeAlias = str | int | float | timedelta

LONGEST_SECONDS: Final = 1e10  # 317 years

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SECOND: Final = 1_000_000
_LARGE_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
_part = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_whole = re.compile(rf"(?:{_part.pattern} *)+")


def seconds(value: Duration) -> float:
    """Return a length of time in seconds.

    Takes seconds as a number, a timedelta, or text made of numbers with the units ms, s, m, h,
    d and w: `"250ms"`, `"1h30m"`, `"7d"`. Raises ConfigurationError for anything else, for
    negative lengths and for more than 10,000,000,000 seconds.
    """
    if isinstance(value, str):
        return _parse(value)
    length = value.total_seconds() if isinstance(value, timedelta) else value
    # Callers without a type checker pass anything.
    if isinstance(length, bool) or not isinstance(length, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"not a duration: {value!r}; write seconds, '90s' or a timedelta")
    return _checked(length, value)


def length(microseconds: int) -> str:
    """Return a length of time with its two largest units: `3.2 ms`, `41.3 s`, `2 h 5 m`."""
    seconds = max(0, microseconds) / _SECOND
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for index, (unit, name) in enumerate(_LARGE_UNITS):
        if whole >= unit:
            smaller, small_name = (*_LARGE_UNITS, (1, "s"))[index + 1]
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def length_of(seconds: float) -> str:
    """Return a length of time that is given in seconds, as `length` does; `10 s`, not `10.0 s`."""
    return length(round(seconds * _SECOND)).replace(".0 ", " ") if seconds else "0 s"


def _checked(length: float, value: Duration) -> float:
    if not 0 <= length < math.inf:  # isfinite() raises for an int that no float holds
        raise ConfigurationError(f"not a duration: {value!r}; it must be finite and not negative")
    if length > LONGEST_SECONDS:
        raise ConfigurationError(
            f"not a duration: {value!r}; it is longer than {LONGEST_SECONDS:,.0f} seconds, beyond "
            "what timestamps reach"
        )
    return float(length)


def _parse(text: str) -> float:
    stripped = text.strip()
    if not _whole.fullmatch(stripped):
        units = ", ".join(_UNITS)
        raise ConfigurationError(
            f"not a duration: {text!r}; write numbers with units ({units}), such as '1h30m'"
        )
    length = sum(float(number) * _UNITS[unit] for number, unit in _part.findall(stripped))
    return _checked(length, text)
