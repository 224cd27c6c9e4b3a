"""Large payloads are objects outside of the database; code sees no difference. On both stores."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from holdfast import App, Context, current_message
from holdfast.client import Client
from holdfast.errors import ConfigurationError, ObjectsUnavailable, PayloadError, PayloadLocked
from holdfast.objects import Objects
from holdfast.payloads import READABLE, AesGcm, LargePayloads, Zlib, shelf, unneeded, with_payloads
from holdfast.retention import deletion
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.worker import Worker, releases

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


class Outage:
    """Decides whether the object store answers, and counts what it was asked meanwhile."""

    def __init__(self, store: Store) -> None:
        self.is_on, self.refused, self._objects_at = False, 0, store.objects_at

    def objects_at(self, url: str) -> Any:
        """Return objects that refuse every call while it is on."""
        return _Unsteady(self, self._objects_at(url))

    async def call(self, call: Callable[..., Any], *given: Any) -> Any:
        """Pass a call on, or refuse it."""
        if self.is_on:
            self.refused += 1
            raise ObjectsUnavailable("s3://bucket", "connection refused")
        return await call(*given)


class _Unsteady:
    def __init__(self, outage: Outage, objects: Objects) -> None:
        self.url, self.names = objects.url, objects.names
        self.put = partial(outage.call, objects.put)
        self.get = partial(outage.call, objects.get)
        self.delete = partial(outage.call, objects.delete)


@pytest.fixture
def outage(store: Store, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Return what takes the object store away."""
    outage = Outage(store)
    monkeypatch.setattr(store, "objects_at", outage.objects_at)
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 0.3)
    return outage


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


