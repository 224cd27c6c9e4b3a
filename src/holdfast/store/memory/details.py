"""The details of events: written as JSON text, read as values.

What user code made (results, inputs, errors) stays the text that it is.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def write(**fields: object) -> str:
    """Write details. A `msgspec.Raw` is written as it is."""
    return msgspec.json.encode(fields).decode()


def text(value: msgspec.Raw | None) -> str | None:
    """Return the text of a value that was read and not decoded."""
    return None if value is None else bytes(value).decode()


def read(details: str | None, shape: type[T]) -> T:
    """Read details; fields that the shape lacks are ignored."""
    return msgspec.json.decode(details or "null", type=shape)
