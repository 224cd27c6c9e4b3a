"""A retry continues the streams of its run: by key they are one, for readers cut off anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import App, Client, Context, Retry, current_activity, current_context, current_step
from holdfast.client import RunHandle
from holdfast.errors import InvalidInput, RunCancelled, RunFailed, StepFailed
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.memory.rows import StreamRow
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.sync import SyncClient
from holdfast.types import Chunk, Restarted, StreamItem, Writer
from tests.server.shop import HOST, KEY
from tests.server.test_attach import attached
from tests.streams.test_streams import collect, until_written, working

ONCE = Retry(attempts=1)
Shown = Sequence[StreamItem[Any] | Restarted]


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide a store whose clock moves, so that attempts of runs begin."""
    if request.param == "memory":
        opened: Store = MemoryStore(wall_clock)
    else:
        opened = PostgresStore(request.getfixturevalue("database_url"), tells=True)
    await opened.open()
    yield opened
    await opened.close()


class Talk:
    """An app whose steps fail as often as a test says."""

    def __init__(self) -> None:
        self.app, self.failures, self.said = App("talk"), dict[str, int](), dict[str, int]()

        @self.app.step(retry=ONCE)
        async def say(text: str) -> None:
            self.said[text] = self.said.get(text, 0) + 1
            out = current_step().stream("tokens", type=str)
            for number in (1, 2):
                await out.write(f"{text}{number}.{self.said[text]} ")
            if self.failures.get(text, 0) >= self.said[text]:
                raise OSError("gone")

        self.say = say


async def read(handle: RunHandle[Any], after: int = 0) -> list[Any]:
    return await collect(handle.stream_items("tokens", type=str, after=after, restarts=True))


def page(shown: Shown) -> list[str]:
    """Return what a page shows, which forgets what restarts."""
    found: list[StreamItem[str]] = []
    for each in shown:
        if isinstance(each, Restarted):
            found = [it for it in found if it.key != each.key or it.offset <= each.after]
        else:
            found.append(each)
    return [each.value for each in found]


async def shows_all(handle: RunHandle[Any], whole: Sequence[str], *befores: Shown) -> None:
    """Check that a page which was cut off anywhere in one of `befores` shows all at last, once."""
    assert page(await read(handle)) == list(whole)
    assert [each.value for each in (await handle.read_stream("tokens")).items] == list(whole)
    assert await collect(handle.stream("tokens", type=str)) == list(whole)
    pages, after = list[str](), 0
    while found := await handle.read_stream("tokens", limit=1, after=after):
        pages += [each.value for each in found.items]
        after = found.next
        if found.ended:
            break
    assert pages == list(whole)
    rests = dict[int, Shown]()  # by the last offset that a page has
    for had in [before[:cut] for before in befores for cut in range(len(before) + 1)]:
        [*_, last] = [0, *(each.offset for each in had if isinstance(each, StreamItem))]
        if last not in rests:
            rests[last] = await read(handle, after=last)
        resumed = rests[last]
        assert page([*had, *resumed]) == list(whole), (had, resumed)
        offsets = [each.offset for each in [*had, *resumed] if isinstance(each, StreamItem)]
        assert offsets == sorted(set(offsets))


async def test_a_resumed_run_shows_what_it_kept_and_nothing_twice(
    store: Store, client: Client
) -> None:
    """It was cancelled while a step wrote: that step writes again."""
    talk, cues = Talk(), [asyncio.Event(), asyncio.Event()]

    @talk.app.step(retry=ONCE)
    async def hold() -> None:
        await current_step().stream("tokens").write(f"held{len(cues)} ")
        await cues.pop().wait()

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.stream("tokens").write("begin ")
        await talk.say("a")
        await hold()
        await talk.say("b")
        await ctx.stream("tokens").write("end ")

    handle = await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    async with working(talk.app, store):
        live = asyncio.create_task(read(by_key))
        await until_written(handle, 4)
        await by_key.cancel()
        with pytest.raises(RunCancelled):
            await by_key.result(timeout=20)
        before = await live
        assert page(before) == ["begin ", "a1.1 ", "a2.1 ", "held2 "]
        cues[0].set()
        retry = await client.runs.retry((chat, "k"))
        during = asyncio.create_task(read(by_key))
        await by_key.result(timeout=20)
    whole = ["begin ", "a1.1 ", "a2.1 ", "held1 ", "b1.1 ", "b2.1 ", "end "]
    assert page(await during) == whole
    await shows_all(by_key, whole, before)
    assert Restarted("hold", 1) in await read(by_key, after=4)
    assert page(await read(client.handle(handle.run_id))) == page(before)
    assert page(await read(client.handle(retry.run_id))) == whole[3:]
    assert page(await read(client.handle(retry.run_id), after=4)) == whole[3:]


