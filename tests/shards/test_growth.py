"""A shard is added to an engine that is at work: no run moves, and no key becomes two runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast import App
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    ShardsChanged,
    TransientDatabaseError,
    UnknownQueue,
)
from holdfast.store.port import Store
from holdfast.store.shards import members, places, sharded
from holdfast.store.shards.homes import home_of
from holdfast.types import NewRun, RunFilter, ShardState
from holdfast.values.ids import keyed_run_id, uuid7
from holdfast.worker import Worker
from holdfast.worker.shard import until_served
from tests.shards.app import add_one, app
from tests.shards.engine import client_of, make_engine, opened


def key_that_moves(before: int, after: int) -> str:
    """Return a key that belongs to another shard once there are more."""
    for number in range(1000):
        run_id = keyed_run_id("spread/add_one", f"k{number}")
        if home_of(run_id, range(before)) != home_of(run_id, range(after)):
            return f"k{number}"
    raise AssertionError("a third of all keys move")


@pytest.fixture
async def alone(urls: list[str]) -> AsyncIterator[list[Store]]:
    """Provide open stores of databases that are alone."""
    stores = opened(urls)
    for each in stores:
        await each.open()
    yield stores
    for each in stores:
        await each.close()


@pytest.fixture
async def grown(alone: list[Store]) -> list[Store]:
    """Provide open stores of two shards, and of a database that is spare."""
    await make_engine(alone[:2])
    return alone


async def refusal(urls: list[str]) -> str:
    """Return why a store over these databases does not open."""
    store = sharded(opened(urls))
    try:
        with pytest.raises(HoldfastError) as raised:
            await store.open()
    finally:
        await store.close()
    return f"{type(raised.value).__name__}: {raised.value}"


async def add_third(stores: list[Store]) -> None:
    await make_engine(stores, (2, 3))


async def test_a_flow_starts_in_a_new_shard_before_its_worker_does(
    urls: list[str], grown: list[Store]
) -> None:
    """The worker waits up to 10 s until it looks again, and has declared the flow before."""
    tour = App("tour")
    flow = tour.flow("trip", input=int)

    @flow.step
    async def walk(run: int) -> int:
        return run

    worker = Worker(tour, grown[2])
    waiting = asyncio.create_task(until_served(grown[2], 2, worker.declare))
    for each in grown[:2]:
        await Worker(tour, each).declare()
    async with asyncio.timeout(30):
        while await grown[2].get_flow("tour/trip") is None:
            await asyncio.sleep(0.01)
    assert not waiting.done()
    await add_third(grown)
    async with client_of(None, urls) as client:
        handles = [await client.start("tour/trip", number) for number in range(20)]
        assert len({handle.run_id for handle in handles}) == 20
    assert len((await grown[2].list_runs(RunFilter(limit=100))).runs) > 0
    await waiting


async def test_nothing_is_declared_in_a_database_that_has_runs(
    alone: list[Store], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be that of another application, named by mistake."""
    await alone[0].start_runs([NewRun(run_id=uuid7(), name="other/work")])
    waiting = asyncio.create_task(until_served(alone[0], 2, Worker(app, alone[0]).declare))
    async with asyncio.timeout(30):
        while "the worker of shard 2 waits" not in caplog.text:
            await asyncio.sleep(0.01)
    waiting.cancel()
    assert await alone[0].list_apps() == []


def id_that_moves(before: int, after: int) -> UUID:
    """Return a new id that belongs to another shard once there are more."""
    while home_of(run_id := uuid7(), range(before)) == home_of(run_id, range(after)):
        pass
    return run_id


async def test_a_start_that_is_repeated_after_a_shard_was_added_is_one_run(
    urls: list[str], grown: list[Store]
) -> None:
    """Without a key, by the id that its caller has made."""
    run_id, given = id_that_moves(2, 3), uuid4()
    while home_of(given, range(2)) == home_of(given, range(3)):
        given = uuid4()
    async with client_of(app, urls) as client:
        for each in (run_id, given):
            await client.start(add_one, 1, run_id=each)
        await add_third(grown)
        for _ in range(100):
            await client.start(add_one, 1)  # which notices the new shard
        for each in (run_id, given):
            await client.start(add_one, 1, run_id=each)
    async with client_of(app, urls) as other:
        for each in (run_id, given):
            await other.start(add_one, 1, run_id=each)
    for each in (run_id, given):
        assert [len(await store.get_runs([each])) for store in grown].count(1) == 1


