"""Streams from end to end: steps, activities and code write, readers read."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast import (
    App,
    Batch,
    Client,
    Context,
    Retry,
    current_activity,
    current_batch,
    current_flow_step,
    current_message,
    current_step,
)
from holdfast.client import RunHandle
from holdfast.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    InvalidName,
    PayloadError,
    RunFailed,
    RunNotFound,
    StreamClosed,
)
from holdfast.payloads import Zlib
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.types import NewChunk, Restarted, StreamItem, StreamRead
from holdfast.worker.options import WorkerOptions
from holdfast.worker.worker import Worker

QUICK = Retry(attempts=3, base=0.01, max=0.01)


class Cue:
    """Lets a test say when code continues, and see how far it is."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """Stop here until the test lets the code continue."""
        self.reached.set()
        await self.go.wait()


@asynccontextmanager
async def working(app: App, store: Store, **options: Any) -> AsyncGenerator[Worker]:
    """Run a worker while the block lasts."""
    worker = Worker(app, store, WorkerOptions(**{"poll_seconds": 0.02, **options}))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(0)


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    """Read a stream to its end."""
    return [each async for each in items]


async def until_written(handle: RunHandle[Any], values: int, name: str = "tokens") -> None:
    """Wait until a stream has so many values, a close among them."""
    async with asyncio.timeout(20):
        while sum(each.values for each in await handle.streams() if each.name == name) < values:
            await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Token:
    text: str
    logprob: float


async def test_a_step_writes_and_readers_read_to_the_end(store: Store, client: Client) -> None:
    """A reader that waits from the start, one that comes later, and one that resumes."""
    app = App("talk")

    @app.step
    async def say(words: list[str]) -> int:
        out = current_step().stream("tokens", type=Token)
        for word in words:
            await out.write(Token(word, 0.5))
        return len(words)

    @app.workflow
    async def talk(ctx: Context, words: list[str]) -> int:
        return await say(words) + await say(["z"])

    handle = await client.start(talk, ["a", "b", "c"])
    live = asyncio.create_task(collect(handle.stream("tokens", type=Token)))
    async with working(app, store):
        assert await handle.result(timeout=20) == 4
        tokens = [Token(text, 0.5) for text in "abcz"]
        assert await live == tokens
    assert await collect(handle.stream("tokens", type=Token)) == tokens
    assert await collect(handle.stream("tokens", after=3)) == [{"text": "z", "logprob": 0.5}]
    items = await collect(handle.stream_items("tokens", type=Token, after=2))
    assert items == [StreamItem(3, tokens[2], "say", 1), StreamItem(4, tokens[3], "say#2", 1)]
    assert await collect(handle.stream("none")) == []


async def test_what_is_written_is_read_while_the_step_runs(store: Store, client: Client) -> None:
    app, cue = App("talk"), Cue()

    @app.step
    async def say() -> None:
        out = current_step().stream("tokens")
        await out.write("a")
        await cue.wait()
        await out.write("b")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        items = handle.stream("tokens", type=str)
        assert await anext(items) == "a"
        assert not cue.go.is_set()
        cue.go.set()
        assert await anext(items) == "b"
        with pytest.raises(StopAsyncIteration):
            await anext(items)


async def test_the_next_attempt_takes_the_place_of_a_failed_one(
    store: Store, client: Client
) -> None:
    app, cue = App("talk"), Cue()

    @app.step(retry=QUICK)
    async def say() -> None:
        step = current_step()
        out = step.stream("tokens")
        for text in "ab":
            await out.write(f"{text}{step.attempt}")
        if step.attempt == 1:
            await cue.wait()
            raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    live = asyncio.create_task(collect(handle.stream_items("tokens", restarts=True)))
    plain = asyncio.create_task(collect(handle.stream("tokens")))
    async with working(app, store):
        await cue.reached.wait()
        early = handle.stream_items("tokens")
        first = [await anext(early), await anext(early)]  # pyright: ignore
        cue.go.set()
        await handle.result(timeout=20)
        assert [item.value for item in first if isinstance(item, StreamItem)] == ["a1", "b1"]
        seen = [each if isinstance(each, Restarted) else each.value for each in await live]
        assert seen in (["a1", "b1", Restarted("say", 2), "a2", "b2"], ["a2", "b2"])
        assert await plain in (["a1", "b1", "a2", "b2"], ["a2", "b2"])
    assert await collect(handle.stream("tokens")) == ["a2", "b2"]
    everything = await collect(handle.stream_items("tokens", attempts="all"))
    assert [(e.value, e.attempt) for e in everything] == [
        ("a1", 1),
        ("b1", 1),
        ("a2", 2),
        ("b2", 2),
    ]
    resumed = await collect(handle.stream_items("tokens", after=2, restarts=True))
    assert [each if isinstance(each, Restarted) else each.value for each in resumed] == [
        Restarted("say", 2),
        "a2",
        "b2",
    ]


async def test_an_attempt_that_writes_nothing_leaves_nothing_of_the_one_before(
    store: Store, client: Client
) -> None:
    app, cue = App("talk"), Cue()

    @app.step(retry=QUICK)
    async def say() -> None:
        if current_step().attempt == 1:
            await current_step().stream("tokens").write("a1")
            await cue.wait()
            raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        live = handle.stream_items("tokens", restarts=True)
        assert isinstance(await anext(live), StreamItem)
        cue.go.set()
        await handle.result(timeout=20)
        assert await collect(live) == [Restarted("say", 2)]
    assert await collect(handle.stream("tokens")) == []
    assert await collect(handle.stream_items("tokens", after=1, restarts=True)) == [
        Restarted("say", 2)
    ]


async def test_what_the_last_attempt_wrote_before_it_failed_stays(
    store: Store, client: Client
) -> None:
    app = App("talk")

    @app.step(retry=Retry(attempts=2, base=0.01))
    async def say() -> None:
        await current_step().stream("tokens").write(f"a{current_step().attempt}")
        raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
    assert await collect(handle.stream("tokens")) == ["a2"]


async def test_activities_and_threads_write(store: Store, client: Client) -> None:
    """In a thread, a write needs no await."""
    app = App("talk")

    @app.activity
    def shout(words: int) -> None:
        out = current_activity().stream("tokens", type=int)
        for number in range(words):
            out.write(number)

    @app.step
    def whisper(words: int) -> None:
        out = current_step().stream("tokens", type=int)
        for number in range(words):
            out.write(-number)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await shout(300)
        await whisper(300)

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    expected = [*range(300), *(-number for number in range(300))]
    assert await collect(handle.stream("tokens", type=int)) == expected


async def test_code_writes_once_however_often_it_is_replayed(store: Store, client: Client) -> None:
    app = App("talk")

    @app.workflow
    async def talk(ctx: Context) -> None:
        progress = ctx.stream("progress", type=dict[str, int])
        await progress.write({"done": 1})
        await ctx.wait_for_signal("go")
        await progress.write({"done": 2})

    handle = await client.start(talk)
    items = handle.stream("progress")
    async with working(app, store, cache=0):
        assert await anext(items) == {"done": 1}
    async with working(app, store, cache=0):
        await handle.signal("go")
        assert await anext(items) == {"done": 2}
        await handle.result(timeout=20)
    assert await collect(handle.stream("progress")) == [{"done": 1}, {"done": 2}]
    types = [entry.event.type for entry in await handle.log()]
    assert types.count("StreamWritten") == 2


async def test_code_writes_before_the_steps_that_it_calls_next(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the commit takes."""
    app, commit = App("talk"), store.commit

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.2)
        return await commit(*arguments)

    monkeypatch.setattr(store, "commit", slow)

    @app.step
    async def say(text: str) -> None:
        await current_step().stream("tokens").write(text)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("tokens").write("code 1")
        await say("step")
        await ctx.stream("tokens").write("code 2")

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    assert await collect(handle.stream("tokens")) == ["code 1", "step", "code 2"]


