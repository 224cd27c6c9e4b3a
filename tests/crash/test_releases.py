"""Two releases side by side, as in each deploy, with workers of both killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.fleet import Fleet, patiently, until_all_end
from tests.crash.leases import stop_at_work
from tests.crash.ledger import check_runs
from tests.crash.releases import STEPS

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

BLOWS = 10
RUNS_OF_EACH = 5  # a blow


async def test_each_run_keeps_its_version_while_workers_of_two_are_killed(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 8, 25, 26; S12: no worker takes a run of a version that it does not have."""
    choose = random.Random(2)
    for version in (1, 1, 2, 2):
        fleet.start(release=version)
    handles: dict[RunHandle[object], int] = {}
    async with Client(server.url) as client:

        async def start(version: int) -> RunHandle[object]:
            number = len(handles)
            start = partial(client.start, "crash/upgraded", number, version=version)
            handle: RunHandle[object] = await patiently(start)
            handles[handle] = version
            return handle

        for blow in range(BLOWS):
            for version in (1, 2):
                for _ in range(RUNS_OF_EACH):
                    await start(version)
            await asyncio.sleep(choose.uniform(0.05, 0.3))
            if blow == BLOWS - 1:
                start_another = partial(start, choose.choice((1, 2)))
                fleet.replace(await stop_at_work(fleet, server, choose, start_another))
            else:
                fleet.replace(choose.choice(fleet.workers))
        runs = await until_all_end(list(handles))
        seen = await check_runs(client, runs, ledger)
        for handle, version in handles.items():
            types = Counter([entry.event.type for entry in await client.runs.log(handle.run_id)])
            assert types["StepCompleted"] == STEPS[version]
    assert seen["runs"] == len(handles) > 2 * BLOWS * RUNS_OF_EACH
    assert seen["lost"] > 0, "no worker was killed while it held a run: the test shows nothing"
