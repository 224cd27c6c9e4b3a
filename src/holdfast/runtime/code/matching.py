"""Patterns of payloads, and the scalars by which a payload that contains one is found."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final, TypeAlias, cast

from holdfast.codec import contains
from holdfast.types import JSON

Path: TypeAlias = tuple[str, ...]
Shape: TypeAlias = tuple[Path, ...]
Scalars: TypeAlias = tuple[object, ...]

_EXACT: Final = 1 << 53  # beyond it, equal numbers may have different digits
_ABSENT: Final = object()


class Pattern:
    """A pattern that payloads are to contain; None is contained in every payload.

    `shape` names the places of its scalars, below objects alone, and `scalars` what is there: a
    payload that contains the pattern has the same scalars at the same places.
    """

    __slots__ = ("_match", "scalars", "shape")

    def __init__(self, match: JSON) -> None:
        self._match = match
        leaves = sorted(_leaves(match, ()), key=lambda leaf: leaf[0])
        self.shape: Shape = tuple(path for path, _ in leaves)
        self.scalars: Scalars = tuple(scalar for _, scalar in leaves)

    @property
    def matches_all(self) -> bool:
        """Whether every payload contains the pattern."""
        return self._match is None

    def matches(self, payload: object) -> bool:
        """Return True if a payload, as plain JSON, contains the pattern."""
        return self._match is None or contains(payload, self._match)


def scalars_at(payload: object, shape: Shape) -> Scalars | None:
    """Return a payload's scalars at the places of a shape, None if some are missing."""
    found: list[object] = []
    for path in shape:
        value = payload
        for name in path:
            value = cast("dict[str, object]", value).get(name, _ABSENT) if _is(value) else _ABSENT
        scalar = _scalar(value)
        if scalar is None:
            return None
        found.append(scalar)
    return tuple(found)


def _leaves(match: object, path: Path) -> Iterator[tuple[Path, object]]:
    if _is(match):
        for name, value in cast("dict[str, object]", match).items():
            yield from _leaves(value, (*path, name))
    elif path and (scalar := _scalar(match)) is not None:
        yield path, scalar


def _is(value: object) -> bool:
    return isinstance(value, dict)


def _scalar(value: object) -> object:
    """Return what equal scalars have in common, None for what is not looked up."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and -_EXACT < value < _EXACT:
        return Decimal(repr(value))
    return None
