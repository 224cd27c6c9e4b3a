"""Cancelled callers that wait for what they called, killed at each entry of their logs."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Context, current_activity
from holdfast.testing import Environment

app = App("guarded")
pytestmark = pytest.mark.crash_everywhere(most=8)


@app.activity(on_cancel="wait")
async def mill() -> str:
    if current_activity().attempt > 1:
        return "milled"
    await asyncio.sleep(3600)
    return "milled"


@app.activity(on_cancel="abandon")
async def grind() -> str:
    await asyncio.sleep(0.01)
    return "ground"


@app.workflow
async def inner(ctx: Context) -> None:
    try:
        await asyncio.sleep(86_400)
    finally:
        await note("child")


@app.step
async def note(text: str) -> str:
    return text


@app.workflow
async def late(ctx: Context) -> list[str]:
    """Stop a child and an activity, and let another go."""
    found: list[str] = []
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(ctx.child(inner, on_cancel="wait"))
            await ctx.wait_for_signal("never")
    except TimeoutError:
        found.append(await note("late"))
    task = asyncio.create_task(grind())
    await asyncio.sleep(0)
    task.cancel()
    found.append(await note("done"))
    return found


@pytest.fixture
def holdfast_app() -> App:
    return app


async def test_a_child_that_is_waited_out_and_an_activity_that_is_let_go(
    environment: Environment,
) -> None:
    handle = await environment.client.start(late)
    await environment.advance("61s")
    assert await environment.result(handle) == ["late", "done"]
    types = [each.type for each in environment.store.logs()[handle.run_id]]
    assert types.index("ChildCancelRequested") < types.index("ChildFailed")
    assert "ActivityCancelRequested" not in types
    assert types[-1] == "WorkflowCompleted"
