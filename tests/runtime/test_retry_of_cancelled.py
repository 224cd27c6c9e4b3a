"""A run is asked to stop, and is ended from outside while it cleans up; then it is retried.

Guarantee 17: what was called because of the cancel is not kept while the code continues without it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from holdfast import App, Client, Context, RunCancelled
from holdfast.errors import RunTerminated
from holdfast.insight.why import explain_run
from holdfast.store.memory import MemoryStore
from tests.runtime.desk import working

app = App("shop")
calls: list[str] = []
hangs_at: set[str] = set()


@app.step
async def act(name: str) -> str:
    if name in hangs_at:
        await asyncio.Event().wait()
    calls.append(name)
    return name


class Plan:
    """A random program: calls, one after another or beside each other, and their undoing."""

    def __init__(self, chance: random.Random) -> None:
        names = iter(f"s{n}" for n in range(99))
        self.stages = [
            [next(names) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 3))
        ]
        self.beside = chance.random() < 0.5
        self.undo_beside = chance.random() < 0.5

    @property
    def forward(self) -> Iterator[str]:
        return (name for stage in self.stages for name in stage)


plans: dict[int, Plan] = {}


@app.workflow
async def trade(ctx: Context, number: int) -> str:
    plan, done = plans[number], list[str]()
    try:
        for stage in plan.stages:
            if plan.beside:
                done += await asyncio.gather(*(act(name) for name in stage))
            else:
                for name in stage:
                    done.append(await act(name))
        await ctx.sleep("1h")
    except asyncio.CancelledError:
        undone = [f"undo {name}" for name in reversed(done)]
        if plan.undo_beside:
            await asyncio.gather(*(act(name) for name in undone))
        else:
            for name in undone:
                await act(name)
        raise
    return "shipped"


@pytest.mark.parametrize("seed", range(40))
async def test_the_retry_undoes_the_rest_and_ends_cancelled(seed: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    plan = plans[seed] = Plan(chance)
    names = list(plan.forward)
    calls.clear()
    hangs_at.clear()
    hangs_at.add(f"undo {chance.choice(names)}")
    async with Client(store=store) as client, working(app, store):
        handle = await client.start(trade, seed)
        await until(lambda: set(calls) >= set(names))
        await asyncio.sleep(0.05)
        await handle.cancel("changed my mind")
        await asyncio.sleep(chance.choice([0, 0.02, 0.05]))  # some undo nothing until then
        await handle.terminate("too slow")
        with pytest.raises(RunTerminated):
            await handle.result(timeout=20)
        kept = await undone(client, handle.run_id)
        why = await explain_run(store, (await handle.get()).record)
        hangs_at.clear()
        retry = await client.runs.retry(handle.run_id)
        with pytest.raises(RunCancelled):
            await retry.result(timeout=20)
    assert any("a retry continues to clean up" in each for each in why.details)
    assert set(calls) == {*names, *(f"undo {name}" for name in names)}
    assert all(calls.count(name) == 1 for name in [*names, *kept])


async def undone(client: Client, run_id: UUID) -> list[str]:
    """Return which calls that undo others are in the log."""
    ends = [each.event for each in await client.handle(run_id).log() if each.event.key]
    results = [str(json.loads(end.details or "{}").get("result")) for end in ends]
    return [each for each in results if each.startswith("undo")]


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not found():
            await asyncio.sleep(0.005)
