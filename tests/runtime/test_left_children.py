"""Programs whose children outlive them: a retry does not start such a child a second time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from holdfast import App, ChildFailed, Client, Context, Retry, RunFailed, RunHandle
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.runtime.desk import eventually, working

WAIT = 60.0
app = App("kept", retry=Retry.NEVER)


class Service:
    """A service that is away at first, and counts what it was asked for."""

    away: bool
    asked: Counter[str]
    gates: dict[str, asyncio.Event]

    def begin(self) -> None:
        """Begin again, for the next test."""
        self.away, self.asked, self.gates = True, Counter(), {}

    def gate(self, name: str) -> asyncio.Event:
        """Return what holds a child up."""
        return self.gates.setdefault(name, asyncio.Event())


service = Service()


@app.step
async def work(name: str) -> str:
    service.asked[name] += 1
    await service.gate(name).wait()
    if name.startswith("bad") and service.asked[name] == 1:
        raise ConnectionError("away")
    return f"{name} done"


@app.step
async def pay(name: str = "pay") -> str:
    service.asked[name] += 1
    if service.away:
        raise ConnectionError("away")
    return "paid"


@app.step
async def report(parent: UUID | None, what: str) -> str:
    service.asked[what] += 1
    return f"{what} of {parent}"


@app.workflow
async def ship(ctx: Context, name: str) -> str:
    return await work(name)


@app.workflow
async def ship_in_parts(ctx: Context, left: int) -> str:
    await work(f"part {left}")
    if left:
        ctx.continue_as_new(left - 1)
    return "all parts"


@app.workflow
async def tell(ctx: Context, name: str) -> str:
    """A child that knows its parent, which is replayed, and signals it."""
    assert ctx.parent_run_id is not None
    first = await report(ctx.parent_run_id, "begun")
    ctx.signal_run(ctx.parent_run_id, "told", 1)
    await ctx.wait_for_signal("go-on")
    ctx.signal_run(ctx.parent_run_id, "told", 2)
    return f"{first}; {await report(ctx.parent_run_id, 'ended')}"


@app.workflow(retry=Retry(attempts=3, base="10ms", jitter=0))
async def try_again(ctx: Context, name: str) -> str:
    first = await report(ctx.parent_run_id, "begun")
    return f"{first}; {await work(name)}"


site = app.flow("site", input=str, attempts=1)


@site.step
async def build(run: str) -> str:
    return await work(run)


@app.workflow
async def forget(ctx: Context, name: str) -> str:
    await ctx.start_child(ship, name)
    return await pay()


@app.workflow
async def wait(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship, name)
    return f"{await pay()}, {await child.result()}"


@app.workflow
async def own_error(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship, name)
    if await ctx.step("is-away", lambda: True) and service.away:
        raise ValueError("own code")
    return await child.result()


@app.workflow(retry=Retry(attempts=4, base="10ms", jitter=0))
async def by_policy(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship, name)
    return f"{await pay()}, {await child.result()}"


@app.workflow
async def with_keys(ctx: Context, name: str) -> str:
    first = await ctx.start_child(ship, name, key=f"k-{ctx.run_key}")
    again = await ctx.start_child(ship, name, key=f"k-{ctx.run_key}")
    await pay()
    assert first.run_id == again.run_id
    return f"{await first.result()}, {await again.result()}"


@app.workflow
async def with_a_flow(ctx: Context, name: str) -> object:
    child = await ctx.start_child(site, name)
    await pay()
    return await child.result()


@app.workflow
async def in_parts(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship_in_parts, 3)
    await pay()
    return await child.result()


@app.workflow
async def beside(ctx: Context, name: str) -> str:
    """The task that awaits the child is cancelled because of the failure beside it."""
    async with asyncio.TaskGroup() as group:
        shipped = group.create_task(ctx.child(ship, name, on_cancel="abandon"))
        group.create_task(pay())
    return shipped.result()


@app.workflow
async def many(ctx: Context, name: str) -> str:
    children = [await ctx.start_child(ship, f"{name}-{number}") for number in range(20)]
    await pay()
    return " ".join([await child.result() for child in children])


@app.workflow
async def talk(ctx: Context, name: str) -> str:
    child = await ctx.start_child(tell, name)
    await pay()
    told = [await ctx.wait_for_signal("told", type=int)]
    child.signal("go-on")
    told.append(await ctx.wait_for_signal("told", type=int))
    return f"{told} {await child.result()}"


@app.workflow
async def let_try(ctx: Context, name: str) -> str:
    child = await ctx.start_child(try_again, name)
    await pay()
    return await child.result()


@app.workflow
async def stop(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship, name)
    await pay()
    child.cancel("enough")
    try:
        return await child.result()
    except ChildFailed as failure:
        return failure.status


@app.workflow
async def above(ctx: Context, name: str) -> str:
    """A grandchild whose parent is awaited by its own."""
    child = await ctx.start_child(wait_for_own, name)
    await pay()
    return await child.result()


@app.workflow
async def wait_for_own(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship, name)
    return await child.result()


@app.workflow(retention=0.001)
async def ship_briefly(ctx: Context, name: str) -> str:
    return await work(name)


@app.workflow
async def forget_at_once(ctx: Context, name: str) -> str:
    await ctx.start_child(ship_briefly, name)
    return await pay()


@app.workflow
async def wait_at_once(ctx: Context, name: str) -> str:
    child = await ctx.start_child(ship_briefly, name)
    await pay()
    try:
        return await child.result()
    except ChildFailed as failure:
        return failure.status


@app.workflow
async def in_a_handler(ctx: Context, name: str) -> str:
    try:
        return await pay()
    except Exception:
        await ctx.start_child(ship, name)
        raise


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, with nothing in it."""
    service.begin()
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(app=app, store=store) as client:
        yield client


