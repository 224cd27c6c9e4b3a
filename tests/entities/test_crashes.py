"""Entities whose workers are killed at each entry of their logs, and before it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.errors import UpdateFailed
from holdfast.runtime.code import entities
from holdfast.testing import Environment
from tests.entities import carts
from tests.entities.carts import Cart, shop

pytestmark = pytest.mark.crash_everywhere(most=40)


@pytest.fixture
def holdfast_app() -> App:
    return carts.app


async def test_changes_are_made_once(environment: Environment) -> None:
    cart = environment.client.entity(Cart, "ann")
    assert await cart.add("lamp") == 1
    assert await cart.add("vase", 2) == 3
    buying = asyncio.create_task(cart.buy(7))
    adding = [asyncio.create_task(cart.add("rug")) for _ in range(3)]
    while not (buying.done() and all(each.done() for each in adding)):
        await environment.advance("30s")
    assert await buying == "receipt-ann-7"
    assert sorted([await each for each in adding]) in ([4, 5, 6],)
    found = await environment.client.entities.get(Cart, "ann")
    assert found.items == {"lamp": 1, "vase": 2, "rug": 3}
    assert found.receipts == ["receipt-ann-7", "receipt-ann-again-7"]


async def test_changes_are_made_once_across_runs(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "MOST_CALLS", 3)
    cart = environment.client.entity(Cart, "ann")
    found = await asyncio.gather(*(cart.add("rug") for _ in range(8)))
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await cart.total() == 8


async def test_a_workflow_calls_once(environment: Environment) -> None:
    found = await environment.run(shop, "ann")
    assert found[:3] == [1, 3, "UpdateFailed"]
    assert found[4] == "receipt-ann-5"
    got = await environment.client.entities.get(Cart, "ann")
    assert got.items == {"lamp": 1, "vase": 2}
    assert got.receipts == ["receipt-ann-5", "receipt-ann-again-5"]


async def test_a_failed_change_leaves_nothing(environment: Environment) -> None:
    cart = environment.client.entity(Cart, "ann")
    await cart.add("lamp")
    with pytest.raises(Exception, match="no luck"):
        await cart.fail()
    assert await cart.add("lamp") == 2
    assert (await environment.client.entities.get(Cart, "ann")).items == {"lamp": 2}


async def test_calls_that_waited_begin_when_they_began(environment: Environment) -> None:
    cart = environment.client.entity(Cart, "ann")
    buying = asyncio.create_task(cart.buy(7))
    calls: list[asyncio.Task[object]] = []
    for n in range(3):
        calls.append(asyncio.create_task(cart.stamp()))
        calls.append(asyncio.create_task(cart.add(f"i{n}")))
    while not (buying.done() and all(each.done() for each in calls)):
        await environment.advance("30s")  # the calls may come in any order
    found = [await each for each in calls]
    assert sorted(found[1::2], key=str) == [1, 2, 3]
    assert await buying == "receipt-ann-7"
    assert len((await environment.client.entities.get(Cart, "ann")).receipts) == 5


async def test_a_deleted_entity_begins_again(environment: Environment) -> None:
    cart = environment.client.entity(Cart, "ann")
    await cart.add("lamp")
    assert await environment.client.entities.delete(Cart, "ann")
    assert await cart.total() == 0
    assert await cart.add("vase") == 1


async def test_an_entity_calls_another(environment: Environment) -> None:
    cart = environment.client.entity(Cart, "ann")
    await cart.add("lamp", 2)
    assert await cart.give("bob", "lamp") == 1
    assert (await environment.client.entities.get(Cart, "ann")).items == {"lamp": 1}
    assert (await environment.client.entities.get(Cart, "bob")).items == {"lamp": 1}
    with pytest.raises(UpdateFailed, match=r"Cart\.add of its own entity would wait for itself"):
        await cart.give("ann", "lamp")
    with pytest.raises(UpdateFailed, match="KeyError"):
        await cart.give("bob", "vase")
    assert (await environment.client.entities.get(Cart, "ann")).items == {"lamp": 1}
