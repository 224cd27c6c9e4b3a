"""A shard is closed for new runs: what it has continues, and no key becomes two runs."""

from __future__ import annotations

from typing import cast

import pytest

from holdfast import Client
from holdfast.errors import ConfigurationError, InvalidInput, ShardsChanged
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import add_shards, close_shard, sharded, shards_of
from holdfast.types import NewRun, RunFilter, ShardState
from tests.shards.app import add_one, app, gather_signals
from tests.shards.conftest import Make
from tests.shards.engine import id_of
from tests.shards.test_changing import Cut, CutOff, told


async def runs_in(store: Store) -> int:
    return len((await store.list_runs(RunFilter(limit=1000))).runs)


async def test_no_run_begins_in_a_closed_shard(stores: list[Store], store: Store) -> None:
    """The client is as it was before, and hears of it by a start that is refused."""
    async with Client(store=store, app=app) as client:
        for number in range(30):
            await client.start(add_one, number, key=f"old{number}")
        before = [await runs_in(each) for each in stores]
        assert min(before) > 0
        state, which = await close_shard(stores, 1)
        assert (state.history, which) == ((3, -1), [0, 1, 2])
        for number in range(60):
            await client.start(add_one, number)
            await client.start(add_one, number, key=f"new{number}")
        for number in range(30):
            await client.start(add_one, number, key=f"old{number}")
        after = [await runs_in(each) for each in stores]
        assert (sum(after), after[1]) == (150, before[1])
        assert after[2] > before[2] + 10


async def test_keys_are_found_after_a_shard_was_closed_and_opened(
    stores: list[Store], store: Store
) -> None:
    async with Client(store=store, app=app) as client:
        first = [await client.start(add_one, n, key=f"a{n}") for n in range(30)]
        await close_shard(stores, 2)
        first += [await client.start(add_one, n, key=f"b{n}") for n in range(30)]
        await close_shard(stores, 2, reopens=True)
        for n in range(30):
            await client.start(add_one, n, key=f"c{n}")
        again = [await client.start(add_one, n, key=f"{x}{n}") for x in "ab" for n in range(30)]
        assert [each.run_id for each in again] == [each.run_id for each in first]
        assert len((await client.runs.list(limit=200)).runs) == 90


async def test_what_a_closed_shard_has_continues(
    stores: list[Store], store: Store, make_workers: Make
) -> None:
    async with make_workers(app), Client(store=store, app=app) as client:
        handles = [await client.start(gather_signals, 2) for _ in range(9)]
        for each in handles:
            await each.signal("tell", 1)
        await close_shard(stores, 1)
        for each in handles:
            await each.signal("tell", 2)
        assert [await each.result(timeout=30) for each in handles] == [[1, 2]] * 9


@pytest.mark.parametrize("after", range(3))
async def test_closing_that_was_cut_off_is_completed(stores: list[Store], after: int) -> None:
    with pytest.raises(CutOff):
        await close_shard(Cut(stores, after).stores, 1)
    clients = sharded(stores)
    await clients.open()
    members = shards_of(clients)
    assert members is not None
    assert members.history == (3,)  # until all shards know
    assert (await close_shard(stores, 1))[1] == [*range(after, 3)]
    assert await told(stores) == [(3, -1)] * 3
    assert (await close_shard(stores, 1))[1] == []
    await members.refresh()
    assert members.history == (3, -1)


async def test_two_commands_at_once_do_not_part_the_shards(stores: list[Store]) -> None:
    """The second one has read what the first one changes."""

    class Late:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def set_shard_state(self, state: ShardState) -> str:
            if (await self._store.shard_state()) == ShardState("engine", 0, (3,)):
                await close_shard(stores, 1)
            return await self._store.set_shard_state(state)

    with pytest.raises(ConfigurationError, match="changed by another command: run it again"):
        await close_shard([cast("Store", Late(each)) for each in stores], 2)
    assert await told(stores) == [(3, -1)] * 3
    await close_shard(stores, 2)
    assert await told(stores) == [(3, -1, -2)] * 3


async def test_an_empty_database_takes_the_place_of_one_without_runs(stores: list[Store]) -> None:
    await close_shard(stores, 1)
    empty = MemoryStore(wall_clock)
    assert (await add_shards([stores[0], empty, stores[2]]))[1] == [1]
    assert await empty.shard_state() == ShardState("engine", 1, (3, -1))


async def test_a_database_in_the_place_of_an_open_shard_is_refused(stores: list[Store]) -> None:
    """Its URL was forgotten: with another one there, all programs would lose its runs."""
    for number, each in enumerate(stores):
        await each.start_runs([NewRun(run_id=id_of(number), name="spread/add_one")])
    new = MemoryStore(wall_clock)
    with pytest.raises(ConfigurationError, match=r"database 2 .* is not shard 1, .*`.* close 1`"):
        await add_shards([stores[0], new, stores[2]])
    with pytest.raises(ConfigurationError, match=r"database 3 .* is not shard 2"):
        await add_shards([*stores[:2], new])
    assert await new.shard_state() is None
    assert (await add_shards([*stores, new]))[1] == [0, 1, 2, 3]


async def test_what_cannot_be_closed_is_named(stores: list[Store]) -> None:
    with pytest.raises(InvalidInput, match=r"there is no shard 3: there are 3, from 0 on"):
        await close_shard(stores, 3)
    with pytest.raises(InvalidInput, match="there is no shard -1"):
        await close_shard(stores, -1)
    with pytest.raises(InvalidInput, match="shard 0 has what is known by a name"):
        await close_shard(stores, 0)
    with pytest.raises(ShardsChanged, match="3 shards, and 2"):
        await close_shard(stores[:2], 1)
    with pytest.raises(ConfigurationError, match="database 4 of those that are named is not a"):
        await close_shard([*stores, MemoryStore(wall_clock)], 1)
    with pytest.raises(ConfigurationError, match="database 1 of those that are named is not a"):
        await close_shard([MemoryStore(wall_clock)], 1)
    assert await told(stores) == [(3,)] * 3


async def test_a_new_shard_that_was_added_beside_another_change_is_named(
    stores: list[Store],
) -> None:
    new = MemoryStore(wall_clock)
    await new.set_shard_state(ShardState("engine", 3, (3, 4)))
    await close_shard(stores, 1)
    with pytest.raises(ConfigurationError, match=r"database 4 .* make an empty one"):
        await close_shard([*stores, new], 1)
