"""How long ended runs are kept, and how often those whose time is over are deleted."""

from __future__ import annotations

import os
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.values.durations import Duration, seconds

DEFAULT_RETENTION_SECONDS: Final = 30 * 86_400.0
MAX_RETENTION_VARIABLE: Final = "HOLDFAST_MAX_RETENTION_DAYS"
MAX_RETENTION_DAYS: Final = 365.0
SWEEPER_INTERVAL_VARIABLE: Final = "HOLDFAST_SWEEPER_INTERVAL"
SWEEPER_INTERVAL_SECONDS: Final = 300.0


def declared_seconds(
    wish: Duration | None, declared: float | None, *, is_known: bool
) -> float | None:
    """Return how long a run is kept, in seconds, if the caller may not have the workflow's code.

    None: as the database knows it from that code. Raises what `kept_seconds` raises.
    """
    if wish is None and not is_known:
        max_retention_seconds()
        return None
    return kept_seconds(wish, declared)


def kept_seconds(wish: Duration | None, default: float | None) -> float:
    """Return how long a run is kept after its end, in seconds.

    None as the default is as long as possible. Raises ConfigurationError if the environment does
    not say how long that is.
    """
    length = default if wish is None else seconds(wish)
    most = max_retention_seconds()
    return most if length is None else min(length, most)


def shortened(wish: float | None) -> str | None:
    """Say that a run is not kept as long as it is to be; None if it is.

    Raises ConfigurationError as `max_retention_seconds` does.

    >>> shortened(90 * 86_400), shortened(900 * 86_400)
    (None, 'runs are kept for 365 days at most (HOLDFAST_MAX_RETENTION_DAYS), not for 900')
    """
    most = max_retention_seconds()
    if wish is None or wish <= most:
        return None
    return (
        f"runs are kept for {most / 86_400:g} days at most ({MAX_RETENTION_VARIABLE}), not for "
        f"{wish / 86_400:g}"
    )


def max_retention_seconds() -> float:
    """Return the longest retention: that of $HOLDFAST_MAX_RETENTION_DAYS, or 365 days.

    Raises ConfigurationError if that is not a number of days.
    """
    text = os.environ.get(MAX_RETENTION_VARIABLE)
    if not text:
        return MAX_RETENTION_DAYS * 86_400
    try:
        return seconds(f"{text.strip()}d")
    except ConfigurationError:
        raise ConfigurationError(
            f"{MAX_RETENTION_VARIABLE} is {text!r}: set it to a number of days"
        ) from None


def sweeper_interval() -> float | None:
    """Return the seconds between two passes of the sweeper; None: it never runs here.

    $HOLDFAST_SWEEPER_INTERVAL says so, as `5m` or `off`. Raises ConfigurationError for a text that
    says neither.
    """
    text = os.environ.get(SWEEPER_INTERVAL_VARIABLE, "").strip()
    if not text:
        return SWEEPER_INTERVAL_SECONDS
    if text.lower() == "off":
        return None
    try:
        interval = seconds(text)
    except ConfigurationError:
        interval = 0.0
    if interval <= 0:
        raise ConfigurationError(
            f"{SWEEPER_INTERVAL_VARIABLE} is {text!r}: set it to a length of time such as 5m, or "
            "to off"
        )
    return interval
