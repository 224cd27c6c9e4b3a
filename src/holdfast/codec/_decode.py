"""Decode JSON text into the types that the code declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Never, NoReturn, TypeAlias, cast

import msgspec
from msgspec import inspect as types

from holdfast.codec._models import adapted, is_model_type, is_text_type, load
from holdfast.errors import ConfigurationError, InvalidInput

Decode: TypeAlias = Callable[[str | bytes | msgspec.Raw], Any]

_UNTYPED = (Any, object, Never, NoReturn)


def decoder(annotation: object) -> Decode:
    """Return the function that decodes JSON text into `annotation`'s type.

    `Any` and `object` give plain JSON values. The function raises InvalidInput with the place
    of what does not fit. Raises ConfigurationError for a type that JSON cannot be turned into,
    and NameError for one whose fields name a type that is not defined yet.
    """
    try:
        return _cached(annotation)
    except TypeError:  # unhashable metadata in Annotated
        return _build(annotation)


@lru_cache(maxsize=1024)
def _cached(annotation: object) -> Decode:
    return _build(annotation)


def _build(annotation: object) -> Decode:
    declared = Any if any(annotation is untyped for untyped in _UNTYPED) else annotation
    decode_json = _reader(declared)

    def decode(text: str | bytes | msgspec.Raw) -> object:
        try:
            return decode_json(text)
        except (ValueError, RecursionError) as error:  # those of msgspec and pydantic are, too
            raise InvalidInput(str(error)) from None

    return decode


def _reader(annotation: object) -> Decode:
    """Return msgspec's decoder; for types with models that it cannot take, pydantic's."""
    try:
        _check(annotation)
    except ConfigurationError:
        validate = adapted(annotation)
        if validate is None:
            raise
        return lambda text: validate(text.encode() if isinstance(text, str) else bytes(text))
    return msgspec.json.Decoder[object](annotation, dec_hook=load).decode


def _check(annotation: object) -> None:
    try:
        described = types.type_info(annotation)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None
    for part in _walk(described, set()):
        if isinstance(part, types.CustomType) and not _is_known(part.cls):
            raise ConfigurationError(
                f"{part.cls.__module__}.{part.cls.__qualname__} cannot be restored from JSON: "
                "use a dataclass, a msgspec struct, a TypedDict or a pydantic model"
            )


def _is_known(kind: type) -> bool:
    return kind is object or is_model_type(kind) or is_text_type(kind)


def _walk(described: object, seen: set[int]) -> Iterator[object]:
    """Yield a type's description and those of all types inside it, each once."""
    if id(described) in seen:
        return
    seen.add(id(described))
    if isinstance(described, tuple):
        for part in cast("tuple[object, ...]", described):
            yield from _walk(part, seen)
    elif isinstance(described, types.Type | types.Field):
        yield described
        for name in described.__struct_fields__:
            yield from _walk(getattr(described, name), seen)
