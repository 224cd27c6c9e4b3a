"""Make databases one engine, or add more of them to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from holdfast.errors import ConfigurationError, ShardsChanged
from holdfast.store.port import Store
from holdfast.types import ShardState


async def add_shards(stores: Sequence[Store]) -> tuple[ShardState, list[int]]:
    """Make all databases shards of one engine, in this order; return its state, and what was told.

    The numbers are of shards that did not know it before. New shards are told first: until then
    nobody uses them. A call that was cut off is completed by another one. The stores are open.

    Raises ConfigurationError for databases that cannot be one engine, and ShardsChanged if it has
    more shards than these.
    """
    states = await asyncio.gather(*(each.shard_state() for each in stores))
    known = [(number, each) for number, each in enumerate(states) if each is not None]
    newest = max((each for _, each in known), key=lambda each: len(each.counts), default=None)
    for number, each in known:
        _check(number, each, known[0][1])
    if newest is not None and newest.count > len(stores):
        raise ShardsChanged(
            f"this engine has {newest.count} shards, and {len(stores)} are named: name all of them"
        )
    used = [await _has_runs(each) for each in stores]
    began = newest is None or newest.counts[0] == 1  # with the runs of the first one
    for number, state in enumerate(states):
        if state is None and used[number] and not (number == 0 and began):
            raise ConfigurationError(
                f"database {number + 1} of those that are named has runs: a new shard is empty"
            )
    engine = str(uuid4()) if newest is None else newest.engine
    counts = _counts(newest, len(stores), used=used[0])
    behind = [n for n, each in enumerate(states) if each is None or each.counts != counts]
    if newest is None and not used[0]:
        order = behind  # programs that know the first one alone are to start nothing there
    else:
        new = [number for number in reversed(behind) if states[number] is None]
        order = new + [number for number in behind if number not in new]
    for number in order:
        if await stores[number].set_shard_state(ShardState(engine, number, counts)) == "other":
            raise ConfigurationError(
                f"database {number + 1} of those that are named has become another shard meanwhile"
            )
    return ShardState(engine, 0, counts), behind


def _check(number: int, state: ShardState, first: ShardState) -> None:
    if state.engine != first.engine:
        raise ConfigurationError(
            f"database {number + 1} of those that are named is shard {state.number} of another "
            f"engine than shard {first.number}"
        )
    if state.number != number:
        raise ConfigurationError(
            f"database {number + 1} of those that are named is shard {state.number}: name each "
            "shard once, in the order of their numbers"
        )


def _counts(newest: ShardState | None, count: int, *, used: bool) -> tuple[int, ...]:
    """Return how many shards there were, and are now: runs of the first one began among one."""
    before = newest.counts if newest is not None else (1,) if used else ()
    return before if before and before[-1] == count else (*before, count)


async def _has_runs(store: Store) -> bool:
    return any((await store.count_runs(None, 1)).values())
