"""The key and the headers of a run, as its code, its steps and its activities read them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import pytest

from holdfast import App, Client, Context, current_activity, current_step
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.runtime.desk import eventually, working

Properties: TypeAlias = tuple[str | None, dict[str, str]]

TRACE = {"traceparent": "00-ab", "tenant": "acme"}

app = App("properties")


@app.step
async def in_step() -> Properties:
    step = current_step()
    return step.run_key, dict(step.headers)


@app.activity
def in_activity() -> Properties:
    activity = current_activity()
    return activity.run_key, dict(activity.headers)


@app.workflow
async def look(ctx: Context) -> list[Properties]:
    return [(ctx.run_key, dict(ctx.headers)), await in_step(), await in_activity()]


@app.workflow
async def look_after_a_wait(ctx: Context) -> Properties:
    await ctx.wait_for_signal("packed")
    return ctx.run_key, dict(ctx.headers)


@app.workflow
async def look_in_children(ctx: Context) -> list[list[Properties]]:
    changed = await ctx.child(look, key="child", headers={"tenant": "other", "more": "yes"})
    return [await look(), changed]


@app.workflow
async def look_as_new(ctx: Context, first: bool) -> Properties:
    if first:
        raise ctx.continue_as_new(False)
    return ctx.run_key, dict(ctx.headers)


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, on real time."""
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("module_database_url"))
    yield postgres
    await postgres.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    await store.open()
    async with Client(store=store, app=app) as client:
        yield client


async def test_all_contexts_have_the_key_and_the_headers_of_the_run(
    store: Store, client: Client
) -> None:
    async with working(app, store):
        run = await client.start(look, key="order-7", headers=TRACE)
        assert await run.result(timeout=120) == [("order-7", TRACE)] * 3


async def test_a_run_started_without_them_has_no_key_and_no_headers(
    store: Store, client: Client
) -> None:
    async with working(app, store):
        run = await client.start(look)
        assert await run.result(timeout=120) == [(None, {})] * 3


async def test_headers_cannot_be_changed_by_the_code_of_a_run(store: Store, client: Client) -> None:
    changing = App("changing")

    @changing.workflow
    async def change(ctx: Context) -> str:
        try:
            ctx.headers["tenant"] = "other"  # type: ignore[index]
        except TypeError:
            return "refused"
        return "changed"

    async with working(changing, store):
        run = await client.start(change, headers=TRACE)
        assert await run.result(timeout=120) == "refused"


@pytest.mark.parametrize("cache", [0, 1000])
async def test_a_run_that_wakes_has_its_key_and_headers(
    store: Store, client: Client, cache: int
) -> None:
    """The claim of a run that its worker suspended leaves them out: the worker has them, or reads
    them if the run has left its cache."""
    async with working(app, store, cache=cache):
        run = await client.start(look_after_a_wait, key=f"order-{cache}", headers=TRACE)

        async def waits() -> bool:
            return (await run.get()).state == "waiting"

        await eventually(waits)
        await run.signal("packed")
        assert await run.result(timeout=120) == (f"order-{cache}", TRACE)


async def test_a_run_on_another_worker_has_its_key_and_headers(
    store: Store, client: Client
) -> None:
    run = await client.start(look_after_a_wait, key="moved", headers=TRACE)
    async with working(app, store):

        async def waits() -> bool:
            return (await run.get()).state == "waiting"

        await eventually(waits)
    await run.signal("packed")
    async with working(app, store):
        assert await run.result(timeout=120) == ("moved", TRACE)


async def test_children_get_the_headers_of_their_parent_and_what_the_call_adds(
    store: Store, client: Client
) -> None:
    async with working(app, store):
        run = await client.start(look_in_children, key="parent", headers=TRACE)
        inherited, changed = await run.result(timeout=120)
    assert inherited == [(None, TRACE)] * 3
    own = {"traceparent": "00-ab", "tenant": "other", "more": "yes"}
    assert changed == [("child", own)] * 3


async def test_a_run_that_continues_as_new_keeps_its_headers(store: Store, client: Client) -> None:
    async with working(app, store):
        run = await client.start(look_as_new, True, key="again", headers=TRACE)
        assert await run.result(timeout=120) == (None, TRACE)
