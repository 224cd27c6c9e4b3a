"""Where a run belongs: to one of the shards that are open for new runs, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID


@lru_cache
def open_shards(history: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shards that are open for new runs after a history; see `ShardState`.

    >>> open_shards((2, 4)), open_shards((2, 4, -1)), open_shards((2, 4, -1, -1))
    ((0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3))
    """
    closed = set[int]()
    for each in history:
        if each < 0:
            closed ^= {-each}
    return tuple(number for number in range(max(history)) if number not in closed)


def home_of(run_id: UUID, shards: Sequence[int]) -> int:
    """Return the one of these shards to which an id belongs.

    It is the one with the highest digest of the id and its number: with one more shard, an id
    stays, or belongs to the new one; with one less, only the ids of that one belong elsewhere.

    >>> [home_of(UUID(int=7), range(count)) for count in range(1, 6)]
    [0, 0, 2, 2, 2]
    """
    return max(shards, key=lambda number: _weight(run_id, number))


def homes_of(run_id: UUID, history: tuple[int, ...]) -> list[int]:
    """Return the shards to which an id has belonged in the history, the newest first."""
    lengths = range(len(history), 0, -1)
    return list(dict.fromkeys(home_of(run_id, open_shards(history[:n])) for n in lengths))


def _weight(run_id: UUID, number: int) -> bytes:
    return blake2b(run_id.bytes + bytes([number]), digest_size=8).digest()
