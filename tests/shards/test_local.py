"""A worker of each shard in one program."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast import Client, local
from holdfast.errors import ConfigurationError
from holdfast.store.shards import add_shards
from holdfast.sweeping import sweep
from tests.shards.app import add_one, app
from tests.shards.engine import away, opened


async def add(urls: list[str]) -> None:
    stores = opened(urls)
    for each in stores:
        await each.open()
    await add_shards(stores)
    for each in stores:
        await each.close()


async def workers(client: Client, count: int) -> None:
    """Wait until this many are signed on."""
    while len(await client.workers.list()) < count:
        await asyncio.sleep(0.05)


async def test_each_shard_is_served_once_it_is_there(
    urls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One that is away and one that is spare stop no other."""
    caplog.set_level(logging.WARNING, "holdfast.worker")
    await add(urls[:2])
    async with asyncio.timeout(60):
        async with away(urls[1]):
            context = local(app, " ".join(urls), grace=0)
            client = await context.__aenter__()
            while "the worker of shard 1 waits: database 2 is away" not in caplog.text:
                await asyncio.sleep(0.01)
        try:
            await workers(client, 2)
            assert await asyncio.gather(
                *(client.run(add_one, number, key=str(number)) for number in range(20))
            ) == [number + 1 for number in range(20)]
            await add(urls)
            assert await asyncio.gather(
                *(client.run(add_one, number, key=str(number)) for number in range(40))
            ) == [number + 1 for number in range(40)]
            await workers(client, 3)
        finally:
            await context.__aexit__(None, None, None)
    assert caplog.text.count("the worker of shard 1 waits") == 1
    assert caplog.text.count("the worker of shard 2 waits: database 3 is spare") == 1


async def test_a_sweep_is_for_one_database(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="a sweep is for one database, and 2 are named"):
        await sweep(app, " ".join(urls[:2]))
