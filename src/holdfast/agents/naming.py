"""Names of steps, and fingerprints of what they are asked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

_other: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MOST_CHARACTERS: Final = 128

# What differs from one replay to the next, or from one release of a framework to another.
# `model_id` is that of the model which the code has now, also in answers of an earlier one.
_LEFT_OUT: Final = frozenset({"id", "timestamp", "run_id", "conversation_id", "model_id"})


def step_name(*parts: str) -> str:
    """Return the name of a step for the parts of a name: joined by dots, if a step may have it.

    Other parts have other names: what cannot stand in a name becomes `_`, and the hash of the
    parts follows after two dots.

    >>> step_name("support", "tool", "refund"), step_name("my agent", "model")
    ('support.tool.refund', 'my_agent.model..9126c0f031aab077')
    """
    name = ".".join(parts)
    if len(name) <= _MOST_CHARACTERS and not any(not part or _other.search(part) for part in parts):
        return name
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    readable = ".".join(_other.sub("_", part) or "_" for part in parts)
    return f"{readable[: _MOST_CHARACTERS - 18]}..{digest}"


def fingerprint(*values: object) -> str:
    """Return a text that identifies values: a step that gets it is stuck if they change.

    Fields with their defaults do not count, so a new release of a framework may add some. Objects
    other than data count by their type alone.
    """
    text = json.dumps([_plain(value) for value in values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {str(key): _plain(each) for key, each in entries.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = cast("Collection[object]", value)
        plain = [_plain(each) for each in items]
        return sorted(map(json.dumps, plain)) if isinstance(value, set | frozenset) else plain
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return [type(value).__name__, {name: _plain(each) for name, each in _fields(value)}]
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        return type(value).__qualname__


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    """Return the fields of a dataclass or a model that differ from their defaults."""
    if isinstance(value, BaseModel):
        yield from (value.model_extra or {}).items()
        defaults = {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in type(value).model_fields.items()
        }
    else:
        defaults = {
            field.name: field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
            for field in dataclasses.fields(value)
        }
    for name, default in defaults.items():
        own = getattr(value, name, default)
        if name not in _LEFT_OUT and name[0] != "_" and own is not None and own != default:
            yield name, own