async def test_the_runs_of_a_chain_are_one_stream(store: Store, client: Client) -> None:
    app = App("talk")

    @app.step
    async def say(text: str) -> None:
        await current_step().stream("tokens").write(text)

    @app.workflow
    async def talk(ctx: Context, number: int) -> int:
        await say(f"step {number}")
        await ctx.stream("tokens").write(f"code {number}")
        if number < 3:
            ctx.continue_as_new(number + 1)
        return number

    handle = await client.start(talk, 1, key="k")
    live = asyncio.create_task(collect(handle.stream("tokens")))
    async with working(app, store):
        await handle.result(timeout=20)
    expected = [f"{who} {number}" for number in (1, 2, 3) for who in ("step", "code")]
    assert await live == expected
    by_key = client.handle((talk, "k"))
    for after in range(7):
        items = await collect(by_key.stream_items("tokens", after=after))
        assert [(e.offset, e.value) for e in items] == [
            (offset, expected[offset - 1]) for offset in range(after + 1, 7)
        ]


async def test_a_restart_leaves_what_earlier_runs_of_the_chain_wrote(
    store: Store, client: Client
) -> None:
    """Their steps have the same keys: the offset says which values are of this run."""
    app, cue = App("talk"), Cue()

    @app.step(retry=QUICK)
    async def say(number: int) -> None:
        step = current_step()
        await step.stream("tokens").write(f"{number} {step.attempt}")
        if (number, step.attempt) == (2, 1):
            await cue.wait()
            raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context, number: int) -> None:
        await say(number)
        if number < 2:
            ctx.continue_as_new(number + 1)

    handle = await client.start(talk, 1, key="k")
    by_key = client.handle((talk, "k"))
    async with working(app, store):
        live = by_key.stream_items("tokens", restarts=True)
        found = [await anext(live), await anext(live)]
        cue.go.set()
        await handle.result(timeout=20)
        found += await collect(live)
    resumed = await collect(by_key.stream_items("tokens", after=2, restarts=True))
    for rest in (found[2:], resumed):
        assert rest == [Restarted("say", 2, after=1), StreamItem(3, "2 2", "say", 2)]
    assert found[:2] == [StreamItem(1, "1 1", "say", 1), StreamItem(2, "2 1", "say", 1)]


