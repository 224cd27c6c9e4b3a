"""Runs whose payloads are encoded: nothing readable is stored, and code sees no difference."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Context, Retry, RunFailed, StepFailed, current_activity
from holdfast.client import Client
from holdfast.definitions.limits import Fairness, Limit
from holdfast.definitions.start_rules import Singleton, Throttle
from holdfast.errors import ConfigurationError, PayloadLocked, UpdateFailed
from holdfast.payloads import READABLE, AesGcm, Codecs, Payloads, Zlib, with_payloads
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.types import NewSignal
from holdfast.worker import Worker, WorkerOptions

OLD, NEW = AesGcm.new_key(), AesGcm.new_key()
SECRET = "card-4711"


def make_app(codec: Codecs | None) -> App:
    """Return an app that has its secret in every kind of payload."""
    app = App("bank", payload_codec=codec, retry=Retry(attempts=2, base="1s"))

    @app.step
    async def charge(card: str) -> dict[str, str]:
        return {"charged": card}

    @app.step(retry=Retry.NEVER)
    async def decline(card: str) -> None:
        raise ValueError(f"no money on {card}")

    @app.activity
    async def print_card(card: str) -> str:
        activity = current_activity()
        activity.heartbeat({"printing": card})
        if activity.attempt == 1:
            raise RuntimeError(f"paper jam at {card}")
        return card

    @app.workflow
    async def child(ctx: Context, card: str) -> str:
        return card

    @app.workflow
    async def losing(ctx: Context, card: str) -> None:
        raise ValueError(f"lost {card}")

    @app.workflow
    async def everything(ctx: Context, card: str) -> list[Any]:
        ctx.set_value("seen", {"card": card})

        def look(text: str) -> str:
            if text == "fail":
                raise ValueError(card)
            return f"{text} {card}"

        ctx.handle_update("look", look)
        results: list[Any] = [await charge(card), await print_card(card)]
        try:
            await decline(card)
        except StepFailed as error:
            results.append(error.error.message)
        results.append(await ctx.child(child, card))
        sent = await ctx.wait_for_signal("more", match={"kind": "right"})
        return [*results, sent]

    @app.workflow
    async def again(ctx: Context, card: str) -> str:
        await ctx.sleep("1s")
        if not card.startswith("x"):
            ctx.continue_as_new(f"x{card}")
        return card

    flow = app.flow("steps", input=str)

    @flow.step
    async def first(run: str) -> str:
        return f"first {run}"

    @flow.step
    async def second(first: str, run: str) -> str:
        return f"second {first}"

    return app


def stored(store: MemoryStore) -> str:
    """Return everything that a store holds, as text."""
    tables = store._tables
    parts = (getattr(tables, name) for name in tables.__struct_fields__ if name != "nesting")
    return "\n".join(map(repr, parts))


async def use_everything(env: Environment, app: App) -> None:
    workflows: Mapping[str, Any] = {name: each for (name, _), each in app.workflows.items()}
    run = await env.client.start(workflows["everything"], SECRET)
    await env.advance("10s")
    assert await run.values() == {"seen": {"card": SECRET}}
    assert await run.update("look", "a") == f"a {SECRET}"
    with pytest.raises(UpdateFailed, match=SECRET):
        await run.update("look", "fail")
    await run.signal("more", {"kind": "wrong", "card": SECRET})
    await run.signal("more", {"kind": "right", "card": SECRET})
    assert await env.result(run) == [
        {"charged": SECRET},
        SECRET,
        f"no money on {SECRET}",
        SECRET,
        {"kind": "right", "card": SECRET},
    ]
    with pytest.raises(RunFailed, match=SECRET):
        await env.run(workflows["losing"], SECRET)
    assert await env.run(workflows["again"], SECRET) == f"x{SECRET}"
    assert await env.run(app.flows["steps", 1], SECRET) == {"second": f"second first {SECRET}"}
    log = "".join(str(each) for each in await run.log())
    assert log.count(SECRET) > 10


@pytest.mark.parametrize(
    "codec", [AesGcm({"k1": OLD}), [Zlib(min_bytes=0), AesGcm({"k1": OLD})]], ids=["aes", "both"]
)
async def test_nothing_readable_is_stored(codec: Codecs) -> None:
    """Trap 20. The environment replays each run whenever it wakes: replays see the same values."""
    app = make_app(codec)
    async with Environment(app) as env:
        await use_everything(env, app)
        assert SECRET not in stored(env.store)


async def test_without_a_codec_it_would_be_readable() -> None:
    """The same uses of the same app: so the test above looks where payloads are."""
    app = make_app(None)
    async with Environment(app) as env:
        await use_everything(env, app)
        assert stored(env.store).count(SECRET) > 20


@pytest.mark.parametrize("codec", [None, AesGcm({"k2": NEW})], ids=["none", "another key"])
async def test_a_worker_without_the_key_leaves_the_run_alone(codec: Codecs | None) -> None:
    """Nothing is lost by a deployment that forgets the key: the run is stuck, and says why."""
    store = MemoryStore()
    sender, app = make_app(AesGcm({"k1": OLD})), make_app(codec)
    async with Client(store=store, app=sender) as client, Client(store=store) as other:
        run = await client.start("child", SECRET)
        worker = Worker(app, store)
        await worker.start()
        while (wait := (await client.runs.get(run.run_id)).wait) is None or wait.stuck is None:
            await other.runs.get(run.run_id)
        await worker.stop(grace=0)
        assert wait.stuck.startswith("a value is encrypted with key k1")
        assert [each.event.type for each in await run.log()] == ["WorkflowStarted"]
        with pytest.raises(PayloadLocked, match="encrypted with key k1"):
            _ = (await other.runs.get(run.run_id)).input


async def test_a_reader_without_the_key_sees_which_one_it_needs() -> None:
    app = make_app(AesGcm({"k1": OLD}))
    async with Environment(app) as env:
        run = await env.client.start("child", SECRET)
        await env.result(run)
        async with Client(store=with_payloads(env.store, READABLE)) as reader:
            assert (await reader.runs.get(run.run_id)).output == "(encrypted with key k1)"


async def test_inputs_that_are_not_encoded_are_read() -> None:
    """SQL and the command line start runs without the codec."""
    app = make_app(AesGcm({"k1": OLD}))
    async with Environment(app) as env, Client(store=env.store) as plain:
        run = await plain.start("bank/child", SECRET)
        assert await env.result(env.client.handle(run.run_id)) == SECRET


async def test_encoded_inputs_cannot_be_searched() -> None:
    async with Environment(make_app(AesGcm({"k1": OLD}))) as env:
        with pytest.raises(ConfigurationError, match="cannot be listed by input_contains"):
            await env.client.runs.list(input_contains={"a": 1})


def test_steps_for_which_the_database_looks_into_payloads_are_refused() -> None:
    app = App("bank", payload_codec=Zlib())
    flow = app.flow("steps", input=list[int])

    @flow.step
    def size(run: list[int]) -> int:
        return len(run)

    with pytest.raises(ConfigurationError, match="a map: the database divides the list"):

        @flow.map(flow.run)
        def element(number: int) -> int:
            return number

    with pytest.raises(ConfigurationError, match="a condition: the database compares"):

        @flow.step(when={"size": 3})
        def big(size: int) -> int:
            return size


def test_keys_in_encoded_inputs_are_refused() -> None:
    """With a path into an envelope, all runs would have one key."""
    app = App("bank", payload_codec=Zlib())

    async def pay(ctx: Context, card: dict[str, str]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"the key input.card is a path into the input"):
        app.workflow(name="limited", concurrency=Limit(5, key="input.card"))(pay)
    with pytest.raises(ConfigurationError, match=r"workflow single: the key input.card"):
        app.workflow(name="single", singleton=Singleton(key="input.card"))(pay)
    with pytest.raises(ConfigurationError, match=r"queue cards: the key input.card"):
        app.queue("cards", fairness="input.card")
    app.workflow(name="free", concurrency=Limit(5), singleton=Singleton())(pay)


async def test_keys_that_are_set_at_run_time_are_refused() -> None:
    """Of limits and of rules for one start: as those that code declares."""
    app, throttle = make_app(AesGcm({"k1": OLD})), Throttle(1, per="1m", key="input.card")

    @app.workflow
    async def untyped(ctx: Context, input: Any) -> None: ...

    async with Environment(app) as env:
        key = "the key input.card is a path into the input"
        with pytest.raises(ConfigurationError, match=f"workflow bank/child: {key}"):
            await env.client.limits.set(Limit(5, key="input.card"), workflow="child")
        with pytest.raises(ConfigurationError, match=f"queue cards: {key}"):
            await env.client.limits.set(Fairness("input.card"), queue="cards")
        rules: tuple[dict[str, Any], ...] = (
            {"singleton": Singleton(key="input.card")},
            {"throttle": throttle},
        )
        for rule in rules:
            with pytest.raises(ConfigurationError, match=f"start of bank/untyped: {key}"):
                await env.client.start("untyped", None, **rule)
        assert (await env.client.runs.list()).runs == []
        await env.client.limits.set(Limit(5), workflow="child")
        await env.client.start("untyped", SECRET, singleton=Singleton())


async def test_why_a_run_is_stuck_is_encoded_if_it_quotes_the_code() -> None:
    """Fault: the message and the traceback of what changed code raises were stored readable."""

    def make(*, fails: bool) -> App:
        app = App("bank", payload_codec=AesGcm({"k1": OLD}))

        @app.step
        async def charge() -> None: ...

        @app.workflow
        async def pay(ctx: Context, card: str) -> None:
            if fails:
                raise ValueError(f"lost {card}")
            await charge()
            await ctx.wait_for_signal("paid")

        return app

    store = MemoryStore()
    async with Client(store=store, app=make(fails=False)) as client:
        run = await client.start("pay", SECRET)
        for fails, state in ((False, "waiting"), (True, "stuck")):
            worker = Worker(make(fails=fails), store)
            await worker.start()
            if fails:
                await run.signal("paid", SECRET)
            async with asyncio.timeout(20):
                while (await run.get()).state != state:
                    await asyncio.sleep(0.01)
            await worker.stop(grace=0)
        assert SECRET not in stored(store)
        wait = (await run.get()).wait
        assert wait is not None
        assert f"ValueError: lost {SECRET}" in (wait.stuck or "")
        assert f"lost {SECRET}" in str(await client.why(run.run_id))
        shown = await with_payloads(store, READABLE).get_runs([run.run_id])
        locked = shown[run.run_id].wait
        assert locked is not None
        assert locked.stuck == "(encrypted with key k1)"
    async with Client(store=store) as other:
        assert "(encrypted with key k1)" in str(await other.why(run.run_id))


@pytest.mark.parametrize("codec", [None, AesGcm({"k1": OLD})], ids=["readable", "encoded"])
async def test_a_reason_may_quote_an_encoded_payload(codec: AesGcm | None) -> None:
    """Fault: `why` took the reason for one that is encoded, and did not say it."""
    app = App("bank", payload_codec=codec)

    @app.workflow
    async def pay(ctx: Context) -> None:
        await ctx.wait_for_signal("paid")

    async def pay_in_error(ctx: Context) -> None:
        raise ValueError('got {"holdfast:codec":"zlib/1","data":"x"}')

    store = MemoryStore()
    async with Client(store=store, app=app) as client:
        run = await client.start(pay)
        for state in ("waiting", "stuck"):
            worker = Worker(app, store)
            await worker.start()
            if state == "stuck":
                await run.signal("paid")
            async with asyncio.timeout(20):
                while (await run.get()).state != state:
                    await asyncio.sleep(0.01)
            await worker.stop(grace=0)
            pay.fn = pay_in_error
        assert "ValueError: got {" in str(await client.why(run.run_id))


@dataclass
class UnknownCard:
    """A card that newer code refuses, and says which."""

    number: str

    def __post_init__(self) -> None:
        raise ValueError(f"no bank has {self.number}")


async def test_why_an_activity_is_held_is_encoded() -> None:
    """Fault: what newer code said of the arguments was stored readable."""

    def make(kind: Any) -> App:
        app = App("bank", payload_codec=AesGcm({"k1": OLD}))

        async def print_card(card: Any) -> None: ...

        print_card.__annotations__["card"] = kind
        activity = app.activity(queue="printer")(print_card)

        @app.workflow
        async def pay(ctx: Context, card: str) -> None:
            await activity({"number": card})

        return app

    store = MemoryStore()
    async with Client(store=store, app=make(dict[str, str])) as client:
        run = await client.start("pay", SECRET)
        opened = with_payloads(store, Payloads(AesGcm({"k1": OLD})))
        for kind, queue in ((dict[str, str], "default"), (UnknownCard, "printer")):
            worker = Worker(make(kind), store, options=WorkerOptions(queues=(queue,)))
            await worker.start()
            async with asyncio.timeout(20):
                while not (found := await opened.list_activities(run.run_id)) or (
                    queue == "printer" and found[0].stuck is None
                ):
                    await asyncio.sleep(0.01)
            await worker.stop(grace=0)
        assert SECRET not in stored(store)
        assert f"no bank has {SECRET}" in (found[0].stuck or "")
        assert f"no bank has {SECRET}" in str(await client.why(run.run_id))
    async with Client(store=store) as other:
        assert ": (encrypted with key k1)" in str(await other.why(run.run_id))


async def test_the_environment_says_why_a_run_of_an_app_with_a_codec_is_stuck() -> None:
    app = App("bank", payload_codec=AesGcm({"k1": OLD}))

    @app.workflow
    async def pay(ctx: Context, card: str) -> None:
        time.sleep(0.001)  # noqa: ASYNC251

    async with Environment(app) as env:
        with pytest.raises(AssertionError, match=r"is stuck: .*time\.sleep"):
            await env.run(pay, SECRET)


@pytest.mark.parametrize("told", [True, False], ids=["told", "conflict"])
async def test_a_leased_run_does_not_read_what_it_cannot_open(told: bool) -> None:
    """As at a claim: it is stuck, and its code never sees the envelope."""
    app, seen = App("bank", payload_codec=AesGcm({"k1": OLD})), list[object]()
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.step
    async def look() -> None:
        entered.set()
        await leave.wait()

    @app.workflow
    async def watch(ctx: Context) -> None:
        await look()
        seen.append(await ctx.wait_for_signal("more"))

    store = MemoryStore()
    worker = Worker(app, store)
    stranger = Client(store=store, payload_codec=AesGcm({"k2": NEW}))
    async with Client(store=store, app=app) as client, stranger:
        run = await client.start("watch")
        await worker.start()
        await entered.wait()
        if told:
            await stranger.handle(run.run_id).signal("more", SECRET)
        else:
            silent = with_payloads(store, Payloads(AesGcm({"k2": NEW})))
            await silent.signal_runs([NewSignal(run.run_id, "more", f'"{SECRET}"')])
            leave.set()
        while (wait := (await client.runs.get(run.run_id)).wait) is None or wait.stuck is None:
            await asyncio.sleep(0)
        await worker.stop(grace=0)
        assert "a value is encrypted with key k2" in wait.stuck
        assert not seen


@pytest.mark.parametrize("codec", [AesGcm({"k1": OLD}), Zlib(min_bytes=0)], ids=["aes", "zlib"])
async def test_messages_are_clipped_after_they_are_opened(codec: Any) -> None:
    store = MemoryStore(clock=lambda: time.time_ns() // 1000)
    await store.open()
    async with Client(store=store, payload_codec=codec) as client:
        await client.queues.create("mail")
        for text in ("é" * 20_000, "short"):
            await client.queues.send("mail", text)
    opened = with_payloads(store, Payloads(codec))
    for clip, texts in ((4, ['"ééé', '"sho']), (30_000, [f'"{"é" * 20_000}"', '"short"'])):
        found = await opened.list_messages("mail", clip=clip)
        assert [each.payload for each in found] == texts
    assert [each.payload for each in await opened.list_messages("mail", clip=0)] == ["", ""]
