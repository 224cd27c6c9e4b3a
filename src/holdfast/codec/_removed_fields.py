"""What JSON text has that the value decoded from it would lose: fields that its types lack."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, cast

import msgspec

from holdfast.codec._fields import Container, Field, elements, fields_of, is_container
from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode


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
