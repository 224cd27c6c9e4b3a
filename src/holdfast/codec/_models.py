"""Types that msgspec does not know: some that are written as text, and pydantic's models.

holdfast itself never imports pydantic: a program with models has imported it. So it is with types
whose modules take long to import.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeGuard, cast, get_args

import msgspec

# Written as text, and restored from it.
_TEXTS: Final = (
    PurePath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
_SELDOM_IMPORTED: Final = {"fractions": "Fraction", "zoneinfo": "ZoneInfo"}
MASK: Final = "***"  # a part of what pydantic writes in place of a secret


class Model(Protocol):
    """What the codec needs of a pydantic model."""

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> object: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


def is_model_type(candidate: object) -> TypeGuard[type[Model]]:
    """Return True if this is a class of pydantic models."""
    if (pydantic := sys.modules.get("pydantic")) is None:
        return False
    base = getattr(pydantic, "BaseModel", None)
    return isinstance(base, type) and isinstance(candidate, type) and issubclass(candidate, base)


def is_model(value: object) -> TypeGuard[Model]:
    """Return True if this is a pydantic model."""
    return is_model_type(type(value))


def is_text_type(candidate: type) -> bool:
    """Return True for types whose values are written as text."""
    return issubclass(candidate, _TEXTS) or any(
        issubclass(candidate, getattr(sys.modules.get(module), name, ()))
        for module, name in _SELDOM_IMPORTED.items()
    )


def adapted(annotation: object) -> Callable[[bytes], object] | None:
    """Return how pydantic decodes a type that has models in it; None if it has none."""
    if not _has_model(annotation):
        return None
    return sys.modules["pydantic"].TypeAdapter(annotation).validate_json  # type: ignore[no-any-return]


def _has_model(annotation: object) -> bool:
    return is_model_type(annotation) or any(map(_has_model, get_args(annotation)))


def lost_field(value: object, restored: object) -> str | None:
    """Return the first field in which a model differs from what it is restored as."""
    if type(restored) is not type(value):
        return "class"
    names: dict[str, Any] = getattr(type(value), "model_fields", {})
    for name in names:
        if getattr(value, name) != getattr(restored, name):
            return name
    return None


def dump(value: object) -> object:
    """Turn a value that msgspec does not know into one that it knows. Raises TypeError.

    If the MASK is in the JSON, `dump_unmasked` has to be asked as well.
    """
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if is_text_type(type(value)):
        return str(value)
    if isinstance(value, Awaitable):
        raise TypeError(
            "what is to be awaited cannot be stored: an await is missing, or an async function has "
            "a decorator whose own function is not async"
        )
    kind = type(value)
    raise TypeError(
        f"objects of type {kind.__module__}.{kind.__qualname__} cannot be stored{not_data(kind)}"
    )


def dump_unmasked(value: object) -> object:
    """Dump as `dump` does. Raises TypeError for a secret that pydantic has written as a mask."""
    plain = dump(value)
    if is_model(value):
        _check_secrets(value, plain)
    return plain


def _check_secrets(value: Model, plain: object) -> None:
    kept = value.model_dump(mode="python", by_alias=False, round_trip=True)
    if _is_mask(kept, plain):
        name = next(iter(_masked(kept, plain)), "root")
        raise TypeError(
            f"the {name} of {type(value).__name__} cannot be stored: pydantic writes a mask "
            "in place of a secret; read the secret in the step that needs it, or declare how it is "
            "written, with a field_serializer"
        )


def _masked(kept: object, plain: object) -> list[str]:
    """Return the names in a dict of what is written as a mask, or with one in it."""
    if not (isinstance(kept, Mapping) and isinstance(plain, dict)):
        return []
    parts, texts = cast("Mapping[object, object]", kept), cast("dict[str, object]", plain)
    return [
        str(name)
        for (name, part), (key, text) in zip(parts.items(), texts.items(), strict=False)
        if _is_mask(name, key) or _is_mask(part, text)
    ]


def _is_mask(kept: object, plain: object) -> bool:
    """Return True if `plain` is the mask of a secret, or what has one is written as `plain`.

    What a serializer writes in its place is neither.
    """
    if isinstance(plain, dict):
        return bool(_masked(kept, cast("object", plain)))
    if isinstance(plain, list) and isinstance(kept, Iterable):
        parts = zip(cast("Iterable[object]", kept), cast("list[object]", plain), strict=False)
        return any(_is_mask(part, text) for part, text in parts)
    reveal: Callable[[], object] | None = getattr(kept, "get_secret_value", None)
    if reveal is None or not isinstance(plain, str):
        return False
    texts = (plain, plain.encode())
    return str(kept) in (plain, repr(texts[1])) and reveal() not in texts


def not_data(kind: type) -> str:
    """Return what to do in place of passing an object of this class, if the class says so."""
    advice: str | None = getattr(kind, "_not_data", None)
    return "" if advice is None else f": {advice}"


def load(kind: type, plain: object) -> object:
    """Return an instance of `kind` made from plain JSON values."""
    if is_model_type(kind):
        return kind.model_validate_json(msgspec.json.encode(plain))
    if is_text_type(kind):
        if not isinstance(plain, str):
            raise TypeError(f"Expected `str`, got `{type(plain).__name__}`")
        return kind(plain)
    return plain
