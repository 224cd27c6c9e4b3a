"""Every public definition and call with nothing but what it asks for, on both stores.

Defaults meet the database nowhere else: tests name what they are about. A definition or a call
without a case here fails the tests.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.runtime.desk import eventually

from holdfast import Retry, current_activity
from holdfast.client import Client, Message, Outgoing, RunHandle, Signal
from holdfast.definitions import backlog, failed, no_worker, stuck
from holdfast.definitions.app import App
from holdfast.definitions.entities import Entity
from holdfast.definitions.limits import Limit
from holdfast.definitions.middleware import Middleware
from holdfast.runtime.code.context import Context
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker

ASKS = {
    "find",
    "handlers",
    "latest",
    "pinned",
    "queues",
    "startable",
}  # methods of App that define nothing
GROUPS = sorted(name for name in vars(Client()) if not name.startswith("_"))


def public_methods(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_") and not isinstance(member, type)
    }


def one() -> None: ...


async def two() -> None: ...


def take(payload: object) -> None: ...


async def plain(ctx: Context) -> None: ...


async def echo(ctx: Context, value: object) -> object:
    return value


@asynccontextmanager
async def resource() -> AsyncIterator[int]:
    yield 1


async def booked(connection: asyncpg.Connection) -> None: ...


def new_cart() -> type[Any]:
    """Return a class: one is the entity of one app."""

    @dataclass
    class Cart:
        key: str
        size: int = 0

        async def add(self) -> int:
            self.size += 1
            return self.size

    return Cart


def flow_of(app: App, name: str) -> Any:
    flow = app.flow(name)

    @flow.step
    def only(run: Any) -> None: ...

    return flow


def schedule_all(app: App) -> None:
    app.schedule(app.workflow(plain), "@yearly", name="workflow")
    app.schedule(app.workflow(echo), "@yearly", name="value")
    app.schedule(app.workflow(name="often")(plain), every="365d")
    app.schedule(flow_of(app, "graph"), "@yearly")
    app.schedule("@yearly", name="decorated")(app.workflow(name="decorated")(plain))
    app.schedule("@yearly", topic="some.topic")
    app.schedule("@yearly", message_queue="given")


DEFINITIONS: dict[str, Callable[[App], object]] = {
    "activity": lambda app: (app.activity(one), app.activity()(two)),
    "add_middleware": lambda app: app.add_middleware(Middleware()),
    "alert": lambda app: [
        app.alert(each.__name__, when=each()) for each in (failed, stuck, backlog, no_worker)
    ],
    "consumer": lambda app: app.consumer("given")(take),
    "entity": lambda app: app.entity(new_cart()),
    "flow": lambda app: flow_of(app, "graph"),
    "job": lambda app: (app.job(one), app.job()(two)),
    "lifespan": lambda app: app.lifespan(resource),
    "mcp": lambda app: (app.workflow(name="offered")(plain), app.mcp()),
    "message_queue": lambda app: app.message_queue("declared"),
    "queue": lambda app: app.queue("some"),
    "schedule": schedule_all,
    "step": lambda app: (app.step(one), app.step()(two)),
    "subscribe": lambda app: app.subscribe("some.topic", app.workflow(echo)),
    "transaction": lambda app: app.transaction(booked),
    "workflow": lambda app: (app.workflow(plain), app.workflow()(echo)),
}


def test_every_public_definition_has_a_case() -> None:
    assert public_methods(App) - ASKS == DEFINITIONS.keys()


@pytest.mark.parametrize("definition", DEFINITIONS)
async def test_an_app_whose_definitions_have_no_options_works(
    store: Store, client: Client, definition: str
) -> None:
    """A6. Its worker starts; its workflows, flows and schedules do what they are for."""
    app = App("shop")
    DEFINITIONS[definition](app)
    app.workflow(name="first")(plain)
    await client.queues.create("given")
    async with Client(store=store, app=app) as client, working(app, store):
        for name, version in [*app.workflows, *app.flows]:
            defined = app.startable(name, version)
            if isinstance(defined, Entity):
                assert await client.entity(defined.cls, "ann").add() == 1
            else:
                assert await client.run(defined, timeout="60s") in (None, {"only": None})
        queues = {each.settings.name for each in await client.queues.list()}
        assert queues == {"given", *app.message_queues}
        names = {each.name for each in await client.schedules.list()}
        assert names == app.schedules.keys()
        for name in names:
            tick = await client.schedules.trigger(name)
            assert tick.outcome in ("started", "published", "sent")
            if tick.run_id is not None:
                assert (await client.runs.wait(tick.run_id, "60s")).status == "completed"


@asynccontextmanager
async def working(app: App, store: Store) -> AsyncIterator[Worker]:
    worker = Worker(app, store)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace=0)


class World:
    """A client, a worker, and things that calls are about."""

    def __init__(self, store: Store, app: App) -> None:
        self.store, self.app = store, app
        self.client = Client(store=store, app=app)
        self.cart_class = app.entity(new_cart())
        self.tokens = list[str]()
        self.broken = False

    async def waiting(self) -> RunHandle[object]:
        """Return a run that waits for a signal, and takes updates."""
        return await self._started("waits", "ValueSet")

    async def asked(self) -> RunHandle[object]:
        return await self._started("asks", "ApprovalRequested")

    async def posted_to(self) -> RunHandle[object]:
        return await self._started("hooks", "WebhookOpened")

    async def url(self) -> str:
        run = await self.posted_to()
        return (await self.client.webhooks.list(run.run_id))[0].url

    async def ended(self, workflow: str = "plain") -> RunHandle[object]:
        handle = await self.client.start(workflow)
        await self.client.runs.wait(handle.run_id, "60s")
        return handle

    async def ended_flow(self) -> RunHandle[object]:
        return await self.ended("graph")

    async def failed(self) -> RunHandle[object]:
        self.broken = True
        handle = await self.ended("breaks")
        self.broken = False
        return handle

    async def archived(self) -> UUID:
        handle = await self.client.start("plain", retention=0)
        await self.client.runs.wait(handle.run_id, "60s")
        await self.client.retention.sweep()
        return handle.run_id

    async def open_token(self) -> str:
        self.tokens.clear()
        await self.client.start("orders")
        await eventually(lambda: bool(self.tokens))
        return self.tokens[0]

    async def cart(self) -> str:
        """Return the key of an entity."""
        key = str(uuid4())
        await self.client.entity(self.cart_class, key).add()
        return key

    async def flow(self) -> str:
        other = App("other")
        flow_of(other, "spare")
        await self.client.flows.compile(other)
        return "other/spare"

    async def queue(self, messages: int = 0) -> str:
        name = f"q-{uuid4()}"
        await self.client.queues.create(name)
        for _ in range(messages):
            await self.client.queues.send(name)
        return name

    async def about_message(self, call: Callable[..., Any]) -> object:
        queue = await self.queue()
        return await read(call(queue, await self.client.queues.send(queue)))

    async def dead_letters(self) -> str:
        name = f"q-{uuid4()}"
        await self.client.queues.create(name, max_receives=1)
        return name

    async def received(self) -> Message:
        (message,) = await self.client.queues.receive(await self.queue(1))
        return message

    async def build(self) -> str:
        """Return a build that is not the current one."""
        for build in ("b1", "b2"):
            await self.store.declare_build("world", build, [])
        await self.client.builds.promote("b1")
        return "b2"

    async def schedule(self) -> str:
        return (await self.client.schedules.create(f"s-{uuid4()}", "plain", "@yearly")).name

    async def _started(self, workflow: str, until: str) -> RunHandle[object]:
        handle = await self.client.start(workflow)

        async def is_there() -> bool:
            return until in {each.event.type for each in await handle.log()}

        await eventually(is_there)
        return handle


@asynccontextmanager
async def opened_world(store: Store) -> AsyncIterator[World]:
    app = App("world")
    world = World(store, app)
    app.workflow(plain)
    flow_of(app, "graph")

    @app.workflow
    async def waits(ctx: Context) -> None:
        async def add() -> int:
            return 1

        ctx.handle_update("add", add)
        ctx.set_value("state", 1)
        await ctx.wait_for_signal("go")

    @app.workflow
    async def breaks(ctx: Context) -> None:
        async def check() -> None:
            if world.broken:
                raise ValueError

        await ctx.step("check", check, retry=Retry(attempts=1))

    @app.workflow
    async def asks(ctx: Context) -> bool:
        return (await ctx.request_approval("Pay?", id="pay")).approved

    @app.workflow
    async def hooks(ctx: Context) -> object:
        return await ctx.webhook("paid").received()

    @app.activity
    async def later() -> None:
        world.tokens.append(current_activity().token)
        current_activity().complete_later()

    @app.workflow
    async def orders(ctx: Context) -> None:
        await later()

    await store.open()
    async with world.client, working(app, store):
        yield world
    await store.close()


async def of(prepared: Awaitable[Any], call: Callable[..., Any], *args: object) -> object:
    """Make a call about what was prepared for it, and read the answer whole."""
    about = await prepared
    return await read(call(about.run_id if isinstance(about, RunHandle) else about, *args))


async def fields_of(answer: Awaitable[Any]) -> object:
    """Return the fields of an object, whose class is another one in each world."""
    return vars(await answer)


async def read(answer: Any) -> object:
    if inspect.isasyncgen(answer):
        return [each async for each in answer]
    return await answer if inspect.isawaitable(answer) else answer


async def newest(values: Any) -> object:
    """Return the first of values that never end."""
    async with aclosing(values):
        return await anext(values)


NOTHING: Any = {"names": "world/plain", "key": "nothing"}  # no run is meant
PAST = datetime(2020, 1, 1, tzinfo=UTC)
CALLS: dict[str, Callable[[World, Client], Any]] = {
    "close": lambda w, c: Client(store=w.store).close(),
    "entity": lambda w, c: c.entity(w.cart_class, str(uuid4())).add(),
    "handle": lambda w, c: of(w.ended(), c.handle),
    "open": lambda w, c: Client(store=w.store).open(),
    "result": lambda w, c: of(w.ended(), c.result),
    "run": lambda w, c: c.run("plain"),
    "signal": lambda w, c: of(w.waiting(), c.signal, "go"),
    "signal_many": lambda w, c: of(w.waiting(), lambda run: c.signal_many([Signal(run, "go")])),
    "start": lambda w, c: c.start("plain"),
    "start_many": lambda w, c: c.start_many("plain", [None]),
    "timeline": lambda w, c: of(w.ended(), c.timeline),
    "update": lambda w, c: of(w.waiting(), c.update, "add"),
    "why": lambda w, c: of(w.waiting(), c.why),
    "activities.complete": lambda w, c: of(w.open_token(), c.activities.complete),
    "activities.fail": lambda w, c: of(w.open_token(), c.activities.fail, "no"),
    "approvals.decide": lambda w, c: of(w.asked(), c.approvals.decide, "pay", True),
    "approvals.list": lambda w, c: c.approvals.list(),
    "archive.forget": lambda w, c: c.archive.forget(),
    "archive.get": lambda w, c: of(w.archived(), c.archive.get),
    "archive.list": lambda w, c: c.archive.list(),
    "archive.restore": lambda w, c: of(w.archived(), c.archive.restore),
    "archive.url": lambda w, c: c.archive.url(),
    "entities.delete": lambda w, c: of(w.cart(), lambda key: c.entities.delete(w.cart_class, key)),
    "entities.get": lambda w, c: fields_of(c.entities.get(w.cart_class, "ann")),
    "flows.check": lambda w, c: c.flows.check(w.app),
    "flows.compile": lambda w, c: c.flows.compile(w.app),
    "flows.delete": lambda w, c: of(w.flow(), c.flows.delete),
    "flows.get": lambda w, c: c.flows.get("graph"),
    "flows.list": lambda w, c: c.flows.list(),
    "alerts.list": lambda w, c: c.alerts.list(),
    "builds.list": lambda w, c: c.builds.list(),
    "builds.move": lambda w, c: of(w.waiting(), lambda run: c.builds.move([run], None)),
    "builds.move_all": lambda w, c: of(w.build(), c.builds.move_all, None),
    "builds.promote": lambda w, c: of(w.build(), c.builds.promote),
    "builds.ramp": lambda w, c: of(w.build(), c.builds.ramp, "10%"),
    "builds.roll_back": lambda w, c: of(w.build(), lambda _: c.builds.roll_back()),
    "limits.list": lambda w, c: c.limits.list(),
    "limits.remove": lambda w, c: c.limits.remove(Limit, queue="none"),
    "limits.set": lambda w, c: c.limits.set(Limit(5), queue="some"),
    "messages.cancel": lambda w, c: w.about_message(c.messages.cancel),
    "messages.change": lambda w, c: w.about_message(partial(c.messages.change, payload=1)),
    "messages.get": lambda w, c: w.about_message(c.messages.get),
    "queues.ack": lambda w, c: of(w.received(), c.queues.ack),
    "queues.create": lambda w, c: c.queues.create(f"q-{uuid4()}"),
    "queues.delete": lambda w, c: of(w.queue(1), c.queues.delete),
    "queues.extend": lambda w, c: of(w.received(), c.queues.extend, 60),
    "queues.get": lambda w, c: of(w.queue(), c.queues.get),
    "queues.kept": lambda w, c: of(w.queue(), c.queues.kept),
    "queues.list": lambda w, c: c.queues.list(),
    "queues.messages": lambda w, c: of(w.queue(1), c.queues.messages),
    "queues.metrics": lambda w, c: c.queues.metrics(),
    "queues.nack": lambda w, c: of(w.received(), c.queues.nack),
    "queues.page": lambda w, c: of(w.queue(1), c.queues.page),
    "queues.pause": lambda w, c: c.queues.pause("some"),
    "queues.pauses": lambda w, c: c.queues.pauses(),
    "queues.pop": lambda w, c: of(w.queue(1), c.queues.pop),
    "queues.purge": lambda w, c: of(w.queue(1), c.queues.purge),
    "queues.receive": lambda w, c: of(w.queue(1), c.queues.receive),
    "queues.redrive": lambda w, c: of(w.dead_letters(), c.queues.redrive),
    "queues.resume": lambda w, c: c.queues.resume("some"),
    "queues.send": lambda w, c: of(w.queue(), c.queues.send),
    "queues.send_many": lambda w, c: of(w.queue(), c.queues.send_many, [Outgoing()]),
    "queues.update": lambda w, c: of(w.queue(), c.queues.update),
    "retention.batches": lambda w, c: c.retention.batches(),
    "retention.preview": lambda w, c: c.retention.preview(),
    "retention.state": lambda w, c: c.retention.state(),
    "retention.sweep": lambda w, c: c.retention.sweep(),
    "runs.cancel": lambda w, c: of(w.waiting(), c.runs.cancel),
    "runs.cancel_all": lambda w, c: c.runs.cancel_all(NOTHING),
    "runs.count": lambda w, c: c.runs.count("workflow"),
    "runs.find_ids": lambda w, c: c.runs.find_ids("0123"),
    "runs.follow_log": lambda w, c: of(w.ended(), c.runs.follow_log),
    "runs.follow_log_lines": lambda w, c: of(
        w.ended(), lambda run: read(c.runs.follow_log_lines(run))
    ),
    "runs.read_log_lines": lambda w, c: of(w.ended(), c.runs.read_log_lines),
    "runs.fork": lambda w, c: of(w.ended(), c.runs.fork),
    "runs.get": lambda w, c: of(w.ended(), c.runs.get),
    "runs.iterate": lambda w, c: c.runs.iterate(),
    "runs.list": lambda w, c: c.runs.list(),
    "runs.log": lambda w, c: of(w.ended(), c.runs.log),
    "runs.pause": lambda w, c: of(w.waiting(), c.runs.pause),
    "runs.pause_all": lambda w, c: c.runs.pause_all(NOTHING),
    "runs.reschedule": lambda w, c: of(
        w.waiting(), lambda run: c.runs.reschedule(run, queue="some")
    ),
    "runs.reschedule_all": lambda w, c: c.runs.reschedule_all(NOTHING, queue="some"),
    "runs.resume": lambda w, c: of(w.waiting(), c.runs.resume),
    "runs.resume_all": lambda w, c: c.runs.resume_all(NOTHING),
    "runs.retry": lambda w, c: of(w.failed(), c.runs.retry),
    "runs.retry_plan": lambda w, c: of(w.failed(), c.runs.retry_plan),
    "runs.retry_all": lambda w, c: c.runs.retry_all(NOTHING),
    "runs.set_attributes": lambda w, c: of(w.waiting(), c.runs.set_attributes, {}),
    "runs.set_tags": lambda w, c: of(w.waiting(), c.runs.set_tags),
    "runs.signal_all": lambda w, c: c.runs.signal_all(NOTHING, "go"),
    "runs.terminate": lambda w, c: of(w.waiting(), c.runs.terminate),
    "runs.terminate_all": lambda w, c: c.runs.terminate_all(NOTHING),
    "runs.values": lambda w, c: of(w.waiting(), c.runs.values),
    "runs.wait": lambda w, c: of(w.ended(), c.runs.wait),
    "runs.watch_steps": lambda w, c: of(w.ended_flow(), c.runs.watch_steps),
    "runs.watch_value": lambda w, c: of(
        w.waiting(), lambda run: newest(c.runs.watch_value(run, "state"))
    ),
    "schedules.backfill": lambda w, c: of(w.schedule(), c.schedules.backfill, PAST, PAST),
    "schedules.cancel_backfills": lambda w, c: of(w.schedule(), c.schedules.cancel_backfills),
    "schedules.create": lambda w, c: c.schedules.create(f"s-{uuid4()}", "plain", "@yearly"),
    "schedules.delete": lambda w, c: of(w.schedule(), c.schedules.delete),
    "schedules.get": lambda w, c: of(w.schedule(), c.schedules.get),
    "schedules.list": lambda w, c: c.schedules.list(),
    "schedules.next_ticks": lambda w, c: of(w.schedule(), c.schedules.next_ticks),
    "schedules.pause": lambda w, c: of(w.schedule(), c.schedules.pause),
    "schedules.resume": lambda w, c: of(w.schedule(), c.schedules.resume),
    "schedules.ticks": lambda w, c: of(w.schedule(), c.schedules.ticks),
    "schedules.trigger": lambda w, c: of(w.schedule(), c.schedules.trigger),
    "schedules.update": lambda w, c: of(w.schedule(), c.schedules.update),
    "topics.count": lambda w, c: c.topics.count("some.topic"),
    "topics.deliveries": lambda w, c: c.topics.deliveries(),
    "topics.discard": lambda w, c: c.topics.discard(),
    "topics.list": lambda w, c: c.topics.list(),
    "topics.publish": lambda w, c: c.topics.publish("other.topic"),
    "topics.redrive": lambda w, c: c.topics.redrive(),
    "topics.subscribe": lambda w, c: c.topics.subscribe("some.topic", workflow="plain"),
    "topics.unsubscribe": lambda w, c: c.topics.unsubscribe(1_000_000),
    "webhooks.list": lambda w, c: of(w.posted_to(), c.webhooks.list),
    "webhooks.receive": lambda w, c: of(w.url(), c.webhooks.receive),
    "workers.list": lambda w, c: c.workers.list(),
    "workflows.held_keys": lambda w, c: c.workflows.held_keys("plain"),
    "workflows.pause": lambda w, c: c.workflows.pause("asks"),
    "workflows.pauses": lambda w, c: c.workflows.pauses(),
    "workflows.resume": lambda w, c: c.workflows.resume("asks"),
}
HANDLE: dict[str, Callable[[World, RunHandle[object]], Any]] = {
    "approvals": lambda w, h: h.approvals(),
    "cancel": lambda w, h: h.cancel(),
    "follow_log": lambda w, h: newest(h.follow_log()),
    "get": lambda w, h: h.get(),
    "log": lambda w, h: h.log(),
    "pause": lambda w, h: h.pause(),
    "result": lambda w, h: of(w.ended(), lambda run: w.client.handle(run).result()),
    "reschedule": lambda w, h: h.reschedule(queue="some"),
    "resume": lambda w, h: h.resume(),
    "signal": lambda w, h: h.signal("go"),
    "status": lambda w, h: h.status(),
    "read_stream": lambda w, h: h.read_stream("none"),
    "stream": lambda w, h: of(w.ended(), lambda run: read(w.client.handle(run).stream("none"))),
    "stream_items": lambda w, h: of(
        w.ended(), lambda run: read(w.client.handle(run).stream_items("none"))
    ),
    "streams": lambda w, h: h.streams(),
    "terminate": lambda w, h: h.terminate(),
    "update": lambda w, h: h.update("add"),
    "values": lambda w, h: h.values(),
    "watch_steps": lambda w, h: of(
        w.ended_flow(), lambda run: read(w.client.handle(run).watch_steps())
    ),
    "watch_value": lambda w, h: newest(h.watch_value("state")),
}


def test_every_public_call_has_a_case() -> None:
    client = Client()
    named = set(public_methods(Client))
    for group in GROUPS:
        named |= {f"{group}.{name}" for name in public_methods(type(getattr(client, group)))}
    assert named == CALLS.keys()
    assert public_methods(RunHandle) == HANDLE.keys()


def shape(answer: Any) -> object:
    """Return what two stores must agree about: not ids, moments and what a worker has done yet."""
    if isinstance(answer, list):
        return [shape(each) for each in answer]
    return answer if isinstance(answer, bool | None) else type(answer)


async def test_every_public_call_works_without_options(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6. Each is made on both stores; what they answer has the same shape."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}")
    stores: list[Store] = [MemoryStore(), PostgresStore(database_url)]
    async with AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(opened_world(store)) for store in stores]
        for name, call in CALLS.items():
            answers = [shape(await read(call(world, world.client))) for world in worlds]
            assert answers[0] == answers[1], name
        for ask in HANDLE.values():
            for world in worlds:
                await read(ask(world, await world.waiting()))
