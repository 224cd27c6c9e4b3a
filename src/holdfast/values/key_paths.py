"""Paths into the input of a run, such as `input.customer`: the key that rules and limits go by.

The same in SQL is `_is_key_path` and `_key_of`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.errors import ConfigurationError

_MOST_BYTES: Final = 256  # of a path
_LONGEST_KEY: Final = 200  # bytes; of a longer key the digest is used
_PATH: Final = re.compile(r"input(\.[^.|\s]+)*")
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,9}")

_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


def check_key_path(path: str) -> str:
    """Return a path if it leads into an input. Raises ConfigurationError.

    >>> check_key_path("input.customer.id")
    'input.customer.id'
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"{path!r} is not a path into the input: write input.FIELD, such as input.customer, "
            "or input for the whole"
        )
    if not is_key_path(path):
        raise ConfigurationError(f"a path takes at most {_MOST_BYTES} bytes: {path[:60]}…")
    return path


def is_key_path(path: str) -> bool:
    """Return True if this is a path into an input.

    >>> is_key_path("input.lines.0.sku"), is_key_path("customer")
    (True, False)
    """
    return _PATH.fullmatch(path) is not None and len(path.encode()) <= _MOST_BYTES


def is_index(field: str) -> bool:
    """Return True if a field may be an index of an array; that of the last element is also -1.

    >>> is_index("0"), is_index("-1"), is_index("first")
    (True, True, False)
    """
    return _INDEX.fullmatch(field) is not None


def shown_path(path: str, *, of_activity: bool) -> str:
    """Return the path of a limit as code writes it: that of an activity begins with a parameter.

    >>> shown_path("input.k.order.id|input.a.1.id|input.1.id", of_activity=True)
    'input.order.id'
    """
    first = path.partition("|")[0]
    return first.replace("input.k.", "input.", 1) if of_activity else first


def fields_of(path: str) -> list[str]:
    """Return the fields that a path goes through, from the input on.

    >>> fields_of("input.customer.id")
    ['customer', 'id']
    """
    return path.split(".")[1:]


def key_of(text: str, path: str | None) -> str:
    """Return the key to which a path leads in an input, which is JSON text.

    A text is itself, any other value its JSON text. Of several paths, with `|` in between, the
    first that leads to a value counts. Without a path, or where the input has no value or null,
    the key is empty. Of a key with more than 200 bytes it is the SHA-256.

    >>> key_of('{"customer": "ann", "n": 7}', "input.customer"), key_of("{}", "input.customer")
    ('ann', '')
    """
    return "" if path is None else first_key(text, [fields_of(each) for each in path.split("|")])


def first_key(text: str, places: Iterable[Iterable[str]]) -> str:
    """Return the key at the first of several places that has a value; see `key_of`."""
    found = (value_at(text, fields) for fields in places)
    return _shortened(next((each for each in found if each is not None), ""))


def value_at(text: str, fields: Iterable[str]) -> str | None:
    """Return the value to which fields lead in JSON text, as `#>>` does in PostgreSQL.

    A text is itself, any other value its JSON text; None for null, or if there is no such field.

    >>> value_at('{"customer": {"id": 7.50}}', ["customer", "id"])
    '7.50'
    """
    value = text.encode().strip()
    for name in fields:
        found = _field(value, name)
        if found is None:
            return None
        value = found.strip()
    return _as_text(value)


def _field(value: bytes, name: str) -> bytes | None:
    if value.startswith(b"{"):
        found = _split_object(value).get(name)
        return None if found is None else bytes(found)
    if value.startswith(b"[") and is_index(name):
        items, index = _split_array(value), int(name)
        return bytes(items[index]) if -len(items) <= index < len(items) else None
    return None


def _as_text(value: bytes) -> str | None:
    if value == b"null":
        return None
    return _decode_text(value) if value.startswith(b'"') else value.decode()


def _shortened(key: str) -> str:
    encoded = key.encode()
    return key if len(encoded) <= _LONGEST_KEY else hashlib.sha256(encoded).hexdigest()
