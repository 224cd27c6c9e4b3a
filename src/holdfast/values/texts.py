"""Check texts that a caller gives: PostgreSQL must be able to hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.errors import ConfigurationError, InvalidInput

MAX_ID: Final = 1024  # bytes: an index must hold it
MAX_TEXT: Final = 64 * 1024  # bytes


def check_text(what: str, text: str) -> str:
    """Return a text that PostgreSQL can hold, of 64 KiB at most. Raises InvalidInput."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} {text!r} is not a str")
    if "\0" in text:
        raise InvalidInput(f"{what} {text!r} has a NUL character, which PostgreSQL cannot hold")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {text!r} has a lone surrogate: it is not Unicode") from None
    if length > MAX_TEXT:
        raise InvalidInput(f"the {what} takes {length:,} bytes, more than {MAX_TEXT:,}")
    return text


def check_id(what: str, text: str) -> str:
    """Return an id or a key of a caller, of 1 to 1,024 bytes. Raises InvalidInput."""
    if text == "":
        raise InvalidInput(f"the {what} is empty: all callers would share it")
    length = len(check_text(what, text).encode())
    if length > MAX_ID:
        raise InvalidInput(f"the {what} takes {length:,} bytes, more than {MAX_ID:,}")
    return text


def check_reason(reason: str | None) -> str | None:
    """Return the reason of a change, which may be left out. Raises InvalidInput."""
    return None if reason is None else check_text("reason", reason)


def check_by(by: str | None) -> str | None:
    """Return who makes a change, which may be left out. Raises InvalidInput."""
    return None if by is None else check_text("name of who does it", by)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return a run's tags. Raises InvalidInput, and ConfigurationError for a single text."""
    if isinstance(tags, str):
        raise ConfigurationError(f"tags are several texts: write [{tags!r}]")
    return tuple(check_text("tag", tag) for tag in tags)


def check_headers(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return a run's headers, None for none. Raises InvalidInput."""
    if not headers:
        return None
    return {
        check_text("header name", name): check_text("header value", value)
        for name, value in headers.items()
    }
