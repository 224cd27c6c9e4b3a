"""A key is used again after its run was deleted: what that run has left counts for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from holdfast import App, Context
from holdfast.definitions.startable import Startable
from holdfast.testing import Environment

app = App("shop")


@app.workflow
async def double(ctx: Context, number: int) -> int:
    return 2 * number


@app.workflow(retention="1s")
async def ask_child(ctx: Context, number: int) -> int:
    return await double(number)


@app.workflow
async def listen(ctx: Context) -> list[int]:
    return [await ctx.wait_for_signal("go", type=int) for _ in range(2)]


@app.workflow(retention="1s")
async def tell(ctx: Context, number: int) -> int:
    listener = await ctx.wait_for_signal("whom", type=UUID)
    ctx.signal_run(listener, "go", number)
    return number


@app.entity
@dataclass
class Counter:
    total: int = 0

    async def add(self, number: int) -> int:
        self.total += number
        return self.total


@app.workflow(retention="1s")
async def add(ctx: Context, number: int) -> int:
    return await ctx.entity(Counter, "all").add(number)


async def one_after_the_other(
    env: Environment, workflow: Startable[[int], int], whom: UUID | None = None
) -> list[int]:
    """Run a workflow twice with one key, with 1 and 2; the first run is deleted in between."""
    results, ids = list[int](), set[UUID]()
    for number in (1, 2):
        handle = await env.client.start(workflow, number, key="nightly")
        if whom is not None:
            await handle.signal("whom", whom)
        results.append(await env.result(handle))
        ids.add(handle.run_id)
        await env.advance("10s")
        await env.client.retention.sweep()
    assert len(ids) == 1
    return results


async def test_the_next_run_starts_a_child_of_its_own() -> None:
    """Fault: its child had the id of the one before, which was kept, and it waited for ever."""
    async with Environment(app) as env:
        assert await one_after_the_other(env, ask_child) == [2, 4]


async def test_the_next_run_sends_signals_of_its_own() -> None:
    """Fault: the receiver took its signal for that of the run before."""
    async with Environment(app) as env:
        listener = await env.client.start(listen)
        await one_after_the_other(env, tell, listener.run_id)
        assert await env.result(listener) == [1, 2]


async def test_the_next_run_makes_calls_of_entities_of_its_own() -> None:
    """Fault: the entity took its call for that of the run before, and it waited for ever."""
    async with Environment(app) as env:
        assert await one_after_the_other(env, add) == [1, 3]
