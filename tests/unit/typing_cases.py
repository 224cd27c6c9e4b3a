"""What type checkers infer for steps and workflows; checked with the package, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import TypeVar, assert_type
from uuid import UUID

from holdfast.client import Client, Run, RunHandle, RunPage, ScheduleInfo, Tick
from holdfast.definitions.activities import Activity, ActivityContext
from holdfast.definitions.app import App
from holdfast.definitions.entities import reads
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.schedules import Schedule
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.retry import Retry
from holdfast.runtime.code.children import ChildHandle
from holdfast.runtime.code.context import Context
from holdfast.sync import SyncClient, SyncRunHandle
from holdfast.types import JSON, Restarted, StreamItem

T = TypeVar("T")

app = App("typed")


@app.step
async def listed(x: int, *, note: str = "") -> list[str]:
    return [note] * x


@app.step(timeout="3s", retry=Retry.NEVER)
def halved(x: int) -> float:
    return x / 2


def may_help(error: Exception) -> bool:
    return True


async def will_help(error: BaseException) -> bool:
    return True


def pause(error: Exception) -> float | None:
    return None


def of_connections(error: ConnectionError) -> bool:
    return True


Retry(should_retry=may_help, delay=pause)
Retry(should_retry=will_help, delay=lambda error: 3 if isinstance(error, OSError) else None)
Retry(should_retry=of_connections)  # type: ignore[arg-type]


@app.step
async def boxed(x: T) -> list[T]:
    return [x]


@app.activity
async def resized(path: str, *, width: int = 0) -> bytes:
    return b""


@app.activity(queue="gpu", start_to_close="1m")
def rendered(scene: int) -> str:
    return ""


@app.schedule("0 9 * * 1-5", timezone="Europe/Berlin")
@app.workflow
async def scheduled(ctx: Context) -> int:
    return 1


@app.workflow
async def numbered(ctx: Context, count: int) -> None: ...


assert_type(scheduled, Workflow[None, int])
assert_type(app.schedule(scheduled, every="15m", name="often"), Schedule)
assert_type(app.schedule(numbered, "@daily", input=3), Schedule)
app.schedule(numbered, "@daily", input="three")  # type: ignore[misc]
app.schedule(numbered, "@daily")  # type: ignore[arg-type]
app.schedule(scheduled, "@daily", overlap="queue")  # type: ignore[call-overload]


@app.lifespan
async def pool() -> AsyncIterator[int]:
    yield 1


class Shop:
    @app.step
    async def label(self, x: int) -> bytes:
        return bytes(x)

    @app.step(name="count")
    def count(self) -> int:
        return 1


@app.workflow
async def checkout(ctx: Context, order: dict[str, int]) -> list[str]:
    first, second = await asyncio.gather(listed(1), halved(2))
    assert_type(first, list[str])
    assert_type(second, float)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(halved(1))
    assert_type(task.result(), float)
    assert_type(await boxed("s"), list[str])
    assert_type(await Shop().label(3), bytes)
    assert_type(await Shop().count(), int)
    assert_type(await asyncio.wait_for(listed(1), 5), list[str])
    assert_type(await halved.with_options(timeout="1m")(1), float)
    await assert_type(listed(1, note="n"), Coroutine[object, None, list[str]])
    assert_type(await resized("a", width=3), bytes)
    assert_type(await rendered.with_options(queue="cpu")(1), str)
    assert_type(await asyncio.gather(rendered(1), halved(2)), tuple[str, float])
    assert_type(await plain(), int)
    assert_type(await counted(3), None)
    assert_type(await ctx.child(checkout, order, key="k", timeout="1d"), list[str])
    assert_type(await ctx.child("pack", order, type=int, queue="air", tags=["a"]), int)
    assert_type(await ctx.child("pack", priority=0, version=2), object)
    started = await ctx.start_child(checkout, order, parent_close="cancel", id="first")
    assert_type(started, ChildHandle[list[str]])
    assert_type(await (await ctx.start_child("pack", type=int)).result(), int)
    return first


@app.workflow(version=2, name="plain")
async def plain(ctx: Context) -> int:
    return 1


@app.workflow
async def counted(ctx: Context, count: int = 5) -> None: ...


assert_type(checkout, Workflow[dict[str, int], list[str]])
assert_type(plain, Workflow[None, int])
assert_type(counted, Workflow[int, None])
as_step: Step[[int], float] = halved
as_activity: Activity[[int], str] = rendered
assert_type(pool, Lifespan[int])
assert_type(pool.get(), int)


async def wrong(ctx: Context) -> None:
    await listed("no")  # type: ignore[arg-type]
    await listed(1, other=2)  # type: ignore[call-arg]
    await halved()  # type: ignore[call-arg]
    await Shop().label("no")  # type: ignore[arg-type]
    await rendered("no")  # type: ignore[arg-type]
    await checkout(3)  # type: ignore[arg-type]
    await checkout()  # type: ignore[call-arg]
    pool.override("no")  # type: ignore[arg-type]
    await ctx.child(plain, quue="air")  # type: ignore[call-overload]
    await ctx.child(plain, priority="first")  # type: ignore[call-overload]
    await ctx.child("plain", parent_close="kill")  # type: ignore[call-overload]
    await ctx.start_child(plain, quue="air")  # type: ignore[call-overload]
    result: int = await listed(1)  # type: ignore[assignment]
    await asyncio.sleep(result)


async def with_client(client: Client, run_id: UUID) -> None:
    handle = await client.start(checkout, {"boxes": 2})
    assert_type(handle, RunHandle[list[str]])
    assert_type(await handle.result(), list[str])
    async for item in handle.stream_items("tokens", type=str, after=2, attempts="all"):
        assert_type(item, StreamItem[str])
    async for read in handle.stream_items("tokens", restarts=False):
        assert_type(read, StreamItem[JSON])
    async for either in handle.stream_items("tokens", type=str, restarts=True):
        assert_type(either, StreamItem[str] | Restarted)
    async for each in handle.stream_items("tokens", restarts=run_id.int > 1):
        assert_type(each, StreamItem[JSON] | Restarted)
    assert_type(await client.start_many(plain, [None]), list[RunHandle[int]])
    assert_type(await client.run(plain), int)
    assert_type(await client.result(run_id, plain), int)
    assert_type(await client.result(run_id), object)
    assert_type(await client.result((plain, "key"), timeout=1), int)
    assert_type(client.handle((plain, "key")), RunHandle[int])
    assert_type(client.handle(("plain", "key")), RunHandle[object])
    assert_type(await client.update(run_id, "add", type=int), int)
    assert_type(await client.signal(run_id, "go"), bool)
    assert_type(await client.runs.list(states="failed"), RunPage)
    assert_type([run async for run in client.runs.iterate()], list[Run])
    assert_type(await client.runs.get((checkout, "order-7")), Run)
    assert_type(await client.runs.retry(run_id), RunHandle[object])
    assert_type(await client.approvals.decide(run_id, "approve", True), bool)
    assert_type(await client.workflows.pause(checkout), bool)
    assert_type(await client.schedules.create("n", scheduled, "@daily"), ScheduleInfo)
    await client.schedules.create("n", numbered, "@daily", input=3, timezone="UTC")
    await client.schedules.create("n", numbered, "@daily", input="x")  # type: ignore[misc]
    await client.schedules.create("n", numbered, "@daily")  # type: ignore[arg-type]
    assert_type(await client.schedules.trigger("n"), Tick)
    await client.start(checkout, 3)  # type: ignore[misc]
    await client.runs.list(state="failed")  # type: ignore[call-arg]
    await client.queues.pause(3)  # type: ignore[arg-type]


def with_sync_client(client: SyncClient, run_id: UUID) -> None:
    assert_type(client.start(plain), SyncRunHandle[int])
    assert_type(next(client.handle(run_id).stream_items("tokens", type=str)), StreamItem[str])
    for each in client.handle(run_id).stream_items("tokens", restarts=True):
        assert_type(each, StreamItem[JSON] | Restarted)
    assert_type(client.start(plain).result(), int)
    assert_type(client.result(run_id, checkout), list[str])
    assert_type(client.handle((checkout, "key")).result(), list[str])
    assert_type(list(client.runs.iterate()), list[Run])
    assert_type(client.runs.fork(run_id, index=1), SyncRunHandle[object])


@app.workflow  # type: ignore[arg-type]
async def two_inputs(ctx: Context, a: int, b: int) -> None: ...


@app.entity
@dataclass
class Counter:
    count: int = 0

    async def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    @reads
    async def label(self, *, prefix: str) -> str:
        return f"{prefix}{self.count}"


@app.entity(name="named", retention="7d")
@dataclass
class Named:
    key: str


async def entities(client: Client, ctx: Context, sync: SyncClient) -> None:
    counter = client.entity(Counter, "a", call_id="c", timeout="5s")
    assert_type(await counter.add(2), int)
    assert_type(await counter.label(prefix=":"), str)
    await counter.add("2")  # type: ignore[arg-type]
    assert_type(await ctx.entity(Counter, "a").add(), int)
    assert_type(await client.entities.get(Named, "a"), Named)
    assert_type(sync.entity(Counter, "a").call(Counter.add, 2), int)
    assert_type(sync.entity(Counter, "a").call(Counter.label, prefix=":"), str)
    assert_type(sync.entities.get(Counter, "a").count, int)


def heartbeats(activity: ActivityContext) -> None:
    assert_type(activity.read_heartbeat(UUID), UUID | None)
    assert_type(activity.read_heartbeat(list[int]), list[int] | None)
