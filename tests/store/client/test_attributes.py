"""Attributes and tags: given at a start, set by code, changed from outside, found again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.runtime.desk import eventually

from holdfast import Context
from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName, RunNotFound
from holdfast.store.port import Store

from .test_defaults import working
from .workflows import Order, order, tick


async def test_runs_are_listed_and_counted_by_attributes(client: Client) -> None:
    acme = await client.start(tick, attributes={"customer": "acme", "seats": 5.0})
    many = await client.start_many(tick, [None] * 2, attributes={"customer": "bob"})
    await client.start(order, Order(7))
    found = await client.runs.get(acme.run_id)
    assert found.attributes == {"customer": "acme", "seats": 5}
    assert type(found.attributes["seats"]) is int

    async def listed(**where: Any) -> set[object]:
        return {run.run_id async for run in client.runs.iterate(where=where, limit=1)}

    assert await listed(customer="acme") == {acme.run_id}
    assert await listed(customer="bob") == {handle.run_id for handle in many}
    assert await listed(seats=5) == await listed(seats="5") == {acme.run_id}
    assert await listed(seats=6) == set()
    assert (await client.runs.count("customer")).counts == {"bob": 2, "acme": 1}
    assert (await client.runs.count("state", where={"customer": "bob"})).counts == {"queued": 2}
    done = await client.runs.cancel_all({"where": {"customer": "bob"}})
    assert (done.matched, done.changed) == (2, 2)
    assert await client.runs.get(acme.run_id) == found


async def test_attributes_and_tags_are_changed(client: Client) -> None:
    handle = await client.start(tick, key="k", tags=["new"], attributes={"customer": "acme"})
    ref = (tick, "k")
    assert await client.runs.set_attributes(ref, {"customer": None, "seats": 3}) == {"seats": 3}
    assert await client.runs.set_tags(ref, add=["seen"], remove=["new"]) == ["seen"]
    run = await handle.get()
    assert (run.attributes, run.tags) == ({"seats": 3}, ("seen",))
    assert await client.runs.set_tags(handle.run_id, []) == []
    for call in (
        client.runs.set_attributes(uuid4(), {"a": 1}),
        client.runs.set_tags(uuid4(), ["a"]),
    ):
        with pytest.raises(RunNotFound):
            await call


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"a b": 1}, InvalidName, "'a b' is not a name for an attribute"),
        ({"state": "x"}, InvalidName, "counted by it already"),
        ({"a": ["x"]}, InvalidInput, "attribute a is ..x..: an attribute is a text, a number"),
        ({"a": float("nan")}, InvalidInput, "attribute a"),
        ({"a": 2**64}, InvalidInput, "attribute a"),
        ({"a": "x" * 501}, InvalidInput, "attribute a has more than 500 characters"),
        ({"a": "nul \0"}, InvalidInput, "attribute a"),
        ({"a": "\ud800"}, InvalidInput, "attribute a"),
        ({f"a{n}": "x" * 450 for n in range(10)}, InvalidInput, "more than 4,096"),
        ([("a", 1)], ConfigurationError, "names with values"),
    ],
)
async def test_bad_attributes_are_refused_at_the_edge(
    client: Client, values: Any, error: type[Exception], says: str
) -> None:
    handle = await client.start(tick)
    for call in (
        client.start(tick, attributes=values),
        client.runs.set_attributes(handle.run_id, values),
        client.runs.list(where=values),
    ):
        with pytest.raises(error, match=says):
            await call
    with pytest.raises(InvalidInput, match="None"):
        await client.start(tick, attributes={"a": None})  # type: ignore[dict-item]


async def test_the_code_of_a_run_sets_its_attributes(store: Store, client: Client) -> None:
    """Also while it waits; a key finds a run by what its code has said."""
    app = App("shop")
    seen: list[str] = []

    @app.workflow
    async def deliver(ctx: Context, customer: str) -> int:
        ctx.set_attributes(customer=customer, stage="packed")
        await ctx.wait_for_signal("sent")
        seen.append("sent")
        ctx.set_attributes(stage=None, boxes=2)
        return 1

    async with Client(store=store, app=app) as knowing, working(app, store):
        handle = await knowing.start(deliver, "acme", attributes={"customer": "?", "n": 1})

        async def is_packed() -> bool:
            return (await handle.get()).attributes.get("stage") == "packed"

        await eventually(is_packed)
        [found] = (await knowing.runs.list(where={"customer": "acme"})).runs
        assert found.run_id == handle.run_id
        await handle.signal("sent")
        assert await handle.result() == 1
        assert (await handle.get()).attributes == {"customer": "acme", "n": 1, "boxes": 2}


async def test_children_and_continued_runs(store: Store, client: Client) -> None:
    """A child has those of its call; a run that continues has those that it had."""
    app = App("shop")

    @app.workflow
    async def child(ctx: Context) -> None: ...

    @app.workflow
    async def parent(ctx: Context, left: int) -> None:
        ctx.set_attributes(left=left)
        if left:
            ctx.continue_as_new(left - 1)
        await ctx.child(child, attributes={"customer": "bob"}, tags=["c"])

    async with Client(store=store, app=app) as knowing, working(app, store):
        handle = await knowing.start(parent, 2, attributes={"customer": "acme"})
        await handle.result()
        runs = [run async for run in knowing.runs.iterate(where={"customer": "acme"})]
        assert sorted(run.attributes["left"] for run in runs) == [0, 1, 2]
        [found] = (await knowing.runs.list(where={"customer": "bob"})).runs
        assert (found.name, found.tags) == ("child", ("c",))


async def test_as_many_attributes_as_a_start_takes_may_be_changed(client: Client) -> None:
    """Their size is that of compact JSON: PostgreSQL writes it with spaces."""
    many = {f"a{number:03}": "x" * 29 for number in range(100)}
    last = "x" * (4096 - len(msgspec.json.encode({**many, "b": ""})))
    handle = await client.start(tick, attributes={**many, "b": last})
    assert (await client.runs.set_attributes(handle.run_id, {"b": last}))["b"] == last
    with pytest.raises(InvalidInput, match=r"4,?097 bytes"):
        await client.runs.set_attributes(handle.run_id, {"b": last + "x"})
