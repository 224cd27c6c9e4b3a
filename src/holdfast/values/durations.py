"""Lengths of time as people write them, in seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from holdfast.errors import ConfigurationError

Duration: TypeAlias = str | int | float | timedelta

LONGEST_SECONDS: Final = 1e10  # 317 years

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
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


def _checked(length: float, value: Duration) -> float:
    if not math.isfinite(length) or length < 0:
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
