"""Streams in the synchronous client, over REST, on the command line, and with a codec."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast import App, Client, Context, current_step
from holdfast.codec import is_sealed
from holdfast.errors import PayloadLocked, RunNotFound
from holdfast.payloads import Zlib
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.sync import SyncClient
from holdfast.types import Restarted, StreamItem
from tests.server.shop import HOST, KEY
from tests.server.test_attach import attached
from tests.streams.test_streams import QUICK, Cue, collect, working

cues: list[Cue] = []  # of the test that runs
app = App("talk")


@app.step(retry=QUICK)
async def say(words: list[str]) -> None:
    out = current_step().stream("tokens")
    for word in words:
        await out.write(f"{word}{current_step().attempt}")


@app.step(retry=QUICK)
async def falter() -> None:
    await current_step().stream("tokens").write(f"x{current_step().attempt}")
    if current_step().attempt == 1:
        await cues[-1].wait()
        raise OSError("gone")


@app.workflow
async def talk(ctx: Context, words: list[str]) -> None:
    await say(words)
    await ctx.stream("code").write({"done": 1})


@app.workflow
async def faltering(ctx: Context) -> None:
    await falter()


def test_the_synchronous_client_reads(database_url: str) -> None:
    async def run() -> Any:
        store = PostgresStore(database_url)
        async with Client(store=store) as client, working(app, store):
            handle = await client.start(talk, ["a", "b"])
            await handle.result(timeout=20)
        await store.close()
        return handle.run_id

    run_id = asyncio.run(run())
    with SyncClient(database_url) as client:
        handle = client.handle(run_id)
        assert list(handle.stream("tokens", type=str)) == ["a1", "b1"]
        items = handle.stream_items("tokens", after=1)
        assert next(items) == StreamItem(2, "b1", "say", 1)
        items.close()
        page = handle.read_stream("tokens", limit=1)
        assert ([item.value for item in page.items], page.next, page.ended) == (["a1"], 1, False)
        page = handle.read_stream("tokens", after=page.next)
        assert ([item.value for item in page.items], page.next, page.ended) == (["b1"], 2, True)
        assert [(each.name, each.values) for each in handle.streams()] == [
            ("code", 1),
            ("tokens", 2),
        ]
        with pytest.raises(RunNotFound):
            client.handle("018f0000-0000-7000-8000-000000000000").streams()


async def test_a_stream_is_read_over_http(store: Store) -> None:
    """As pages, and as events that can be resumed."""
    async with (
        Client(store=store) as client,
        working(app, store),
        Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url=f"http://{HOST}",
            headers={"Authorization": f"Bearer {KEY}"},
        ) as http,
    ):
        handle = await client.start(talk, ["a", "b", "c"])
        await handle.result(timeout=20)
        path = f"/v1/runs/{handle.run_id}/streams"
        listed = (await http.get(path)).json()["streams"]
        assert [each["name"] for each in listed] == ["code", "tokens"]
        page = (await http.get(f"{path}/tokens?limit=2")).json()
        assert ([item["value"] for item in page["items"]], page["next"]) == (["a1", "b1"], 2)
        page = (await http.get(f"{path}/tokens?after=2")).json()
        item = {"offset": 3, "value": "c1", "key": "say", "attempt": 1}
        assert page == {"items": [item], "next": 3, "ended": True}
        async with attached(server, f"{path}/tokens/follow") as live:
            assert await live.begin() == 200
            events = await live.rest()
        assert [each[:2] for each in events] == [
            ("item", "1"),
            ("item", "2"),
            ("item", "3"),
            ("end", "end"),
        ]
        assert events[2][2] == item
        for given in ({"last_event_id": "2"}, {}):
            after = "" if given else "?after=2"
            async with attached(server, f"{path}/tokens/follow{after}", **given) as resumed:
                await resumed.begin()
                assert await resumed.rest() == events[2:]
        ended = await http.get(f"{path}/tokens/follow", headers={"Last-Event-ID": "end"})
        assert ended.status_code == 204
        for ask, status in (
            (f"{path}/to%20kens", 422),
            (f"{path}/tokens?after=9", 422),
            (f"{path}/tokens/follow?after=9", 422),
            (f"{path}/tokens?limit=0", 422),
            ("/v1/runs/018f0000-0000-7000-8000-000000000000/streams/tokens", 404),
            ("/v1/runs/018f0000-0000-7000-8000-000000000000/streams", 404),
            ("/v1/runs/018f0000-0000-7000-8000-000000000000/streams/tokens/follow", 404),
        ):
            assert (await http.get(ask)).status_code in (status, 400), ask
        bad = await http.get(f"{path}/tokens/follow", headers={"Last-Event-ID": "x"})
        assert bad.status_code == 400


async def test_a_follower_reads_nothing_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of one page is one read."""
    async with (
        Client(store=store) as client,
        working(app, store),
        Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server,
    ):
        handle = await client.start(talk, ["a", "b", "c"])
        await handle.result(timeout=20)
        reads, read = list[Any](), store.read_streams

        async def counted(given: Any, **options: Any) -> Any:
            reads.extend(given)
            return await read(given, **options)

        monkeypatch.setattr(store, "read_streams", counted)
        async with attached(server, f"/v1/runs/{handle.run_id}/streams/tokens/follow") as live:
            assert await live.begin() == 200
            assert [name for name, _, _ in await live.rest()] == ["item", "item", "item", "end"]
    assert len(reads) == 1


