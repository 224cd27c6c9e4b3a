"""Make a value of what others have."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

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
