"""Code that raises and catches exceptions of its own continues after each kill."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

from holdfast import App, Context, RunFailed
from holdfast.testing import Environment

pytestmark = pytest.mark.crash_everywhere

app = App("caught")


@app.step
async def pay() -> None: ...


@app.step
async def refund() -> None: ...


@app.step
async def notify() -> None: ...


async def failing() -> Never:
    await pay()
    raise ValueError("no")


async def cleaning(ctx: Context) -> None:
    try:
        await ctx.wait_for_signal("never")
    finally:
        await refund()


@app.workflow
async def sale(ctx: Context) -> None:
    try:
        dict[str, str]()["rate"]
    except KeyError:
        await refund()
        await asyncio.gather(notify(), notify())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            group.create_task(cleaning(ctx))
    except* ValueError:
        await notify()
    later = asyncio.create_task(failing())
    await ctx.sleep(5)
    try:
        await later
    except ValueError:
        await ctx.sleep(5)
        await notify()
        raise


@pytest.fixture
def holdfast_app() -> App:
    return app


async def test_a_run_cleans_up_after_its_own_exceptions(environment: Environment) -> None:
    handle = await environment.client.start(sale)
    with pytest.raises(RunFailed, match="no"):
        await environment.result(handle)
