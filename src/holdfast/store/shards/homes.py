"""Where a run belongs: to one of so many shards, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID


def home_of(run_id: UUID, count: int) -> int:
    """Return the shard among `count` to which an id belongs.

    It is the one with the highest digest of the id and its number: with one more shard, an id
    stays, or belongs to the new one.

    >>> [home_of(UUID(int=7), count) for count in range(1, 6)]
    [0, 0, 2, 2, 2]
    """
    return max(range(count), key=lambda number: _weight(run_id, number))


def homes_of(run_id: UUID, counts: Sequence[int]) -> list[int]:
    """Return the shards to which an id belonged while there were so many, the newest first."""
    return list(dict.fromkeys(home_of(run_id, count) for count in reversed(counts)))


def _weight(run_id: UUID, number: int) -> bytes:
    return blake2b(run_id.bytes + bytes([number]), digest_size=8).digest()
