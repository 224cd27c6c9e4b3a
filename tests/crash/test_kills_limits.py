"""Workers killed while they hold places of a limit: no place is lost, and none is given twice."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from holdfast import Limit
from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.fleet import Fleet, start_patiently, until_all_end

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

AT_ONCE = 2
BLOWS = 4
HELD = "select count(*) from holdfast.tasks where worker is not null and key = ''"


async def watch(server: EmbeddedServer, seen: list[int]) -> None:
    """Count what is leased, again and again."""
    connection = await asyncpg.connect(server.url)
    try:
        while True:
            seen.append(await connection.fetchval(HELD))
            await asyncio.sleep(0.002)
    finally:
        await connection.close()


async def test_workers_killed_while_they_hold_places_leak_none(
    fleet: Fleet, server: EmbeddedServer
) -> None:
    """All runs end, with no more than two at once, although their holders are killed."""
    choose, seen = random.Random(3), list[int]()
    async with Client(server.url) as client:
        await client.limits.set(Limit(AT_ONCE), queue="default")
        for _ in range(3):
            fleet.start()
        watching = asyncio.create_task(watch(server, seen))
        handles: list[RunHandle[object]] = []
        for _ in range(BLOWS):
            handles += await start_patiently(client, "slow", [0.2] * 3)
            handles += await start_patiently(client, "chain", range(3))
            await asyncio.sleep(choose.uniform(0.3, 0.6))
            fleet.replace(choose.choice(fleet.workers))
        await until_all_end(handles)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        [limit] = await client.limits.list()
    assert max(seen) == AT_ONCE
    assert (limit.held, limit.full_keys, limit.waiting) == (0, 0, 0)
