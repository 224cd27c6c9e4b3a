"""Pauses of runs, queues and workflows; watched values; activities that end from outside."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import InvalidName, RunEnded, RunNotFound, TokenUnknown
from holdfast.types import Suspend

from .workflows import Finisher, Order, order, tick


async def test_a_paused_run_is_not_claimed_until_it_is_resumed(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(tick)
    assert await handle.pause("the shop is closed")
    assert not await handle.pause()
    assert (await handle.get()).state == "paused"
    assert await finisher.claim() == []
    assert await handle.resume()
    assert not await handle.resume()
    assert await finisher.complete(1, least=1) == [handle.run_id]


async def test_a_run_that_cannot_be_paused_says_so(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.complete(1)
    for act in (client.runs.pause, client.runs.resume):
        with pytest.raises(RunEnded):
            await act(handle.run_id)
        with pytest.raises(RunNotFound):
            await act(uuid4())


async def test_nothing_of_a_paused_queue_or_workflow_is_claimed(
    client: Client, finisher: Finisher
) -> None:
    await client.start(order, Order(7))
    assert await client.queues.pause("orders", "the shop is closed")
    assert not await client.queues.pause("orders")
    assert await client.workflows.pause(order)
    [first] = await client.queues.pauses()
    [second] = await client.workflows.pauses()
    assert (first.scope, first.name, first.reason) == ("queue", "orders", "the shop is closed")
    assert (second.scope, second.name, second.reason) == ("workflow", "shop/order", None)
    assert await client.queues.resume("orders")
    assert await finisher.claim() == []
    assert await client.workflows.resume("shop/order")
    assert not await client.workflows.resume("shop/order")
    assert await client.queues.pauses() == await client.workflows.pauses() == []
    assert len(await finisher.claim(least=1)) == 1


async def test_a_name_that_cannot_be_meant_is_not_paused(client: Client) -> None:
    for act in (client.queues.pause, client.queues.resume, client.workflows.pause):
        with pytest.raises(InvalidName):
            await act("no name")


async def test_a_watched_value_begins_with_the_newest(client: Client, finisher: Finisher) -> None:
    """T3. Values that a run sets are watched live."""
    handle = await client.start(tick)
    [task] = await finisher.claim()

    async def sets(number: int) -> object:
        return await finisher.event("ValueSet", "progress", {"value": number})

    old = [await finisher.event("ValueSet", "progress", {"value": n}) for n in (1, 2)]
    await finisher.write(task, *old, await finisher.event("ValueSet", "other", {"value": 0}))
    watching = handle.watch_value("progress")
    assert await anext(watching) == 2
    await finisher.write(task, await finisher.event("ValueSet", "progress", {"value": 3}), at=4)
    assert await anext(watching) == 3
    await handle.terminate()
    assert [value async for value in watching] == []


async def test_a_watched_value_continues_with_the_runs_successor(
    client: Client, finisher: Finisher
) -> None:
    """T3."""
    handle = await client.start(tick)
    [task] = await finisher.claim()
    await finisher.write(task, await finisher.event("ValueSet", "n", {"value": 1}))
    await finisher.continue_as_new(task)
    [task] = await finisher.claim()
    await finisher.write(task, await finisher.event("ValueSet", "n", {"value": 2}), then=Suspend())
    watching = client.runs.watch_value(handle.run_id, "n")
    assert [await anext(watching), await anext(watching)] == [1, 2]
    await watching.aclose()


@pytest.mark.parametrize(
    "token",
    ["", "x", f"{UUID(int=1)}:1:scan", f"{UUID(int=1)}:one:scan", f"{UUID(int=1)}:1:", "\0"],
)
async def test_an_unknown_token_is_named(client: Client, token: str) -> None:
    """S7. S12."""
    with pytest.raises(TokenUnknown):
        await client.activities.complete(token, 1)
    with pytest.raises(TokenUnknown):
        await client.activities.fail(token, "no")
