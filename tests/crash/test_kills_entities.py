"""Workers of entities killed while many call: no change is lost, and none is made twice."""

from __future__ import annotations

import asyncio
import random
from multiprocessing.context import ForkServerProcess

import pytest

from holdfast import Client
from tests.crash import carts
from tests.crash.processes import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

KEYS = ("ann", "bob", "cleo")
CALLS = 120
BLOWS = 4


async def begin(url: str) -> ForkServerProcess:
    """Start a worker, and wait until it is ready."""
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=carts.run, args=(url, there), daemon=True)
    process.start()
    there.close()
    with here:
        assert await asyncio.to_thread(here.poll, 60)
        assert here.recv()
    return process


@pytest.mark.parametrize("seed", range(2))
async def test_no_change_is_lost_or_made_twice(database_url: str, seed: int) -> None:
    drawn = random.Random(seed)
    workers = [await begin(database_url) for _ in range(2)]
    async with Client(database_url) as client:

        async def call(number: int) -> int:
            await asyncio.sleep(number / 25)
            key = KEYS[number % len(KEYS)]
            return await client.entity(carts.Cart, key, call_id=f"call-{number}").add(number)

        calling = [asyncio.create_task(call(number)) for number in range(CALLS)]
        for _ in range(BLOWS):
            await asyncio.sleep(drawn.uniform(0.3, 1.2))
            victim = workers.pop(0)
            victim.kill()
            await asyncio.to_thread(victim.join)
            workers.append(await begin(database_url))
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*calling)
        for place, key in enumerate(KEYS):
            found = await client.entities.get(carts.Cart, key)
            assert sorted(found.items) == list(range(place, CALLS, len(KEYS)))
            for at, number in enumerate(found.items, 1):  # each was told its own place
                assert answers[number] == at
            assert (
                await client.entity(carts.Cart, key, call_id=f"call-{place}").add(place)
                == (answers[place])
            )
        runs = (await client.runs.list()).runs
    assert len(runs) >= 2 * len(KEYS)
    assert [run.status for run in runs].count("running") == len(KEYS)
    for worker in workers:
        worker.kill()
