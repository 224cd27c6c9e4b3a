"""Workers killed while a run fails, waits for its next attempt and is retried by its policy."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from holdfast.client import Client, Run
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.fleet import Fleet, kill_at_every_point
from tests.crash.ledger import check_nothing_is_queued, read_ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


async def nonces(client: Client, run: Run) -> dict[str, str]:
    """Return what the steps of a run have recorded, by key."""
    log = [entry.event for entry in await client.runs.log(run.run_id)]
    done = [each for each in log if each.type == "StepCompleted"]
    return {each.key or "": json.loads(each.details or "")["result"]["nonce"] for each in done}


async def test_a_worker_killed_at_every_point_starts_no_child_of_an_attempt_twice(
    fleet: Fleet, server: EmbeddedServer
) -> None:
    """The attempts take the child over from each other, and the last one gets its result."""
    async with Client(server.url) as client:
        started: list[str] = []

        async def start(queue: str) -> RunHandle[object]:
            number = len(started)
            started.append(queue)
            key = str(number)
            return await client.start("crash/lets_go", (number, queue), key=key, queue=queue)

        points = await kill_at_every_point(fleet, start)
        parents = dict[str, list[Run]]()
        async for run in client.runs.iterate(names="crash/lets_go", payloads=True):
            parents.setdefault(run.key or "", []).append(run)
        children = [run async for run in client.runs.iterate(names="crash/let_go", payloads=True)]
        assert len(children) == len(parents) == len(started), "a child was started twice"
        for child in children:
            [last, *before] = parents[str(child.input)]
            assert (last.status, child.status) == ("completed", "completed")
            assert [run.status for run in before] == ["continued", "continued"]
            assert last.output == child.output
    check_nothing_is_queued(server)
    assert points > 8, "the worker makes more calls than that: the switch does not work"


async def test_a_worker_killed_at_every_point_loses_no_attempt_and_makes_none_twice(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    async with Client(server.url) as client:
        started: list[str] = []

        async def start(queue: str) -> RunHandle[object]:
            number = len(started)
            started.append(queue)
            return await client.start("crash/retried", number, key=str(number), queue=queue)

        points = await kill_at_every_point(fleet, start)
        attempts = defaultdict[str, list[Run]](list)
        async for run in client.runs.iterate(names="crash/retried", payloads=True):
            attempts[run.key or ""].append(run)
        assert len(attempts) == len(started)
        for runs in attempts.values():
            assert [run.status for run in runs] == ["completed", "continued", "continued"]
            done = [await nonces(client, run) for run in runs]
            assert len({each["act"] for each in done}) == 1, "a step ran again that was recorded"
            assert [len(each) for each in done] == [2, 2, 2]
        # What the first attempt recorded has its trace under the first attempt's id.
        executions = set().union(*read_ledger(ledger).values())
        for runs in attempts.values():
            for run in runs:
                for nonce in (await nonces(client, run)).values():
                    assert nonce in executions
    check_nothing_is_queued(server)
    assert points > 8, "the worker makes more calls than that: the switch does not work"
