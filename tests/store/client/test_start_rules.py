"""Starts of workflows with rules, through the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from holdfast import Context, Singleton
from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.definitions.workflows import declared_rules
from holdfast.errors import ConfigurationError, RunActive
from holdfast.store.port import Store

app = App("shop")


@dataclass(frozen=True)
class Order:
    customer: str
    number: int = 1


@app.workflow(singleton=Singleton(key="input.customer"))
async def sync(ctx: Context, order: Order) -> int:
    return order.number


@pytest.fixture
async def stranger(store: Store) -> AsyncIterator[Client]:
    """Provide a client that does not have the code."""
    async with Client(store=store) as client:
        yield client


async def test_start_that_is_refused_raises_and_names_the_active_run(client: Client) -> None:
    first = await client.start(sync, Order("ann"))
    with pytest.raises(RunActive, match=f"run {first.run_id} of workflow shop/sync") as refused:
        await client.start(sync, Order("ann", 2))
    assert refused.value.run_id == first.run_id
    with pytest.raises(RunActive):
        await client.run(sync, Order("ann", 2))
    await client.start(sync, Order("bob"))


async def test_start_by_name_obeys_what_a_worker_has_declared(
    store: Store, stranger: Client
) -> None:
    await store.declare_start_rules(declared_rules(app.registry))
    first = await stranger.start("shop/sync", {"customer": "ann"})
    with pytest.raises(RunActive) as refused:
        await stranger.start("shop/sync", {"customer": "ann"})
    assert refused.value.run_id == first.run_id


async def test_start_may_ask_for_the_active_run_instead(client: Client) -> None:
    first = await client.start(sync, Order("ann"))
    instead = Singleton(key="input.customer", on_conflict="return")
    second = await client.start(sync, Order("ann", 2), singleton=instead)
    assert (second.run_id, second.already_existed) == (first.run_id, True)
    assert (await second.get()).input == Order("ann")


async def test_many_starts_start_what_they_can_and_then_raise(client: Client) -> None:
    with pytest.raises(RunActive):
        await client.start_many(sync, [Order("ann"), Order("ann"), Order("bob")])
    assert len((await client.runs.list()).runs) == 2


def test_key_that_no_input_has_is_refused_at_the_definition() -> None:
    with pytest.raises(ConfigurationError, match=r"sync: singleton: .*Order, has no field 'custm"):
        App("a").workflow(singleton=Singleton(key="input.custmer"))(sync.fn)


@pytest.mark.parametrize("path", ["customer", "input.", "input..a", "in put", "input.a b", ""])
def test_key_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path into the input"):
        Singleton(key=path)


def test_unknown_conflict_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_conflict is 'refuse', 'return', 'queue'"):
        Singleton(on_conflict="explode")  # type: ignore[arg-type]
