"""`Environment.kill` in the middle of what a worker does."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Context
from holdfast.testing import Environment

app = App("killed")


@app.workflow
async def nap(ctx: Context, order: str) -> str:
    await asyncio.sleep(7200)
    return order


@pytest.mark.parametrize("turns", range(8))
async def test_a_run_continues_that_was_paused_while_a_worker_had_it(turns: int) -> None:
    """Fault: only the worker that was dead by then was told that it was resumed."""
    async with Environment(app) as env:
        handle = await env.client.start(nap, "lamp")
        for _ in range(turns):  # of the event loop: the worker claims the run in one of them
            await asyncio.sleep(0)
        await handle.pause("x")
        await env.kill()
        await env.advance("1h")
        await handle.resume()
        assert await env.result(handle) == "lamp"
