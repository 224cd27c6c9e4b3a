"""The turns of suspended runs that a worker keeps in memory."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from holdfast.runtime.turn.turn import Turn


class TurnCache:
    """Keep the turns of the `size` runs that were suspended last; close older ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turns: OrderedDict[UUID, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, run_id: UUID, turn: Turn) -> None:
        """Keep a suspended turn."""
        self._turns[run_id] = turn
        while len(self._turns) > self._size:
            _, oldest = self._turns.popitem(last=False)
            oldest.abandon()

    def take(self, run_id: UUID) -> Turn | None:
        """Remove a turn and return it, None if it is not here."""
        return self._turns.pop(run_id, None)

    def clear(self) -> None:
        """Close every turn."""
        while self._turns:
            self._turns.popitem()[1].abandon()
