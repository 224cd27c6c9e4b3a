"""Whole numbers, and yes or no, that options are."""

from __future__ import annotations

from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.values.texts import clipped

MAX_INTEGER: Final = 2**31 - 1  # in the database


def whole_number(number: object, of: str, name: str, least: int, most: int = MAX_INTEGER) -> int:
    """Return the whole number that an option is. Raises ConfigurationError for any other value."""
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return int(number)  # of an IntEnum, too
    raise ConfigurationError(
        f"{of}: {name}: a whole number from {least} to {most:,} is needed, not {clipped(number)}"
    )


def true_or_false(given: object, name: str) -> bool:
    """Return the yes or no that an option is. Raises ConfigurationError: "no" would be yes."""
    if isinstance(given, bool):
        return given
    raise ConfigurationError(f"{name} is True or False, not {clipped(given)}")
