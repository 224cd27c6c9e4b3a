"""What is said over HTTP and to agents of a run that its policy retries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from holdfast import App, Context, Retry
from holdfast.client import Client
from holdfast.client.run import Run
from holdfast.mcp.calling import Toolbox
from holdfast.server import Server
from holdfast.store.port import Store
from holdfast.worker import Worker
from tests.server.shop import Api
from tests.server.test_operations import until

app = App("parcels")


@app.workflow(retry=Retry(attempts=3, base="1h", max="1h", jitter=0))
async def send(ctx: Context) -> None:
    raise ConnectionError("no van")


FAILURE = {
    "number": 1,
    "attempts": 3,
    "error": {"kind": "builtins.ConnectionError", "message": "no van"},
}


@pytest.fixture
async def waiting(store: Store) -> AsyncIterator[tuple[UUID, Run]]:
    """Provide the id of a run, and its next attempt, which waits."""
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client:
        first = (await client.start(send, key="k")).run_id

        async def next_attempt() -> Run | None:
            run = await client.runs.get(("parcels/send", "k"))
            return run if run.run_id != first else None

        yield first, await until(next_attempt)
    await worker.stop(grace=0)


async def test_rest_says_what_failed_last(api: Api, waiting: tuple[UUID, Run]) -> None:
    first, attempt = waiting
    for run_id, state in ((first, "continued"), (attempt.run_id, "waiting")):
        run = await api.ask("GET", f"/v1/runs/{run_id}")
        assert (run["state"], run["error"], run["last_failure"]) == (state, None, FAILURE)
    listed = await api.ask("GET", "/v1/runs?workflow=parcels/send")
    assert [each["last_failure"] for each in listed["runs"]] == [FAILURE, FAILURE]
    why = await api.ask("GET", f"/v1/runs/{attempt.run_id}/why")
    assert why["because"].startswith("it failed 1 of 3 times, and is tried again at ")


async def test_agents_are_told_what_failed_last(server: Server, waiting: tuple[UUID, Run]) -> None:
    _, attempt = waiting
    tools = Toolbox(server.site, may_write=True)
    told = await tools.call("get_run", {"run": str(attempt.run_id)})
    assert json.loads(told.text)["last_failure"] == FAILURE
