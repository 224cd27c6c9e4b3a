"""What JSON text was before fields with defaults were added to the types of its values.

An added field with a default is the most usual change of a type. A log has the fingerprints of
values from before it, which no new text gives: the texts without such fields are tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode_sorted

MOST_ADDED: Final = 3  # fields at one time
_MOST_TEXTS: Final = 500
_MOST_BYTES: Final = 4_000_000  # of all texts together

_Field: TypeAlias = tuple[type, str]
_Json: TypeAlias = dict[str, Any]


class _FieldInfo(NamedTuple):
    name: str
    written: str
    default: Callable[[], object]


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
    """The JSON objects that hold each field with a default; `needed` are fields of other values."""

    def __init__(self) -> None:
        self.holders: dict[_Field, list[_Json]] = {}
        self.needed: set[_Field] = set()
        self._depth = 0  # in how many fields that have their defaults this looks

    def look(self, value: object, plain: object) -> None:
        if isinstance(plain, list) and isinstance(value, list | tuple):
            parts = cast("Sequence[object]", value)
            for part, written in zip(parts, cast("list[object]", plain), strict=False):
                self.look(part, written)
        elif isinstance(plain, dict):
            written = cast("_Json", plain)
            if isinstance(value, Mapping):
                for name, part in cast("Mapping[object, object]", value).items():
                    self.look(part, written.get(name) if isinstance(name, str) else None)
            else:
                self._look_at_fields(value, written)

    def _look_at_fields(self, value: object, plain: _Json) -> None:
        kind = type(value)
        for name, written, default in _fields(kind):
            if written not in plain:
                continue
            field = (kind, written)
            if _is_default(plain[written], default):
                self.holders.setdefault(field, []).append(plain)
                self._depth += 1
                self.look(getattr(value, name), plain[written])
                self._depth -= 1
            else:
                if not self._depth:  # such a value may go with the field that it is a part of
                    self.needed.add(field)
                self.look(getattr(value, name), plain[written])


def _fields(kind: type[object]) -> Iterator[_FieldInfo]:
    """Return the fields of a dataclass, a struct or a model; of those without a default too."""
    if issubclass(kind, msgspec.Struct):
        for struct in msgspec.structs.fields(kind):
            yield _FieldInfo(struct.name, struct.encode_name, partial(_made, struct))
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            yield _FieldInfo(field.name, field.name, partial(_made, field))
    elif is_model_type(kind):
        models: dict[str, Any] = getattr(kind, "model_fields", {})
        for name, info in models.items():
            default = partial(info.get_default, call_default_factory=True)
            yield _FieldInfo(name, info.serialization_alias or info.alias or name, default)


def _made(field: Any) -> object:
    factory = field.default_factory
    return factory() if callable(factory) else field.default


def _is_default(written: object, default: Callable[[], object]) -> bool:
    try:
        return bool(written == msgspec.json.decode(encode_sorted(default())))
    except Exception:  # there is none, or it is the user's code that fails
        return False


def _without(plain: object, found: _Defaults, chosen: tuple[_Field, ...]) -> str:
    changed = [(holder, dict(holder)) for field in chosen for holder in found.holders[field]]
    for field in chosen:
        for holder in found.holders[field]:
            del holder[field[1]]
    text = msgspec.json.encode(plain).decode()
    for holder, whole in changed:
        holder.clear()
        holder.update(whole)
    return text
