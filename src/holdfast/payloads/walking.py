"""References in the answers of a store, and contents in place of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from holdfast.codec import REFERENCE_MARK, Reference, find_references, replace_references
from holdfast.types import Notice

T = TypeVar("T")
Items: TypeAlias = dict[Any, object]


def references_in(answer: object) -> list[Reference]:
    """Return the references in all texts of an answer, each once."""
    found: dict[Reference, None] = {}
    _collect(answer, found)
    return list(found)


def with_contents(answer: T, contents: Mapping[Reference, str]) -> T:
    """Return an answer with contents in place of references."""
    return cast("T", _replaced(answer, contents))


def _collect(value: Any, found: dict[Reference, None]) -> None:
    if isinstance(value, str):
        if REFERENCE_MARK in value:
            found.update(dict.fromkeys(find_references(value)))
    elif isinstance(value, Notice):
        return  # it is sent as it is, and has a limit of its own; listeners read the run
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _collect(getattr(value, name), found)
    elif isinstance(value, dict):
        for each in cast("Items", value).values():
            _collect(each, found)
    elif isinstance(value, list | tuple):
        for each in cast("list[Any]", value):
            _collect(each, found)


def _replaced(value: Any, contents: Mapping[Reference, str]) -> Any:
    if isinstance(value, str):
        return replace_references(value, contents) if REFERENCE_MARK in value else value
    if isinstance(value, msgspec.Struct) and not isinstance(value, Notice):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        new = {name: _replaced(each, contents) for name, each in fields.items()}
        changes = {name: each for name, each in new.items() if each is not fields[name]}
        return msgspec.structs.replace(value, **changes) if changes else value
    if isinstance(value, dict):
        items = cast("Items", value).items()
        return {key: _replaced(each, contents) for key, each in items}
    if isinstance(value, list | tuple):
        replaced = [_replaced(each, contents) for each in cast("list[Any]", value)]
        return replaced if isinstance(value, list) else tuple(replaced)
    return value
