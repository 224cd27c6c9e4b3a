"""The details of events: written as JSON text, read as values.

What user code made (results, inputs, errors) is passed on as the very text that it is.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def write(**fields: object) -> str:
    """Write details. A `msgspec.Raw` stands there as it is."""
    return msgspec.json.encode(fields).decode()


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text as something that `write` passes on."""
    return None if text is None else msgspec.Raw(text.encode())


def text(value: msgspec.Raw | None) -> str | None:
    """Return the text of a value that was read and not decoded."""
    return None if value is None else bytes(value).decode()


def read(details: str | None, shape: type[T]) -> T:
    """Read details; fields that the shape lacks are passed over."""
    return msgspec.json.decode(details or "null", type=shape)
