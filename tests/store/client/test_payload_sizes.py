"""Payloads that are larger than their app allows, through clients and workers, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from holdfast import App, Context, RunFailed
from holdfast.client import Client
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.payloads import Codecs, Zlib
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.worker import Worker

LIMIT = 2_000
LARGE, SMALL = 3_000 * "x", "small"


def make_app(limit: int | None = LIMIT, codec: Codecs | None = None) -> App:
    """Return an app whose workflows have a value of their input's size in each place."""
    app = App("bank", max_payload_bytes=limit, payload_codec=codec)

    @app.step
    async def read(size: int) -> str:
        return size * "x"

    @app.activity
    async def fetch(size: int) -> str:
        return size * "x"

    @app.workflow
    async def by_step(ctx: Context, size: int) -> int:
        return len(await read(size))

    @app.workflow
    async def by_activity(ctx: Context, size: int) -> int:
        return len(await fetch(size))

    @app.workflow
    async def by_output(ctx: Context, size: int) -> str:
        return size * "x"

    @app.workflow
    async def by_error(ctx: Context, size: int) -> str:
        raise ValueError(size * "x")

    @app.workflow
    async def by_value(ctx: Context, size: int) -> int:
        ctx.set_value("page", size * "x")
        await read(1)
        return size

    @app.workflow
    async def echo(ctx: Context, text: str) -> int:
        return len(text) + len(str(await ctx.wait_for_signal("more")))

    flow = app.flow("steps", input=int)

    @flow.step
    async def first(run: int) -> str:
        return run * "x"

    return app


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


@pytest.mark.parametrize(
    ("workflow", "named"),
    [
        ("by_step", "the result of read cannot be stored: it takes 3,002 bytes"),
        ("by_activity", "the result of activity fetch takes 3,002 bytes"),
        ("by_output", "the run's end cannot be stored: its output takes 3,002 bytes"),
        ("steps", "the result of step first takes 3,002 bytes"),
    ],
)
async def test_a_result_that_is_too_large_fails_and_is_named(
    store: Store, workflow: str, named: str
) -> None:
    """Trap 20. The runs beside it, whose results are committed with it, complete."""
    async with working(make_app(), store) as client:
        runs = await client.start_many(workflow, [10, 3_000, 11])
        with pytest.raises(RunFailed) as failed:
            await runs[1].result()
        assert named in str(failed.value)
        assert "more than the limit of 2,000 (max_payload_bytes)" in str(failed.value)
        await asyncio.gather(runs[0].result(), runs[2].result())


async def test_an_input_and_a_signal_that_are_too_large_are_refused(store: Store) -> None:
    async with Client(store=store, app=make_app()) as client:
        with pytest.raises(
            PayloadError, match=r"the input of bank/echo with the key k1 takes 3,002 bytes, more"
        ):
            await client.start("echo", LARGE, key="k1")
        with pytest.raises(PayloadError, match=r"the input of bank/echo takes 3,002 bytes"):
            await client.start_many("echo", [SMALL, LARGE])
        assert (await client.runs.list()).runs == []
        good, bad = await asyncio.gather(
            client.start("echo", SMALL), client.start("echo", LARGE), return_exceptions=True
        )
        assert isinstance(bad, PayloadError)
        assert not isinstance(good, BaseException)
        with pytest.raises(
            PayloadError, match=f"the payload of signal more to run {good.run_id} takes 3,002"
        ):
            await good.signal("more", LARGE)
        assert len(await good.log()) == 1


async def test_a_message_that_is_too_large_for_a_value_stays_readable(store: Store) -> None:
    """The failure of a large value must be storable, so errors have no limit of their own."""
    async with working(make_app(limit=50), store) as client:
        with pytest.raises(RunFailed, match="xxx"):
            await (await client.start("by_error", 200)).result()


async def test_a_run_with_a_value_that_is_too_large_is_stuck_and_says_so(store: Store) -> None:
    async with working(make_app(), store) as client:
        run = await client.start("by_value", 3_000)
        while (wait := (await client.runs.get(run.run_id)).wait) is None or wait.stuck is None:
            await asyncio.sleep(0.01)
        assert "the value page takes 3,002 bytes, more than the limit of 2,000" in wait.stuck
        assert len(await run.log()) == 1


async def test_a_stuck_run_continues_when_the_limit_is_higher() -> None:
    app = make_app()
    async with Environment(app) as env:
        run = await env.client.start("by_value", 3_000)
        await env.advance("1s")
        assert len(await run.log()) == 1
        assert app.payloads is not None
        app.payloads.max_bytes = 4_000
        await env.advance("10s")
        assert await run.result() == 3_000


async def test_what_is_stored_counts(store: Store) -> None:
    """After the codec: what is compressed may be larger before."""
    async with working(make_app(codec=Zlib()), store) as client:
        assert await (await client.start("by_step", 3_000)).result() == 3_000
    async with Client(store=store, app=make_app(limit=20, codec=Zlib(min_bytes=0))) as client:
        with pytest.raises(PayloadError, match=r"takes \d+ bytes encoded, more than the limit"):
            await client.start("echo", LARGE)


@pytest.mark.parametrize("limit", [0, -1, 16 * 1024 * 1024 + 1, True, "1 MiB"])
def test_limits_that_cannot_be_are_refused(limit: int) -> None:
    with pytest.raises(ConfigurationError, match=r"from 1 to 16,777,216"):
        App("bank", max_payload_bytes=limit)


def test_a_limit_alone_hides_nothing() -> None:
    """Only with a codec can the database not look into inputs."""
    app = App("bank", max_payload_bytes=LIMIT)
    app.queue("cards", fairness="input.card")
