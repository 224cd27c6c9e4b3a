"""Check texts that a caller gives: PostgreSQL must be able to hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigurationError, InvalidInput

T = TypeVar("T")

MAX_ID: Final = 1024  # bytes: an index must hold it
MAX_TEXT: Final = 64 * 1024  # bytes
_CLIPPED: Final = 200


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


def several(what: str, given: Iterable[T], kind: type[Any] | UnionType = object) -> list[T]:
    """Return several values of a kind as a list. Raises InvalidInput for anything else.

    A text is refused, as its characters would each be one; and where a value of any kind may be
    one, a mapping, as its names would be.
    """
    found: object = given
    refused = isinstance(found, str | bytes) or (kind is object and isinstance(found, Mapping))
    if refused or not isinstance(found, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} are several, as in a list, not {clipped(given)}")
    values = list(given)
    for each in values:
        if not isinstance(each, kind):
            raise InvalidInput(f"{what}: {clipped(each)} is not one")
    return values


def clipped(value: object) -> str:
    """Return how Python writes a value, without what is beyond its first 200 characters.

    >>> clipped("abc"), len(clipped("a" * 1_000_000))
    ("'abc'", 201)
    """
    text = repr(value[:_CLIPPED] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def short_id(text: str) -> str:
    """Return a text as an id, or a hash of it if an id cannot be so long."""
    encoded = text.encode()
    return text if len(encoded) <= MAX_ID else hashlib.sha256(encoded).hexdigest()


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
    return tuple(check_text("tag", tag) for tag in several("tags", tags))


def check_headers(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return a run's headers, None for none. Raises InvalidInput."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"headers are names with texts, not {clipped(headers)}")
    checked = {
        check_text("header name", name): check_text("header value", value)
        for name, value in headers.items()
    }
    return checked or None
