"""Who was there before a shard was added learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from holdfast import Client
from holdfast.errors import RunNotFound, ShardsChanged
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import Members, Pass, add_shards, members, sharded, shards_of
from holdfast.types import Forward, NewEvent, NewRun, NewSignal
from holdfast.values.ids import uuid7
from tests.shards.app import app


@pytest.fixture
async def stores() -> list[Store]:
    """Provide an engine of two shards, and a spare database."""
    found: list[Store] = [MemoryStore(wall_clock) for _ in range(3)]
    await add_shards(found[:2])
    return found


@pytest.fixture
async def before(stores: list[Store]) -> AsyncIterator[Store]:
    """Provide a store over all that was opened before the spare was added."""
    found = sharded(stores)
    await found.open()
    assert members_of(found).count == 2
    yield found
    await found.close()


@pytest.fixture
def only_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no list look by itself."""
    monkeypatch.setattr(members, "_NOTICE_SECONDS", 1e9)


def members_of(store: Store) -> Members:
    return cast("Members", shards_of(store))


async def started_in_the_new(stores: list[Store]) -> NewRun:
    """Add the spare, and start a run there."""
    await add_shards(stores)
    run = NewRun(run_id=uuid7(), name="spread/gather_signals")
    await stores[2].start_runs([run])
    return run


async def test_what_is_set_is_set_in_a_new_shard(stores: list[Store], before: Store) -> None:
    await add_shards(stores)
    await before.set_pause("queue", "slow", paused=True)
    assert [len(await each.list_pauses()) for each in stores] == [1, 1, 1]


async def test_what_is_for_a_shard_that_is_not_named_is_held(stores: list[Store]) -> None:
    """A worker that was not restarted with the longer list sends it once it was."""
    short = sharded(stores[:2])
    await short.open()
    run = await started_in_the_new(stores)
    signal = Forward(1, signal=NewSignal(run.run_id, "tell", "1", "id-1"))
    event = Forward(2, event=NewEvent(topic="tell", event_id="e-1", payload="1"), shard=2)
    assert await Pass(members_of(short)).send([signal, event]) == []
    with pytest.raises(ShardsChanged, match="this engine has 3 shards, and 2 databases are named"):
        await short.read_log(run.run_id, 0, limit=9, clip=9)
    whole = sharded(stores)
    await whole.open()
    assert sorted(await Pass(members_of(whole)).send([signal, event])) == [1, 2]


@pytest.mark.usefixtures("only_if_missing")
async def test_a_run_in_a_new_shard_is_found(stores: list[Store], before: Store) -> None:
    run = await started_in_the_new(stores)
    async with Client(store=before, app=app) as client:
        await client.handle(run.run_id).signal("tell", 1)
    [told] = (await stores[2].read_events([(run.run_id, 1)]))[run.run_id]
    assert told.type == "SignalReceived"


@pytest.mark.usefixtures("only_if_missing")
async def test_what_is_sent_to_a_new_shard_arrives(stores: list[Store], before: Store) -> None:
    run = await started_in_the_new(stores)
    forward = Forward(1, signal=NewSignal(run.run_id, "tell", "1", "id-1"))
    assert await Pass(members_of(before)).send([forward]) == [1]
    assert len((await stores[2].read_events([(run.run_id, 1)]))[run.run_id]) == 1


async def test_lists_have_its_runs_soon(
    stores: list[Store], before: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_NOTICE_SECONDS", 0.05)
    run = await started_in_the_new(stores)
    async with Client(store=before, app=app) as client, asyncio.timeout(10):
        while not (page := await client.runs.list()).runs:
            await asyncio.sleep(0.01)
        assert [each.run_id for each in page.runs] == [run.run_id]


async def test_while_one_is_spare_a_missing_run_is_missing(before: Store) -> None:
    async with Client(store=before, app=app) as client:
        with pytest.raises(RunNotFound):
            await client.handle(uuid7()).signal("tell", 1)
