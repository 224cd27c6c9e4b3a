"""The examples in the documentation of the clients run as they stand."""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client, Message
from holdfast.client.handle import RunHandle
from holdfast.client.messaging import Signal
from holdfast.definitions.app import App
from holdfast.definitions.limits import Limit, Rate
from holdfast.errors import (
    ForkRefused,
    ResultTimeout,
    RunEnded,
    RunFailed,
    TokenUnknown,
    WebhookNotFound,
)
from holdfast.runtime.code.context import Context
from holdfast.sync import SyncClient, SyncMessage, SyncRunHandle
from holdfast.testing import Environment

app = App("examples")


@dataclass(frozen=True)
class Order:
    id: int


@app.workflow
async def checkout(ctx: Context, order: Order) -> str:
    return f"receipt {order.id}"


@app.workflow
async def thumbnail(ctx: Context, path: str) -> None: ...


@app.entity
@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)

    async def add(self, item: str) -> int:
        self.items[item] = 1
        return len(self.items)


analyze = app.flow("analyze", input=str)


@analyze.step
async def website(run: str) -> str:
    return f"page of {run}"


def examples(*kinds: type) -> list[Any]:
    """Find the examples of classes and of their public methods."""
    documented = [
        each
        for kind in kinds
        for each in (kind, *(vars(kind)[name] for name in vars(kind) if not name.startswith("_")))
    ]
    return [
        pytest.param(code, id=getattr(each, "__qualname__", ""))
        for each in documented
        for code in re.findall(r"```python\n(.*?)```", inspect.getdoc(each) or "", re.DOTALL)
    ]


def groups(client: Client | SyncClient) -> list[type]:
    """Find the classes of a client's groups."""
    return [type(value) for name, value in vars(client).items() if not name.startswith("_")]


@pytest.fixture(autouse=True)
def archive(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Name an archive for the examples that need one."""
    if "client.archive" in request.node.callspec.params["code"]:
        monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}")
        monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the example sweeps itself


@pytest.fixture
async def environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Environment]:
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    async with Environment(app) as environment:
        yield environment


async def names(environment: Environment, code: str) -> dict[str, Any]:
    """Return the names that an example takes for granted."""
    client = environment.client
    if "start(" not in code:
        await client.start(checkout, Order(7), key="order-7", delay="1d")
    ended = await client.start(checkout, Order(1))
    await ended.result()
    waiting = await client.start(checkout, Order(2), delay="1d")
    if "archive" in code:
        ended = await client.start(checkout, Order(3), retention=0)
        await ended.result()
        while not (await client.runs.get(ended.run_id)).archive:  # the worker may be at it
            await client.retention.sweep()
    if "schedules" in code:
        await client.schedules.create("nightly", checkout, "0 3 * * *", input=Order(7))
    if "client.archive" in code:
        ended = await client.start(checkout, Order(3), retention=0)
        await ended.result()
        await client.retention.sweep()
    if "builds" in code:
        for build in ("a81f", "b72c"):
            await environment.store.declare_build("shop", build, ["shop/checkout@1"])
        if "ramp" in code:
            await client.builds.promote("b72c", app="shop")
    if "queues" in code:
        await client.queues.create("parcels", visibility="1m", max_receives=5)
        await client.queues.send("parcels", {"id": 1})
    if "steps" in code or "flows" in code:
        ended = await client.start(analyze, "holdfast.dev")
        await ended.result()
    return {
        "Cart": Cart,
        "ForkRefused": ForkRefused,
        "Limit": Limit,
        "Order": Order,
        "app": app,
        "Rate": Rate,
        "ResultTimeout": ResultTimeout,
        "RunEnded": RunEnded,
        "RunFailed": RunFailed,
        "Signal": Signal,
        "TokenUnknown": TokenUnknown,
        "WebhookNotFound": WebhookNotFound,
        "checkout": checkout,
        "handle": ended if re.search("result|follow|watch|stream", code) else waiting,
        "paths": ["a.png", "b.png"],
        "run_id": ended.run_id,
        "run_ids": [ended.run_id, waiting.run_id],
        "thumbnail": thumbnail,
        "token": f"{ended.run_id}:1:scan",
        "yesterday": datetime.now(UTC) - timedelta(days=1),
    }


def compiled(definition: str, code: str, namespace: dict[str, Any]) -> Any:
    exec(f"{definition} example():\n{textwrap.indent(code, '    ')}", namespace)
    return namespace["example"]


@pytest.mark.parametrize("code", examples(Client, RunHandle, Message, *groups(Client())))
async def test_an_example_of_the_client_runs(code: str, environment: Environment) -> None:
    def connect(database: str | None = None) -> Client:
        return Client(store=environment.store, app=app)

    namespace = await names(environment, code)
    namespace |= {"Client": connect, "client": environment.client}
    await compiled("async def", code, namespace)()


@pytest.mark.parametrize(
    "code",
    examples(
        *SyncClient.__mro__[:-1], *SyncRunHandle.__mro__[:-2], SyncMessage, *groups(SyncClient())
    ),
)
async def test_an_example_of_the_synchronous_client_runs(
    code: str, environment: Environment
) -> None:
    opened: list[SyncClient] = []

    def connect(database: str | None = None) -> SyncClient:
        opened.append(SyncClient(store=environment.store, app=app))
        return opened[-1]

    def run(namespace: dict[str, Any]) -> None:
        client = connect().open()
        handle = client.handle(namespace["handle"].run_id)
        try:
            namespace |= {"SyncClient": connect, "client": client, "handle": handle}
            compiled("def", code, namespace)()
        finally:
            for each in opened:
                each.close()

    await asyncio.to_thread(run, await names(environment, code))