async def test_attempts_of_a_run_restart_what_they_make_again(store: Store, client: Client) -> None:
    """Readers who were there are told, others see the attempt that counts, over HTTP as well."""
    talk = Talk()
    talk.failures["b"] = 2

    @talk.app.workflow(retry=Retry(attempts=3, base=0.2, max=0.2))
    async def chat(ctx: Context) -> None:
        await talk.say("a")
        try:
            await talk.say("b")
        finally:
            await ctx.stream("tokens").close()
        await talk.say("c")

    handle = await client.start(chat, key="k")
    by_key, by_id = client.handle((chat, "k")), client.handle(handle.run_id)
    async with working(talk.app, store):
        await until_written(by_id, 4)
        before = (await by_key.read_stream("tokens", attempts="all")).items[:4]
        await by_key.result(timeout=20)
    whole = ["a1.1 ", "a2.1 ", "b1.3 ", "b2.3 "]
    await shows_all(by_key, whole, before)
    await shows_all(by_id, whole, before)
    async with Server(store=store, auth=KeyAccess(KEY), app=talk.app, hosts=[HOST]) as server:
        path = f"/v1/runs/{handle.run_id}/streams/tokens/follow"
        async with attached(server, path, last_event_id="4") as live:
            await live.begin()
            events = await live.rest()
    assert [event[0] for event in events] == ["restarted", "item", "item", "end"]
    assert events[0][2] == {"key": "say#2", "attempt": 1, "after": 0}


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_close_of_the_code_that_a_retry_keeps_ends_the_stream(
    store: Store, client: Client, attempts: int
) -> None:
    """Fault: readers went on to what steps of the retry wrote, as the close counted no more."""
    talk = Talk()
    talk.failures["b"] = attempts

    @talk.app.workflow(retry=Retry(attempts=attempts, base=0.01, max=0.01))
    async def chat(ctx: Context) -> None:
        await talk.say("a")
        await ctx.stream("tokens").write("over ")
        await ctx.stream("tokens").close()
        await ctx.stream("other").close()
        await talk.say("b")

    handle = await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    whole = ["a1.1 ", "a2.1 ", "over "]
    async with working(talk.app, store):
        before = await read(by_key)
        assert page(before) == whole
        with pytest.raises(RunFailed):
            await by_key.result(timeout=20)
        await client.runs.retry((chat, "k"))
        await by_key.result(timeout=20)
    await shows_all(by_key, whole, before)
    await shows_all(handle, whole, before)
    assert (await handle.read_stream("tokens", after=3)).ended
    async with Server(store=store, auth=KeyAccess(KEY), app=talk.app, hosts=[HOST]) as server:
        path = f"/v1/runs/{handle.run_id}/streams/tokens/follow"
        async with attached(server, path) as live:
            await live.begin()
            events = await live.rest()
    assert [event[0] for event in events] == ["item", "item", "item", "end"]


async def test_a_close_of_the_code_counts_in_the_retry_that_keeps_it(
    store: Store, client: Client
) -> None:
    """The first run closes because of a failure, its retry for good; the next one keeps that."""
    talk = Talk()
    talk.failures |= {"a": 1, "b": 1}

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        try:
            await talk.say("a")
        finally:
            await ctx.stream("tokens").close()
        await talk.say("b")

    await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    async with working(talk.app, store):
        for _ in range(2):
            with pytest.raises(RunFailed):
                await by_key.result(timeout=20)
            before = await read(by_key)
            await client.runs.retry((chat, "k"))
        await by_key.result(timeout=20)
    assert page(before) == ["a1.2 ", "a2.2 "]
    await shows_all(by_key, ["a1.2 ", "a2.2 "], before)


