"""Calls of tools, carried out in this process."""

from __future__ import annotations

import asyncio
import json
import logging
from uuid import uuid4

import pytest

from holdfast.mcp.calling import LARGEST, Toolbox
from holdfast.server import Server


async def test_changes_by_agents_are_logged_as_those_over_rest(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Toolbox(server.site, may_write=True)
    with caplog.at_level(logging.INFO, "holdfast.server"):
        started = await tools.call("start", {"workflow": "checkout", "input": 1})
        run_id, other = json.loads(started.text)["run_id"], str(uuid4())
        await tools.call("cancel", {"run": run_id})
        assert (await tools.call("cancel", {"run": other})).failed
        await tools.call("get_run", {"run": run_id})
        await asyncio.sleep(0)  # a line is written after the answer
    assert [each.message for each in caplog.records if each.name == "holdfast.server"] == [
        f"start_run checkout by mcp: done, run {run_id}",
        f"cancel_run {run_id} by mcp: done",
        f"cancel_run {other} by mcp: run-not-found",
    ]


async def test_agents_count_runs(server: Server) -> None:
    tools = Toolbox(server.site, may_write=True)
    await tools.call("start", {"workflow": "checkout", "input": 1})
    counted = await tools.call("count_runs", {"by": "workflow"})
    assert json.loads(counted.text)["counts"] == {"shop/checkout": 1}
    refused = await tools.call("count_runs", {"by": "two words"})
    assert refused.failed
    assert "two words" in refused.text


async def test_an_answer_that_is_large_for_an_agent_is_refused_with_what_to_do(
    server: Server,
) -> None:
    tools = Toolbox(server.site, may_write=True)
    started = await tools.call("start", {"workflow": "checkout", "input": 1})
    run_id = json.loads(started.text)["run_id"]
    for _ in range(6):
        await tools.call("signal", {"run": run_id, "event": "go", "payload": "x" * 60_000})
    asked = {"run": run_id, "clip": 100_000}
    refused = await tools.call("read_log", asked)
    assert refused.failed
    assert "smaller limit or clip" in refused.text
    small = await tools.call("read_log", {**asked, "limit": 4})
    assert not small.failed
    assert len(small.text) < LARGEST