async def test_the_archive_has_the_contents(
    store: Store, large: LargePayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is archived needs no object any more; restored, its payloads are in the database."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the test sweeps
    async with working(make_app(large), store) as client:
        run = await client.start("again", BIG, retention=0)
        assert await run.result() == f"x{BIG}"
        small = await client.start("echo", SMALL, retention=0)
        assert await small.result() == SMALL
        while await store.get_runs([run.run_id, small.run_id]):
            await client.retention.sweep()
        objects = store.objects_at(large.url)
        for name in await names(store, large):
            await objects.delete(name)
        archived = await client.runs.get(run.run_id)
        assert (archived.input, archived.archive) == (BIG, f"file://{tmp_path}/archive")
        assert await client.archive.restore(run.run_id)
        assert (await client.runs.get(run.run_id)).input == BIG
        assert REFERENCE not in await stored(store, run.run_id)


async def test_a_run_is_not_archived_without_its_objects(
    store: Store,
    large: LargePayloads,
    outage: Outage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While they are away."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the test sweeps
    async with working(make_app(large), store) as client:
        run = await client.start("echo", BIG, retention=0)
        await run.result()
        outage.is_on = True
        with pytest.raises(ObjectsUnavailable, match="connection refused"):
            await client.retention.sweep()
        assert run.run_id in await store.get_runs([run.run_id])


@pytest.mark.parametrize("lost_seconds", [60.0, -1.0])
async def test_one_object_that_was_changed_keeps_no_other_run_from_the_archive(
    store: Store,
    large: LargePayloads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost_seconds: float,
) -> None:
    """Runs with large payloads are left as well once too much time was lost with such."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the test sweeps
    monkeypatch.setattr(deletion, "LOST_SECONDS", lost_seconds)
    async with working(make_app(large), store) as client:
        damaged, small, big = [
            await client.start("echo", text, retention=0) for text in (BIG, SMALL, f"{BIG}!")
        ]
        for run in (damaged, small, big):
            await run.result()
        [name] = await names(store, large, damaged.run_id)
        await store.objects_at(large.url).put(name, b'"other"')
        if lost_seconds > 0:
            with pytest.raises(ObjectsUnavailable, match="was changed"):
                await client.retention.sweep()
        else:
            await client.retention.sweep()
        kept = {damaged.run_id} if lost_seconds > 0 else {damaged.run_id, big.run_id}
        assert (await store.get_runs([damaged.run_id, small.run_id, big.run_id])).keys() == kept


async def test_a_run_whose_object_is_missing_is_archived_without_it_after_a_month(
    store: Store, large: LargePayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is left: the place may be another one for now."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the test sweeps
    monkeypatch.setattr(unneeded.logger, "disabled", True)  # pytest keeps the errors of its lines
    async with working(make_app(large), store) as client:
        left = await start_without_object(client, store, large)
        with pytest.raises(ObjectsUnavailable, match="there is no object payloads/"):
            await client.retention.sweep()
        monkeypatch.setattr(deletion, "_MISSING_DAYS", -1)
        lost = await start_without_object(client, store, large)
        await client.retention.sweep()
        assert (await store.get_runs([left, lost])).keys() == {left}
        with pytest.raises(PayloadLocked, match="8 kB in file:"):
            _ = (await client.runs.get(lost)).output


async def start_without_object(client: Client, store: Store, large: LargePayloads) -> UUID:
    """Return the id of a run that has ended, and whose large payload was deleted."""
    run = await client.start("echo", BIG, retention=0)
    await run.result()
    [name] = await names(store, large, run.run_id)
    await store.objects_at(large.url).delete(name)
    return run.run_id


async def test_a_url_that_the_sweep_cannot_open_keeps_no_other_run_from_the_archive(
    store: Store, large: LargePayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra for it is not installed, or there are no credentials."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "off")  # the test sweeps
    async with working(make_app(large), store) as client:
        big, small = [await client.start("echo", text, retention=0) for text in (BIG, SMALL)]
        for run in (big, small):
            await run.result()

        def refuse(url: str) -> Objects:
            raise ConfigurationError(f"{url} cannot be used: no credentials")

        monkeypatch.setattr(store, "objects_at", refuse)
        with pytest.raises(ObjectsUnavailable, match="no credentials"):
            await client.retention.sweep()
        assert (await store.get_runs([big.run_id, small.run_id])).keys() == {big.run_id}


@pytest.mark.parametrize("workflow", ["by_step", "by_activity", "by_output", "trip"])
async def test_runs_wait_for_the_object_store_and_nothing_is_repeated(
    store: Store, large: LargePayloads, outage: Outage, workflow: str
) -> None:
    """Each kind of part waits without a failure, and runs with small values pass it."""
    app, calls = make_app(large), list[str]()

    @app.step
    async def make(size: int) -> str:
        calls.append("make")
        outage.is_on = size > 100
        return size * "x"

    @app.activity
    async def make_slowly(size: int) -> str:
        return await make.fn(size)

    @app.workflow
    async def by_step(ctx: Context, size: int) -> int:
        return len(await make(size))

    @app.workflow
    async def by_activity(ctx: Context, size: int) -> int:
        return len(await make_slowly(size))

    @app.workflow
    async def by_output(ctx: Context, size: int) -> str:
        outage.is_on = True
        calls.append("make")
        return size * "x"

    flow = app.flow("trip", input=int)

    @flow.step
    async def first(run: int) -> str:
        return await make.fn(run)

    async with working(app, store) as client:
        run = await client.start(workflow, 5_000)
        while not outage.refused:
            await asyncio.sleep(0.01)
        assert await (await client.start("echo", SMALL)).result() == SMALL
        assert (await client.runs.get(run.run_id)).status == "running"
        await until_explained(client, run.run_id, large.url)
        with pytest.raises(ObjectsUnavailable, match="connection refused"):
            await client.start("echo", BIG)
        outage.is_on = False
        assert await run.result() in (5_000, 5_000 * "x", {"first": 5_000 * "x"})
        assert await store.failing_puts(run.run_id) == []
    assert calls == ["make"]


async def test_a_run_waits_while_objects_of_an_earlier_one_are_deleted(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose key it has. Nothing is repeated, of other runs of the same commit neither."""
    app, calls, refused, own = make_app(large), list[int](), list[UUID](), store.own_payloads

    @app.step
    async def make(size: int) -> str:
        calls.append(size)
        return size * "x"

    @app.workflow
    async def by_step(ctx: Context, size: int) -> int:
        return len(await make(size))

    async def refuse(url: str, owners: Sequence[UUID], users: Sequence[UUID | None]) -> list[UUID]:
        if not is_deleting:
            return await own(url, owners, users)
        refused.extend(owners)
        return list(owners)

    monkeypatch.setattr(shelf, "_REFUSED_SECONDS", 0.01)
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 0.05)
    monkeypatch.setattr(store, "own_payloads", refuse)
    is_deleting = True
    async with working(app, store) as client:
        large_run, small_run = [await client.start("by_step", size) for size in (5_000, 10)]
        assert await small_run.result() == 10
        while len(refused) < 3:
            await asyncio.sleep(0.01)
        with pytest.raises(ObjectsUnavailable, match="are being deleted"):
            await client.start("echo", BIG)
        is_deleting = False
        assert await large_run.result() == 5_000
    assert sorted(calls) == [10, 5_000]


async def test_a_run_that_uses_an_object_is_noted_each_time(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another run of its key: what the deleted one used was forgotten with it."""
    noted, own, kept = list[UUID | None](), store.own_payloads, shelf.Shelf(store, large)

    async def note(url: str, owners: Sequence[UUID], users: Sequence[UUID | None]) -> list[UUID]:
        noted.extend(users)
        return await own(url, owners, users)

    monkeypatch.setattr(store, "own_payloads", note)
    owner, user = uuid4(), uuid4()
    for _ in range(2):
        put = kept.find(owner, BIG) or kept.add(owner, BIG, f'"{BIG}"')
        await kept.put([(put, None), (put, user)])
    assert len(noted) == 3
    assert noted.count(user) == 2


async def until_explained(client: Client, run_id: UUID, url: str) -> None:
    """Wait until `why` says that a run waits to store a payload, and what helps."""
    while not (found := await client.why(run_id)).because.startswith("it waits to store"):
        await asyncio.sleep(0.01)
    assert f"a large payload at {url}; last tried " in found.because
    assert "connection refused" in found.because
    assert "tries again by itself, and repeats nothing" in found.details[0]


async def test_a_run_that_cannot_be_read_now_is_read_later(
    store: Store, large: LargePayloads, outage: Outage
) -> None:
    """It is stuck meanwhile, says why, and is tried again by itself."""
    async with Client(store=store, app=make_app(large)) as client:
        run = await client.start("echo", BIG)
        outage.is_on = True
        async with working(make_app(large), store):
            while (wait := (await client.runs.get(run.run_id)).wait) is None or wait.stuck is None:
                await asyncio.sleep(0.01)
            assert "which cannot be read: s3://bucket cannot be used: connection" in wait.stuck
            found = await client.why(run.run_id)
            assert found.because.startswith("it cannot continue: a value is 8 kB in ")
            assert found.details[0].endswith("; a worker that can read the value continues it")
            outage.is_on = False
            if isinstance(store, MemoryStore):
                store.advance(60)
            assert await run.result() == BIG


async def test_what_could_not_be_put_is_not_kept(
    store: Store, large: LargePayloads, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what was put after it, beyond what is remembered."""
    monkeypatch.setattr(shelf, "_KNOWN", 3)
    monkeypatch.setattr(shelf.logger, "disabled", True)  # pytest keeps the errors of its lines
    others = puts()
    async with Client(store=store, app=make_app(large)) as client:
        outage.is_on = True
        for number in range(5):
            with pytest.raises(ObjectsUnavailable, match="connection refused"):
                await client.start("echo", f"{number} {BIG}")
        await asyncio.sleep(0)  # their tasks end
        assert puts(others) == []
        outage.is_on = False
        for number in range(10):
            await client.start("echo", f"{number} {BIG}")
        assert len(puts(others)) == 3


@pytest.mark.parametrize("kind", ["start", "signal"])
async def test_calls_with_small_payloads_do_not_wait_for_the_object_store(
    kind: str, store: Store, large: LargePayloads, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 3600)
    async with Client(store=store, app=make_app(large)) as client:
        run = await client.start("everything", SMALL)

        def call(text: str) -> Any:
            return client.start("echo", text) if kind == "start" else run.signal("more", text)

        outage.is_on = True
        waits = asyncio.create_task(call(BIG))
        await asyncio.gather(call(SMALL), call(SMALL))
        while not outage.refused:
            await asyncio.sleep(0.01)
        await call(SMALL)
        assert not waits.done()
        outage.is_on = False
        assert await waits


def puts(others: Sequence[shelf.Put] = ()) -> list[shelf.Put]:
    """Return all puts that are in memory, without those that others made."""
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, shelf.Put)]
    return [each for each in found if each not in others]