async def test_a_reader_is_there_while_a_run_is_tried_again(store: Store, client: Client) -> None:
    talk = Talk()
    talk.failures |= {"b": 2, "c": 1}

    @talk.app.workflow(retry=Retry(attempts=5, base=0.01, max=0.01))
    async def chat(ctx: Context) -> None:
        await asyncio.gather(talk.say("a"), talk.say("b"))
        await talk.say("c")

    handle = await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    lives = [asyncio.create_task(read(each)) for each in (handle, by_key)]
    async with working(talk.app, store):
        await handle.result(timeout=20)
    whole = page(await read(by_key))
    assert sorted(whole) == sorted(["a1.1 ", "a2.1 ", "b1.3 ", "b2.3 ", "c1.2 ", "c2.2 "])
    for live in lives:
        assert page(await live) == whole
        await shows_all(by_key, whole, await live)


async def test_a_retry_of_a_retry_makes_again_what_the_first_kept(
    store: Store, client: Client
) -> None:
    """The first run handled a failure; a later retry repeats it, and what came of it."""
    talk = Talk()
    talk.failures |= {"a": 2, "c": 3}

    @talk.app.step
    async def excuse() -> None:
        await current_step().stream("tokens").write("sorry ")

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        try:
            await talk.say("a")
        except StepFailed:
            await excuse()
        await talk.say("d")
        await talk.say("b")
        await talk.say("c")

    await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    befores: list[Shown] = []
    async with working(talk.app, store):
        for failed_steps in (False, True, True):
            with pytest.raises(RunFailed):
                await by_key.result(timeout=20)
            befores.append(await read(by_key))
            await client.runs.retry((chat, "k"), failed_steps=failed_steps)
        await by_key.result(timeout=20)
    texts = [("d", 1), ("b", 1), ("a", 3), ("c", 4)]
    whole = [f"{text}{number}.{time} " for text, time in texts for number in (1, 2)]
    await shows_all(by_key, whole, *befores)


async def test_a_retry_writes_again_behind_a_write_that_it_leaves_out(
    store: Store, client: Client
) -> None:
    """Fault: the write behind had a key that the code did not come to, and the run was stuck."""
    talk = Talk()
    talk.failures |= {"a": 1, "b": 1}

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        out = ctx.stream("tokens", type=str)
        await out.write("first ")
        try:
            await talk.say("a")
        except StepFailed:
            await out.write("sorry ")
        await out.write("later ")
        await talk.say("b")

    await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    async with working(talk.app, store):
        with pytest.raises(RunFailed):
            await by_key.result(timeout=20)
        await client.runs.retry((chat, "k"), failed_steps=True)
        await by_key.result(timeout=20)
    log = [each.event.key for each in await by_key.log() if each.event.type == "StreamWritten"]
    assert log == ["stream:tokens", "stream:tokens#2"]
    assert page(await read(by_key))[-3:] == ["later ", "b1.2 ", "b2.2 "]


async def test_writes_of_numbered_tasks_are_counted_in_each(store: Store, client: Client) -> None:
    """Fault: PostgreSQL took the key of such a call for a number; a run could not be retried."""
    talk = Talk()
    talk.failures |= {"a": 1, "b": 1}

    async def tell(*texts: str) -> None:
        ctx = current_context()
        assert ctx is not None
        out = ctx.stream("tokens", type=str)
        await out.write("first ")
        for text in texts:
            try:
                await talk.say(text)
            except StepFailed:
                await out.write("sorry ")
            await out.write("later ")

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        await asyncio.gather(tell(), tell("a"))
        await talk.say("b")

    await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    async with working(talk.app, store):
        with pytest.raises(RunFailed):
            await by_key.result(timeout=20)
        await client.runs.retry((chat, "k"), failed_steps=True)
        await by_key.result(timeout=20)
    log = [each.event.key for each in await by_key.log() if each.event.type == "StreamWritten"]
    assert log == ["tell/stream:tokens", "tell#2/stream:tokens", "tell#2/stream:tokens#2"]


async def test_a_retry_after_continue_as_new_leaves_the_runs_before(
    store: Store, client: Client
) -> None:
    """Their steps have the same keys."""
    talk = Talk()
    talk.failures |= {"b1": 1, "a2": 1}

    @talk.app.workflow
    async def chat(ctx: Context, turn: int) -> None:
        await talk.say(f"a{turn}")
        await talk.say(f"b{turn}")
        if turn < 2:
            ctx.continue_as_new(turn + 1)

    await client.start(chat, 0, key="k")
    by_key = client.handle((chat, "k"))
    befores: list[Shown] = []
    async with working(talk.app, store):
        for _ in range(2):
            with pytest.raises(RunFailed):
                await by_key.result(timeout=20)
            befores.append(await read(by_key))
            await client.runs.retry((chat, "k"))
        await by_key.result(timeout=20)
    texts = [("a0", 1), ("b0", 1), ("a1", 1), ("b1", 2), ("a2", 2), ("b2", 1)]
    whole = [f"{text}{number}.{time} " for text, time in texts for number in (1, 2)]
    await shows_all(by_key, whole, *befores)