async def start_and_fail(client: Client, name: str, begun: str = "a", key: str = "1") -> UUID:
    """Start a run while the service is away, and wait until it has failed and its child works."""
    handle = await client.start(name, "a", key=key)
    with pytest.raises(RunFailed):
        await handle.result(timeout=WAIT)
    await eventually(lambda: service.asked[begun] > 0)
    return handle.run_id


async def retried(client: Client, run_id: UUID) -> RunHandle[object]:
    """Retry a run when the service is back."""
    service.away = False
    return await client.runs.retry(run_id)


WAITING = ["wait", "own_error", "with_keys", "with_a_flow", "beside", "above"]


@pytest.mark.parametrize("name", ["forget", *WAITING])
async def test_a_child_that_runs_is_not_started_again(
    store: Store, client: Client, name: str
) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, name)
        retry = await retried(client, run_id)
        if name != "forget":
            await eventually(lambda: _awaits(client, retry.run_id))
        service.gate("a").set()
        result = await retry.result(timeout=WAIT)
        assert name == "forget" or "a done" in str(result)
        await eventually(lambda: _all_ended(client))
    assert service.asked["a"] == 1


@pytest.mark.parametrize("name", ["forget", *WAITING])
async def test_a_child_that_has_ended_is_not_started_again(
    store: Store, client: Client, name: str
) -> None:
    """Another worker does the retry: its code is built from the log."""
    async with working(app, store):
        run_id = await start_and_fail(client, name)
        service.gate("a").set()
        await eventually(lambda: _all_ended(client))
    retry = await retried(client, run_id)
    async with working(app, store):
        result = await retry.result(timeout=WAIT)
        assert name == "forget" or "a done" in str(result)
    assert service.asked["a"] == 1


async def test_a_child_that_has_failed_is_started_again_when_its_failure_ended_a_retry(
    store: Store, client: Client
) -> None:
    async with working(app, store):
        handle = await client.start(wait, "bad")
        with pytest.raises(RunFailed):
            await handle.result(timeout=WAIT)
        service.gate("bad").set()
        await eventually(lambda: _all_ended(client))
        retry = await retried(client, handle.run_id)
        with pytest.raises(RunFailed, match="child ship failed"):
            await retry.result(timeout=WAIT)
        assert service.asked["bad"] == 1
        last = await client.runs.retry(retry.run_id)
        assert await last.result(timeout=WAIT) == "paid, bad done"
    assert service.asked["bad"] == 2


async def test_the_next_attempts_have_the_child_of_the_first(store: Store, client: Client) -> None:
    async with working(app, store):
        handle = await client.start(by_policy, "a")
        await eventually(lambda: service.asked["pay"] > 1 and service.asked["a"] > 0)
        service.away = False
        service.gate("a").set()
        assert await handle.result(timeout=WAIT) == "paid, a done"
    assert service.asked["a"] == 1


async def test_many_retries_have_the_child_of_the_first_run(store: Store, client: Client) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, "wait")
        for _ in range(4):
            retry = await client.runs.retry(run_id)
            with pytest.raises(RunFailed):
                await retry.result(timeout=WAIT)
            run_id = retry.run_id
        last = await retried(client, run_id)
        service.gate("a").set()
        assert await last.result(timeout=WAIT) == "paid, a done"
        tree = await client.runs.list(parent=last.run_id)
        assert [run.name for run in tree.runs] == ["ship"]
    assert service.asked["a"] == 1


