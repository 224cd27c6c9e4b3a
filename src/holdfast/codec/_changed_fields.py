"""JSON text, and types whose fields have changed since it was written.

An added field with a default is the most usual change of a type. A log has the fingerprints of
values from before it, which no new text gives: the texts without such fields are tried. A field
that was removed would be lost when a value is decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from functools import partial
from itertools import combinations, islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast

import msgspec

from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode, encode_sorted

MOST_ADDED: Final = 3  # fields at one time
_MOST_TEXTS: Final = 500
_MOST_BYTES: Final = 4_000_000  # of all texts together

_FieldOfClass: TypeAlias = tuple[type, str | int]  # a class, and the name or index in its JSON

Container: TypeAlias = dict[Any, Any] | list[Any]  # a JSON object or array


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
        self.holders: dict[_FieldOfClass, list[Container]] = {}
        self.needed: set[_FieldOfClass] = set()
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


def _without(plain: object, found: _Defaults, chosen: tuple[_FieldOfClass, ...]) -> str:
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


def _index(field: _FieldOfClass) -> int:
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


class Field(NamedTuple):
    """A field: `written` is its name in a JSON object, or its index in an array."""

    name: str
    written: str | int
    default: Callable[[], object]  # raises for a field without one

    def is_in(self, plain: Container) -> bool:
        """Return True if a value's JSON has this field."""
        if isinstance(plain, list):
            return isinstance(self.written, int) and self.written < len(plain)
        return self.written in plain


def is_container(plain: object) -> TypeGuard[Container]:
    """Return True for a JSON object or array."""
    return isinstance(plain, dict | list)


def fields_of(kind: type[Any]) -> list[Field] | None:
    """Return the fields of a dataclass, struct, model or named tuple; None for other classes."""
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        first = 0 if config.tag is None else 1
        return [
            Field(each.name, at if config.array_like else each.encode_name, partial(_made, each))
            for at, each in enumerate(msgspec.structs.fields(kind), first)
        ]
    if dataclasses.is_dataclass(kind):
        return [
            Field(each.name, each.name, partial(_made, each)) for each in dataclasses.fields(kind)
        ]
    if is_model_type(kind):
        models: dict[str, Any] = getattr(kind, "model_fields", {})
        return [
            Field(
                name,
                info.serialization_alias or info.alias or name,
                partial(info.get_default, call_default_factory=True),
            )
            for name, info in models.items()
        ]
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and names is not None:
        defaults: dict[str, object] = getattr(cast("Any", kind), "_field_defaults", {})
        return [
            Field(name, at, partial(defaults.__getitem__, name)) for at, name in enumerate(names)
        ]
    return None


def elements(value: object, plain: Container) -> Iterator[tuple[object, object]]:
    """Return what a value without fields is made of, each part with its JSON."""
    if isinstance(plain, dict):
        if isinstance(value, Mapping):
            for name, part in cast("Mapping[object, object]", value).items():
                yield part, plain.get(name if isinstance(name, str) else _key(name))
    elif isinstance(value, AbstractSet):
        if any(map(is_container, plain)):
            parts = {_text(part): part for part in cast("AbstractSet[object]", value)}
            for written in plain:
                yield parts.get(encode_sorted(written)), written
    elif isinstance(value, list | tuple):
        # Code of the class may have changed a list as it was made.
        same = len(cast("list[object]", value)) == len(plain)
        yield from zip(cast("list[object]", value), plain, strict=True) if same else ()


def _text(part: object) -> str:
    """Return the text of a value's JSON, which has the names of fields sorted, too."""
    return encode_sorted(msgspec.json.decode(encode_sorted(part)))


def _key(name: object) -> str:
    (written,) = msgspec.json.decode(encode_sorted({name: None}))
    return str(written)


def _made(field: Any) -> object:
    factory = field.default_factory
    return factory() if callable(factory) else field.default