async def test_a_fork_has_streams_of_its_own(store: Store, client: Client) -> None:
    talk = Talk()

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.stream("tokens").write("code ")
        await talk.say("a")
        await talk.say("b")

    handle = await client.start(chat, key="k")
    async with working(talk.app, store):
        await handle.result(timeout=20)
        forked = await client.runs.fork(handle.run_id, step="say#2")
        await forked.result(timeout=20)
    found = await read(forked)
    assert page(found) == ["code ", "b1.2 ", "b2.2 "]
    assert found[0].offset == 1
    assert page(await read(client.handle((chat, "k")))) == [
        "code ",
        "a1.1 ",
        "a2.1 ",
        "b1.1 ",
        "b2.1 ",
    ]


async def test_activities_that_a_retry_keeps_stay(store: Store, client: Client) -> None:
    talk = Talk()
    times = list[str]()

    @talk.app.activity(retry=ONCE)
    async def fetch(text: str) -> str:
        times.append(text)
        await current_activity().stream("tokens").write(f"{text}.{times.count(text)} ")
        if times.count("bad") == 1:
            raise OSError("gone")
        return text

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        await fetch("good")
        await fetch("bad")

    await client.start(chat, key="k")
    by_key = client.handle((chat, "k"))
    async with working(talk.app, store):
        with pytest.raises(RunFailed):
            await by_key.result(timeout=20)
        before = await read(by_key)
        await client.runs.retry((chat, "k"))
        await by_key.result(timeout=20)
    assert page(before) == ["good.1 ", "bad.1 "]
    await shows_all(by_key, ["good.1 ", "bad.2 "], before)


async def test_an_archived_retry_continues_the_streams_of_its_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}")
    talk = Talk()
    talk.failures["b"] = 1

    @talk.app.workflow(retention=0)
    async def chat(ctx: Context) -> None:
        await talk.say("a")
        await talk.say("b")

    async with Client(store=store, app=talk.app) as client:
        await client.start(chat, key="k")
        by_key = client.handle((chat, "k"))
        async with working(talk.app, store):
            with pytest.raises(RunFailed):
                await by_key.result(timeout=20)
            before = await read(by_key)
            await client.runs.retry((chat, "k"))
            await by_key.result(timeout=20)
        swept = [each async for each in sweep_batches(store, Archive(f"file://{tmp_path}"))]
        assert sum(each.deleted for each in swept) == 2
        await shows_all(by_key, ["a1.1 ", "a2.1 ", "b1.2 ", "b2.2 "], before)


async def test_what_a_step_wrote_while_its_run_ended_hides_nothing_of_the_next() -> None:
    """Its call may end after the commit that let the next attempt continue the stream."""
    talk, store = Talk(), MemoryStore(wall_clock)

    @talk.app.workflow(retry=Retry(attempts=2, base=0.01, max=0.01))
    async def chat(ctx: Context) -> None:
        talk.said["tries"] = talk.said.get("tries", 0) + 1
        if talk.said["tries"] == 1:
            raise OSError("gone")
        await talk.say("a")

    async with Client(store=store) as client, working(talk.app, store):
        handle = await client.start(chat, key="k")
        await handle.result(timeout=20)
        late = Chunk(9, 9, Writer("say", 1, 1), False, str([0] * 9), "open")
        async with store._transaction() as (tables, _):  # pyright: ignore[reportPrivateUsage]
            row = tables.streams[handle.run_id].setdefault("tokens", StreamRow(items=9))
            row.chunks.append(late)
        for each in (handle, client.handle(handle.run_id)):
            assert page(await read(each)) == ["a1.1 ", "a2.1 "]
            found = await each.read_stream("tokens", type=str)
            assert [item.value for item in found.items] == ["a1.1 ", "a2.1 "]


