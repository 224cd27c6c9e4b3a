"""Checks of values that options are: numbers, yes or no, and objects of a class."""

from __future__ import annotations

from typing import Final, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.values.texts import clipped

T = TypeVar("T")

MAX_INTEGER: Final = 2**31 - 1  # in the database


def whole_number(number: object, of: str, name: str, least: int, most: int = MAX_INTEGER) -> int:
    """Return the whole number that an option is. Raises ConfigurationError for any other value."""
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return int(number)  # of an IntEnum, too
    raise ConfigurationError(
        f"{of}: {name}: a whole number from {least} to {most:,} is needed, not {clipped(number)}"
    )


def number_within(number: object, of: str, name: str, least: float, most: float) -> float:
    """Return the number that an option is. Raises ConfigurationError for any other value."""
    if isinstance(number, int | float) and not isinstance(number, bool) and least <= number <= most:
        return float(number)
    raise ConfigurationError(
        f"{of}: {name}: a number from {least:g} to {most:g} is needed, not {clipped(number)}"
    )


def is_a(kind: type[T], given: object, name: str) -> T:
    """Return the object of a class that an option is. Raises ConfigurationError for another.

    The error does not show the value: it may have a password.
    """
    if isinstance(given, kind):
        return given
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ConfigurationError(
        f"{name} is {article} {kind.__name__}, not an object of type {type(given).__name__}"
    )


def true_or_false(given: object, name: str) -> bool:
    """Return the yes or no that an option is. Raises ConfigurationError: "no" would be yes."""
    if isinstance(given, bool):
        return given
    raise ConfigurationError(f"{name} is True or False, not {clipped(given)}")
