"""Retries and forks: the code sees the key that the first run had."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    App,
    Batch,
    ChildFailed,
    Client,
    Context,
    Retry,
    current_activity,
    current_batch,
    current_step,
)
from holdfast.errors import RunFailed
from holdfast.store.port import Store
from tests.runtime.desk import working

app = App("kept")
broken = [True]
seen: list[object] = []


@app.step
async def charge(*known: object) -> str:
    seen.append(current_step().run_key)
    return " ".join(map(str, known))


@app.activity(retry=Retry.NEVER)
async def ship() -> None:
    if broken[0]:
        raise ConnectionError("no van")


@app.workflow
async def order(ctx: Context) -> list[Any]:
    paid = await charge(ctx.run_key)
    return [paid, await ship(), await charge("again")]


@app.activity(retry=Retry.NEVER)
async def pay() -> str | None:
    if broken[0]:
        raise ConnectionError("no bank")
    return current_activity().run_key


@app.activity(batch=Batch(10))
async def book(texts: list[str]) -> list[str]:
    keys = [each.run_key for each in current_batch().elements]
    return [f"{text} {key}" for text, key in zip(texts, keys, strict=True)]


@app.workflow
async def sale(ctx: Context, turns: int) -> list[Any]:
    paid = [ctx.run_key, await pay(), await book("b")]
    if turns:
        raise ctx.continue_as_new(turns - 1)
    return paid


@app.workflow(retry=Retry(attempts=2, base="0.1s"))
async def tried(ctx: Context) -> list[Any]:
    return [ctx.run_key, await pay()]


@app.workflow
async def shop(ctx: Context) -> None:
    with suppress(ChildFailed):
        await ctx.child(order, key="kid")


parcels = app.flow("parcels", input=list[str])


@parcels.map(parcels.run)
def packed(text: str) -> str:
    return f"{text} {current_step().run_key}"


@parcels.step(attempts=1)
def weighed(packed: list[str]) -> list[str]:
    if broken[0]:
        raise ConnectionError("no scales")
    return [*packed, str(current_step().run_key)]


@parcels.step
def sent(weighed: list[str]) -> list[str]:  # given to the worker that has ended the step before
    return [*weighed, str(current_step().run_key)]


@pytest.fixture(autouse=True)
def _break() -> None:
    broken[0] = True
    seen.clear()


async def failed(client: Client, run: Any) -> None:
    with pytest.raises(RunFailed):
        await run.result(timeout="60s")


async def test_a_retry_of_a_retry_and_their_forks_see_the_key(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(order, key="order-7")
        await failed(client, first)
        second = await client.runs.retry(first.run_id)
        await failed(client, second)
        broken[0] = False
        third = await client.runs.retry(second.run_id)
        whole = await client.runs.fork(second.run_id, step="ship")
        early = await client.runs.fork(second.run_id, index=1)
        for run in (third, whole, early):
            assert await run.result(timeout="60s") == ["order-7", None, "again"]
            assert (await client.runs.get(run.run_id)).record.key is None
        assert set(seen) == {"order-7"}


async def test_the_retry_of_a_child_sees_its_key(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        await (await client.start(shop)).result(timeout="60s")
        retry = await client.runs.retry((order, "kid"))
        await failed(client, retry)
        broken[0] = False
        again = await client.runs.retry(retry.run_id)
        assert await again.result(timeout="60s") == ["kid", None, "again"]
        assert (await client.runs.get(again.run_id)).record.parent_run_id is None


async def test_a_fork_of_a_run_without_a_key_has_none(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(order)
        await failed(client, first)
        broken[0] = False
        retry = await client.runs.retry(first.run_id)
        assert await retry.result(timeout="60s") == ["None", None, "again"]


async def test_activities_see_the_key_that_the_code_sees(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(sale, 0, key="sale-1")
        await failed(client, first)
        second = await client.runs.retry(first.run_id)
        await failed(client, second)
        broken[0] = False
        third = await client.runs.retry(second.run_id)
        fork = await client.runs.fork(third.run_id, index=1)
        for run in (third, fork):
            assert await run.result(timeout="60s") == ["sale-1", "sale-1", "b sale-1"]


async def test_no_key_is_made_up_for_the_retry_of_a_run_without_one(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(sale, 0)
        await failed(client, first)
        broken[0] = False
        retry = await client.runs.retry(first.run_id)
        assert await retry.result(timeout="60s") == [None, None, "b None"]


async def test_activities_of_a_retry_that_continues_as_new_have_no_key_as_its_code(
    store: Store,
) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(sale, 1, key="sale-2")
        await failed(client, first)
        broken[0] = False
        retry = await client.runs.retry(first.run_id)
        assert await retry.result(timeout="60s") == [None, None, "b None"]


async def test_activities_of_a_retry_by_hand_after_that_of_a_policy_see_the_key(
    store: Store,
) -> None:
    async with working(app, store), Client(store=store) as client:
        first = await client.start(tried, key="tried-1")
        await failed(client, first)
        broken[0] = False
        retry = await client.runs.retry((tried, "tried-1"))
        assert await retry.result(timeout="60s") == ["tried-1", "tried-1"]


async def test_steps_of_a_flow_see_the_key(store: Store) -> None:
    """Fault: the row of a retry has no key, and its steps saw none."""
    async with working(app, store), Client(store=store) as client:
        first = await client.start(parcels, ["a"], key="parcel-3")
        await failed(client, first)
        second = await client.runs.retry(first.run_id)
        await failed(client, second)
        broken[0] = False
        third = await client.runs.retry(second.run_id)
        assert (await client.runs.get(third.run_id)).record.key is None
        fork = await client.runs.fork(third.run_id, input=["b"])
        for run, text in ((third, "a"), (fork, "b")):
            end = await client.runs.wait(run.run_id, timeout="60s")
            assert end.output == {"sent": [f"{text} parcel-3", "parcel-3", "parcel-3"]}