async def test_a_start_that_a_part_of_its_shards_refused_repeats_nothing(
    urls: list[str], grown: list[Store]
) -> None:
    """Shard 0 has heard of the new one, shard 1 not yet: it has begun its part."""
    run_id = id_that_moves(2, 3)
    other = id_that_moves(2, 3)
    while home_of(run_id, range(2)) == home_of(other, range(2)):
        other = id_that_moves(2, 3)
    store = sharded(opened(urls))
    await store.open()
    for number in (2, home_of(other, range(2))):
        await grown[number].set_shard_state(ShardState("engine", number, (2, 3)))
    runs = [NewRun(run_id=each, name="spread/add_one") for each in (run_id, other)]
    starting = asyncio.create_task(store.start_runs(runs))
    last = grown[home_of(run_id, range(2))]
    async with asyncio.timeout(10):
        while not await last.get_runs([run_id]):
            await asyncio.sleep(0.01)
    await add_third(grown)
    started, _ = await starting
    assert [each.created for each in started] == [True, True]
    await store.close()
    for each in (run_id, other):
        assert [len(await one.get_runs([each])) for one in grown].count(1) == 1


async def test_a_key_of_before_is_found_after(urls: list[str], grown: list[Store]) -> None:
    key = key_that_moves(2, 3)
    async with client_of(app, urls) as client:
        first = await client.start(add_one, 1, key=key)
        await add_third(grown)
        assert (await client.start(add_one, 1, key=key)).run_id == first.run_id
        for number in range(60):
            await client.start(add_one, number, key=f"new{number}")
    async with client_of(app, urls) as other:
        assert (await other.start(add_one, 1, key=key)).run_id == first.run_id
        assert len((await other.runs.list(limit=100)).runs) == 61
    assert len((await grown[2].list_runs(RunFilter(limit=100))).runs) > 5


