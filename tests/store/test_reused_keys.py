"""The id of a run comes again: its transactions are made, whatever the other run has left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from scene import Scene
from test_retried_transactions import WAYS, Hotel, fail, options, plain
from test_transactions import rooms, working

from holdfast import Client, RunFailed
from holdfast.database.migrate import prepare_schema
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")
        await scene.watcher.connection.execute("drop schema if exists second cascade")


async def delete_runs(scene: Scene, client: Client) -> None:
    """Delete all runs, whose retention is over."""
    over = "update holdfast.runs set delete_after = now() - interval '1 s'"
    await scene.watcher.connection.execute(over)
    await client.retention.sweep()
    assert await scene.value("select count(*) from holdfast.runs") == 0


async def since(scene: Scene, interval: str) -> None:
    """Say that results say of which run they are since a moment from now."""
    await scene.watcher.connection.execute(
        f"update holdfast.schema_migrations set applied_at = "
        f"clock_timestamp() + interval '{interval}' where version = 56"
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("again", [7, 8])
async def test_a_key_that_is_used_again_makes_its_transaction_again(
    scene: Scene, way: str, again: int
) -> None:
    """Fault: the new run took the result of the deleted one, or was stuck with other arguments."""
    hotel = Hotel(failures=0, holds=0, **await options(scene, way))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        first = await client.start(stay, 7, key="nightly")
        assert await first.result() == [7, "cooked"]
        await delete_runs(scene, client)
        second = await client.start(stay, again, key="nightly")
        assert second.run_id == first.run_id
        assert await second.result() == [again, "cooked"]
    assert await rooms(scene) == [7, again]


@pytest.mark.parametrize("way", WAYS)
async def test_a_mark_of_a_deleted_run_bars_no_other(scene: Scene, way: str) -> None:
    """Fault: the run before was retried, so nothing of its id could commit any more."""
    hotel = Hotel(holds=0, **await options(scene, way))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        first = await client.start(stay, 7, key="nightly")
        with pytest.raises(RunFailed):
            await first.result()
        retry = await client.runs.retry(first.run_id)
        assert await retry.result() == [7, "cooked"]
        await delete_runs(scene, client)
        second = await client.start(stay, 8, key="nightly")
        assert await second.result() == [8, "cooked"]
        assert second.run_id == first.run_id
    assert (await rooms(scene))[-1] == 8


@asynccontextmanager
async def working_in(schema: str, hotel: Hotel, url: str) -> AsyncGenerator[Client]:
    store = PostgresStore(url, schema=schema, tells=True)
    worker = Worker(hotel.app, store, WorkerOptions(poll_seconds=0.1))
    await worker.start()
    try:
        async with Client(store=store, app=hotel.app) as client:
            yield client
    finally:
        await worker.stop(0)
        await store.close()


async def test_two_engines_with_one_database_for_data_make_it_each(scene: Scene) -> None:
    """Fault: the second took the result of the first, whose run has the same id."""
    await prepare_schema(scene.url, "second")
    made, ids = await options(scene, "elsewhere"), set[UUID]()
    for number, schema in enumerate(["holdfast", "second"], 1):
        hotel = Hotel(failures=0, holds=0, **made)
        stay = plain(hotel)
        async with working_in(schema, hotel, scene.url) as client:
            handle = await client.start(stay, 7, key="order-7")
            assert await handle.result() == [7, "cooked"]
            ids.add(handle.run_id)
        assert await rooms(scene) == [7] * number
    assert len(ids) == 1


async def keys_left(scene: Scene, way: str) -> list[Any]:
    schema = "holdfast" if way == "strict" else "apart"
    found = await scene.watcher.connection.fetch(f"select key from {schema}.step_results")
    return [row[0] for row in found]


@pytest.mark.parametrize("way", WAYS)
async def test_a_run_that_began_before_the_upgrade_finds_its_result(scene: Scene, way: str) -> None:
    made = await options(scene, way)
    hotel = Hotel(failures=0, **made)
    stay = plain(hotel)
    await since(scene, "1 hour")
    async with working(hotel.app, scene.url) as client:
        handle = await client.start(stay, 7)
        await hotel.late.committed.wait()
    assert await keys_left(scene, way) == ["book"]  # as an earlier release leaves it
    await since(scene, "0 s")
    hotel = Hotel(failures=0, holds=0, **made)
    plain(hotel)
    async with working(hotel.app, scene.url) as client:
        assert await client.handle(handle.run_id).result() == [7, "cooked"]
    assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_takes_the_result_of_a_run_from_before_the_upgrade(
    scene: Scene, way: str
) -> None:
    hotel = Hotel(**await options(scene, way))
    stay = plain(hotel)
    await since(scene, "1 hour")
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
    await since(scene, "0 s")
    async with working(hotel.app, scene.url) as client:
        assert await (await client.runs.retry(run_id)).result() == [7, "cooked"]
    assert await rooms(scene) == [7]
