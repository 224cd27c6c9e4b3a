"""The log under a living worker becomes an older one: a restore, a failover that lost entries."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast import App, Context
from holdfast.events import STEP_COMPLETED
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewRun, NewSignal
from tests.runtime.bench import Bench, work
from tests.runtime.desk import eventually, working

RUNS = 13
TABLES = ("runs", "events", "tasks")

app = App("restored")


@app.step
async def pack(item: int) -> int:
    return item


@app.workflow
async def order(ctx: Context, items: int) -> list[object]:
    seen: list[object] = []
    for item in range(items):
        seen += [await ctx.wait_for_signal("item"), await pack(item)]
    return seen


class Backup:
    """A store, and a copy of its rows that can be put back while workers use it."""

    def __init__(
        self,
        store: Store,
        take: Callable[[], Awaitable[None]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.store, self.take, self.restore = store, take, restore


def _in_memory() -> Backup:
    store, kept = MemoryStore(), list[object]()

    async def take() -> None:
        kept.append(copy.deepcopy(store._tables))

    async def restore() -> None:
        store._tables = copy.deepcopy(kept[-1])  # type: ignore[assignment]

    return Backup(store, take, restore)


def _in_postgres(url: str) -> Backup:
    async def execute(*statements: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute("; ".join(statements))
        finally:
            await connection.close()

    async def take() -> None:
        copies = (f"create table backup.{each} as table holdfast.{each}" for each in TABLES)
        await execute("create schema backup", *copies)

    async def restore() -> None:
        names = ", ".join(f"holdfast.{each}" for each in TABLES)
        copies = (f"insert into holdfast.{each} table backup.{each}" for each in TABLES)
        await execute(f"truncate {names}", *copies)

    return Backup(PostgresStore(url), take, restore)


@pytest.fixture(params=["memory", "postgres"])
async def backup(request: pytest.FixtureRequest) -> AsyncIterator[Backup]:
    in_memory = request.param == "memory"
    made = _in_memory() if in_memory else _in_postgres(request.getfixturevalue("database_url"))
    await made.store.open()
    yield made
    await made.store.close()


async def start(store: Store, items: int) -> list[UUID]:
    runs = [NewRun(run_id=uuid4(), name="restored/order", input=str(items)) for _ in range(RUNS)]
    await store.start_runs(runs)
    return [run.run_id for run in runs]


async def send(store: Store, run_ids: list[UUID], payload: int) -> None:
    signals = [NewSignal(run_id, "item", str(payload)) for run_id in run_ids]
    delivered = await store.signal_runs(signals)
    assert set(delivered.outcomes) == {"delivered"}
    await store.notify(delivered.notices)


async def until_waiting(store: Store, run_ids: list[UUID], steps: int) -> None:
    """Wait until each run has recorded so many steps, and sleeps."""

    async def reached() -> bool:
        logs = await store.read_events([(run_id, 0) for run_id in run_ids])
        runs = await store.get_runs(run_ids)
        return all(
            sum(event.type == STEP_COMPLETED for event in logs[run_id]) == steps
            and runs[run_id].state == "waiting"
            for run_id in run_ids
        )

    await eventually(reached)


@pytest.mark.parametrize("unread", [0, 20], ids=["shorter", "longer again"])
async def test_runs_with_a_restored_log_continue_from_what_it_has(
    backup: Backup, unread: int
) -> None:
    """The worker has them in its cache, further than the log, and their signals wake them."""
    store = backup.store
    run_ids = await start(store, 3 + unread)
    async with working(app, store):
        await send(store, run_ids, 1)
        await until_waiting(store, run_ids, 1)
        await backup.take()
        await send(store, run_ids, 2)
        await until_waiting(store, run_ids, 2)
        await backup.restore()
        for payload in (3, 4, *range(10, 10 + unread)):
            await send(store, run_ids, payload)

        async def ended() -> bool:
            runs = await store.get_runs(run_ids)
            return {run.state for run in runs.values()} == {"completed"}

        await eventually(ended)
    outputs = {run.output for run in (await store.get_runs(run_ids)).values()}
    expected = [1, 0, 3, 1, 4, 2]
    for place in range(unread):
        expected += [10 + place, 3 + place]
    assert outputs == {str(expected).replace(" ", "")}


@pytest.mark.parametrize("under_way", [False, True], ids=["ended", "under way"])
@pytest.mark.parametrize("others", [0, 1, 2, 3])
async def test_a_running_turn_does_not_go_on_after_entries_that_are_lost(
    backup: Backup, others: int, under_way: bool
) -> None:
    """Others write as many entries as were lost, or more: the length says nothing.

    A step that followed from what was lost has ended when that is noticed, or is under way.
    """
    store, begun = backup.store, list[str]()
    gates, beside = [asyncio.Event(), asyncio.Event()], asyncio.Event()
    shop = App("restored")

    @shop.step
    async def draw(after: str) -> str:
        number = len(begun)
        begun.append(after)
        if number < len(gates):
            await gates[number].wait()
        return f"{number} after ({after})"

    @shop.step
    async def tick() -> None:
        await beside.wait()

    @shop.workflow
    async def order(ctx: Context, items: int) -> list[str]:
        ticking = asyncio.create_task(tick())
        drawn = [await draw("")]
        for _ in range(2):
            drawn.append(await draw(drawn[-1]))
        await ticking
        for _ in range(items):
            await ctx.wait_for_signal("item")
        return drawn

    async def recorded() -> list[str]:
        log = (await store.read_events([(run_id, 0)]))[run_id]
        ends = [event.details or "" for event in log if event.type == STEP_COMPLETED]
        return [found for each in ends if (found := json.loads(each)["result"]) is not None]

    async def has_recorded() -> bool:
        return len(await recorded()) == 1 and len(begun) == 2

    async def ended() -> bool:
        return (await store.get_runs([run_id]))[run_id].state == "completed"

    run_id = uuid4()
    await store.start_runs([NewRun(run_id=run_id, name="restored/order", input=str(others))])
    async with working(shop, store):
        await eventually(lambda: len(begun) == 1)
        await backup.take()
        gates[0].set()
        await eventually(has_recorded)
        await backup.restore()
        for number in range(others):
            await send(store, [run_id], number)
        for gate in (beside, gates[1]) if under_way else (gates[1], beside):
            gate.set()
            await eventually(lambda: len(begun) >= 3)
        await eventually(ended)
    first, second, third = await recorded()
    assert second.endswith(f"after ({first})")
    assert third.endswith(f"after ({second})")
    output = (await store.get_runs([run_id]))[run_id].output
    assert output is not None
    assert json.loads(output) == [first, second, third]


# One turn


async def counting(ctx: Context) -> list[int]:
    return [await work(item) for item in range(3)]


def test_a_commit_beyond_the_end_of_the_log_leads_to_a_replay() -> None:
    bench = Bench(counting)
    bench.complete("work", 10)
    bench.commit()
    bench.complete("work#2", 20)
    del bench.log[1:]  # put back
    bench.refuse()
    assert bench.needs_log
    bench.take(bench.turn.rebuild(bench.log))
    assert bench.starts == ["work", "work#2", "work"]
    assert any("restore" in problem for problem in bench.problems)
    for key, result in (("work", 11), ("work#2", 21), ("work#3", 31)):
        bench.complete(key, result)
        bench.settle()
    assert bench.output == [11, 21, 31]


def test_a_run_that_is_gone_is_let_go() -> None:
    bench = Bench(counting)
    bench.complete("work", 10)
    bench.log.clear()
    bench.refuse()
    bench.take(bench.turn.rebuild([]))
    assert bench.lost


async def test_if_another_worker_had_the_run_the_last_entry_of_a_cached_turn_is_read(
    backup: Backup,
) -> None:
    """It continues with the new entries if the log is the same up to there."""
    store = backup.store
    run_ids = await start(store, 4)
    async with working(app, store):
        await send(store, run_ids, 1)
        await until_waiting(store, run_ids, 1)
        async with working(app, store):
            for payload in (2, 3):
                await asyncio.sleep(0)
                await send(store, run_ids, payload)
                await until_waiting(store, run_ids, payload)
        await send(store, run_ids, 4)

        async def ended() -> bool:
            runs = await store.get_runs(run_ids)
            return {run.output for run in runs.values()} == {"[1,0,2,1,3,2,4,3]"}

        await eventually(ended)
