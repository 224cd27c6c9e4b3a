"""Correct programs, killed at each entry of their logs: none of them is blamed."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from holdfast import App, Context, Retry, StepFailed, current_step
from holdfast.errors import RunCancelled
from holdfast.testing import Environment

app = App("correct")
pytestmark = pytest.mark.crash_everywhere(most=20)
tried: set[UUID] = set()


@pytest.fixture
def holdfast_app() -> App:
    tried.clear()
    return app


@app.step
async def charge(order: str) -> str:
    return f"receipt for {order}"


@app.step(retry=Retry.NEVER)
async def flaky(receipt: str) -> str:
    tried.add(current_step().run_id)
    if len(tried) < 3:
        raise ConnectionError("lost")
    return receipt


@app.step(retry=Retry(attempts=2, base="100ms"))
async def slow(text: str) -> str:
    if current_step().attempt == 1:
        raise ConnectionError(text)
    return text


@app.workflow
async def nap(ctx: Context, order: str) -> str:
    await asyncio.sleep(7200)
    return order


@app.workflow
async def press(ctx: Context, order: str) -> None:
    receipt = await charge(order)
    try:
        await asyncio.sleep(1000)
    finally:
        await charge(receipt)


@app.workflow(retry=Retry(attempts=4, base="1m"))
async def again(ctx: Context, order: str) -> str:
    receipt = await charge(order)
    try:
        return await flaky(receipt)
    except StepFailed:
        await charge("undone")
        raise


@app.workflow
async def late(ctx: Context, order: str) -> str:
    try:
        async with asyncio.timeout(60):
            return await nap(order)
    except TimeoutError:
        return await charge(order)


@app.workflow
async def careful_nap(ctx: Context) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        await charge("undone")


@app.step(retry=Retry.NEVER)
async def refuse() -> None:
    raise ConnectionError("lost")


@app.workflow
async def group(ctx: Context) -> str:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(careful_nap())
            tasks.create_task(refuse())
    except* StepFailed:
        await charge("handled")
    return "done"


@app.workflow
async def loop(ctx: Context, number: int) -> str:
    await asyncio.gather(slow("a"), charge("b"), asyncio.sleep(0.3))
    if number < 2:
        ctx.continue_as_new(number + 1)
    return f"{ctx.run_id} {ctx.uuid()}"


async def test_a_cancelled_run_ends_as_before(environment: Environment) -> None:
    """Fault: how many entries led to the cancel was compared, and a kill adds one."""
    handle = await environment.client.start(press, "lamp")
    await environment.advance("1m")
    await handle.cancel("x")
    with pytest.raises(RunCancelled):
        await environment.result(handle)


async def test_a_run_may_be_retried(environment: Environment) -> None:
    assert await environment.run(again, "lamp") == "receipt for lamp"


async def test_a_cancelled_child_ends_when_it_does(environment: Environment) -> None:
    """Fault: whether its end came before that of its parent was compared."""
    assert await environment.run(late, "lamp") == "receipt for lamp"


async def test_a_cancelled_child_may_not_have_begun(environment: Environment) -> None:
    """Fault: what it called because of the cancel was new, if a kill let it begin before."""
    assert await environment.run(group) == "done"


async def test_a_run_continues_as_the_same_run(environment: Environment) -> None:
    """Fault: its id has the moment in it, which a kill moves."""
    assert await environment.run(loop, 0)


class TestEvents:
    """An app with a subscription."""

    @pytest.fixture
    def holdfast_app(self) -> App:
        app = App("told")

        @app.workflow
        async def listen(ctx: Context, text: str) -> str:
            return await ctx.step("note", lambda: text)

        app.subscribe("order.#", listen)
        return app

    async def test_an_event_needs_no_id(self, environment: Environment) -> None:
        """Fault: its id was drawn, and those of the runs that it starts follow from it."""
        for item in ("lamp", "desk"):
            await environment.publish("order.placed", item)
            await environment.advance("1m")
        assert [run.state async for run in environment.client.runs.iterate()] == ["completed"] * 2


class TestSchedules:
    """An app with a schedule."""

    @pytest.fixture
    def holdfast_app(self) -> App:
        app = App("ticking")

        @app.workflow
        async def tick(ctx: Context) -> str:
            return "tick"

        @app.workflow
        async def order(ctx: Context) -> str:
            await asyncio.sleep(3 * 3600)
            return await ctx.step("note", lambda: "done")

        app.schedule(tick, every="1h", name="ticks")
        return app

    async def test_a_killed_worker_gives_no_schedule_back(self, environment: Environment) -> None:
        """Fault: the call was cancelled, and the test with it."""
        handle = await environment.client.start("order")
        assert await environment.result(handle) == "done"