async def test_a_closed_stream_ends_before_its_run(store: Store, client: Client) -> None:
    """Once the step that has closed it is recorded."""
    app, cue = App("talk"), Cue()

    @app.step(retry=QUICK)
    async def say() -> str:
        out = current_step().stream("tokens")
        await out.write(f"a{current_step().attempt}")
        await out.close()
        await out.close()
        if current_step().attempt == 1:
            await cue.wait()
            raise OSError("gone")
        with pytest.raises(StreamClosed, match="has closed it"):
            out.write("b")
        return "said"

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()
        await ctx.stream("code").write(1)
        await ctx.stream("code").close()
        await ctx.wait_for_signal("go")

    handle = await client.start(talk)
    async with working(app, store):
        live = handle.stream("tokens")
        assert await anext(live) == "a1"
        cue.go.set()
        assert await collect(live) == ["a2"]
        assert await collect(handle.stream("code")) == [1]
        assert await handle.status() == "running"
        await handle.cancel()


async def test_a_reader_that_follows_gets_nothing_after_a_close(
    store: Store, client: Client
) -> None:
    """Also while the step that has closed is not recorded yet, and when it continues later."""
    app, closed = App("talk"), Cue()

    @app.step
    async def say() -> None:
        out = current_step().stream("tokens")
        await out.write("a")
        await out.close()
        await closed.wait()

    @app.step
    async def shout() -> None:
        await current_step().stream("tokens").write("b")

    @app.workflow
    async def talk(ctx: Context) -> None:
        closing = asyncio.create_task(say())
        await ctx.wait_for_signal("closed")
        await shout()
        await ctx.wait_for_signal("go")
        await closing

    handle = await client.start(talk)
    async with working(app, store):
        live = asyncio.create_task(collect(handle.stream("tokens")))
        await closed.reached.wait()
        await until_written(handle, 2)
        await handle.signal("closed")
        await until_written(handle, 3)
        page = await handle.read_stream("tokens")
        assert ([each.value for each in page.items], page.next, page.ended) == (["a"], 1, False)
        assert not live.done()
        closed.go.set()
        await handle.signal("go")
        await handle.result(timeout=20)
        assert await live == ["a"]
    for after, expected in ((0, ["a"]), (1, [])):
        assert await collect(handle.stream("tokens", after=after)) == expected
    page = await handle.read_stream("tokens")
    assert (page.next, page.ended) == (1, True)


