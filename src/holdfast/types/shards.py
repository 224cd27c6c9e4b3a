"""Shards: databases that are one engine together."""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from holdfast.types.base import Value
from holdfast.types.messages import NewSignal
from holdfast.types.topics import NewEvent

MOST_SHARDS: Final = 64

ShardChange = Literal["written", "same", "other"]
"""What became of a state that was to be written: `other` if the database has a newer or another."""


class ShardState(Value, frozen=True):
    """What a database says of the engine whose shard it is.

    `engine` is the same in all shards. `history` is what was done to them, oldest first: 3 where
    there came to be three shards, with the numbers 0 to 2; -2 where shard 2 was closed for new
    runs, or opened again.
    """

    engine: str
    number: int
    history: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many shards there are."""
        return max(self.history)


class Forward(Value, frozen=True):
    """What a transaction of one shard has left for others: a signal, or an event for a shard."""

    forward_id: int
    signal: NewSignal | None = None
    event: NewEvent | None = None
    shard: int | None = None


def target_of(forward: Forward) -> UUID | int | None:
    """Return what a forward is for: a run, or a shard."""
    return forward.shard if forward.signal is None else forward.signal.run_id
