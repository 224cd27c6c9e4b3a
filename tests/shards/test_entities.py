"""Entities over shards: a workflow calls one of another shard, and is told."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Client
from holdfast.errors import RunEnded, RunFailed
from tests.entities.carts import Cart, shop
from tests.entities.test_calls import (
    begin_to_buy,
    entity,
    test_a_call_id_is_carried_out_once,
    test_a_change_that_raises_changes_nothing,
    test_a_read_wakes_nothing,
    test_changes_and_reads,
    test_continuing_keeps_the_state_the_calls_and_their_ids,
    test_delete,
)
from tests.shards.engine import Workers

__all__ = [
    "test_a_call_id_is_carried_out_once",
    "test_a_change_that_raises_changes_nothing",
    "test_a_read_wakes_nothing",
    "test_changes_and_reads",
    "test_continuing_keeps_the_state_the_calls_and_their_ids",
    "test_delete",
]


async def test_workflows_call_entities_of_all_shards(worker: Workers, client: Client) -> None:
    async def shopping(name: str) -> None:
        run = await client.start(shop, name)
        async with asyncio.timeout(30):
            while len((await client.entities.get(Cart, name)).items) < 2:
                await asyncio.sleep(0.05)
        assert await client.entity(Cart, name).total() == 3
        await run.cancel()

    await asyncio.gather(*(shopping(f"c{number}") for number in range(8)))


async def test_workflows_are_told_of_entities_that_were_terminated(
    worker: Workers, client: Client
) -> None:
    await client.entity(Cart, "ann").add("lamp")
    buying = await begin_to_buy(client)
    runs = [await client.start(shop, "ann") for _ in range(6)]
    for run in runs:
        async with asyncio.timeout(30):
            while [each.event.key for each in await run.log()][-1] != "Cart.add":
                await asyncio.sleep(0.02)
    assert await client.runs.terminate((entity(), "ann"))
    for run in runs:
        with pytest.raises(RunFailed, match=r"refused update add: .*RunEnded.*\(terminated\)"):
            async with asyncio.timeout(30):
                await run.result()
    with pytest.raises(RunEnded):
        await buying
