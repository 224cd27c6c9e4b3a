"""Publishing through the client, alone and within the caller's transaction. B14."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast import App, Context, Retry
from holdfast.client import Client, RunHandle
from holdfast.errors import ConfigurationError, InvalidName, RunFailed
from holdfast.store.port import Store
from holdfast.sync import SyncClient
from holdfast.testing import Environment
from holdfast.types import Published
from holdfast.worker import Worker

from .workflows import Order, order, tick

PAID = "orders.*.paid"


async def test_an_event_starts_what_the_client_subscribed(client: Client) -> None:
    one = await client.topics.subscribe(PAID, workflow=order, match={"number": 3}, priority=1)
    assert await client.topics.subscribe(PAID, workflow=order, match={"number": 3}) == one
    by_name = await client.topics.subscribe("#", workflow="other/job", queue="far")
    published = await client.topics.publish("orders.7.paid", Order(3))
    assert (published.workflows, published.is_new) == (2, True)
    again = await client.topics.publish("orders.7.paid", None, event_id=published.event_id)
    assert again == Published(event_id=published.event_id, is_new=False)
    found = await client.topics.list(topic="orders.7.paid")
    assert [(each.subscription_id, each.match) for each in found] == [
        (one, {"number": 3}),
        (by_name, None),
    ]
    assert await client.topics.count("orders.7.paid") == {"workflow": 2}
    assert await client.topics.unsubscribe(one)
    assert not await client.topics.unsubscribe(one)


async def test_what_cannot_be_is_refused_before_the_database_is_asked(client: Client) -> None:
    """Edge case 26."""
    with pytest.raises(InvalidName, match="is not a topic"):
        await client.topics.publish("orders.*")
    with pytest.raises(InvalidName, match="is not a pattern"):
        await client.topics.subscribe("orders..paid", workflow=order)
    with pytest.raises(TypeError, match="delay"):
        await client.topics.subscribe("a", workflow=order, delay=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="notify"):
        await client.topics.publish("a", notify=True)


async def test_a_publish_is_part_of_the_callers_transaction(database_url: str) -> None:
    """B14, edge case 20. Rolled back, it has reached nothing."""
    async with Client(database_url) as client:
        await client.topics.subscribe("a.b", workflow=tick)
        connection = await asyncpg.connect(database_url)
        await connection.set_type_codec(
            "json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
        try:
            for commits in (False, True):
                transaction = connection.transaction()
                await transaction.start()
                published = await client.topics.publish(
                    "a.b", {"n": 1}, connection=connection, notify=True, event_id="e-1"
                )
                assert (published.workflows, published.event_id) == (1, "e-1")
                await (transaction.commit() if commits else transaction.rollback())
                assert len((await client.runs.list()).runs) == int(commits)
        finally:
            await connection.close()


def test_a_synchronous_publish_is_part_of_the_callers_transaction(database_url: str) -> None:
    """B14, edge case 20."""
    with SyncClient(database_url) as client, psycopg.connect(database_url) as connection:
        client.topics.subscribe("a.b", workflow=tick)
        assert client.topics.publish("a.b", connection=connection).workflows == 1
        connection.rollback()
        assert client.topics.publish("a.b", connection=connection, notify=True).workflows == 1
        connection.commit()
        assert len(client.runs.list().runs) == 1


def workflows(topic: str) -> App:
    """Return an app whose workflow waits twice, with a step in between that publishes."""
    app = App("shop")

    @app.workflow
    async def ship(ctx: Context, paid: dict[str, int]) -> list[object]:
        ctx.subscribe(f"{topic}.sent")
        await ctx.step("begin", begin)
        first = await ctx.wait_for_event(f"{topic}.sent")
        second = await ctx.wait_for_event(f"{topic}.*", match={"n": 2}, timeout="1h")
        return [ctx.headers["holdfast-topic"], paid, first.topic, first.payload, second.payload]

    async def begin() -> None:
        assert clients, "the test gives the client"
        await clients[0].topics.publish(f"{topic}.sent", {"n": 1})

    @app.workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_event("never.comes")

    clients: list[Client] = []
    app.subscribe("orders.*.paid", ship)
    app.__dict__["clients"] = clients
    return app


async def test_events_drive_a_run_on_a_real_worker(store: Store) -> None:
    """B14. From an event through the run that it starts to the events that this waits for."""
    topic = f"t{uuid.uuid4().hex}"
    app = workflows(topic)
    worker = Worker(app, store)
    async with Client(store=store, app=app) as client, AsyncExitStack() as stack:
        await worker.start()
        stack.push_async_callback(worker.stop)
        app.__dict__["clients"].append(client)
        published = await client.topics.publish("orders.1.paid", {"cents": 5})
        assert published.workflows == 1
        [listed] = (await client.runs.list()).runs
        async with asyncio.timeout(60):
            while not (await client.topics.publish(f"{topic}.x", {"n": 2})).runs:
                await asyncio.sleep(0.01)
            assert await client.handle(listed.run_id).result() == (
                ["orders.1.paid", {"cents": 5}, f"{topic}.sent", {"n": 1}, {"n": 2}]
            )


async def test_forks_and_retries_of_runs_that_wait_are_told_of_events(store: Store) -> None:
    """B14. They subscribe for themselves: the copied log has events, and no subscription."""
    topic, app, failures = f"t{uuid.uuid4().hex}", App("shop"), ["not yet"]

    async def check() -> None:
        if failures:
            raise ValueError(failures.pop())

    @app.workflow
    async def ship(ctx: Context) -> list[object]:
        first = await ctx.wait_for_event(f"{topic}.*")
        await ctx.step("check", check, retry=Retry(attempts=1))
        second = await ctx.wait_for_event(f"{topic}.*")
        return [first.payload, second.payload]

    worker = Worker(app, store)
    async with Client(store=store, app=app) as client, AsyncExitStack() as stack:

        async def has(run: RunHandle[Any], event_type: str) -> None:
            while event_type not in [each.event.type for each in await run.log()]:
                await asyncio.sleep(0.01)

        await worker.start()
        stack.push_async_callback(worker.stop)
        await stack.enter_async_context(asyncio.timeout(60))
        origin = await client.start(ship)
        await has(origin, "EventSubscribed")
        assert (await client.topics.publish(f"{topic}.a", 1)).runs == 1
        with pytest.raises(RunFailed, match="not yet"):
            await origin.result()
        retry = await client.runs.retry(origin.run_id)
        await has(retry, "StepCompleted")
        fork = await client.runs.fork(retry.run_id)
        await has(fork, "EventSubscribed")
        assert (await client.topics.publish(f"{topic}.a", 2)).runs == 2
        assert await retry.result() == [1, 2]
        assert await fork.result() == [1, 2]


async def test_events_in_virtual_time() -> None:
    """B14. `Environment` publishes, and says what a run waits for."""
    app = workflows("t")
    async with Environment(app) as env:
        app.__dict__["clients"].append(env.client)
        assert (await env.publish("orders.1.paid", {"cents": 5})).workflows == 1
        await env.wait_until_idle()
        [listed] = (await env.client.runs.list()).runs
        await env.advance("59m")
        assert (await env.publish("t.x", {"n": 2})).runs == 1
        assert (await env.result(env.client.handle(listed.run_id)))[-1] == {"n": 2}
        handle = await env.client.start("waits")
        with pytest.raises(AssertionError, match=r"an event of never\.comes"):
            await env.result(handle)
