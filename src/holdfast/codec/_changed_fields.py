"""JSON text, and types whose fields have changed since it was written.

An added field with a default is the most usual change of a type. A log has the fingerprints of
values from before it, which no new text gives: the texts without such fields are tried. A field
that was removed would be lost when a value is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from copy import copy
from itertools import combinations, islice
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast.codec._fields import Container, Field, elements, fields_of, is_container
from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode, encode_sorted

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


def removed_fields(text: str, value: object) -> list[str]:
    """Return the paths of the fields in JSON text which the types of `value` do not have.

    A model says itself what becomes of a field that it does not know, by its `extra`, and how what
    it holds is written: it is not looked into.
    """
    return [] if encode(value) == text else list(_removed(value, msgspec.json.decode(text), ""))


def _removed(value: object, plain: object, place: str) -> Iterator[str]:
    kind = type(value)
    if not is_container(plain) or is_model_type(kind) or _has_other_tag(kind, plain):
        return
    fields = fields_of(kind)
    if fields is not None:
        yield from (f"{place}{name}" for name in _unknown(kind, fields, plain))
        for each in fields:
            if each.is_in(plain):
                part, written = getattr(value, each.name, None), plain[cast("Any", each.written)]
                yield from _removed(part, written, f"{place}{each.written}.")
    elif isinstance(value, AbstractSet):
        yield from _removed_of_set(cast("AbstractSet[object]", value), plain, place)
    else:
        if kind is dict and isinstance(plain, dict):  # a TypedDict drops the keys that it lacks
            names = cast("dict[object, object]", value)
            if all(isinstance(name, str) for name in names):
                yield from (f"{place}{name}" for name in plain if name not in names)
        for part, written in elements(value, plain):
            yield from _removed(part, written, place)


def _removed_of_set(value: AbstractSet[object], plain: Container, place: str) -> Iterator[str]:
    """Look at fields of the elements only: which text was that of which element is not known."""
    kinds = {kind: fields_of(kind) for kind in set(map(type, value))}
    if any(fields is None or is_model_type(kind) for kind, fields in kinds.items()):
        return
    for written in plain:
        lost = [
            set(_unknown(kind, fields, written))
            for kind, fields in kinds.items()
            if fields is not None and is_container(written)
        ]
        if lost:
            yield from (f"{place}{name}" for name in set[str | int].intersection(*lost))


def _has_other_tag(kind: type[Any], plain: Container) -> bool:
    config = getattr(kind, "__struct_config__", None)
    if config is None or config.tag is None or isinstance(plain, list):
        return False
    return bool(plain.get(config.tag_field) != config.tag)


def _unknown(kind: type[Any], fields: list[Field], plain: Container) -> Iterator[str | int]:
    """Return the names in a JSON object, or the indexes in an array, that no field has."""
    config = getattr(kind, "__struct_config__", None)
    if isinstance(plain, list):
        yield from range(int(fields[-1].written) + 1 if fields else len(plain), len(plain))
        return
    known = {each.written for each in fields}
    known.add(getattr(config, "tag_field", ""))
    yield from (name for name in plain if name not in known)
