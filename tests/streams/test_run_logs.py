"""Run logs: what code logs by `logging` is kept with its run, once, and costs the run nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from holdfast import App, Client, Context, Retry
from holdfast.client.run_logs import LogOptions
from holdfast.codec import is_sealed
from holdfast.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    PayloadLocked,
    RunNotFound,
)
from holdfast.payloads import Zlib
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.types import LOG_STREAM, LogLine, StreamRead
from holdfast.worker import WorkerOptions
from holdfast.worker import run_logs as run_logs_module
from tests.server.shop import HOST, KEY
from tests.server.test_attach import attached
from tests.streams.test_streams import QUICK, Cue, working

log = logging.getLogger("shop.packing")

app = App("shop")


@app.step(retry=QUICK)
async def pack(item: str) -> None:
    log.debug("looking for %s", item, extra={"shelf": 7, "odd": object})
    if item == "vase" and not broken:
        broken.append(item)
        log.error("dropped the %s", item)
        raise OSError("broken")


@app.step
def weigh(item: str) -> None:
    log.info("weighing %s", item)


@app.activity
async def carry(item: str) -> None:
    log.warning("carrying %s", item)


@app.workflow
async def ship(ctx: Context, item: str) -> None:
    log.info("shipping %s", item)
    await pack(item)
    ctx.log.info("packed")
    await weigh(item)
    await carry(item)
    log.info("shipped %s", item)


broken: list[str] = []


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Let the root logger pass everything, as `holdfast worker --log-level debug` does."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    broken.clear()
    yield
    root.setLevel(before)


@asynccontextmanager
async def kept(store: Store, app: App = app, **options: Any) -> AsyncGenerator[Client]:
    """Run a worker that keeps what is logged while the block lasts, with a client."""
    async with Client(store=store, app=app) as client:
        async with working(app, store, run_logs=True, **options):
            yield client


async def lines_of(store: Store, run: Any, app: App | None = None, **options: Any) -> list[LogLine]:
    """Return all lines of a run: the worker has stopped, and sent the last ones."""
    async with Client(store=store, app=app) as client:
        return [each async for each in client.runs.follow_log_lines(run, **options)]


def told(lines: list[LogLine]) -> list[tuple[str, int, str]]:
    return [(each.call, each.attempt, each.message) for each in lines]


async def test_lines_of_code_steps_threads_and_activities_are_kept(store: Store) -> None:
    """With level, call and attempt, also those of an attempt that failed."""
    async with kept(store) as client:
        handle = await client.start(ship, "vase")
        live, found = client.runs.follow_log_lines(handle.run_id), list[LogLine]()
        async with asyncio.timeout(20), aclosing(live):
            async for line in live:
                found.append(line)
                if len(found) == 8:
                    break
        await handle.result(timeout=20)
    lines = await lines_of(store, handle.run_id)
    assert found == lines
    assert told(lines) == [
        ("", 1, "shipping vase"),
        ("pack", 1, "looking for vase"),
        ("pack", 1, "dropped the vase"),
        ("pack", 2, "looking for vase"),
        ("", 1, "packed"),
        ("weigh", 1, "weighing vase"),
        ("carry", 1, "carrying vase"),
        ("", 1, "shipped vase"),
    ]
    assert [each.offset for each in lines] == [*range(1, 9)]
    assert [each.level for each in lines[1:3]] == ["debug", "error"]
    assert lines[1].fields == {"shelf": 7, "odd": "<class 'object'>"}
    assert lines[1].logger == "shop.packing"


async def test_lines_are_filtered_and_paged(store: Store) -> None:
    async with kept(store) as client:
        handle = await client.start(ship, "lamp")
        await handle.result(timeout=20)
        run = handle.run_id
    assert told(await lines_of(store, run, level="warning")) == [("carry", 1, "carrying lamp")]
    async with Client(store=store) as client:
        page = await client.runs.read_log_lines(run, call="", limit=2)
        assert (told(page.lines), page.ended) == (
            [("", 1, "shipping lamp"), ("", 1, "packed")],
            False,
        )
        rest = await client.runs.read_log_lines(run, call="", after=page.next)
        assert (told(rest.lines), rest.ended) == ([("", 1, "shipped lamp")], True)
        assert (await client.runs.read_log_lines(run, call="none")).lines == []
        assert await client.handle(run).streams() == []
        wrong: list[tuple[type[Exception], Any, dict[str, Any]]] = [
            (InvalidInput, run, {"level": "loud"}),
            (InvalidInput, run, {"limit": 0}),
            (InvalidInput, run, {"after": 99}),
            (ConfigurationError, run, {"who": "me"}),
            (RunNotFound, uuid4(), {}),
        ]
        for error, of, options in wrong:
            with pytest.raises(error):
                await client.runs.read_log_lines(of, **options)


async def test_lines_are_found_by_the_name_of_their_step(memory_store: MemoryStore) -> None:
    own = App("shop")

    @own.step
    async def look(item: str) -> None:
        log.info("looking for %s", item)

    @own.workflow
    async def search(ctx: Context) -> None:
        log.info("searching")
        await look("vase")
        await ctx.step("desk.look_up", look.fn, "lamp", id="desk.look_up.call-7")
        await look("cup")

    found: dict[str, list[str]] = {}
    async with kept(memory_store, own) as client:
        handle = await client.start(search)
        await handle.result("60s")
    async with Client(store=memory_store, app=own) as client:  # the worker has sent all lines
        for call in ("look", "look#2", "desk.look_up", "desk.look_up.call-7", "", "none"):
            page = await client.runs.read_log_lines(handle.run_id, call=call)
            found[call] = [line.message for line in page.lines]
    assert found == {
        "look": ["looking for vase", "looking for cup"],
        "look#2": ["looking for cup"],
        "desk.look_up": ["looking for lamp"],
        "desk.look_up.call-7": ["looking for lamp"],
        "": ["searching"],
        "none": [],
    }


async def test_nothing_is_kept_unless_it_is_asked_for(store: Store) -> None:
    async with Client(store=store) as client, working(app, store):
        handle = await client.start(ship, "lamp")
        await handle.result(timeout=20)
        assert (await client.runs.read_log_lines(handle.run_id)).lines == []
    assert not any(type(each).__name__ == "RunLogs" for each in logging.getLogger().handlers)


async def test_a_replay_writes_no_line_again(memory_store: MemoryStore) -> None:
    """A run that is replayed at each wake-up, here and on another worker."""
    shop = App("shop")

    @shop.workflow
    async def wait(ctx: Context) -> None:
        for number in range(3):
            log.info("waiting for %d", number)
            await ctx.wait_for_signal("go")
            log.info("heard %d", number)

    expected = list[str]()
    async with Client(store=memory_store) as client:
        handle = await client.start(wait)
        for number in range(3):
            async with working(shop, memory_store, run_logs=True, check="warn"):
                expected += [f"waiting for {number}", f"heard {number}"]
                await handle.signal("go")
                async with asyncio.timeout(20):
                    while True:
                        page = await client.runs.read_log_lines(handle.run_id)
                        if expected[-1] in [each.message for each in page.lines]:
                            break
                        await asyncio.sleep(0.01)
    lines = await lines_of(memory_store, handle.run_id)
    assert [each.message for each in lines] == expected


async def test_a_line_is_bounded_and_cannot_break_the_log(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones, NUL characters, half characters, values that raise, and tracebacks."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest cannot take it
    monkeypatch.setattr(logging, "raiseExceptions", False)
    shop = App("shop")

    class Odd:
        def __str__(self) -> str:
            raise ValueError("no text")

    @shop.step
    async def speak() -> None:
        log.info("x" * 100_000, extra={"long": "y" * 100_000, "nan": float("nan")})
        log.info("a\0b\ud800")
        log.info("%s", Odd())
        log.info("%d", "no number")
        log.info("odd", extra={"odd": Odd()})
        try:
            raise OSError("z" * 100_000)
        except OSError:
            log.exception("failed")

    @shop.workflow
    async def talk(ctx: Context) -> None:
        await speak()

    async with kept(memory_store, shop) as client:
        handle = await client.start(talk)
        await handle.result(timeout=20)
    long, odd, beside, failed = await lines_of(memory_store, handle.run_id)
    assert (len(long.message), len(str(long.fields["long"])), long.fields["nan"]) == (
        8192,
        1024,
        "nan",
    )
    assert odd.message == "ab\\ud800"
    assert beside.fields == {"odd": "(no message: str() raised ValueError)"}
    assert failed.traceback is not None
    assert failed.traceback.endswith("zz")
    assert len(failed.traceback) == 8192


async def test_a_log_that_cannot_be_written_fails_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is lost: nothing is there twice. A call is refused: its lines are lost."""
    calls, write = list[bool](), store.write_logs

    async def unreliable(*given: Any, again: bool = False, **named: Any) -> Any:
        calls.append(again)
        answer = await write(*given, again=again, **named)
        if len(calls) == 1:
            raise DatabaseUnavailable("the answer is lost")
        return answer

    async def broken_store(*given: Any, **named: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(store, "write_logs", unreliable)
    async with kept(store) as client:
        handle = await client.start(ship, "lamp")
        await handle.result(timeout=20)
    assert len(await lines_of(store, handle.run_id)) == 6
    assert calls[:2] == [False, True]
    monkeypatch.setattr(store, "write_logs", broken_store)
    async with kept(store) as client:
        other = await client.start(ship, "lamp")
        await other.result(timeout=20)
    assert await lines_of(store, other.run_id) == []


async def test_a_flood_drops_lines_and_says_so(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away, the code that logs does not wait."""
    shop, cue, write = App("shop"), Cue(), memory_store.write_logs

    async def away(*given: Any, **named: Any) -> Any:
        await cue.wait()
        return await write(*given, **named)

    monkeypatch.setattr(memory_store, "write_logs", away)
    monkeypatch.setattr(run_logs_module, "_STOP_SECONDS", 60)  # on a busy machine, too

    @shop.step
    def shout() -> None:
        for number in range(2_000):
            log.info("%d %s", number, "x" * 200)

    @shop.workflow
    async def talk(ctx: Context) -> None:
        await shout()

    async with kept(memory_store, shop) as client:
        handle = await client.start(talk)
        await handle.result(timeout=20)
        await cue.reached.wait()
        cue.go.set()
    lines = await lines_of(memory_store, handle.run_id)
    numbers = [int(each.message.split()[0]) for each in lines[:-1]]
    assert numbers == [*range(len(numbers))]
    assert 100 < len(numbers) < 2_000
    assert lines[-1].message.startswith(f"{2_000 - len(numbers):,} line(s) are missing")


async def test_threads_log_at_once_and_each_keeps_its_order(memory_store: MemoryStore) -> None:
    shop, together = App("shop"), threading.Barrier(4)

    @shop.step
    def count(name: str) -> None:
        together.wait(20)
        for number in range(50):
            log.info("%s %d", name, number)

    @shop.workflow
    async def talk(ctx: Context) -> None:
        await asyncio.gather(*(count(name) for name in "abcd"))

    async with kept(memory_store, shop) as client:
        handle = await client.start(talk)
        await handle.result(timeout=20)
    lines = await lines_of(memory_store, handle.run_id)
    for name in "abcd":
        mine = [each.message for each in lines if each.message.startswith(name)]
        assert mine == [f"{name} {number}" for number in range(50)]


async def test_workers_of_one_program_keep_a_line_once() -> None:
    """Each worker has the lines of its own runs and steps."""
    shop, other = App("shop"), App("other")

    @other.activity
    async def far() -> None:
        log.info("far")

    @shop.workflow
    async def near(ctx: Context) -> None:
        log.info("near")
        await ctx.activity("other/far", queue="other")

    options = WorkerOptions(run_logs=True, queues=("default", "other"))
    async with Environment(shop, other, options=options) as env:
        handle = await env.client.start(near)
        await env.result(handle)
        assert told((await env.client.runs.read_log_lines(handle.run_id)).lines) == [
            ("", 1, "near"),
            ("far", 1, "far"),
        ]


async def test_steps_of_flows_log(memory_store: MemoryStore) -> None:
    shop = App("shop")
    graph = shop.flow("graph", input=int)

    @graph.step
    async def node(run: int) -> int:
        log.info("node %d", run)
        return run

    async with kept(memory_store, shop) as client:
        handle = await client.start(graph, 3)
        await handle.result(timeout=20)
    assert told(await lines_of(memory_store, handle.run_id)) == [("node", 1, "node 3")]


async def test_each_run_of_a_chain_has_its_log(memory_store: MemoryStore) -> None:
    shop = App("shop")

    @shop.workflow
    async def loop(ctx: Context, number: int) -> None:
        log.info("round %d", number)
        if number < 3:
            ctx.continue_as_new(number + 1)

    async with kept(memory_store, shop) as client:
        handle = await client.start(loop, 1, key="k")
        await handle.result(timeout=20)
    for run, message in ((handle.run_id, "round 1"), (("shop/loop", "k"), "round 3")):
        [line] = await lines_of(memory_store, run)
        assert (line.offset, line.message) == (1, message)


async def test_a_codec_encodes_the_lines(store: Store) -> None:
    secret = App("secret", payload_codec=Zlib(min_bytes=1))

    @secret.workflow
    async def whisper(ctx: Context) -> None:
        log.info("a very long secret " * 20)

    async with kept(store, secret) as client:
        handle = await client.start(whisper)
        await handle.result(timeout=20)
    [line] = await lines_of(store, handle.run_id, secret)
    assert line.message == "a very long secret " * 20
    [part] = await store.read_streams(
        [StreamRead(handle.run_id, LOG_STREAM)], limit=9, most_bytes=10**6
    )
    assert all(is_sealed(each.items) for each in part.chunks)
    async with Client(store=store) as stranger:
        with pytest.raises(PayloadLocked):
            await stranger.runs.read_log_lines(handle.run_id)


async def test_lines_that_a_codec_refuses_lose_those_of_no_other_run(store: Store) -> None:
    class Odd(Zlib):
        def encode(self, data: bytes) -> bytes | None:
            if b"refused" in data:
                raise KeyError("no key")
            return super().encode(data)

    shop = App("shop", payload_codec=Odd())

    @shop.workflow
    async def sell(ctx: Context, item: str) -> None:
        log.info("selling" if item == "vase" else "refused")

    async with Client(store=store, app=shop) as client:  # they are claimed, and log, together
        runs = [await client.start(sell, item) for item in ("vase", "cup", "vase")]
    async with kept(store, shop) as client:
        for run in runs:
            await client.handle(run.run_id).result(timeout=20)
    found = [await lines_of(store, run.run_id, shop) for run in runs]
    assert [[line.message for line in lines] for lines in found] == [["selling"], [], ["selling"]]


async def test_lines_are_read_over_http(memory_store: MemoryStore) -> None:
    async with kept(memory_store) as client:
        handle = await client.start(ship, "lamp")
        await handle.result(timeout=20)
    async with (
        Server(store=memory_store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url=f"http://{HOST}",
            headers={"Authorization": f"Bearer {KEY}"},
        ) as http,
    ):
        path = f"/v1/runs/{handle.run_id}/logs"
        page = (await http.get(f"{path}?level=warning")).json()
        [line] = page["lines"]
        assert (line["message"], line["level"], line["call"]) == (
            "carrying lamp",
            "warning",
            "carry",
        )
        assert (page["ended"], page["dropped"], page["next"]) == (True, 0, 6)
        code = (await http.get(f"{path}?call=&limit=1")).json()
        assert ([each["message"] for each in code["lines"]], code["ended"]) == (
            ["shipping lamp"],
            False,
        )
        for ask, status in ((f"{path}?level=loud", 422), (f"/v1/runs/{uuid4()}/logs", 404)):
            assert (await http.get(ask)).status_code in (status, 400), ask


async def test_lines_are_followed_over_http(store: Store) -> None:
    """As events that come while the run is open, to its end, and that can be resumed."""
    patient, cue = App("shop"), Cue()

    @patient.step
    async def hold(item: str) -> None:
        log.info("holding %s", item)
        await cue.wait()
        log.error("let go of %s", item)

    @patient.workflow
    async def wait(ctx: Context, item: str) -> None:
        log.info("begin")
        await hold(item)

    async with (
        kept(store, patient) as client,
        Server(store=store, auth=KeyAccess(KEY), app=patient, hosts=[HOST]) as server,
    ):
        handle = await client.start(wait, "lamp")
        path = f"/v1/runs/{handle.run_id}/logs/follow"
        async with asyncio.timeout(30):
            async with attached(server, path) as live:
                assert await live.begin() == 200
                first, second = await live.event(), await live.event()
                assert first is not None
                assert second is not None
                cue.go.set()  # the rest is written while the caller reads
                rest = await live.rest()
            events = [first, second, *rest]
            assert [(name, id) for name, id, _ in events] == [
                ("line", "1"),
                ("line", "2"),
                ("line", "3"),
                ("end", "end"),
            ]
            lines = [each for _, _, each in events[:3]]
            assert [(each["call"], each["level"], each["message"]) for each in lines] == [
                ("", "info", "begin"),
                ("hold", "info", "holding lamp"),
                ("hold", "error", "let go of lamp"),
            ]
            assert [each["offset"] for each in lines] == [1, 2, 3]
            assert events[3][2] == {"after": 3}
            for query, given, expected in (
                ("?after=2", {}, events[2:]),
                ("?after=1", {"last_event_id": "2"}, events[2:]),
                ("?level=error", {}, events[2:]),
                ("?call=", {}, [events[0], ("end", "end", {"after": 1})]),
            ):
                async with attached(server, path + query, **given) as again:
                    assert await again.begin() == 200
                    assert await again.rest() == expected, query


async def test_what_cannot_be_followed_is_refused_before_anything_is_sent(
    memory_store: MemoryStore,
) -> None:
    async with kept(memory_store) as client:
        handle = await client.start(ship, "lamp")
        await handle.result(timeout=20)
    async with (
        Server(store=memory_store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url=f"http://{HOST}",
            headers={"Authorization": f"Bearer {KEY}"},
        ) as http,
    ):
        path = f"/v1/runs/{handle.run_id}/logs/follow"
        for ask, status in (
            (f"{path}?level=loud", 400),
            (f"{path}?after=-1", 400),
            (f"{path}?after=99", 422),
            (f"{path}?limit=1", 400),
            (f"/v1/runs/{uuid4()}/logs/follow", 404),
        ):
            answer = await http.get(ask)
            assert answer.status_code == status, (ask, answer.text)
        ended = await http.get(path, headers={"Last-Event-ID": "end"})
        assert ended.status_code == 204
        bad = await http.get(path, headers={"Last-Event-ID": "x"})
        assert bad.status_code == 400
        key = f"/v1/workflows/ship/runs/{handle.run_id}/logs/follow"
        assert '"shipped lamp"' in (await http.get(key)).text


async def test_an_odd_option_is_refused_before_anything_is_read(memory_store: MemoryStore) -> None:
    async with Client(store=memory_store) as client:
        odd: LogOptions = {"level": "loud"}  # type: ignore[typeddict-item]
        with pytest.raises(InvalidInput, match="debug, info, warning, error, critical"):
            await anext(client.runs.follow_log_lines(uuid4(), **odd))


async def test_a_retry_logs_that_it_is_one(memory_store: MemoryStore) -> None:
    """Also where the last attempt fails: what it logged is why people look."""
    shop = App("shop")

    @shop.step(retry=Retry(attempts=2, base=0.01, max=0.01))
    async def fail() -> None:
        log.error("cannot")
        raise OSError("gone")

    @shop.workflow
    async def talk(ctx: Context) -> None:
        await fail()

    async with kept(memory_store, shop) as client:
        handle = await client.start(talk)
        assert (await client.runs.wait(handle.run_id, "20s")).status == "failed"
    assert told(await lines_of(memory_store, handle.run_id)) == [
        ("fail", 1, "cannot"),
        ("fail", 2, "cannot"),
    ]