async def test_a_key_that_comes_again_elsewhere_is_found(
    urls: list[str], grown: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_BELIEVED_SECONDS", 0.1)
    key = key_that_moves(2, 3)
    async with client_of(app, urls) as client, client_of(app, urls) as other:
        first = await client.start(add_one, 1, key=key)
        await add_third(grown)
        assert (await other.runs.get(first.run_id)).status == "running"
        old = grown[home_of(first.run_id, range(2))]
        await old.terminate_runs([first.run_id])
        connection = await asyncpg.connect(urls[home_of(first.run_id, range(2))])
        await connection.execute("delete from holdfast.runs")  # as retention does
        await connection.close()
        again = await client.start(add_one, 1, key=key)
        assert again.run_id == first.run_id
        assert again.run_id in await grown[2].get_runs([again.run_id])
        await asyncio.sleep(0.2)
        assert (await other.runs.get((add_one, key))).status == "running"
        assert (await client.runs.get((add_one, key))).status == "running"


async def test_a_start_that_was_sent_before_is_not_lost_and_not_repeated(
    urls: list[str], grown: list[Store]
) -> None:
    """The count changes while a start of a key waits in the database: the change waits for it."""
    key = key_that_moves(2, 3)
    old = home_of(keyed_run_id("spread/add_one", key), range(2))
    run = NewRun(run_id=keyed_run_id("spread/add_one", key), name="spread/add_one", key=key)
    stale = sharded(opened(urls))
    await stale.open()
    async with client_of(app, urls) as other:
        blocker = await asyncpg.connect(urls[old])
        try:
            transaction = blocker.transaction()
            await transaction.start()
            await blocker.execute("lock table holdfast.runs in exclusive mode")
            starting = asyncio.create_task(stale.start_runs([run]))
            await asyncio.sleep(0.5)
            adding = asyncio.create_task(add_third(grown))
            await asyncio.sleep(0.5)
            assert not adding.done()
            later = asyncio.create_task(other.start(add_one, 1, key=key))
            await asyncio.sleep(0.3)
            await transaction.rollback()
        finally:
            await blocker.close()
        async with asyncio.timeout(30):
            [started], _ = await starting
            assert (await later).run_id == started.run_id
            await adding
        assert len((await other.runs.list()).runs) == 1
    await stale.close()


async def test_clients_that_do_not_name_the_new_shard_start_nothing(
    urls: list[str], grown: list[Store]
) -> None:
    async with client_of(app, urls[:2]) as stale:
        run = await stale.start(add_one, 1)
        await add_third(grown)
        with pytest.raises(ShardsChanged, match="has 3 shards, and 2 databases are named"):
            await stale.start(add_one, 2)
        assert (await stale.runs.get(run.run_id)).run_id == run.run_id


async def test_clients_that_do_not_name_the_new_shard_are_told_when_they_list(
    urls: list[str], grown: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look every 10 s: what they lack is not said to be all."""
    async with client_of(app, urls[:2]) as stale, client_of(app, urls) as whole:
        await add_third(grown)
        assert (await stale.runs.list()).runs == []
        monkeypatch.setattr(members, "_COUNTED_SECONDS", 0.0)
        with pytest.raises(ShardsChanged, match="has 3 shards, and 2 databases are named"):
            await stale.approvals.list()
        assert (await whole.runs.list()).runs == []


async def test_a_queue_is_not_found_from_another_shard(urls: list[str], grown: list[Store]) -> None:
    """In a transaction: the message says where it is, not that it is to be created."""
    connection = await asyncpg.connect(urls[1])
    async with client_of(app, urls[:2]) as client:
        await client.queues.create("parcels")
        await client.queues.send("parcels", 1)
        with pytest.raises(
            asyncpg.PostgresError, match=r"'parcels' in shard 1: all are in shard 0"
        ):
            await client.queues.send("parcels", 1, connection=connection)
        with pytest.raises(UnknownQueue, match=r"'others': create it first"):
            await client.queues.send("others", 1)
    await connection.close()


async def test_while_a_shard_has_not_heard_of_all_nobody_uses_the_new_one(
    urls: list[str], grown: list[Store]
) -> None:
    key = key_that_moves(2, 3)
    old = home_of(keyed_run_id("spread/add_one", key), range(2))
    for number, store in enumerate(grown):
        if number != old:
            await store.set_shard_state(ShardState("engine", number, (2, 3)))
    async with client_of(app, urls) as client:
        run = await client.start(add_one, 1, key=key)
        assert run.run_id in await grown[old].get_runs([run.run_id])
        told = next(f"k{n}" for n in range(99) if home(f"k{n}", 2) not in (old, home(f"k{n}", 3)))
        with pytest.raises(TransientDatabaseError, match="shards are being added or closed"):
            await client.start(add_one, 1, key=told)
        assert (await grown[2].list_runs(RunFilter())).runs == []
        await add_third(grown)
        assert (await client.start(add_one, 1, key=key)).run_id == run.run_id
        assert await client.start(add_one, 1, key=told)
        assert len((await grown[2].list_runs(RunFilter())).runs) == 1


def home(key: str, count: int) -> int:
    """Return the shard of a key."""
    return home_of(keyed_run_id("spread/add_one", key), range(count))


async def test_databases_that_are_not_one_engine(urls: list[str], alone: list[Store]) -> None:
    assert "none of them is a shard" in await refusal(urls)
    await make_engine(alone)
    assert "ConfigurationError: database 1 of those" in await refusal([urls[1], urls[0], urls[2]])
    assert "is shard 0: name each shard once" in await refusal([urls[0], urls[0], urls[2]])
    assert "ShardsChanged: this engine has 3" in await refusal(urls[:2])
    assert "DatabaseUnavailable" in await refusal(["postgresql://127.0.0.1:1/x"] * 2)


async def test_what_a_database_is_stays(alone: list[Store]) -> None:
    await make_engine(alone)
    store = alone[1]
    for engine, number, history, outcome in (
        ("other", 1, (3,), "other"),
        ("engine", 2, (3,), "other"),
        ("engine", 1, (2, 3), "other"),
        ("engine", 1, (3,), "same"),
        ("engine", 1, (3, 4), "written"),
        ("engine", 1, (3,), "other"),
        ("engine", 1, (3, 4, -3), "written"),
        ("engine", 1, (3, 4, -2), "other"),
    ):
        assert await store.set_shard_state(ShardState(engine, number, history)) == outcome
    for number, history in (
        (3, (3,)),
        (-1, (3,)),
        (0, (65,)),
        (0, (3, -3)),
        (0, (3, 0)),
        (0, (-1,)),
    ):
        with pytest.raises(InvalidInput, match="there is no shard"):
            await store.set_shard_state(ShardState("e", number, history))
    assert await store.shard_state() == ShardState("engine", 1, (3, 4, -3))
