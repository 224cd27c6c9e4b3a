"""While the database records what has ended, others have its places; what runs has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import Committed, Finish, StepTasksEnded, TurnCommit
from holdfast.worker.claimer import Room
from tests.runtime.desk import eventually, working

RUNS = 6


class Slow(MemoryStore):
    """Records ends of runs and of steps when it is told to."""

    def __init__(self) -> None:
        super().__init__(wall_clock)
        self.records = asyncio.Event()

    async def commit(self, worker_id: str, token: Any, turns: Sequence[TurnCommit]) -> Committed:
        if any(isinstance(turn.then, Finish) for turn in turns):
            await self.records.wait()
        return await super().commit(worker_id, token, turns)

    async def end_step_tasks(self, *given: Any, **options: Any) -> StepTasksEnded:
        await self.records.wait()
        return await super().end_step_tasks(*given, **options)


def test_handlers_that_are_skipped_are_claimed_again_later() -> None:
    room, both = Room(1), ["shop/a@1", "shop/b@1"]
    assert (room.without_skipped(both, 100.0), room.skipped_until) == (both, None)
    room.skip("shop/a@1", 100.0)
    again = room.skipped_until
    assert again is not None
    assert room.without_skipped(both, again - 1) == ["shop/b@1"]
    assert (room.without_skipped(both, again), room.skipped_until) == (both, None)


def test_no_more_places_are_lent_than_there_are() -> None:
    room, woken = Room(4), list[int]()
    held = [*range(6)]
    room.count(held)
    room.freed = lambda: woken.append(room.free)
    with room.lending(3):
        assert (room.taken, room.free) == (3, 1)
        with room.lending(3), room.lending(3):
            assert (room.taken, room.free) == (2, 2)
    assert (room.taken, room.free, woken) == (6, -2, [1, 2])


@pytest.mark.parametrize(("concurrency", "begun"), [(1, 1), (2, 4), (4, 8)])
async def test_runs_begin_while_the_ends_of_others_are_recorded(
    concurrency: int, begun: int
) -> None:
    app, began = App("ends"), list[int]()

    @app.workflow
    async def short(ctx: Context, number: int) -> int:
        began.append(number)
        return number

    store = Slow()
    async with Client(store=store, app=app) as client:
        handles = await client.start_many(short, range(2 * RUNS))
        async with working(app, store, concurrency=concurrency):
            await eventually(lambda: len(began) >= begun)
            await asyncio.sleep(0.02)
            assert len(began) == begun
            store.records.set()
            assert [await handle.result() for handle in handles] == list(range(2 * RUNS))
    assert sorted(began) == list(range(2 * RUNS))


@pytest.mark.parametrize("steps", [1, 3])
async def test_no_more_steps_run_at_once_than_a_worker_may(steps: int) -> None:
    """Some ends bring the next step, for which a place is kept, and others none."""
    app, running, most = App("steps"), 0, 0
    flow = app.flow("row", input=int)

    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 1

    @flow.step
    async def first(run: int) -> int:
        return await work()

    if steps == 3:

        @flow.step
        async def second(first: int) -> int:
            return await work()

        @flow.step
        async def third(second: int) -> int:
            return await work()

    alone = app.flow("alone", input=int)

    @alone.step
    async def only(run: int) -> int:
        return await work()

    store = MemoryStore(wall_clock)
    async with Client(store=store) as client, working(app, store, concurrency=4):
        handles = [
            *await client.start_many(flow, [0] * 20),
            *await client.start_many(alone, [0] * 20),
        ]
        for handle in handles:
            await handle.result()
    assert 1 < most <= 4
