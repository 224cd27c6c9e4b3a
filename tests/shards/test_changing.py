"""Making databases shards: cut off at any point, and run again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast import Client
from holdfast.errors import ConfigurationError, ShardsChanged
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import add_shards, sharded, shards_of
from holdfast.types import ShardState
from tests.shards.app import add_one, app


class CutOff(Exception):
    """The program that adds was killed."""


class Cut:
    """Stores that are told of their shards until all have taken `after` changes."""

    def __init__(self, stores: list[Store], after: int) -> None:
        self.left = after
        self.stores = [cast("Store", _Cut(self, each)) for each in stores]


class _Cut:
    def __init__(self, cut: Cut, store: Store) -> None:
        self._cut, self._store = cut, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def set_shard_state(self, state: ShardState) -> str:
        if not self._cut.left:
            raise CutOff
        self._cut.left -= 1
        return await self._store.set_shard_state(state)


def make(count: int) -> list[Store]:
    return [MemoryStore(wall_clock) for _ in range(count)]


async def start_one(store: Store) -> None:
    async with Client(store=store, app=app) as client:
        await client.start(add_one, 1)


async def told(stores: list[Store]) -> list[tuple[int, ...] | None]:
    states = [await each.shard_state() for each in stores]
    return [None if each is None else each.history for each in states]


async def test_the_first_of_a_new_engine_may_have_runs() -> None:
    used, empty = make(2), make(2)
    await start_one(used[0])
    assert (await add_shards(used))[0].history == (1, 2)
    assert (await add_shards(empty))[0].history == (2,)
    await start_one(empty[0])
    assert await add_shards(empty) == (await empty[0].shard_state(), [])


async def test_one_database_can_be_an_engine_that_grows() -> None:
    stores = make(3)
    assert (await add_shards(stores[:1]))[0].history == (1,)
    state, new = await add_shards(stores)
    assert (state.history, new) == ((1, 3), [0, 1, 2])


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("after", range(3))
async def test_what_was_cut_off_is_completed(after: int, *, is_used: bool) -> None:
    stores = make(3)
    if is_used:
        await start_one(stores[0])
    with pytest.raises(CutOff):
        await add_shards(Cut(stores, after).stores)
    with pytest.raises(ConfigurationError, match="holdfast shards add"):
        await sharded(stores).open()
    await add_shards(stores)
    assert await told(stores) == [(1, 3) if is_used else (3,)] * 3


@pytest.mark.parametrize("after", range(1, 4))
async def test_old_shards_hear_of_it_when_all_new_ones_have(after: int) -> None:
    """Until all old ones have heard of them, clients do as before."""
    stores = make(4)
    await add_shards(stores[:2])
    await start_one(stores[0])
    with pytest.raises(CutOff):
        await add_shards(Cut(stores, after).stores)
    known = await told(stores)
    assert known[0] == (2,)
    assert (None in known[2:]) <= (known[1] == (2,))
    clients = sharded(stores)
    await clients.open()
    members = shards_of(clients)
    assert members is not None
    assert members.count == 2
    await add_shards(stores)
    assert await told(stores) == [(2, 4)] * 4
    await members.refresh()
    assert members.count == 4
    await clients.close()


@pytest.mark.parametrize("after", range(3))
async def test_what_is_paused_is_paused_in_a_new_shard_before_it_is_one(after: int) -> None:
    stores = make(3)
    await add_shards(stores[:1])
    await stores[0].set_pause("workflow", "spread/add_one", paused=True)
    with pytest.raises(CutOff):
        await add_shards(Cut(stores, after).stores)
    for number in (1, 2):
        assert len(await stores[number].list_pauses()) == 1
    await stores[0].set_pause("queue", "slow", paused=True)
    await stores[0].set_pause("workflow", "spread/add_one", paused=False)
    await add_shards(stores)
    assert await told(stores) == [(1, 3)] * 3
    for each in stores:
        assert [pause.name for pause in await each.list_pauses()] == ["slow"]


async def test_a_new_shard_has_no_runs() -> None:
    stores = make(2)
    await start_one(stores[1])
    with pytest.raises(ConfigurationError, match="database 2 of those that are named has runs"):
        await add_shards(stores)
    assert await told(stores) == [None, None]


async def test_shards_of_another_engine_or_place_are_refused() -> None:
    one, other = make(2), make(2)
    await add_shards(one)
    await add_shards(other)
    with pytest.raises(ConfigurationError, match="another engine"):
        await add_shards([*one, other[1]])
    with pytest.raises(ConfigurationError, match="is shard 1"):
        await add_shards([one[1], one[0]])
    with pytest.raises(ShardsChanged, match="2 shards, and 1"):
        await add_shards(one[:1])
