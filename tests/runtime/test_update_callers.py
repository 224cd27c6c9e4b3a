"""Who asks a run to change something hears, however the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.client import replies
from holdfast.errors import RunEnded, UpdateFailed
from holdfast.testing import Environment

app = App("callers")


@app.workflow(timeout="1h")
async def desk(ctx: Context, how: str) -> int:
    async def hang() -> None:
        await ctx.wait_for_signal("never")

    ctx.handle_update("add", lambda number: number)
    ctx.handle_update("hang", hang)
    if how != "continued":
        await ctx.wait_for_signal("next")
    if how == "failed":
        raise KeyError("tea")
    if how == "continues":
        ctx.continue_as_new("continued")
    return await ctx.wait_for_signal("close", type=int) if how == "continued" else 0


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    async with Environment(app) as env:
        yield env


@pytest.fixture
def answers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller finds an answer by looking: each one that waits must be told."""
    monkeypatch.setattr(replies, "FIRST_PAUSE_SECONDS", 3600.0)


async def has_update(env: Environment, run_id: UUID) -> None:
    async with asyncio.timeout(30):
        while not any(e.event.type == "SignalReceived" for e in await env.client.runs.log(run_id)):
            await asyncio.sleep(0)


async def test_an_update_after_the_wake_that_continues_is_answered_by_the_next_run(
    env: Environment,
) -> None:
    """Trap 1. Trap 6."""
    handle = await env.client.start(desk, "continues")
    await env.wait_until_idle()
    await handle.signal("next")
    assert await handle.update("add", 5, timeout="30s") == 5
    await handle.signal("close", 7)
    assert await env.result(handle) == 7


@pytest.mark.usefixtures("answers_are_told")
@pytest.mark.parametrize("how", ["completes", "failed", "continues"])
async def test_an_accepted_update_fails_with_the_end_of_the_run(env: Environment, how: str) -> None:
    handle = await env.client.start(desk, how)
    asking = asyncio.create_task(handle.update("hang", timeout="30s"))
    await has_update(env, handle.run_id)
    await env.wait_until_idle()
    await handle.signal("next")
    with pytest.raises(UpdateFailed) as caught:
        await asking
    assert caught.value.error.matches(RunEnded)


@pytest.mark.usefixtures("answers_are_told")
async def test_an_update_that_nobody_handles_ends_with_the_run(env: Environment) -> None:
    handle = await env.client.start(desk, "completes")
    asking = asyncio.create_task(handle.update("unheard-of", timeout="30s"))
    await has_update(env, handle.run_id)
    await handle.signal("next")
    with pytest.raises(RunEnded, match="completed"):
        await asking


@pytest.mark.parametrize("status", ["terminated", "timed_out"])
@pytest.mark.parametrize("name", ["hang", "unheard-of"])
async def test_a_caller_hears_of_an_end_from_outside(
    env: Environment, status: str, name: str
) -> None:
    handle = await env.client.start(desk, "completes")
    asking = asyncio.create_task(handle.update(name, timeout="30s"))
    await has_update(env, handle.run_id)
    await env.wait_until_idle()
    if status == "terminated":
        await handle.terminate()
    else:
        await env.advance("2h")
    with pytest.raises(RunEnded, match=status):
        await asking
