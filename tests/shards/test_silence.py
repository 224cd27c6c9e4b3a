"""A database that accepts connections and answers nothing: nobody waits for it for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast import Client
from holdfast.database.resolve import resolve_database
from holdfast.errors import DatabaseUnavailable, QueryTooSlow
from holdfast.insight import shards
from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.store.shards import silence
from holdfast.store.shards.silence import Silence
from tests.proxy import Proxy
from tests.shards.app import add_one, app
from tests.shards.engine import Workers, client_of, id_of


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspect earlier: without any suspicion each of these tests takes 20 s and more."""
    monkeypatch.setattr(silence, "_SUSPECT_SECONDS", 0.2)
    monkeypatch.setattr(silence, "_ANSWER_SECONDS", 1.0)


@pytest.fixture
async def proxy(urls: list[str], stores: list[Store]) -> AsyncIterator[Proxy]:
    """Provide a way to shard 1 that can be silent, and workers of all, which do not need it."""
    workers = Workers(app, stores, urls)
    await workers.start()
    with Proxy(urls[1]) as proxy:
        yield proxy
        proxy.hush(False)
    await workers.stop()


@pytest.fixture
def ways(urls: list[str], proxy: Proxy) -> list[str]:
    """The URLs of clients."""
    return [urls[0], proxy.url, urls[2]]


async def has_all(client: Client) -> bool:
    with noting_reads() as notes:
        await client.runs.list()
    return not notes.away


async def stops_no_other(client: Client) -> None:
    """Start, wait and list while shard 1 is silent."""
    for shard in (0, 2):
        handle = await client.start(add_one, shard, run_id=id_of(shard))
        assert await handle.result(timeout=30) == shard + 1
    with pytest.raises(DatabaseUnavailable, match=r"shard 1: .* has not answered for"):
        await client.start(add_one, 1, run_id=id_of(1))
    assert not await has_all(client)
    assert len((await client.runs.list()).runs) >= 2


@pytest.mark.parametrize("stores", ["postgres"], indirect=True)
async def test_a_silent_shard_stops_no_other(ways: list[str], proxy: Proxy) -> None:
    async with asyncio.timeout(18), client_of(app, ways) as client:
        there = await client.start(add_one, 1, run_id=id_of(1))
        assert await there.result(timeout=10) == 2
        proxy.hush()
        await stops_no_other(client)
        proxy.hush(False)
        while not await has_all(client):
            await asyncio.sleep(0.1)
        assert await (await client.start(add_one, 5, run_id=id_of(1))).result(timeout=10) == 6


@pytest.mark.parametrize("stores", ["postgres"], indirect=True)
async def test_a_client_opens_beside_a_silent_shard(ways: list[str], proxy: Proxy) -> None:
    proxy.hush()
    async with asyncio.timeout(18), client_of(app, ways) as client:
        await stops_no_other(client)
        proxy.hush(False)
        while not await has_all(client):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stores", ["postgres"], indirect=True)
async def test_shards_that_are_listed_say_which_is_silent(
    ways: list[str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_ANSWER_SECONDS", 1.0)
    proxy.hush()
    async with asyncio.timeout(18):
        found = await shards.look_at_shards(resolve_database(" ".join(ways)), "holdfast")
    assert [each.state for each in found] == ["open", "away", "open"]
    assert "the server has not answered for 1 s" in (found[1].message or "")


@pytest.mark.parametrize("stores", ["postgres"], indirect=True)
async def test_a_call_that_waits_for_a_lock_is_not_cut(
    urls: list[str], stores: list[Store]
) -> None:
    """Its shard answers others meanwhile."""
    connection = await asyncpg.connect(urls[1])
    async with client_of(app, urls) as client, asyncio.timeout(30):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("lock table holdfast.runs in exclusive mode")
        starting = asyncio.create_task(client.start(add_one, 1, run_id=id_of(1)))
        await asyncio.sleep(3)
        assert not starting.done()
        await transaction.rollback()
        assert await starting
    await connection.close()


class Pings:
    """What answers when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked = 0

    async def __call__(self) -> None:
        self.asked += 1
        await self.answers.wait()


async def hang() -> str:
    await asyncio.sleep(60)
    return "late"


async def value() -> str:
    return "now"


async def test_all_calls_to_a_silent_database_end_and_later_ones_at_once() -> None:
    pings = Pings()
    silent = Silence(pings)
    assert await silent.bounded(value) == "now"
    calls = [asyncio.create_task(silent.bounded(hang)) for _ in range(3)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [DatabaseUnavailable] * 3
    with pytest.raises(DatabaseUnavailable, match="not answered"):
        await silent.bounded(value)
    pings.answers.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await silent.bounded(value) == "now"
                break
            except DatabaseUnavailable:
                await asyncio.sleep(0.05)
    asked = pings.asked
    await asyncio.sleep(0.5)
    assert pings.asked == asked  # nobody waits: nobody asks
    await silent.close()


async def test_errors_of_calls_are_their_own() -> None:
    async def refuse() -> None:
        raise QueryTooSlow("too slow")

    async def time_out() -> None:
        await asyncio.sleep(0.4)
        raise TimeoutError

    pings = Pings()
    pings.answers.set()
    silent = Silence(pings)
    with pytest.raises(QueryTooSlow):
        await silent.bounded(refuse)
    with pytest.raises(TimeoutError):
        await silent.bounded(time_out)
    call = asyncio.create_task(silent.bounded(hang))
    await asyncio.sleep(0.4)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await silent.bounded(value) == "now"
    await silent.close()
