"""Clients that resources and steps open in an environment reach the test, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.database import resolve
from holdfast.store import opening
from holdfast.sync import SyncClient
from holdfast.testing import Environment
from holdfast.testing.exploring import exploration

DATABASE = "postgresql://localhost:1/live"

app = App("post")
client = app.lifespan(lambda: Client())


@app.lifespan
async def named() -> AsyncIterator[Client]:
    async with Client(DATABASE) as opened:
        yield opened


@app.step
async def send(text: str) -> None:
    await client.get().queues.send("mails", text)


@app.step
async def send_by_another(text: str) -> None:
    await named.get().queues.send("mails", text)


@app.step
async def send_by_its_own(text: str) -> None:
    async with Client() as opened:
        await opened.queues.send("mails", text)


@app.activity
async def send_elsewhere(text: str) -> None:
    async with Client() as opened:
        await opened.queues.send("mails", text)


@app.workflow
async def print_it(ctx: Context, text: str) -> str:
    return f"{text} on paper"


@app.step
async def start_print(text: str) -> None:
    await client.get().start(print_it, text, key=text)


@app.workflow
async def remind(ctx: Context) -> None:
    for each in (send, send_by_another, send_by_its_own, send_elsewhere):
        await ctx.sleep("1d")
        await each("hello")
    await start_print("letter")


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a database was looked for")

    monkeypatch.setenv("HOLDFAST_DATABASE_URL", DATABASE)
    monkeypatch.setattr(resolve, "resolve_database", refuse)
    monkeypatch.setattr(opening, "resolve_database", refuse)


async def texts(env: Environment) -> list[Any]:
    """Return what the queue has."""
    return [message.payload for message in await env.client.queues.receive("mails", limit=10)]


async def test_clients_of_resources_and_steps_are_those_of_the_environment() -> None:
    async with Environment(app) as env:
        await env.client.queues.create("mails")
        await env.run(remind)
        assert await env.result(env.client.handle((print_it, "letter"))) == "letter on paper"
        assert len(await texts(env)) == 4


async def test_after_a_kill_the_next_workers_have_such_clients() -> None:
    async with Environment(app) as env:
        await env.client.queues.create("mails")
        handle = await env.client.start(remind)
        await env.advance("36h")
        await env.kill()
        await env.result(handle)
        assert len(await texts(env)) == 4


async def test_two_environments_are_apart() -> None:
    async with Environment(app) as one, Environment(app) as two:
        for env in (one, two):
            await env.client.queues.create("mails")
        await one.run(remind)
        assert len(await texts(one)) == 4
        assert await texts(two) == []


async def test_the_test_itself_may_open_what_it_likes() -> None:
    async with Environment(app):
        with pytest.raises(AssertionError, match="looked for"):
            await Client().open()


def plainly() -> tuple[App, Any]:
    """Return an app whose plain functions send and start, and its workflow."""
    plain = App("plain")

    @plain.lifespan
    async def opened() -> AsyncIterator[SyncClient]:
        with SyncClient() as it:
            yield it

    @plain.workflow
    async def print_plainly(ctx: Context, text: str) -> str:
        return f"{text} on paper"

    @plain.step
    def send_plainly(text: str) -> None:
        opened.get().queues.send("mails", text)
        opened.get().start(print_plainly, text, key=text)

    @plain.activity
    def send_by_its_own(text: str) -> None:
        with SyncClient(DATABASE) as it:
            it.queues.send("mails", text)

    @plain.workflow
    async def sending(ctx: Context) -> str:
        await ctx.sleep("1d")
        await send_plainly("letter")
        await ctx.sleep("1d")
        await send_by_its_own("card")
        return "sent"

    return plain, sending


async def test_synchronous_clients_reach_the_test_too() -> None:
    plain, sending = plainly()
    async with Environment(plain) as env:
        await env.client.queues.create("mails")
        assert await env.run(sending) == "sent"
        printed = env.client.handle(("plain/print_plainly", "letter"))
        assert await env.result(printed) == "letter on paper"
        assert sorted(await texts(env)) == ["card", "letter"]


@pytest.mark.parametrize("seed", range(5))
async def test_synchronous_clients_work_in_a_drawn_order(seed: int) -> None:
    """Plain functions are called on the test's own thread then."""
    plain, sending = plainly()
    plan = next(itertools.islice(exploration(seeds=5).plans(), seed, None))
    async with Environment(plain, plan=plan) as env:
        await env.client.queues.create("mails")
        assert await env.run(sending) == "sent"
        assert sorted(await texts(env)) == ["card", "letter"]
