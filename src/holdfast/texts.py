"""Texts that a caller gives: what PostgreSQL can hold, and what can be meant."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import ConfigurationError, InvalidInput


def check_text(what: str, text: str) -> str:
    """Return a text that PostgreSQL can hold. Raises InvalidInput for any other."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} {text!r} is not a str")
    if "\0" in text:
        raise InvalidInput(f"{what} {text!r} has a NUL character, which PostgreSQL cannot hold")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {text!r} has a lone surrogate: it is not Unicode") from None
    return text


def check_reason(reason: str | None) -> str | None:
    """Return the reason of a change, which may be left out. Raises InvalidInput."""
    return None if reason is None else check_text("reason", reason)


def check_key(key: str) -> str:
    """Return the key that makes a run's id. Raises InvalidInput, ConfigurationError if empty."""
    if not key:
        raise ConfigurationError("a key must not be empty: it would be everybody's")
    return check_text("key", key)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return a run's tags. Raises InvalidInput, and ConfigurationError for a single text."""
    if isinstance(tags, str):
        raise ConfigurationError(f"tags are several texts: write [{tags!r}]")
    return tuple(check_text("tag", tag) for tag in tags)
