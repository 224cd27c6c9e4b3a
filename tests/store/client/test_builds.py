"""Runs by their builds, as both clients list, iterate over and count them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import Client
from holdfast.errors import InvalidName
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.sync import SyncClient

from .workflows import app, tick


async def deploy(store: Store, build: str) -> None:
    await store.declare_build(app.name, build, [f"{app.name}/{tick.name}@1"])
    await store.promote_build(app.name, build)


async def test_runs_are_found_by_their_build(client: Client, store: Store) -> None:
    unpinned = await client.start(tick)
    await deploy(store, "b1")
    old = await client.start(tick)
    await deploy(store, "b2")
    new = [(await client.start(tick)).run_id for _ in range(3)]
    assert [run.run_id for run in (await client.runs.list(build="b1")).runs] == [old.run_id]
    paged = [run.run_id async for run in client.runs.iterate(build="b2", limit=2)]
    assert (sorted(paged), len(paged)) == (sorted(new), 3)
    assert (await client.runs.count(by="state", build="b2")).counts == {"queued": 3}
    assert (await client.runs.cancel_all({"build": "b2"})).changed == 3
    assert (await client.runs.list(build="b2", states="queued")).runs == []
    assert unpinned.run_id in [run.run_id for run in (await client.runs.list(build=None)).runs]


async def test_what_is_not_a_build_is_refused(client: Client) -> None:
    for build in ("", "b 1", "-b", "x" * 129):
        with pytest.raises(InvalidName, match="is not a name for a build"):
            await client.runs.list(build=build)
        with pytest.raises(InvalidName, match="is not a name for a build"):
            await client.runs.count(by="state", build=build)


def test_the_synchronous_client_finds_them_too() -> None:
    store = MemoryStore()
    with SyncClient(store=store, app=app) as client:
        client.start(tick)
        asyncio.run(deploy(store, "b1"))
        run_id = client.start(tick).run_id
        assert [run.run_id for run in client.runs.list(build="b1").runs] == [run_id]
        assert [run.run_id for run in client.runs.iterate(build="b1")] == [run_id]
        assert client.runs.count(by="workflow", build="b1").counts == {f"{app.name}/tick": 1}
        with pytest.raises(InvalidName):
            client.runs.list(build="b 1")
