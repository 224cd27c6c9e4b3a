"""Workers killed around the URLs that their runs give away: no POST is lost, none counts twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.fleet import Fleet, kill_at_every_point
from tests.crash.ledger import check_runs

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def pay(client: Client, run_id: UUID) -> list[str]:
    """Post to both URLs of a run as soon as they are open, each POST repeated; return the URLs."""
    urls: list[str] = []
    while len(urls) < 2:
        for hook in await client.webhooks.list(run_id):
            number = str(len(urls)).encode()
            assert await client.webhooks.receive(hook.url, number)
            assert not await client.webhooks.receive(hook.url, b"7")
            urls.append(hook.url)
        await asyncio.sleep(0.01)
    return urls


async def test_a_worker_killed_at_every_point_gives_the_same_urls_and_loses_no_post(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    async with Client(server.url) as client, asyncio.TaskGroup() as payers:
        paid: dict[UUID, asyncio.Task[list[str]]] = {}

        async def start(queue: str) -> RunHandle[object]:
            handle = await client.start("crash/paid", 1, queue=queue)
            paid[handle.run_id] = payers.create_task(pay(client, handle.run_id))
            return handle

        points = await kill_at_every_point(fleet, start)
        await check_runs(client, [run async for run in client.runs.iterate(payloads=True)], ledger)
        for run_id, urls in paid.items():
            first, second = await urls
            log = [entry.event for entry in await client.runs.log(run_id)]
            done = [json.loads(e.details or "") for e in log if e.type == "StepCompleted"]
            places = [each["result"]["place"] for each in done]
            assert places == [first, "paid 1 0", second, "paid 1 1"]
    assert points > 8, "the worker makes more calls than that: the switch does not work"