async def test_a_child_that_continues_as_new(store: Store, client: Client) -> None:
    async with working(app, store):
        service.gate("part 3").set()
        run_id = await start_and_fail(client, "in_parts", "part 2")
        retry = await retried(client, run_id)
        for part in range(3):
            service.gate(f"part {part}").set()
        assert await retry.result(timeout=WAIT) == "all parts"
    assert {service.asked[f"part {part}"] for part in range(4)} == {1}


@pytest.mark.parametrize("name", ["forget_at_once", "wait_at_once"])
async def test_a_child_that_was_deleted_is_not_started_again(
    store: Store, client: Client, name: str
) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, name)
        service.gate("a").set()
        await eventually(lambda: _all_ended(client))
        await eventually(lambda: _is_deleted(client, run_id))
        retry = await retried(client, run_id)
        assert await retry.result(timeout=WAIT) == ("paid" if "forget" in name else "deleted")
    assert service.asked["a"] == 1


async def test_many_children(store: Store, client: Client) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, "many", "a-0")
        for number in range(0, 20, 2):
            service.gate(f"a-{number}").set()
        retry = await retried(client, run_id)
        for number in range(20):
            service.gate(f"a-{number}").set()
        result = await retry.result(timeout=WAIT)
    assert result == " ".join(f"a-{number} done" for number in range(20))
    assert {service.asked[f"a-{number}"] for number in range(20)} == {1}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_child_talks_with_the_retry_of_its_parent(
    store: Store, client: Client, restart: bool
) -> None:
    """What it says to `ctx.parent_run_id`, and `ctx.parent_run_id` stays what it was."""
    async with working(app, store):
        run_id = await start_and_fail(client, "talk", "begun")
        retry = await retried(client, run_id)
        result = None if restart else await retry.result(timeout=WAIT)
    if restart:
        async with working(app, store):
            result = await retry.result(timeout=WAIT)
    assert result == f"[1, 2] begun of {run_id}; ended of {run_id}"
    assert (service.asked["begun"], service.asked["ended"]) == (1, 1)


async def test_a_child_that_is_tried_again_by_its_policy(store: Store, client: Client) -> None:
    async with working(app, store):
        handle = await client.start(let_try, "bad")
        with pytest.raises(RunFailed):
            await handle.result(timeout=WAIT)
        retry = await retried(client, handle.run_id)
        service.gate("bad").set()
        result = await retry.result(timeout=WAIT)
    assert result == f"begun of {handle.run_id}; bad done"
    assert (service.asked["begun"], service.asked["bad"]) == (1, 2)


async def test_a_retry_cancels_the_child(store: Store, client: Client) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, "stop")
        retry = await retried(client, run_id)
        assert await retry.result(timeout=WAIT) == "cancelled"
    assert service.asked["a"] == 1


async def test_a_child_of_the_handler_of_the_failure_is_started_again(
    store: Store, client: Client
) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, "in_a_handler")
        retry = await client.runs.retry(run_id)
        with pytest.raises(RunFailed):
            await retry.result(timeout=WAIT)
        await eventually(lambda: service.asked["a"] == 2)
        service.gate("a").set()


async def test_a_child_outlives_the_retry_too(store: Store, client: Client) -> None:
    async with working(app, store):
        run_id = await start_and_fail(client, "forget")
        retry = await retried(client, run_id)
        assert await retry.result(timeout=WAIT) == "paid"
        service.gate("a").set()
        await eventually(lambda: _all_ended(client))
    assert service.asked["a"] == 1


async def test_a_run_that_was_cancelled(store: Store, client: Client) -> None:
    service.away = False
    async with working(app, store):
        handle = await client.start(wait, "a")
        await eventually(lambda: _awaits(client, handle.run_id))
        await eventually(lambda: service.asked["a"] > 0)
        await handle.cancel()
        await eventually(lambda: _has_ended(client, handle.run_id))
        retry = await client.runs.retry(handle.run_id)
        service.gate("a").set()
        assert await retry.result(timeout=WAIT) == "paid, a done"
    assert service.asked["a"] == 1


async def _awaits(client: Client, run_id: UUID) -> bool:
    return (await client.runs.get(run_id)).state == "waiting"


async def _is_deleted(client: Client, parent_id: UUID) -> bool:
    await client.retention.sweep()
    return not (await client.runs.list(parent=parent_id)).runs


async def _has_ended(client: Client, run_id: UUID) -> bool:
    return (await client.runs.get(run_id)).status != "running"


async def _all_ended(client: Client) -> bool:
    return not (await client.runs.list(states=("queued", "running", "waiting"))).runs
