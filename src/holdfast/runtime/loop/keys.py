"""Keys: the names under which durable calls stand in a run's log."""

from __future__ import annotations

import random


class Scope:
    """Where ordinals are counted: one for each asyncio task, one for plain callbacks.

    A key is the path of its scope and the call's name; the second call of a name in a scope is
    `name#2`. So a change in one branch of a workflow never shifts the keys of another.
    """

    __slots__ = ("_counts", "_random", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._counts: dict[str, int] | None = None  # most scopes never name anything
        self._random: random.Random | None = None

    def key(self, name: str) -> str:
        """Take the next key of this name."""
        return self._numbered(name, name)

    def next_key(self, name: str) -> str:
        """Return what the next key of this name is, without taking it."""
        return self._path_of(name, 1 + (self._counts or {}).get(name, 0))

    def child(self, name: str) -> Scope:
        """Open the scope of a task; tasks are counted apart from calls."""
        return Scope(self._numbered(name, f"{name}/"))

    def _numbered(self, name: str, counter: str) -> str:
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        ordinal = counts[counter] = counts.get(counter, 0) + 1
        return self._path_of(name, ordinal)

    def _path_of(self, name: str, ordinal: int) -> str:
        leaf = name if ordinal == 1 else f"{name}#{ordinal}"
        return f"{self.path}/{leaf}" if self.path else leaf

    def random(self, seed: str) -> random.Random:
        """Return this scope's source of chance, the same on every replay."""
        if self._random is None:
            self._random = random.Random(f"{seed}/{self.path}")
        return self._random
