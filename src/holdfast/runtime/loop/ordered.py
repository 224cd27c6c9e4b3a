"""A set that iterates in the order of insertion, for futures that hash by their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")


class OrderedSet(set[_T]):
    """A set that keeps the order of insertion, also in the sets that are made from it."""

    def __init__(self, elements: Iterable[_T] = ()) -> None:
        self._order: dict[_T, None] = dict.fromkeys(elements)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[_T]:
        return iter([each for each in self._order if each in self])

    def add(self, element: _T, /) -> None:
        if element not in self:
            self._order.pop(element, None)  # it may have been here before
            self._order[element] = None
        super().add(element)

    def update(self, *others: Iterable[_T]) -> None:
        for other in others:
            for element in other:
                self.add(element)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def pop(self) -> _T:
        for first in self:
            self.remove(first)
            return first
        raise KeyError("pop from an empty set")

    def copy(self) -> OrderedSet[_T]:
        return OrderedSet(self)

    def union(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        joined = self.copy()
        joined.update(*others)
        return joined

    def intersection(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        return self._within(set(self).intersection(*others))

    def difference(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        return self._within(set(self).difference(*others))

    def __or__(self, other: Any) -> Any:
        return self.union(other)

    def __and__(self, other: Any) -> Any:
        return self.intersection(other)

    def __sub__(self, other: Any) -> Any:
        return self.difference(other)

    __ror__, __rand__ = __or__, __and__

    def _within(self, kept: set[Any]) -> OrderedSet[Any]:
        return OrderedSet(each for each in self if each in kept)