async def test_an_offset_of_a_deleted_stream_is_refused(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")
    talk = Talk()

    @talk.app.workflow(retention=0)
    async def chat(ctx: Context, text: str) -> None:
        await talk.say(text)

    async with working(talk.app, store):
        for text in ("a", "b"):
            handle = await client.start(chat, text, key="k")
            await handle.result(timeout=20)
            assert page(await read(client.handle((chat, "k")))) == [f"{text}1.1 ", f"{text}2.1 "]
            assert await client.retention.sweep() == 1
    await client.start(chat, "c", key="k")
    with pytest.raises(InvalidInput, match="that of another stream"):
        await read(client.handle((chat, "k")), after=2)


def test_the_synchronous_client_reads_a_retry_by_its_key(database_url: str) -> None:
    talk = Talk()
    talk.failures["b"] = 1

    @talk.app.workflow
    async def chat(ctx: Context) -> None:
        await talk.say("a")
        await talk.say("b")

    async def run() -> None:
        store = PostgresStore(database_url)
        async with Client(store=store) as client, working(talk.app, store):
            handle = await client.start(chat, key="k")
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            await client.runs.retry((chat, "k"))
            await client.handle((chat, "k")).result(timeout=20)
        await store.close()

    asyncio.run(run())
    with SyncClient(database_url) as client:
        handle = client.handle((chat, "k"))
        whole = ["a1.1 ", "a2.1 ", "b1.2 ", "b2.2 "]
        assert list(handle.stream("tokens", type=str)) == whole
        found = list(handle.stream_items("tokens", after=4, restarts=True))
        assert found[0] == Restarted("say#2", 1)
        assert page(found) == whole[2:]


class RandomTalk:
    """Runs of random steps, of which some fail, are caught, or write nothing at last."""

    def __init__(self, seed: int) -> None:
        self.random, self.app = Random(seed), App("talk")
        self.executed, self.failures = dict[str, int](), dict[str, int]()
        self.counted: dict[str, list[str]] = {}  # of each step what its last attempt wrote
        ways = ("alone", "alone", "caught", "together")
        self.plan = [
            [(f"{turn}-{step}", self.random.choice(ways)) for step in range(3)]
            for turn in range(self.random.choice([1, 2, 3]))
        ]
        policy = Retry(attempts=3, base=0.01, max=0.01) if self.random.random() < 0.5 else ONCE
        self.say = self.app.step(retry=Retry(attempts=2, base=0.001, max=0.001))(self._say)
        self.chat = self.app.workflow(retry=policy)(self._chat)

    async def _say(self, name: str) -> None:
        number = self.executed[name] = self.executed.get(name, 0) + 1
        count = self.random.choice([0, 1, 2, 3, 3])
        self.counted[name] = [f"{name}.{number}.{at} " for at in range(count)]
        for value in self.counted[name]:
            await current_step().stream("tokens", type=str).write(value)
            await asyncio.sleep(self.random.choice([0, 0, 0.03]))
        if self.failures.setdefault(name, self.random.choice([0, 0, 0, 1, 2, 3, 5])) >= number:
            raise OSError("gone")

    async def _chat(self, ctx: Context, turn: int) -> None:
        for name, way in self.plan[turn]:
            if way == "together":
                await asyncio.gather(self.say(name), self.say(f"{name}b"))
                continue
            try:
                await self.say(name)
            except StepFailed:
                if way == "alone":
                    raise
        if turn + 1 < len(self.plan):
            ctx.continue_as_new(turn + 1)


@pytest.mark.parametrize("seed", range(4))
async def test_pages_of_random_chats_show_all_once(store: Store, client: Client, seed: int) -> None:
    talk = RandomTalk(seed)
    await client.start(talk.chat, 0, key="k")
    by_key = client.handle((talk.chat, "k"))
    befores: list[Shown] = []
    async with working(talk.app, store):
        while (await by_key.status()) != "completed":
            if befores:
                failed_steps = talk.random.random() < 0.3
                await client.runs.retry((talk.chat, "k"), failed_steps=failed_steps)
            live = asyncio.create_task(read(by_key))
            if talk.random.random() < 0.2:
                await by_key.cancel()
            with suppress(RunFailed, RunCancelled):
                await by_key.result(timeout=20)
            befores.append(await live)
    whole = page(await read(by_key))
    assert sorted(whole) == sorted(each for values in talk.counted.values() for each in values)
    await shows_all(by_key, whole, *befores)
