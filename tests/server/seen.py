"""Two apps with the same code in one database: what a caller of one may not see of the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from holdfast import (
    App,
    Client,
    Context,
    Retry,
    Singleton,
    StepFailed,
    current_activity,
    current_step,
)
from holdfast.definitions import failed
from holdfast.server import Principal, Server
from holdfast.store.port import Store
from holdfast.worker import Worker, WorkerOptions
from tests.server.shop import HOST

SECRET = "s3cret"
logger = logging.getLogger("seen")
HERE = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class Terms:
    reason: str


def make_app(name: str, tokens: dict[str, str]) -> App:
    """Return an app that leaves something of every kind in a database."""
    app = App(name, build="b1")

    @app.step(retry=Retry(attempts=2, base=0.01))
    async def echo(text: str) -> str:
        await current_step().stream("words", type=str).write(text)
        logger.warning("echo of %s", text, extra={"text": text})
        if text.startswith("bad"):
            raise ValueError(text)
        return text

    @app.activity(retry=Retry.NEVER, start_to_close="1h")
    async def scan(text: str) -> str:
        tokens[name] = current_activity().token
        current_activity().complete_later()
        return ""

    @app.workflow(name=f"{name}-child")
    async def child(ctx: Context, text: str) -> str:
        return text

    @app.workflow(singleton=Singleton(key="input", on_conflict="queue"))
    async def one(ctx: Context, text: str) -> None:
        await ctx.wait_for_signal("go")

    @app.workflow
    async def work(ctx: Context, text: str) -> str:
        ctx.handle_update("rename", lambda new: f"{new} {text}")
        ctx.set_value("note", text)
        await ctx.stream("progress").write(text)
        await ctx.start_child(child, await echo(text))
        with suppress(StepFailed):
            await echo(f"bad {text}")
        await ctx.request_approval("First?", form=Terms)
        asyncio.create_task(scan(text))
        asyncio.create_task(ctx.request_approval("Refund?", form=Terms))
        while True:
            await ctx.wait_for_signal("go")

    @app.workflow
    async def broken(ctx: Context, text: str) -> str:
        return await echo(f"bad {text}")

    flow = app.flow("graph", input=str)

    @flow.step
    async def first(run: str) -> str:
        return f"{run} first"

    @flow.step(attempts=1)
    async def second(first: str) -> str:
        raise ValueError(first)

    app.alert("fails", when=failed("broken", 1, within="10m"), topic=f"{name}.ops")
    return app


@dataclass
class Furnished:
    """What an app has left: its runs by what they are, the token of its activity, its approval."""

    app: str
    runs: dict[str, UUID]
    token: str
    approval: str


async def furnish(store: Store, app: App, tokens: Mapping[str, str]) -> Furnished:
    """Let an app's workers leave something of every kind, with a secret in each payload."""
    text = f"{app.name} {SECRET}"
    client = Client(store=store, app=app)
    async with client:
        start = client.start
        own = {"tags": [f"{app.name}-tag"], "attributes": {"owner": app.name}}
        work = await start("work", text, key=f"{app.name}-key", **own)
        broken = await start("broken", text)
        ones = [await start("one", text) for _ in range(2)]
        graph = await start("graph", text)
        first = await _approval(client, work.run_id)
        await client.approvals.decide(
            work.run_id, first, True, values={"reason": text}, feedback=text, decision_id="d-1"
        )
        await client.runs.wait(broken.run_id)
        await client.runs.wait(graph.run_id)
        await work.signal("other", text)
        await work.update("rename", text, update_id="u-1")
        while app.name not in tokens:
            await asyncio.sleep(0.01)
        approval = await _approval(client, work.run_id, but=first)
        name = f"{app.name}/nightly"
        await client.schedules.create(name, "one", cron="0 3 * * *", input=text)
        await client.schedules.trigger(name)
        await client.schedules.create(f"{app.name}/told", topic="t", every="1d", input=text)
        await client.queues.create(f"{app.name}-mail")
        await client.queues.send(f"{app.name}-mail", text)
        await client.workflows.pause(f"{app.name}/{app.name}-child", f"{app.name} rests")
        child = next(each.run_id for each in (await client.runs.list(parent=work.run_id)).runs)
        runs = {"work": work.run_id, "broken": broken.run_id, "graph": graph.run_id}
        runs |= {"one": ones[0].run_id, "two": ones[1].run_id, "child": child}
        return Furnished(app.name, runs, tokens[app.name], approval)


async def _approval(client: Client, run_id: UUID, *, but: str = "") -> str:
    while True:
        found = [each.key for each in await client.approvals.list(run_id) if each.key != but]
        if found:
            return found[0]
        await asyncio.sleep(0.01)


class Asker:
    """Asks a server as a principal that may be changed."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self.server, self.http = server, http
        self.principal = Principal("all", "admin")

    async def ask(self, method: str, url: str, body: Any = None, *, form: Any = None) -> str:
        """Return the status and the text of an answer; a body is JSON, a form is a form's."""
        options: dict[str, Any] = {} if body is None else {"json": body}
        if form is not None:
            options = {"data": form}
        answer = await self.http.request(method, url, headers=HERE, timeout=30, **options)
        return f"{answer.status_code} {answer.headers.get('location', '')} {answer.text}"


@asynccontextmanager
async def asking(store: Store, app: App | None = None) -> AsyncIterator[Asker]:
    """Serve a database, and ask the server."""
    asker: Asker
    async with Server(
        store=store, auth=lambda _: asker.principal, app=app, hosts=[HOST], stream_seconds=0.05
    ) as server:
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
            asker = Asker(server, http)
            yield asker


@asynccontextmanager
async def furnished(store: Store) -> AsyncIterator[tuple[Asker, Furnished, Furnished]]:
    """Serve a database in which `shop` and `vault` have left the same."""
    tokens: dict[str, str] = {}
    apps = [make_app(name, tokens) for name in ("shop", "vault")]
    workers = [Worker(each, store, WorkerOptions(run_logs=True)) for each in apps]
    for worker in workers:
        await worker.start()
    try:
        shop, vault = [await furnish(store, each, tokens) for each in apps]
        async with asking(store, apps[1]) as asker:
            yield asker, shop, vault
    finally:
        for worker in workers:
            await worker.stop(grace=0)
