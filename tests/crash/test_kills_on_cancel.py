"""Processes killed while cancelled callers wait for what they called."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.across import Errand
from tests.crash.fleet import Fleet, kill_at_every_point
from tests.crash.ledger import check_nothing_is_queued

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def test_a_worker_killed_between_any_two_store_calls_loses_no_end_that_is_waited_for(
    fleet: Fleet, server: EmbeddedServer
) -> None:
    """With an activity and a child that are asked to stop: each is asked once, and ends once."""
    async with Client(server.url) as client:

        async def start(queue: str) -> RunHandle[object]:
            return await client.start("crash/brief", Errand(number=1, queue=queue), queue=queue)

        points = await kill_at_every_point(fleet, start)
        async for run in client.runs.iterate(names="crash/brief", payloads=True):
            assert (run.status, run.output) == ("completed", "late")
            types = [entry.event.type for entry in await client.runs.log(run.run_id)]
            for asked, ended in (
                ("ActivityCancelRequested", "ActivityFailed"),
                ("ChildCancelRequested", "ChildFailed"),
            ):
                assert (types.count(asked), types.count(ended)) == (1, 1), types
                assert types.index(asked) < types.index(ended), types
    check_nothing_is_queued(server)
    assert points > 5, "the worker makes more calls than that: the switch does not work"
