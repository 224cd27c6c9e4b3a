"""The fields of the classes whose values are stored, and the values that others are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import msgspec

from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode_sorted

Container: TypeAlias = dict[Any, Any] | list[Any]  # a JSON object or array


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
