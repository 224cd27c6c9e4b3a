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


async def test_a_message_that_a_killed_consumer_had_comes_again() -> None:
    """Fault: it was in flight for thirty years, since leases of an environment do not run out."""
    mail, seen = App("mail"), list[int]()

    @mail.consumer("letters")
    async def read(letter: int) -> None:
        seen.append(letter)
        if len(seen) == 1:
            await asyncio.Event().wait()

    async with Environment(mail) as env:
        await env.client.queues.create("letters")
        await env.client.queues.create("others", visibility="1h")
        await env.client.queues.send("others", 8)
        held = await env.client.queues.receive("others")
        await env.client.queues.send("letters", 7)
        while not seen:
            await asyncio.sleep(0)
        await env.kill()
        assert seen == [7, 7]
        assert await env.client.queues.messages("letters") == []
        assert [await each.ack() for each in held] == [True]  # this one is held by the test
