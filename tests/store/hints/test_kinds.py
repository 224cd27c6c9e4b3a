"""Which work hints tell of: all that any worker may take, and nothing that one worker remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from tests.valkey import Valkey, needs_valkey

from holdfast import App, Client, Context, Retry, RunFailed, current_message
from holdfast.definitions.startable import AnyStartable
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import Notice

from .hinted import client_of, store_on, until, until_reading, working

pytestmark = [needs_valkey, pytest.mark.usefixtures("no_polls")]

AT_ONCE = Retry(attempts=2, base=0, jitter=0)

kinds = App("kinds")
begun: list[object] = []


def fail_once(what: object) -> None:
    begun.append(what)
    if begun.count(what) == 1:
        raise ConnectionError("the first try")


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    begun.clear()


@kinds.activity(queue="far")
async def pack(n: int) -> int:
    return n + 1


@kinds.activity(queue="far", retry=AT_ONCE)
async def pack_again(n: int) -> int:
    fail_once(n)
    return n + 1


@kinds.workflow(queue="far")
async def add(ctx: Context, n: int) -> int:
    begun.append(n)
    return n + 1


@kinds.workflow(queue="far")
async def count_down(ctx: Context, n: int) -> int:
    if n > 0:
        ctx.continue_as_new(n - 1)
    return n


@kinds.workflow(queue="far")
async def fail_first(ctx: Context, n: int) -> int:
    fail_once(n)
    return n


@kinds.workflow
async def ask_activity(ctx: Context, n: int) -> int:
    return await pack(n)


@kinds.workflow
async def ask_activity_again(ctx: Context, n: int) -> int:
    return await pack_again(n)


@kinds.workflow
async def ask_child(ctx: Context, n: int) -> int:
    return await ctx.child(add, n)


review = kinds.flow("review", input=int, queue="far", base_delay="0s")


@review.step
async def look(run: int) -> list[int]:
    fail_once(("look", run))
    return [run, run + 1]


@review.map(look)
async def look_closer(element: int) -> int:
    return element + 1


@review.step
async def report(look_closer: list[int]) -> int:
    return sum(look_closer)


@kinds.workflow
async def ask_flow(ctx: Context, n: int) -> object:
    return await ctx.child(review, n)


@kinds.activity(queue="far", retry=Retry(attempts=2, base="1m"))
async def fail(n: int) -> int:
    raise ConnectionError("the first try")


@kinds.workflow
async def ask_failing(ctx: Context, n: int) -> int:
    return await fail(n)


@kinds.workflow
async def ask_many(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(pack(i) for i in range(n))))


@kinds.workflow
async def ask_many_children(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(ctx.child(add, i) for i in range(n))))


wide = kinds.flow("wide", input=int, queue="far")


@wide.step
async def unfold(run: int) -> list[int]:
    return list(range(run))


@wide.map(unfold)
async def widen(element: int) -> int:
    return element


slow = kinds.flow("slow", input=int, queue="far", base_delay="1h")


@slow.step
async def break_down(run: int) -> int:
    raise ConnectionError("the first try")


late = kinds.flow("late", input=int, queue="far")


@late.step
async def prepare(run: int) -> int:
    return run


@late.step(start_delay="1h")
async def deliver(prepare: int) -> int:
    return prepare


of_many = kinds.flow("of_many", input=list[int], queue="far")


@of_many.map(of_many.run)
async def take(element: int) -> int:
    return element


delayed = kinds.flow("delayed", input=int, queue="far")


@delayed.step(start_delay="1h")
async def wait_first(run: int) -> int:
    return run


@kinds.consumer("parcels")
async def receive(n: int) -> None:
    current_message().start(add, n)


async def an_activity(client: Client) -> None:
    assert await client.run(ask_activity, 1) == 2


async def the_second_try_of_an_activity(client: Client) -> None:
    assert await client.run(ask_activity_again, 1) == 2


async def a_child(client: Client) -> None:
    assert await client.run(ask_child, 1) == 2


async def a_run_that_continues_as_new(client: Client) -> None:
    assert await client.run(count_down, 3) == 0


async def steps_of_a_flow(client: Client) -> None:
    """One of them fails and is tried again."""
    assert await client.run(review, 1) == {"report": 5}


async def a_flow_as_a_child(client: Client) -> None:
    assert await client.run(ask_flow, 1) == {"report": 5}


async def the_retry_of_a_run(client: Client) -> None:
    failed = await client.start(fail_first, 1)
    with pytest.raises(RunFailed):
        await failed.result()
    assert await (await client.runs.retry(failed.run_id)).result() == 1


async def a_fork(client: Client) -> None:
    run = await client.start(add, 1)
    assert await run.result() == 2
    assert await (await client.runs.fork(run.run_id, input=5)).result() == 6


async def the_fork_of_a_flow(client: Client) -> None:
    run = await client.start(review, 1)
    await run.result()
    assert await (await client.runs.fork(run.run_id, step="report")).result() == {"report": 5}


async def a_start_by_an_event(client: Client) -> None:
    await client.topics.subscribe("a.b", workflow=add, queue="far")
    await client.topics.publish("a.b", 7)
    await until(lambda: 7 in begun)


async def a_start_by_a_consumer(client: Client) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels", 8)
    await until(lambda: 8 in begun)


async def a_start_by_a_schedule(client: Client) -> None:
    await client.schedules.create("often", add, every="1s", input=9, queue="far")
    await until(lambda: 9 in begun)
    await client.schedules.delete("often")


@pytest.mark.parametrize(
    "work",
    [
        an_activity,
        the_second_try_of_an_activity,
        a_child,
        a_run_that_continues_as_new,
        steps_of_a_flow,
        a_flow_as_a_child,
        the_retry_of_a_run,
        a_fork,
        the_fork_of_a_flow,
        a_start_by_an_event,
        a_start_by_a_consumer,
        a_start_by_a_schedule,
    ],
)
async def test_a_hint_tells_of(
    work: Callable[[Client], Awaitable[None]], database_url: str, redis: Valkey
) -> None:
    """No worker looks by itself, and no notification says that the queue `far` has work."""
    async with listening(database_url, redis) as (client, heard):
        await work(client)
        await heard.mark()
    assert "far" not in heard.queues


@pytest.mark.parametrize("what", [add, review, ask_failing, slow, late, delayed], ids=str)
async def test_all_workers_are_told_of_what_is_due_later(
    what: AnyStartable, database_url: str, redis: Valkey
) -> None:
    """A run with a delay, second tries, a step with a delay: a worker may be full by then."""
    options: dict[str, Any] = {"delay": "1h"} if what in (add, review) else {}
    async with listening(database_url, redis) as (client, heard):
        await client.start(what, 1, **options)
        await until(lambda: "far" in heard.queues)


async def many_runs(client: Client) -> None:
    await client.start_many(add, range(50))


async def many_activities(client: Client) -> None:
    await client.start(ask_many, 50)


async def many_children(client: Client) -> None:
    await client.start(ask_many_children, 50)


async def many_elements(client: Client) -> None:
    await client.start(wide, 50)


async def many_elements_of_an_input(client: Client) -> None:
    await client.start(of_many, list(range(50)))


async def many_starts_by_an_event(client: Client) -> None:
    patterns = [".".join(words) for words in product("x*", repeat=6)]
    for pattern in patterns[:50]:
        await client.topics.subscribe(pattern, workflow=add, queue="far")
    assert (await client.topics.publish("x.x.x.x.x.x", 7)).workflows == 50


async def many_starts_by_schedules(client: Client) -> None:
    """Of one moment, and so many that one of three workers fires fifty of them at least."""
    names = [f"often{number}" for number in range(150)]
    for name in names:
        await client.schedules.create(name, add, every="2s", input=9, queue="far")
    await until(lambda: begun.count(9) >= len(names))
    for name in names:
        await client.schedules.delete(name)


@pytest.mark.parametrize(
    "work",
    [
        many_runs,
        many_activities,
        many_children,
        many_elements,
        many_elements_of_an_input,
        many_starts_by_an_event,
        many_starts_by_schedules,
    ],
)
async def test_all_workers_are_told_of_much_at_once(
    work: Callable[[Client], Awaitable[None]], database_url: str, redis: Valkey
) -> None:
    """One worker after the other would begin."""
    async with listening(database_url, redis) as (client, heard):
        await work(client)
        await until(lambda: "far" in heard.queues)


@pytest.mark.parametrize(("ticks", "topic"), [(49, "starts"), (50, "work")])
async def test_all_workers_are_told_of_many_buffered_ticks(
    ticks: int, topic: str, database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start_buffered(*_: object, **options: object) -> tuple[int, list[Notice]]:
        return ticks, [Notice("work", "far")]

    monkeypatch.setattr(PostgresStore, "start_buffered", start_buffered)
    store = store_on(database_url, redis.url)
    assert await store.start_buffered() == (ticks, [Notice(topic, "far")])
    await store.close()


class Heard:
    """The queues of which notifications say that they have work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queues: list[str] = []

    async def mark(self) -> None:
        """Wait until all that was notified by now is heard."""
        await self._store.notify([Notice("work", "marked")])
        await until(lambda: "marked" in self.queues)


@asynccontextmanager
async def listening(database_url: str, redis: Valkey) -> AsyncGenerator[tuple[Client, Heard]]:
    """Run three workers that hear of work or never look, and a client; listen beside them."""
    async with (
        working(database_url, redis.url, served=kinds, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 3)
        store = store_on(database_url, redis.url)
        await store.open()
        heard = Heard(store)
        await store.listen("work", heard.queues.append)
        yield client, heard
        await store.close()
