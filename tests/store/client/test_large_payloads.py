"""Large payloads are objects outside of the database; code sees no difference. On both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.errors import ConfigurationError, PayloadError, PayloadLocked
from holdfast.payloads import READABLE, AesGcm, LargePayloads, Zlib, with_payloads
from holdfast.store.port import Store
from holdfast.worker import Worker

BIG, SMALL = "big " * 2_000, "small"
REFERENCE = '"holdfast:codec":"object/1"'


def make_app(large: LargePayloads | None, **options: Any) -> App:
    """Return an app that has its input in every kind of payload."""
    app = App("bank", large_payloads=large, **options)

    @app.step
    async def copy(text: str) -> str:
        return text

    @app.step
    async def measure(text: str) -> int:
        return len(text)

    @app.activity
    async def fetch(text: str) -> str:
        return text

    @app.workflow
    async def echo(ctx: Context, text: str) -> str:
        return text

    @app.workflow
    async def relay(ctx: Context, text: str) -> int:
        return len(await ctx.child(echo, text))

    @app.workflow
    async def everything(ctx: Context, text: str) -> list[str]:
        ctx.set_value("seen", text)
        ctx.handle_update("double", lambda given: f"{given}{given}")
        results = [await copy(text), await fetch(text), await ctx.child(echo, text)]
        return [*results, str(await ctx.wait_for_signal("more"))]

    @app.workflow
    async def again(ctx: Context, text: str) -> str:
        if not text.startswith("x"):
            ctx.continue_as_new(f"x{text}")
        return await copy(text)

    flow = app.flow("steps", input=str)

    @flow.step
    async def first(run: str) -> str:
        return f"first {run}"

    @flow.step
    async def second(first: str, run: str) -> str:
        return f"second {first}"

    return app


@pytest.fixture
def large(tmp_path: Path) -> LargePayloads:
    """Return an option with a small threshold."""
    return LargePayloads(f"file://{tmp_path}/objects", above="4kB")


@asynccontextmanager
async def working(app: App, store: Store) -> AsyncGenerator[Client]:
    """Run a worker of the app while the block lasts, and provide a client of it."""
    worker = Worker(app, store)
    await worker.start()
    try:
        async with Client(store=store, app=app) as client:
            yield client
    finally:
        await worker.stop(grace=0)


async def names(store: Store, large: LargePayloads, run_id: UUID | None = None) -> list[str]:
    """Return the names of the objects, of a run or of all."""
    prefix = "payloads/" if run_id is None else f"payloads/{run_id}/"
    return [name async for name in store.objects_at(large.url).names(prefix)]


async def stored(store: Store, run_id: UUID) -> str:
    """Return what the database has of a run, as text."""
    run = (await store.get_runs([run_id]))[run_id]
    log = (await store.read_events([(run_id, 0)]))[run_id]
    return repr((run, log, await store.get_values([run_id])))


@pytest.mark.parametrize(
    "codec", [None, AesGcm({"k1": AesGcm.new_key()}), Zlib()], ids=["plain", "aes", "zlib"]
)
async def test_code_sees_no_difference_and_the_database_has_references(
    store: Store, large: LargePayloads, codec: Any
) -> None:
    big = (
        BIG
        if not isinstance(codec, Zlib)
        else "".join(f"{n * 7919 % 10007:x}" for n in range(9_000))
    )
    async with working(make_app(large, payload_codec=codec), store) as client:
        run = await client.start("everything", big)
        while not (await run.values()):
            await asyncio.sleep(0.01)
        assert await run.update("double", big) == big + big
        await run.signal("more", big)
        assert await run.result() == [big] * 4
        assert await run.values() == {"seen": big}
        assert len((await run.log())[0].event.details or "") > len(big)
        assert big[:100] not in (text := await stored(store, run.run_id))
        assert text.count(REFERENCE) >= 9
        assert len(text) < 9_000
        again = await client.start("again", big)
        assert await again.result() == f"x{big}"
        flow = await client.start("steps", big)
        assert await flow.result() == {"second": f"second first {big}"}
    mine = await names(store, large, run.run_id)
    if not isinstance(codec, AesGcm):
        # The text, the activity's arguments, what the update returned, the output: each once.
        assert len(mine) == 4


async def test_small_payloads_stay_in_the_database(store: Store, large: LargePayloads) -> None:
    async with working(make_app(large), store) as client:
        assert await (await client.start("relay", SMALL)).result() == 5
    assert await names(store, large) == []


async def test_a_worker_without_the_option_leaves_the_run_alone(
    store: Store, large: LargePayloads
) -> None:
    """It does not take the reference for the value: the run is stuck, and says where it is."""
    async with Client(store=store, app=make_app(large)) as client:
        run = await client.start("echo", BIG)
        worker = Worker(make_app(None), store)
        await worker.start()
        while (wait := (await client.runs.get(run.run_id)).wait) is None or wait.stuck is None:
            await asyncio.sleep(0.01)
        await worker.stop(grace=0)
        assert wait.stuck.startswith(f"a value is 8 kB in {large.url}/payloads/{run.run_id}/")
        assert "large_payloads" in wait.stuck
    async with Client(store=store) as other:
        with pytest.raises(PayloadLocked, match="large_payloads"):
            _ = (await other.runs.get(run.run_id)).input
    async with Client(store=with_payloads(store, READABLE)) as reader:
        shown = cast("str", (await reader.runs.get(run.run_id)).input)
        assert shown.startswith(f"(8 kB in {large.url}/payloads/")


async def test_what_looks_like_a_reference_is_refused(store: Store, large: LargePayloads) -> None:
    async with working(make_app(large), store) as client:
        run = await client.start("everything", SMALL)
        for value in ({"holdfast:codec": "object/1", "data": "x"}, [{"holdfast:codec": BIG}]):
            with pytest.raises(PayloadError, match="holdfast:codec is reserved"):
                await run.signal("more", value)
        text = '{"holdfast:codec":"object/1"}'  # in a string it is any text
        assert await (await client.start("echo", text)).result() == text


async def test_a_start_within_a_transaction_puts_its_input_before(
    store: Store, large: LargePayloads, request: pytest.FixtureRequest
) -> None:
    """`Session.sealed` is what such a start sends."""
    app = make_app(large)
    async with Client(store=store, app=app) as client:
        run = await client.start("echo", BIG)
        assert len(await names(store, large, run.run_id)) == 1


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="does not name a place for objects"):
        LargePayloads("https://example.org/payloads")
    for size in ("much", "999", -1, "1 TB", True):
        with pytest.raises(ConfigurationError, match="above is a size of 1,000 bytes or more"):
            LargePayloads("file:///payloads", above=size)
    with pytest.raises(ConfigurationError, match="large_payloads takes LargePayloads"):
        App("bank", large_payloads=cast("Any", "s3://bucket"))
