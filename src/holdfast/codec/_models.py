"""Pydantic models, where the program uses them; holdfast itself never imports pydantic."""

from __future__ import annotations

import sys
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec


@runtime_checkable
class Model(Protocol):
    """What the codec needs of a pydantic model."""

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> object: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


def is_model_type(candidate: object) -> TypeGuard[type[Model]]:
    """Say whether this is a class of pydantic models."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return isinstance(base, type) and isinstance(candidate, type) and issubclass(candidate, base)


def dump(value: object) -> object:
    """Turn what msgspec does not know into what it does; refuse it with a TypeError."""
    if is_model_type(type(value)) and isinstance(value, Model):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    kind = type(value)
    raise TypeError(f"objects of type {kind.__module__}.{kind.__qualname__} cannot be stored")


def load(kind: type, plain: object) -> object:
    """Make an instance of `kind` from plain JSON values."""
    if is_model_type(kind):
        return kind.model_validate_json(msgspec.json.encode(plain))
    return plain