async def test_a_read_that_fails_too_late_is_nothing_in_the_log(
    store: Store,
    large: LargePayloads,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its readers have said by then that there is no answer."""
    fails, failed, objects_at = asyncio.Event(), asyncio.Event(), store.objects_at

    async def fail_late(*_: object) -> bytes:
        await fails.wait()
        asyncio.get_running_loop().call_soon(failed.set)
        raise ObjectsUnavailable(large.url, "connection refused")

    def late_objects(url: str) -> Any:
        objects = cast("Any", objects_at(url))
        objects.get = fail_late
        return objects

    async with Client(store=store, app=make_app(large)) as client:
        run = await client.start("echo", BIG)
    monkeypatch.setattr(store, "objects_at", late_objects)
    monkeypatch.setattr(shelf, "_READ_SECONDS", 0.01)
    async with Client(store=store, app=make_app(large)) as client:
        with pytest.raises(PayloadLocked, match="no answer yet"):
            _ = (await client.runs.get(run.run_id)).input
        fails.set()
        await failed.wait()
        await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_log_is_read_for_as_long_as_its_objects_arrive(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: nothing of it may be remembered when it is tried again."""
    async with working(make_app(large), store) as client:
        run = await client.start("again", BIG)
        await run.result()
    late, names_read, objects_at, wait = (
        asyncio.Event(),
        list[str](),
        store.objects_at,
        asyncio.wait,
    )

    def slow_objects(url: str) -> Any:
        objects = cast("Any", objects_at(url))
        get = objects.get

        async def get_slowly(name: str) -> bytes | None:
            names_read.append(name)
            if len(names_read) > 1:
                await late.wait()
            return cast("bytes | None", await get(name))

        objects.get = get_slowly
        return objects

    async def wait_and_go_on(tasks: Any, **options: Any) -> Any:
        is_read = options.get("timeout") == 0.1
        waited = await wait(tasks, **({} if is_read and late.is_set() else options))
        if is_read:
            late.set()
        return waited

    monkeypatch.setattr(store, "objects_at", slow_objects)
    monkeypatch.setattr(shelf, "_READ_SECONDS", 0.1)
    monkeypatch.setattr(asyncio, "wait", wait_and_go_on)
    async with Client(store=store, app=make_app(large)) as client:
        log = await client.runs.log(run.run_id)
    assert len(names_read) > 1
    assert all(REFERENCE not in (entry.event.details or "") for entry in log)


async def test_an_object_with_another_content_is_not_read(
    store: Store, large: LargePayloads
) -> None:
    async with Client(store=store, app=make_app(large)) as client:
        run = await client.start("echo", BIG)
        [name] = await names(store, large)
        await store.objects_at(large.url).put(name, b'"other"')
        async with Client(store=store, app=make_app(large)) as other:
            with pytest.raises(PayloadLocked, match="was changed"):
                _ = (await other.runs.get(run.run_id)).input
            await store.objects_at(large.url).delete(name)
            with pytest.raises(PayloadLocked, match="there is no object"):
                _ = (await other.runs.get(run.run_id)).input


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="does not name a place for objects"):
        LargePayloads("https://example.org/payloads")
    for size in ("much", "999", -1, "1 TB", True):
        with pytest.raises(ConfigurationError, match="above is a size of 1,000 bytes or more"):
            LargePayloads("file:///payloads", above=size)
    with pytest.raises(ConfigurationError, match="large_payloads takes LargePayloads"):
        App("bank", large_payloads=cast("Any", "s3://bucket"))


