"""What JSON text was before fields with defaults were added to the types of its values.

An added field with a default is the most usual change of a type. A log has the fingerprints of
values from before it, which no new text gives: the texts without such fields are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import combinations, islice
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast.codec._fields import Container, Field, elements, fields_of, is_container
from holdfast.codec._values import encode_sorted

MOST_ADDED: Final = 3  # fields at one time
_MOST_TEXTS: Final = 500
_MOST_BYTES: Final = 4_000_000  # of all texts together

_Field: TypeAlias = tuple[type, str | int]  # a class, and the name or index in its JSON


def texts_before_fields(text: str, value: object) -> Iterator[str]:
    """Return what the text of a value would be without some of the fields that have defaults.

    A field is left out if every instance of its class has the default.
    """
    plain = msgspec.json.decode(text)
    if msgspec.json.encode(plain).decode() != text:
        return
    found = _Defaults()
    found.look(value, plain)
    fields = [field for field in found.holders if field not in found.needed]
    sizes = range(1, MOST_ADDED + 1)
    choices = (chosen for size in sizes for chosen in combinations(fields, size))
    for chosen in islice(choices, min(_MOST_TEXTS, _MOST_BYTES // len(text))):
        yield _without(plain, found, chosen)


class _Defaults:
    """The JSON that holds each field with a default; `needed` are fields of other values."""

    def __init__(self) -> None:
        self.holders: dict[_Field, list[Container]] = {}
        self.needed: set[_Field] = set()
        self._depth = 0  # in how many fields that have their defaults this looks

    def look(self, value: object, plain: object) -> None:
        if not is_container(plain):
            return
        fields = fields_of(type(value))
        if fields is None:
            for part, written in elements(value, plain):
                self.look(part, written)
        else:
            self._look_at_fields(value, plain, fields)

    def _look_at_fields(self, value: object, plain: Container, fields: list[Field]) -> None:
        for each in fields:
            if not each.is_in(plain):
                continue
            field, written = (type(value), each.written), plain[cast("Any", each.written)]
            if _is_default(written, each.default):
                self.holders.setdefault(field, []).append(plain)
                self._depth += 1
                self.look(getattr(value, each.name), written)
                self._depth -= 1
            else:
                if not self._depth:  # such a value may go with the field that it is a part of
                    self.needed.add(field)
                self.look(getattr(value, each.name), written)


def _is_default(written: object, default: Callable[[], object]) -> bool:
    try:
        return bool(written == msgspec.json.decode(encode_sorted(default())))
    except Exception:  # there is none, or it is the user's code that fails
        return False


def _without(plain: object, found: _Defaults, chosen: tuple[_Field, ...]) -> str:
    changed = [(holder, copy(holder)) for field in chosen for holder in found.holders[field]]
    for field in sorted(chosen, key=_index, reverse=True):
        for holder in found.holders[field]:
            del holder[cast("Any", field[1])]
    text = msgspec.json.encode(plain).decode()
    for holder, whole in changed:
        holder.clear()
        if isinstance(holder, list):
            holder.extend(whole)
        else:
            holder.update(cast("dict[Any, Any]", whole))
    return text


def _index(field: _Field) -> int:
    """Return the index of a field in an array: one that goes moves those behind it."""
    return field[1] if isinstance(field[1], int) else 0
