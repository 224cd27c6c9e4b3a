"""Trigger rules and options of maps, on workers: errors as values, last steps, limits."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, current_flow_step
from holdfast.client import Client
from holdfast.errors import RunCancelled
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.types import ErrorInfo
from tests.runtime.desk import working


async def test_a_map_tolerates_and_limits_and_a_step_handles_the_rest(store: Store) -> None:
    app, seen, most = App("rules"), list[str](), [0, 0]
    flow = app.flow("rules", input=list[int], attempts=1)

    @flow.map(flow.run, tolerate=1, concurrency=2)
    async def parts(part: int) -> int:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0.01)
        most[0] -= 1
        if part < 0:
            raise ValueError(f"{part} is negative")
        return part

    @flow.step
    async def total(parts: list[int | None]) -> int:
        [(index, error)] = current_flow_step().errors("parts").items()
        assert (index, error.cause and error.cause.matches(ValueError)) == (1, True)
        if len(parts) > 3:
            raise OSError("too many")
        return sum(part or 0 for part in parts)

    @flow.step(trigger_rule="one_failed")
    async def fix(total: ErrorInfo) -> str:
        assert not current_flow_step().skipped("total")
        return str(total.cause)

    @flow.step(trigger_rule="always")
    async def last(parts: list[int | None] | ErrorInfo | None) -> None:
        seen.append("none" if parts is None else f"{type(parts).__name__}")

    async with Client(store=store) as client, working(app, store):
        assert await client.run(flow, [1, -1, 2]) == {}  # the last step was not needed
        assert most[1] == 2
        found = await client.run(flow, [1, -1, 2, 3])
        assert found == {"fix": "OSError: too many"}
    assert seen == ["list", "list"]


async def test_a_cancel_waits_for_the_last_step(store: Store) -> None:
    app, begun, may_end = App("rules"), asyncio.Event(), asyncio.Event()
    flow = app.flow("cancelled", input=int)
    done: list[object] = []

    @flow.step
    async def slow(run: int) -> int:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            done.append("stopped")
        return run

    @flow.step(trigger_rule="always")
    async def last(slow: int | ErrorInfo | None) -> None:
        await may_end.wait()
        done.append(slow)

    async with Client(store=store) as client, working(app, store):
        handle = await client.start(flow, 1)
        await begun.wait()
        await handle.cancel()
        assert (await handle.get()).status == "running"
        explained = await client.why(handle.run_id)
        assert "step last, which always runs at the end, " in explained.because
        may_end.set()
        with pytest.raises(RunCancelled):
            await handle.result()
    assert done == ["stopped", None]


async def test_what_a_failed_map_no_longer_waits_for_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its lease was not lost, and its run continues: a step handles the failure."""
    app = App("maps")
    flow = app.flow("tolerant", input=list[int], attempts=1)

    @flow.map(flow.run)
    async def half(number: int) -> int:
        return 1 // number

    @flow.step(trigger_rule="all_done")
    async def report(half: list[int] | ErrorInfo) -> str:
        return type(half).__name__

    async with Environment(app) as env:
        assert await env.run(flow, [0, 1]) == {"report": "ErrorInfo"}
    [late] = [line for line in caplog.messages if "ended too late" in line]
    assert "its run no longer waited for it" in late