async def test_a_message_whose_run_waits_for_an_object_keeps_no_other_waiting(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input of its run is large, and the object store hangs. It starts when that answers."""
    app, answers, asked = make_app(large), asyncio.Event(), asyncio.Event()

    @app.consumer("orders")
    def book(text: str) -> None:
        current_message().start("bank/echo", text, tags=[text[:3]])

    objects_at = store.objects_at

    def hanging(url: str) -> Any:
        async def put(name: str, data: bytes) -> None:
            asked.set()
            await answers.wait()
            await objects_at(url).put(name, data)

        return SimpleNamespace(url=url, put=put, get=objects_at(url).get)

    monkeypatch.setattr(store, "objects_at", hanging)
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 600.0)
    async with working(app, store) as client:
        await client.queues.create("orders")
        await client.queues.send("orders", "big" * 2_000)
        await asked.wait()
        await client.queues.send("orders", SMALL)
        async with asyncio.timeout(30):
            while not (small := await client.runs.list(tags=["sma"])).runs:
                await asyncio.sleep(0.02)
        assert not (await client.runs.list(tags=["big"])).runs
        assert await client.handle(small.runs[0].run_id).result() == SMALL
        answers.set()
        async with asyncio.timeout(30):
            while not (big := await client.runs.list(tags=["big"])).runs:
                await asyncio.sleep(0.02)
        assert await client.handle(big.runs[0].run_id).result() == "big" * 2_000


async def test_a_run_whose_object_is_read_slowly_keeps_no_other_waiting(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the same claim as others, and runs when the object store answers."""
    app, answers = make_app(large), asyncio.Event()
    async with Client(store=store, app=app) as client:
        big, small = await client.start_many("bank/again", [BIG, SMALL])
    objects_at = store.objects_at

    def hanging(url: str) -> Any:
        async def get(name: str, *given: Any) -> bytes | None:
            await answers.wait()
            return await objects_at(url).get(name, *given)

        return SimpleNamespace(url=url, put=objects_at(url).put, get=get)

    monkeypatch.setattr(store, "objects_at", hanging)
    monkeypatch.setattr(shelf, "_READ_SECONDS", 600.0)
    async with working(app, store) as client:
        assert await client.handle(small.run_id).result() == f"x{SMALL}"
        later = await client.start("bank/again", SMALL)
        assert await client.handle(later.run_id).result() == f"x{SMALL}"
        answers.set()
        assert await client.handle(big.run_id).result() == f"x{BIG}"


async def test_messages_stay_in_the_database_and_may_be_received_by_a_condition(
    store: Store, large: LargePayloads
) -> None:
    async with Client(store=store, app=App("bank", large_payloads=large)) as client:
        await client.queues.create("parcels", filters=True)
        for size in (1, 2):
            await client.queues.send("parcels", {"size": size, "text": BIG})
        [message] = await client.queues.receive("parcels", contains={"size": 2})
        assert message.payload == {"size": 2, "text": BIG}
    [other] = await store.list_messages("parcels", limit=1)
    assert BIG in other.payload


async def test_a_stop_records_the_ends_of_messages_although_a_run_waits_for_an_object(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended well is acknowledged; the message of that run is given back, uncounted."""
    app, asked, entered, may_end = make_app(large), *(asyncio.Event() for _ in range(3))

    @app.consumer("orders", concurrency=5)
    async def book(text: str) -> None:
        if text != SMALL:
            current_message().start("bank/echo", text)
            return
        entered.set()
        await may_end.wait()

    async def put(name: str, data: bytes) -> None:
        asked.set()
        await asyncio.Event().wait()

    objects_at = store.objects_at
    monkeypatch.setattr(
        store, "objects_at", lambda url: SimpleNamespace(url=url, put=put, get=objects_at(url).get)
    )
    monkeypatch.setattr(releases, "_TRY_SECONDS", 0.2)
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client:
        await client.queues.create("orders")
        await client.queues.send("orders", SMALL)
        await client.queues.send("orders", BIG)
        async with asyncio.timeout(30):
            await asyncio.gather(entered.wait(), asked.wait())
        stop = asyncio.create_task(worker.stop(grace=60))
        await asyncio.sleep(0)
        may_end.set()
        await stop
        (left,) = await store.list_messages("orders", limit=10, clip=10)
        assert (left.in_flight, left.attempts, "big" in left.payload) == (False, 0, True)


async def test_a_stop_waits_for_a_run_whose_object_arrives(
    store: Store, large: LargePayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is acknowledged with its start, and is not given back."""
    app, asked, answers = make_app(large), asyncio.Event(), asyncio.Event()

    @app.consumer("orders")
    def book(text: str) -> None:
        current_message().start("bank/echo", text, tags=["big"])

    objects_at = store.objects_at

    async def put(name: str, data: bytes) -> None:
        asked.set()
        await answers.wait()
        await objects_at(large.url).put(name, data)

    monkeypatch.setattr(
        store, "objects_at", lambda url: SimpleNamespace(url=url, put=put, get=objects_at(url).get)
    )
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 600.0)
    monkeypatch.setattr(releases, "_TRY_SECONDS", 600.0)
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client:
        await client.queues.create("orders")
        await client.queues.send("orders", BIG)
        async with asyncio.timeout(30):
            await asked.wait()
            stop = asyncio.create_task(worker.stop(grace=0))
            await asyncio.sleep(0)
            answers.set()
            await stop
        assert await store.list_messages("orders", limit=10, clip=10) == []
        assert len((await client.runs.list(tags=["big"])).runs) == 1
