"""Make databases one engine, add more of them to it, close some for new runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from uuid import uuid4

from holdfast.errors import ConfigurationError, InvalidInput, ShardsChanged
from holdfast.store.port import Store
from holdfast.store.shards.homes import open_shards
from holdfast.types import BuildInfo, ShardState


async def add_shards(stores: Sequence[Store]) -> tuple[ShardState, list[int]]:
    """Make all databases shards of one engine, in this order; return its state, and what was told.

    New ones get what was set by hand in the first one; see `copy_settings`.
    The numbers are of shards that did not know it before. New shards are told first: until then
    nobody uses them. A call that was cut off is completed by another one. The stores are open.

    Raises ConfigurationError for databases that cannot be one engine, and ShardsChanged if it has
    more shards than these.
    """
    states, newest = await _known(stores)
    used = await asyncio.gather(*map(_has_runs, stores))
    _refuse_replacement(states, newest, any(used))
    began = newest is None or newest.history[0] == 1  # with the runs of the first one
    for number, state in enumerate(states):
        if state is None and used[number] and not (number == 0 and began):
            first = " If its runs are to be kept, name it first." if newest is None else ""
            raise ConfigurationError(
                f"database {number + 1} of those that are named has runs, and a new shard is "
                "empty: put an empty database, which `holdfast migrate` prepares, in its place."
                f"{first}"
            )
    before = newest.history if newest is not None else (1,) if used[0] else ()
    history = before if max(before, default=0) == len(stores) else (*before, len(stores))
    state = ShardState(str(uuid4()) if newest is None else newest.engine, 0, history)
    order: Iterable[int] = range(len(stores))
    new = [number for number, each in enumerate(states) if each is None]
    # Shard 0 is told last: what it does not know of yet is new, also after a call that was cut off.
    known = 1 if states[0] is None else states[0].count
    spare = [number for number in range(len(stores)) if number >= known or states[number] is None]
    await _copy(stores, spare)
    if newest is not None or used[0]:  # else programs that know the first one alone start nothing
        old = (number for number in order if number not in new)
        order = [*reversed(new), *reversed([*old])]  # shard 0 last: it knows what all know
    told = await _tell(stores, states, state, order)
    await _copy(stores, spare)  # what was changed before clients knew of them
    return state, told


async def _copy(stores: Sequence[Store], new: Sequence[int]) -> None:
    for number in new:
        if number != 0:
            await copy_settings(stores[0], stores[number])


async def close_shard(
    stores: Sequence[Store], number: int, *, reopens: bool = False
) -> tuple[ShardState, list[int]]:
    """Close a shard for new runs, or open it again; return the engine's state, and what was told.

    The runs that it has continue. A call that was cut off is completed by another one. The stores
    are those of all shards, and open.

    Raises InvalidInput for a number that cannot be closed, ConfigurationError for databases that
    are not the shards of one engine, and ShardsChanged if it has more shards than these.
    """
    states, newest = await _known(stores)
    if newest is None or None in states:
        raise ConfigurationError(
            f"database {states.index(None) + 1} of those that are named is not a shard: name the "
            "databases of all shards, and no others"
        )
    if not 0 <= number < newest.count:
        raise InvalidInput(f"there is no shard {number}: there are {newest.count}, from 0 on")
    if number == 0:
        raise InvalidInput(
            "shard 0 has what is known by a name, such as schedules and queues: it stays open"
        )
    is_open = number in open_shards(newest.history)
    history = newest.history if is_open == reopens else (*newest.history, -number)
    state = ShardState(newest.engine, 0, history)
    return state, await _tell(stores, states, state, range(len(stores)))


def _refuse_replacement(
    states: Sequence[ShardState | None], newest: ShardState | None, has_runs: bool
) -> None:
    """Refuse a database in the place of an open shard: the runs of that one would be lost.

    Shard 0 is the last one that is told of new ones: they all knew of it before.
    """
    if newest is None or states[0] is None or not has_runs:
        return
    for number in open_shards(newest.history):
        if states[number] is None and number < states[0].count:
            raise ConfigurationError(
                f"database {number + 1} of those that are named is not shard {number}, which this "
                "engine has: name its database there, and new ones at the end. If it is to be "
                f"replaced, close it first with `holdfast shards close {number}`"
            )


async def _known(stores: Sequence[Store]) -> tuple[Sequence[ShardState | None], ShardState | None]:
    """Return what each database says, and what the one says that knows most."""
    states = await asyncio.gather(*(each.shard_state() for each in stores))
    known = [(number, each) for number, each in enumerate(states) if each is not None]
    newest = max((each for _, each in known), key=lambda each: len(each.history), default=None)
    for number, each in known:
        _check(number, each, known[0][1])
        if newest is not None and newest.history[: len(each.history)] != each.history:
            raise ConfigurationError(
                f"database {number + 1} of those that are named was being added while the shards "
                "were changed otherwise: nobody uses it yet, so make an empty one in its place, "
                "and add that"
            )
    if newest is not None and newest.count > len(stores):
        raise ShardsChanged(
            f"this engine has {newest.count} shards, and {len(stores)} are named: name all of them"
        )
    return states, newest


def _check(number: int, state: ShardState, first: ShardState) -> None:
    if state.engine != first.engine:
        raise ConfigurationError(
            f"database {number + 1} of those that are named belongs to another engine than those "
            "before it"
        )
    if state.number != number:
        raise ConfigurationError(
            f"database {number + 1} of those that are named is shard {state.number}: name each "
            "shard once, in the order of their numbers"
        )


async def _tell(
    stores: Sequence[Store],
    states: Sequence[ShardState | None],
    state: ShardState,
    order: Iterable[int],
) -> list[int]:
    """Tell the databases that do not know the state, in this order; return their numbers."""
    behind = [n for n in order if (known := states[n]) is None or known.history != state.history]
    for number in behind:
        told = ShardState(state.engine, number, state.history)
        if await stores[number].set_shard_state(told) == "other":
            raise ConfigurationError(
                f"database {number + 1} of those that are named has become another shard "
                "meanwhile, or the shards were changed by another command: run it again"
            )
    return sorted(behind)


async def _has_runs(store: Store) -> bool:
    return any((await store.count_runs(None, 1)).values())


async def copy_settings(source: Store, target: Store) -> None:
    """Copy pauses, limits, which builds are in use, and rules for starts. Idempotent.

    What the target has beside them, from a copy before, is removed. What else the code of apps
    declares is not copied: the workers of the new shard declare it. Rules are in force where all
    shards have them.
    """
    await target.declare_start_rules(await source.list_start_rules())
    pauses = await source.list_pauses()
    limits = [each.rule for each in await source.list_limits() if not each.is_declared]
    kept = {(each.scope, each.name) for each in pauses}
    for each in await target.list_pauses():
        if (each.scope, each.name) not in kept:
            await target.set_pause(each.scope, each.name, paused=False)
    for each in pauses:
        await target.set_pause(each.scope, each.name, paused=True, reason=each.reason)
    names = {(each.scope, each.name, each.kind, each.key) for each in limits}
    for found in await target.list_limits():
        place = (found.rule.scope, found.rule.name, found.rule.kind, found.rule.key)
        if not found.is_declared and place not in names:
            await target.remove_limit(*place)
    for rule in limits:
        await target.set_limit(rule)
    for _, builds in groupby(await source.list_builds(), key=lambda each: each.app):
        await _copy_builds([*builds], target)


async def _copy_builds(newest_first: list[BuildInfo], target: Store) -> None:
    for each in reversed(newest_first):
        await target.declare_build(each.app, each.build, each.pinned)
    for each in newest_first:
        if each.is_current:
            await target.promote_build(each.app, each.build)
    for each in newest_first:
        if each.ramp_percent is not None:
            await target.ramp_build(each.app, each.build, each.ramp_percent)
