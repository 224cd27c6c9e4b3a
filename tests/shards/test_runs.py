"""Runs over all shards: where they are, what lists show, and that a key is one run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from holdfast import Client, Singleton
from holdfast.errors import RunEnded, RunFailed, RunNotFound
from holdfast.store.port import Store
from holdfast.store.shards.homes import home_of
from holdfast.types import RunFilter
from tests.shards.app import add_one, app, fail, gather_signals, parent, tell, wait_for_news
from tests.shards.conftest import Make
from tests.shards.engine import Workers, id_of


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(store=store, app=app) as client:
        yield client


@pytest.fixture
async def worker(make_workers: Make) -> AsyncIterator[Workers]:
    async with make_workers(app) as workers:
        yield workers


async def counts_of(stores: list[Store]) -> list[int]:
    pages = [await each.list_runs(RunFilter(limit=1000)) for each in stores]
    return [len(page.runs) for page in pages]


async def test_starts_are_spread_and_ends_are_told(
    stores: list[Store], worker: Workers, client: Client
) -> None:
    found = await asyncio.gather(*(client.run(add_one, number) for number in range(60)))
    assert found == [number + 1 for number in range(60)]
    assert min(await counts_of(stores)) > 5
    assert (await client.runs.count("state")).counts == {"completed": 60}
    assert (await client.runs.count("workflow")).counts == {"spread/add_one": 60}


async def test_pages_have_each_run_once_newest_first(stores: list[Store], client: Client) -> None:
    started = {(await client.start(add_one, number)).run_id for number in range(40)}
    for limit in (1, 7, 40):
        seen = [run async for run in client.runs.iterate(limit=limit)]
        assert {run.run_id for run in seen} == started
        assert len(seen) == 40
        moments = [run.created_at for run in seen]
        assert moments == sorted(moments, reverse=True)


async def test_callers_that_race_for_a_key_find_one_run(
    stores: list[Store], worker: Workers, client: Client, store: Store
) -> None:
    async with Client(store=store, app=app) as other:
        handles = await asyncio.gather(
            *(each.start(add_one, 1, key=f"k{n}") for each in (client, other) * 5 for n in range(9))
        )
    assert len({handle.run_id for handle in handles}) == 9
    assert sum(await counts_of(stores)) == 9
    assert await client.handle((add_one, "k3")).result() == 2
    again = await client.start(add_one, 5, key="k3", if_ended="start")
    assert await again.result() == 6
    assert await client.handle((add_one, "k3")).result() == 6
    with pytest.raises(RunEnded):
        await client.start(add_one, 5, key="k3", if_ended="refuse")


async def test_a_key_stays_one_run_when_its_workflow_gets_a_rule(
    stores: list[Store], client: Client
) -> None:
    keys = [f"k{number}" for number in range(12)]
    first = [(await client.start(add_one, 1, key=key)).run_id for key in keys]
    ruled = [
        (await client.start(add_one, 1, key=key, singleton=Singleton())).run_id for key in keys
    ]
    assert ruled == first
    assert sum(await counts_of(stores)) == 12
    new = await client.start(add_one, 1, key="new", singleton=Singleton())
    assert new.run_id in await stores[0].get_runs([new.run_id])
    assert len({home_of(run_id, range(3)) for run_id in first}) == 3  # or it shows nothing


async def test_a_client_that_did_not_start_a_run_finds_it(
    worker: Workers, client: Client, store: Store
) -> None:
    handles = [await client.start(gather_signals, 1) for _ in range(9)]
    async with Client(store=store) as other:
        for handle in handles:
            await other.handle(handle.run_id).signal("tell", "x")
        for handle in handles:
            assert await other.handle(handle.run_id).result() == ["x"]
        with pytest.raises(RunNotFound):
            await other.handle(uuid4()).signal("tell")
        outcomes = [await other.runs.cancel(handle.run_id) for handle in handles]
    assert not any(outcomes)  # they have ended


async def test_children_are_with_their_parents(
    stores: list[Store], worker: Workers, client: Client
) -> None:
    handle = await client.start(parent, 5)
    assert await handle.result() == [1, 2, 3, 4, 5]
    assert Counter(await counts_of(stores)) == Counter([0, 0, 6])


async def test_signals_between_shards_arrive_once_in_their_order(
    worker: Workers, client: Client
) -> None:
    waiting = [await client.start(gather_signals, 20) for _ in range(6)]
    for handle in waiting:
        await client.start(tell, str(handle.run_id))
    async with asyncio.timeout(30):
        for handle in waiting:
            assert await handle.result() == list(range(20))


async def test_an_event_reaches_the_runs_that_wait_in_all_shards(
    stores: list[Store], worker: Workers, client: Client
) -> None:
    waiting = [await client.start(wait_for_news, key=str(number)) for number in range(9)]
    for handle in waiting:
        async with asyncio.timeout(30):
            while "EventSubscribed" not in [each.event.type for each in await handle.log()]:
                await asyncio.sleep(0.02)
    await client.topics.publish("news.today", {"rain": True})
    async with asyncio.timeout(30):
        for handle in waiting:
            assert await handle.result() == {"rain": True}
    assert min(await counts_of(stores)) > 0


async def test_a_retry_and_a_fork_stay_with_their_run(
    stores: list[Store], worker: Workers, client: Client
) -> None:
    handle = await client.start(fail)
    with pytest.raises(RunFailed):
        await handle.result()
    retried = await client.runs.retry(handle.run_id)
    forked = await client.runs.fork(handle.run_id)
    assert len({handle.run_id, retried.run_id, forked.run_id}) == 3
    assert Counter(await counts_of(stores)) == Counter([0, 0, 3])
    assert (await client.runs.get(forked.run_id)).run_id == forked.run_id


async def test_an_archived_run_is_restored_once_and_where_its_id_belongs(
    stores: list[Store], store: Store, client: Client
) -> None:
    """Elsewhere nobody would see that there is a run with its id."""
    homes = {id_of(shard): shard for shard in (0, 1, 2) for _ in range(4)}
    ids = list(homes)
    for run_id in ids:
        await client.start(add_one, 1, retention="0s", run_id=run_id)
    assert min(await counts_of(stores)) > 0, "a shard has no run: it shows nothing"
    await store.terminate_runs(ids)
    lines = [
        [(await stores[homes[run_id]].export_runs({run_id: None})).lines[run_id]] for run_id in ids
    ]
    kept = [await store.restore_run(each, retention_seconds=60) for each in lines]
    assert set(kept) == {"exists"}
    before = await counts_of(stores)
    deleted = [(await each.sweep_runs()).deleted for each in stores]
    assert deleted == before
    restored = [await store.restore_run(each, retention_seconds=60) for each in lines]
    assert set(restored) == {"restored"}
    assert await counts_of(stores) == before
