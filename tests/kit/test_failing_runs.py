"""Code that raises, killed at each entry of its log: its end is not taken for a change."""

from __future__ import annotations

import pytest

from holdfast import App, Context
from holdfast.errors import RunFailed, UpdateFailed
from holdfast.testing import Environment

app = App("failing")


@app.step
async def pay(item: str) -> str:
    return f"receipt for {item}"


@app.workflow
async def order(ctx: Context, item: str) -> None:
    raise ValueError(await pay(item))


@app.workflow
async def counter(ctx: Context) -> str:
    async def sell(item: str) -> None:
        raise ValueError(await pay(item))

    ctx.handle_update("sell", sell)
    await ctx.wait_for_signal("close")
    return "closed"


pytestmark = pytest.mark.crash_everywhere


@pytest.fixture
def holdfast_app() -> App:
    return app


async def test_a_run_that_raises_after_a_step_fails(environment: Environment) -> None:
    """Fault: it was stuck if its worker was killed between the step's end and its own."""
    with pytest.raises(RunFailed, match="receipt for lamp"):
        await environment.run(order, "lamp")


async def test_an_update_whose_handler_raises_after_a_step_fails(environment: Environment) -> None:
    handle = await environment.client.start(counter)
    with pytest.raises(UpdateFailed, match="receipt for lamp"):
        await handle.update("sell", "lamp")
    await handle.signal("close")
    assert await environment.result(handle) == "closed"
