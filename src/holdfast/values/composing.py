"""Make a value of what others have."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from holdfast.values.moments import to_datetime

S = TypeVar("S", bound=msgspec.Struct)

_ABSENT: Final = object()


def compose(kind: type[S], /, *sources: object, **given: object) -> S:
    """Return a value whose fields are those given, and else those of the sources.

    Of several sources the first that has a field of the name counts. Fields that none has keep
    their defaults.
    """
    for name in kind.__struct_fields__:
        if name in given:
            continue
        for source in sources:
            value = getattr(source, name, _ABSENT)
            if value is not _ABSENT:
                given[name] = value
                break
    return kind(**given)


def shaped(kind: type[S], value: object, **given: object) -> S:
    """Return what `compose` does of one source, with moments in place of microseconds.

    These are whole numbers in fields that are named `at`, `now` or `…_at`.
    """
    fields = {
        name: _member(name, getattr(value, name))
        for name in kind.__struct_fields__
        if name not in given and hasattr(value, name)
    }
    return kind(**fields, **given)


def _member(name: str, value: object) -> object:
    is_moment = name in ("at", "now") or name.endswith("_at")
    return to_datetime(value) if is_moment and isinstance(value, int) else value
