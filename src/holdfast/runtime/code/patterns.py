"""What a payload must contain to be the one that is waited for, and how it is indexed."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final, TypeAlias, TypeGuard

from holdfast.codec import contains
from holdfast.types import JSON

Path: TypeAlias = tuple[str, ...]
Shape: TypeAlias = tuple[Path, ...]
Scalars: TypeAlias = tuple[object, ...]

_EXACT: Final = 1 << 53  # beyond it, equal numbers may have different digits
_ABSENT: Final = object()


class Pattern:
    """A pattern that a payload must contain.

    `shape` has the paths of its scalars, as names of members from the outermost object, and
    `scalars` their values: a payload that contains the pattern has the same scalars at these paths.
    Scalars inside of arrays are left out.
    """

    __slots__ = ("_match", "scalars", "shape")

    def __init__(self, match: JSON) -> None:
        self._match = match
        leaves = sorted(_leaves(match, ()), key=lambda leaf: leaf[0])
        self.shape: Shape = tuple(path for path, _ in leaves)
        self.scalars: Scalars = tuple(scalar for _, scalar in leaves)

    def matches(self, payload: object) -> bool:
        """Return True if a payload, as plain JSON, contains the pattern."""
        return contains(payload, self._match)


def scalars_at(payload: object, shape: Shape) -> Scalars | None:
    """Return a payload's scalars at the paths of a shape, None if one is missing."""
    found: list[object] = []
    for path in shape:
        value = payload
        for name in path:
            value = value.get(name, _ABSENT) if _is_object(value) else _ABSENT
        scalar = _scalar(value)
        if scalar is None:
            return None
        found.append(scalar)
    return tuple(found)


def _leaves(match: object, path: Path) -> Iterator[tuple[Path, object]]:
    if _is_object(match):
        for name, value in match.items():
            yield from _leaves(value, (*path, name))
    elif path and (scalar := _scalar(match)) is not None:
        yield path, scalar


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _scalar(value: object) -> object:
    """Return a key that equal scalars share, None for a value that is not indexed."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and -_EXACT < value < _EXACT:
        return Decimal(repr(value))
    return None
