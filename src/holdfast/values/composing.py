"""Make a value of what others have."""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def compose(kind: type[S], /, *sources: object, **given: object) -> S:
    """Return a value whose fields are those given, and else those of the sources.

    Of several sources the first that has a field of the name counts. Fields that none has keep
    their defaults.
    """
    for name in kind.__struct_fields__:
        source = next((each for each in sources if hasattr(each, name)), None)
        if source is not None:
            given.setdefault(name, getattr(source, name))
    return kind(**given)