async def test_what_follows_the_close_of_an_attempt_that_does_not_count_is_read(
    store: Store, client: Client
) -> None:
    app, cue = App("talk"), Cue()

    @app.step(retry=QUICK)
    async def say() -> None:
        out = current_step().stream("tokens")
        await out.write(f"a{current_step().attempt}")
        if current_step().attempt == 1:
            await out.close()
            await cue.wait()
            raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()
        await ctx.stream("tokens").write("code")

    handle = await client.start(talk)
    async with working(app, store):
        live = handle.stream("tokens")
        assert await anext(live) == "a1"
        await until_written(handle, 2)
        cue.go.set()
        assert await collect(live) == ["a2", "code"]


async def test_an_archived_run_has_its_streams(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed, read and followed as before, also with a codec."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the worker's own is not to be first
    app = App("talk", payload_codec=Zlib(min_bytes=1))

    @app.step
    async def say() -> None:
        for number in range(300):
            await current_step().stream("tokens").write(f"{number} {'x' * 500}")

    @app.workflow(retention=0)
    async def talk(ctx: Context) -> None:
        await say()

    async with Client(store=store, app=app) as client:
        handle = await client.start(talk)
        async with working(app, store):
            await handle.result(timeout=20)
            before = await collect(handle.stream_items("tokens"))
        swept = [each async for each in sweep_batches(store, Archive(f"file://{tmp_path}"))]
        assert sum(each.deleted for each in swept) == 1
        assert await store.list_streams(handle.run_id) == []
        assert (await handle.get()).archive is not None
        assert [each.name for each in await handle.streams()] == ["tokens"]
        assert await collect(handle.stream_items("tokens")) == before
        page = await handle.read_stream("tokens", limit=2, after=3)
        assert (page.items, page.next) == (before[3:5], 5)
        with pytest.raises(RunNotFound):
            await collect(client.handle(uuid4()).stream("tokens"))


async def test_a_value_that_cannot_be_stored_is_refused_where_it_is_written(
    store: Store, client: Client
) -> None:
    """Too large, not JSON, a wrong name; the stream continues."""
    app = App("talk")

    @app.step
    async def say() -> list[str]:
        out, found = current_step().stream("tokens"), list[str]()
        for value in ("x" * 65_536, float("nan"), object(), "\0"):
            with pytest.raises(PayloadError) as refused:
                out.write(value)
            found.append(str(refused.value))
        with pytest.raises(InvalidName, match="a stream"):
            current_step().stream("to kens")
        await out.write("x" * 65_534)
        return found

    @app.workflow
    async def talk(ctx: Context) -> list[str]:
        with pytest.raises(InvalidName):
            ctx.stream("")
        for number in range(100):
            ctx.stream(f"s{number}")
        with pytest.raises(ConfigurationError, match="100"):
            ctx.stream("one-too-many")
        with pytest.raises(PayloadError):
            ctx.stream("s1").write("x" * 65_536)
        return await say()

    handle = await client.start(talk)
    async with working(app, store):
        found: Any = await handle.result(timeout=20)
    assert "65,536" in found[0] or "65536" in found[0]
    assert [len(value) for value in await collect(handle.stream("tokens", type=str))] == [65_534]


async def test_nothing_is_written_after_the_end_of_an_attempt(store: Store, client: Client) -> None:
    app, kept = App("talk"), list[Any]()

    @app.step
    async def say() -> None:
        kept.append(current_step())
        kept.append(current_step().stream("tokens"))
        await kept[1].write("a")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
        for write in (lambda: kept[1].write("b"), lambda: kept[0].stream("other")):
            with pytest.raises(StreamClosed, match="its attempt 1 has ended"):
                write()
    assert await collect(handle.stream("tokens")) == ["a"]


async def test_one_stream_too_many_fails_the_step(store: Store, client: Client) -> None:
    app = App("talk")

    @app.step
    async def say() -> None:
        for number in range(101):
            await current_step().stream(f"s{number}").write(number)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        with pytest.raises(RunFailed, match="has 100 streams and gets no more"):
            await handle.result(timeout=20)


async def test_bad_requests_of_readers_are_refused(store: Store, client: Client) -> None:
    app = App("talk")

    @app.step
    async def say() -> None:
        await current_step().stream("tokens").write("a")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    for error, items in (
        (InvalidName, handle.stream("to kens")),
        (InvalidInput, handle.stream("tokens", after=-1)),
        (InvalidInput, handle.stream("tokens", after=2)),
        (InvalidInput, handle.stream("tokens", type=int)),
        (RunNotFound, client.handle(uuid4()).stream("tokens")),
    ):
        with pytest.raises(error):
            await collect(items)


async def test_messages_batches_and_flows_have_no_streams(store: Store, client: Client) -> None:
    """They are told so where they ask for one."""
    app = App("talk")

    def ask(context: Any) -> str:
        with pytest.raises(ConfigurationError, match="cannot be written here") as refused:
            context.stream("tokens")
        return str(refused.value)

    @app.activity(batch=Batch(2, within=0.01))
    async def many(values: list[int]) -> list[str]:
        return [ask(element) for element in current_batch().elements]

    refusals = list[str]()

    @app.consumer("parcels")
    async def deliver(parcel: int) -> None:
        refusals.append(ask(current_message()))

    graph = app.flow("graph", input=int)

    @graph.step
    async def node(run: int) -> str:
        return ask(current_flow_step())

    @app.workflow
    async def talk(ctx: Context) -> list[str]:
        return list(await asyncio.gather(many(1), many(2)))

    await client.queues.create("parcels")
    await client.queues.send("parcels", 1)
    handle, flow = await client.start(talk), None
    async with working(app, store):
        assert len(cast("list[str]", await handle.result(timeout=20))) == 2
        flow = await client.start(graph, 1)
        assert "cannot be written here" in str(await flow.result(timeout=20))
        async with asyncio.timeout(20):
            while not refusals:
                await asyncio.sleep(0.01)


async def test_a_fork_writes_its_own_stream(store: Store, client: Client) -> None:
    """What code wrote is written again; steps that are kept are not executed."""
    app = App("talk")

    @app.step
    async def say(text: str) -> None:
        await current_step().stream("tokens").write(text)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("tokens").write("code 1")
        await say("kept")
        await ctx.stream("tokens").write("code 2")
        await say("again")

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
        assert await collect(handle.stream("tokens")) == ["code 1", "kept", "code 2", "again"]
        ends = [entry.idx for entry in await handle.log() if entry.event.type == "StepCompleted"]
        forked = await client.runs.fork(handle.run_id, index=ends[0] + 1)
        await forked.result(timeout=20)
        assert await collect(forked.stream("tokens")) == ["code 1", "code 2", "again"]


async def test_an_environment_has_streams() -> None:
    app = App("talk")

    @app.step(retry=Retry(attempts=2, base="1h", max="1h"))
    async def say() -> None:
        await current_step().stream("tokens").write(current_step().attempt)
        if current_step().attempt == 1:
            raise OSError("gone")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()
        await ctx.stream("tokens").write("done")

    async with Environment(app) as env:
        handle = await env.client.start(talk)
        await env.result(handle)
        assert await collect(handle.stream("tokens")) == [2, "done"]


async def test_the_database_may_be_away_while_a_step_writes(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to one call is lost, too: nothing is dropped, nothing is there twice."""
    app, write = App("talk"), store.write_streams
    calls = list[bool]()

    async def unreliable(*arguments: Any, again: bool = False) -> Any:
        calls.append(again)
        if len(calls) == 1:
            raise DatabaseUnavailable("away")
        answer = await write(*arguments, again=again)
        if len(calls) == 2:
            raise DatabaseUnavailable("the answer is lost")
        return answer

    monkeypatch.setattr(store, "write_streams", unreliable)

    @app.step
    async def say() -> None:
        out = current_step().stream("tokens")
        for number in range(3000):
            await out.write(f"{number:1000}")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=60)
    assert len(calls) >= 3
    assert calls[:3] == [False, True, True]
    assert [int(each) for each in await collect(handle.stream("tokens", type=str))] == [
        *range(3000)
    ]


async def test_a_chunk_that_is_refused_fails_its_own_attempt_alone(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other attempts wrote was sent in the same call."""
    app, write = App("talk"), store.write_streams

    async def strict(worker_id: str, chunks: Sequence[NewChunk], *, again: bool = False) -> Any:
        if any(each.name == "bad" for each in chunks):
            raise InvalidInput("the value of a stream is bad")
        return await write(worker_id, chunks, again=again)

    monkeypatch.setattr(store, "write_streams", strict)

    @app.step(retry=Retry.NEVER)
    async def say(name: str) -> None:
        await current_step().stream(name).write("a")

    @app.workflow
    async def talk(ctx: Context) -> list[str]:
        calls = (say(name) for name in ("good", "bad", "fine"))
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [str(each) for each in found]

    handle = await client.start(talk)
    async with working(app, store):
        good, bad, fine = await handle.result(timeout=20)
    assert (good, fine) == ("None", "None")
    assert "the value of a stream is bad" in bad
    for name, values in (("good", ["a"]), ("bad", []), ("fine", ["a"])):
        assert await collect(handle.stream(name)) == values


async def test_a_value_may_be_nested_as_deep_as_any_other(store: Store, client: Client) -> None:
    """The array around the values of a chunk does not count."""
    app = App("talk")
    deep: list[Any] = []
    for _ in range(255):
        deep = [deep]

    @app.step
    async def say() -> None:
        await current_step().stream("tokens").write(deep)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("tokens").write(deep)
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    assert await collect(handle.stream("tokens")) == [deep, deep]


async def test_a_thread_that_waits_for_room_ends_when_its_worker_stops(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, waits, ended = App("talk"), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def away(*_: Any, **__: Any) -> Any:
        waits.set()
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(store, "write_streams", away)

    @app.step
    def say() -> None:
        out = current_step().stream("tokens")
        try:
            for _ in range(100):
                out.write("x" * 20_000)
        except StreamClosed:
            loop.call_soon_threadsafe(ended.set)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    await client.start(talk)
    async with asyncio.timeout(20):
        async with working(app, store):
            await waits.wait()
        await ended.wait()


async def test_an_error_that_is_raised_for_each_value_does_not_grow(
    store: Store, client: Client
) -> None:
    app, lengths = App("talk"), list[int]()

    @app.step(retry=Retry.NEVER)
    async def say() -> None:
        step = current_step()
        for number in range(101):
            await step.stream(f"s{number}").write(number)
        while len(lengths) < 20:
            await asyncio.sleep(0.01)
            try:
                await step.stream("s1").write(1)
            except InvalidInput as error:
                lengths.append(len(traceback.extract_tb(error.__traceback__)))

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        with pytest.raises(RunFailed, match="gets no more"):
            await handle.result(timeout=20)
    assert len(set(lengths)) == 1


async def test_only_a_reader_who_asks_for_restarts_has_all_earlier_writers_looked_at(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each page of a run of many steps it would take longer than the page before."""
    app, read, asked = App("talk"), store.read_streams, list[StreamRead]()

    async def noted(reads: Sequence[StreamRead], **bounds: Any) -> Any:
        asked.extend(reads)
        return await read(reads, **bounds)

    monkeypatch.setattr(store, "read_streams", noted)

    @app.step
    async def say() -> None:
        await current_step().stream("tokens").write("a")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    assert (await handle.read_stream("tokens", after=1, restarts=True)).next == 2
    assert await collect(handle.stream("tokens", after=1)) == ["a"]
    assert not any(each.resumed for each in asked)
    asked.clear()
    assert len(await collect(handle.stream_items("tokens", after=1, restarts=True))) == 1
    assert [each.resumed for each in asked][:1] == [True]


async def test_many_readers_at_once_share_what_one_call_reads(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, read, most = App("talk"), store.read_streams, list[int]()

    async def noted(reads: Sequence[StreamRead], **bounds: int) -> Any:
        parts = await read(reads, **bounds)
        most.append(sum(len(chunk.items) for part in parts for chunk in part.chunks))
        return parts

    monkeypatch.setattr(store, "read_streams", noted)

    @app.step
    async def say() -> None:
        out = current_step().stream("tokens")
        for number in range(20):
            await out.write(f"{number:50000}")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await say()

    handle = await client.start(talk)
    async with working(app, store):
        await handle.result(timeout=20)
    readers = [collect(handle.stream("tokens", type=str)) for _ in range(60)]
    found = await asyncio.gather(*readers)
    assert all([int(value) for value in values] == [*range(20)] for values in found)
    assert max(most) < 12 * 1024 * 1024
