"""Clients that resources and steps open in an environment reach the test, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import App, Context, RunFailed
from holdfast.client import Client
from holdfast.database import resolve
from holdfast.errors import ConfigurationError
from holdfast.store import opening
from holdfast.sync import SyncClient
from holdfast.testing import Environment

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


async def test_a_synchronous_client_is_refused_with_a_way_out() -> None:
    plain = App("plain")

    @plain.lifespan
    async def opened() -> AsyncIterator[SyncClient]:
        with SyncClient() as it:
            yield it

    @plain.workflow
    async def nothing(ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match=r"resource\.override"):
        async with Environment(plain):
            pass
    with opened.override(SyncClient()):
        async with Environment(plain) as env:
            await env.run(nothing)


async def test_a_synchronous_client_of_a_step_is_refused_too() -> None:
    plain = App("plain")

    @plain.step(retry=None)
    def send_plainly() -> None:
        with SyncClient() as opened:
            opened.queues.create("mails")

    @plain.workflow
    async def sending(ctx: Context) -> None:
        await send_plainly()

    async with Environment(plain) as env:
        with pytest.raises(RunFailed, match="SyncClient"):
            await env.run(sending)
        env.replace(send_plainly, lambda: None)
        await env.run(sending)