async def test_a_restart_is_an_event(store: Store) -> None:
    cues.append(cue := Cue())
    async with (
        Client(store=store) as client,
        working(app, store),
        Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server,
    ):
        handle = await client.start(faltering)
        async with attached(server, f"/v1/runs/{handle.run_id}/streams/tokens/follow") as live:
            await live.begin()
            first = await live.event()
            assert first is not None
            assert (first[0], first[2]["value"]) == ("item", "x1")
            cue.go.set()
            rest = await live.rest()
        assert [(name, id) for name, id, _ in rest] == [
            ("restarted", None),
            ("item", "2"),
            ("end", "end"),
        ]
        assert rest[0][2] == {"key": "falter", "attempt": 2, "after": 0}


async def test_a_reader_that_leaves_costs_nothing_more(store: Store) -> None:
    """Its listener is gone, and the run's end is not waited for any more."""
    cues.append(cue := Cue())
    async with Client(store=store) as client, working(app, store):
        handle = await client.start(faltering)
        items = handle.stream_items("tokens", restarts=True)
        assert isinstance(await anext(items), StreamItem)
        await cue.reached.wait()
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await items.aclose()
        cue.go.set()
        await handle.result(timeout=20)
        resumed = await collect(handle.stream_items("tokens", after=1, restarts=True))
        assert resumed[0] == Restarted("falter", 2)


async def test_a_codec_encodes_what_is_written(store: Store) -> None:
    """Steps and code; who lacks the codec is told so."""
    secret = App("secret", payload_codec=Zlib(min_bytes=1))

    @secret.step
    async def speak() -> None:
        for _ in range(20):
            await current_step().stream("tokens").write("a very long secret " * 20)

    @secret.workflow
    async def whisper(ctx: Context) -> None:
        await speak()
        await ctx.stream("code").write("a very long secret " * 20)

    async with Client(store=store, app=secret) as client, working(secret, store):
        handle = await client.start(whisper)
        await handle.result(timeout=20)
        for name, count in (("tokens", 20), ("code", 1)):
            found = await collect(handle.stream(name, type=str))
            assert found == ["a very long secret " * 20] * count
            part = await store.read_streams(
                [_read(handle.run_id, name)], limit=100, most_bytes=10**6
            )
            assert all(is_sealed(each.items) for each in part[0].chunks)
    async with Client(store=store) as stranger:
        with pytest.raises(PayloadLocked):
            await collect(stranger.handle(handle.run_id).stream("tokens"))


def _read(run_id: Any, name: str) -> Any:
    from holdfast.types import StreamRead

    return StreamRead(run_id, name)


async def test_the_page_of_a_run_that_continues_another_shows_its_stream(store: Store) -> None:
    """It has a stream from its beginning, without a value of its own so far."""
    chain = App("talk")

    @chain.workflow
    async def long(ctx: Context, turn: int) -> None:
        if turn == 0:
            await ctx.stream("tokens").write("a")
            ctx.continue_as_new(1)

    async with (
        Client(store=store) as client,
        working(chain, store),
        Server(store=store, auth=KeyAccess(KEY), app=chain, hosts=[HOST]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url=f"http://{HOST}",
            headers={"Authorization": f"Bearer {KEY}"},
        ) as http,
    ):
        handle = await client.start(long, 0, key="k")
        await handle.result(timeout=20)
        [stream] = await handle.streams()
        assert (stream.values, stream.last_offset) == (0, 1)
        page = await http.get(f"/runs/{(await handle.get()).run_id}?tab=streams")
        assert (page.status_code, "Stream tokens" in page.text) == (200, True)
