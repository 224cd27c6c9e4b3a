"""Where `crash_everywhere` cuts a commit: what the code answered to an entry is never cut off."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Context
from holdfast.testing import Environment

pytestmark = pytest.mark.crash_everywhere

app = App("cuts")


@app.step
async def one(order: int) -> int:
    return order


@app.step
async def two(order: int) -> int:
    return order


@app.activity
async def mail(order: int) -> int:
    return order


@app.workflow
async def child(ctx: Context, order: int) -> int:
    return order


async def finish(ctx: Context, order: int, change: str = "new") -> int:
    if ctx.patched(change):
        return await two(order)
    return -1


@app.workflow
async def at_once(ctx: Context, order: int) -> int:
    return await finish(ctx, order)


@app.workflow
async def after_step(ctx: Context, order: int) -> int:
    await one(order)
    return await finish(ctx, order)


@app.workflow
async def after_sleep(ctx: Context, order: int) -> int:
    await asyncio.sleep(60)
    return await finish(ctx, order)


@app.workflow
async def after_activity(ctx: Context, order: int) -> int:
    await mail(order)
    return await finish(ctx, order)


@app.workflow
async def after_child(ctx: Context, order: int) -> int:
    await child(order)
    return await finish(ctx, order)


@app.workflow
async def after_no_decision(ctx: Context, order: int) -> int:
    try:
        await ctx.request_approval("ship?", timeout="10s")
    except TimeoutError:
        return await finish(ctx, order)
    return -1


@app.workflow
async def after_two_changes(ctx: Context, order: int) -> int:
    await one(order)
    await finish(ctx, order, "first")
    return await finish(ctx, order, "second")


@app.workflow
async def before_a_command(ctx: Context, order: int) -> int:
    await one(order)
    return await mail(order) if ctx.patched("new") else -1


@app.workflow
async def in_branches(ctx: Context, order: int) -> int:
    async def branch(change: str) -> int:
        await one(order)
        ctx.set_value("stage", change)
        return await finish(ctx, order, change)

    return min(await asyncio.gather(branch("first"), branch("second"), branch("third")))


@app.workflow
async def among_timers(ctx: Context, order: int) -> int:
    async def branch(change: str) -> int:
        await asyncio.sleep(60)
        return await finish(ctx, order, change)

    return min(await asyncio.gather(branch("first"), branch("second"), after(ctx, order)))


async def after(ctx: Context, order: int) -> int:
    await mail(order)
    return await finish(ctx, order, "third")


@pytest.fixture
def holdfast_app() -> App:
    return app


@pytest.mark.parametrize(
    "name",
    [
        "at_once",
        "after_step",
        "after_sleep",
        "after_activity",
        "after_child",
        "after_no_decision",
        "after_two_changes",
        "before_a_command",
        "in_branches",
        "among_timers",
    ],
)
async def test_the_new_path_stays_new(environment: Environment, name: str) -> None:
    handle = await environment.client.start(f"cuts/{name}", 7)
    assert await environment.result(handle) == 7
