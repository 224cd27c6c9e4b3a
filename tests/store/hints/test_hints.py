"""Hints through a real Valkey: what Redis loses, delays or invents costs a look, and no more."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from tests.databases import DatabaseServer
from tests.ports import refusing_port
from tests.proxy import Proxy
from tests.valkey import Valkey, needs_valkey, valkey

from holdfast import App, Client, Context
from holdfast.cli.root import holdfast
from holdfast.database.resolve import resolve_database
from holdfast.store.opening import make_store
from holdfast.store.port import ACTIVITIES_TOPIC, STARTS_TOPIC
from holdfast.store.postgres.listening import Listeners
from holdfast.store.redis import RedisHintedStore, reading
from holdfast.store.redis.server import RedisServer, close
from holdfast.types import Notice
from holdfast.worker import Worker, WorkerOptions, claimer

from .hinted import (
    RUNS,
    Job,
    app,
    assert_each_once,
    calculate,
    client_of,
    other,
    run_all,
    store_on,
    streams_of,
    until,
    until_reading,
    working,
)

pytestmark = needs_valkey

HINT = Notice(STARTS_TOPIC, "default")


@pytest.mark.usefixtures("no_polls")
async def test_a_hint_wakes_a_worker_that_does_not_poll(database_url: str, redis: Valkey) -> None:
    """And no notification is sent of a start."""
    async with (
        working(database_url, redis.url, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 3)
        heard: list[str] = []
        listener = store_on(database_url, redis.url)
        await listener.open()
        await listener.listen("work", heard.append)
        await run_all(client)
        await listener.close()
    assert heard == []
    assert_each_once(database_url, RUNS)


@pytest.mark.parametrize(
    ("count", "listens", "is_notified"),
    [(1, True, True), (2, True, True), (3, True, False), (1, False, False)],
)
async def test_one_or_two_workers_that_listen_are_notified(
    database_url: str,
    redis: Valkey,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    listens: bool,
    is_notified: bool,
) -> None:
    """A notification is part of the start's own commit, so it is sooner than a hint."""
    if not listens:
        monkeypatch.setattr(Listeners, "listens", property(lambda _: False))
    async with (
        working(database_url, redis.url, count),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, count)
        listener = store_on(database_url, redis.url)
        await listener.open()
        async with asyncio.timeout(60):
            while [each.listens for each in await listener.list_workers()] != [listens] * count:
                await asyncio.sleep(0.01)
        heard: list[str] = []
        await listener.listen("work", heard.append)
        await run_all(client, job=job)
        await listener.notify([Notice("work", "marked")])
        await until(lambda: "marked" in heard)
        await listener.close()
        async with Redis.from_url(redis.url) as link:
            hints = sum([await link.xlen(stream) for stream in await streams_of(link)])
    if job is calculate:  # a run that continues is always notified
        assert ("default" in heard) is is_notified
    # If another commit notifies just then, it is a hint; a sender that is busy joins some in one.
    assert hints < RUNS / 2 if is_notified else hints > 0
    assert_each_once(database_url, RUNS, job)


@pytest.mark.parametrize("passes", range(1, 7))
async def test_a_connection_is_closed_also_while_cancelled(redis: Valkey, passes: int) -> None:
    """By the worker that stops while it closes a connection that failed."""
    link = await RedisServer(redis.url).connect(5)
    connection = link.connection
    assert connection is not None
    assert connection.is_connected
    closing = asyncio.create_task(close(link))
    for _ in range(passes):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert not connection.is_connected


@pytest.mark.usefixtures("no_polls")
async def test_a_hint_is_passed_on_until_all_the_work_is_taken(
    database_url: str, redis: Valkey
) -> None:
    """One hint tells of many runs, each worker takes one, and every run waits for a signal."""
    many = App("many")

    started = asyncio.Event()
    step_started: list[int] = []

    @many.step
    async def enter(n: int) -> None:
        step_started.append(n)
        await started.wait()

    @many.workflow
    async def held(ctx: Context, n: int) -> int:
        await enter(n)
        return n

    async with (
        working(database_url, redis.url, 3, served=many, poll_seconds=3600, concurrency=1),
        asyncio.timeout(60),
        Client(database_url, redis=redis.url, app=many) as client,
    ):
        await until_reading(redis, 3)
        handles = await client.start_many(held, range(3))
        await until(lambda: len(step_started) == 3)  # one hint, three workers
        started.set()
        assert [await handle.result() for handle in handles] == [0, 1, 2]


@pytest.mark.usefixtures("no_polls")
async def test_a_worker_whose_threads_are_in_use_is_told_of_what_needs_none(
    database_url: str, redis: Valkey
) -> None:
    busy = App("busy")
    may_end, began = threading.Event(), threading.Event()

    @busy.activity
    def wait_in_thread() -> None:
        began.set()
        may_end.wait()

    @busy.workflow
    async def slow(ctx: Context) -> None:
        await wait_in_thread()

    @busy.workflow
    async def fast(ctx: Context) -> str:
        return "told"

    store = store_on(database_url, redis.url)
    worker = Worker(busy, store, WorkerOptions(poll_seconds=3600, threads=1))
    await worker.start()
    async with asyncio.timeout(60), Client(database_url, redis=redis.url, app=busy) as client:
        await until_reading(redis, 1)
        try:
            handles = [await client.start(slow)]
            await until(began.is_set)
            handles.append(await client.start(slow))  # what there is no thread for
            for _ in range(3):
                assert await client.run(fast) == "told"
        finally:
            may_end.set()
        for handle in handles:
            await handle.result()
    await worker.stop(1)
    await store.close()


@pytest.mark.usefixtures("no_polls")
async def test_workers_with_other_handlers_do_not_take_each_others_hints(
    database_url: str, redis: Valkey
) -> None:
    async with (
        working(database_url, redis.url, 2, poll_seconds=3600),
        working(database_url, redis.url, 2, served=other, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 4)
        await run_all(client)
    assert_each_once(database_url, RUNS)


@pytest.mark.usefixtures("no_polls")
async def test_two_databases_in_one_redis_do_not_take_each_others_hints(
    database_url: str, database_server: DatabaseServer, redis: Valkey, job: Job
) -> None:
    with database_server.database() as elsewhere:
        async with (
            working(database_url, redis.url, poll_seconds=3600),
            working(elsewhere, redis.url, poll_seconds=3600),
            client_of(database_url, redis.url) as one,
            client_of(elsewhere, redis.url) as two,
        ):
            await until_reading(redis, 6)
            await asyncio.gather(run_all(one, job=job), run_all(two, job=job))
        assert_each_once(elsewhere, RUNS, job)
    assert_each_once(database_url, RUNS, job)


@pytest.mark.usefixtures("no_polls")
async def test_a_start_without_redis_wakes_workers_with_it(
    database_url: str, redis: Valkey, job: Job
) -> None:
    """Programs are changed over one after another."""
    async with working(database_url, redis.url, poll_seconds=3600):
        await until_reading(redis, 3)
        async with asyncio.timeout(60), Client(database_url, app=app) as client:
            await run_all(client, job=job)


async def test_a_start_with_redis_is_found_by_workers_without_it(
    database_url: str, redis: Valkey, job: Job
) -> None:
    store = make_store(resolve_database(database_url), "holdfast")
    worker = Worker(app, store, WorkerOptions(poll_seconds=0.3), heartbeat_store=None)
    await worker.start()
    async with client_of(database_url, redis.url) as client:
        await run_all(client, job=job)
    await worker.stop(1)
    await store.close()


async def test_redis_is_killed_during_work_and_comes_back(
    database_url: str, redis: Valkey, caplog: pytest.LogCaptureFixture, job: Job
) -> None:
    caplog.set_level(logging.INFO, "holdfast.redis")

    def trouble(n: int) -> None:
        if n % 10 == 3:
            redis.kill()
        elif n % 10 == 8:
            redis.start()

    async with working(database_url, redis.url), client_of(database_url, redis.url) as client:
        await run_all(client, trouble, job=job)
        await until_reading(redis, 3)
        await run_all(client, job=job)
    assert_each_once(database_url, 2 * RUNS, job)
    assert "PostgreSQL wakes workers alone: it cannot be used" in caplog.text
    assert "is used again" in caplog.text


@pytest.mark.usefixtures("no_polls")
async def test_while_redis_is_known_to_be_away_starts_are_notified(
    database_url: str, redis: Valkey, job: Job
) -> None:
    async with (
        working(database_url, redis.url, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 3)
        redis.kill()
        await run_all(client, job=job)
        redis.start()
    assert_each_once(database_url, RUNS, job)


@pytest.mark.usefixtures("no_polls")
async def test_workers_look_when_redis_goes_and_when_it_is_back(
    database_url: str, redis: Valkey
) -> None:
    """It may have had hints that nobody has read. Nothing else tells of these runs."""
    async with (
        working(database_url, redis.url, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 3)
        for change in (redis.kill, redis.start):
            with psycopg.connect(database_url, autocommit=True) as connection:
                start = "select holdfast.start_run('hinted/calculate', '5')"
                [run_id] = connection.execute(start).fetchone() or ()
            change()
            assert await client.handle(run_id).result() == 10


@pytest.mark.parametrize("is_ours", [True, False], ids=["our hint", "nothing of ours"])
async def test_a_loss_that_is_noticed_after_a_read_has_the_worker_look(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """Fault: only a loss during a read did; and a worker said that Redis worked."""
    monkeypatch.setattr(reading, "_FIRST_WAIT_SECONDS", 3600.0)
    acknowledge = Redis.xack

    async def acknowledge_in_vain(self: Redis, *arguments: object) -> object:
        redis.kill()
        return await acknowledge(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Redis, "xack", acknowledge_in_vain)
    store = store_on(database_url, redis.url)
    await store.open()
    reader = store.read_hints("w", ["default"], ["hinted/calculate@1"])
    assert reader is not None
    async with asyncio.timeout(30):
        assert await reader.read() == [HINT]  # it has joined
        if is_ours:
            await store.notify([HINT])
            assert await reader.read() == [HINT]
            await reader.done()
        else:
            async with Redis.from_url(redis.url) as link:
                [stream] = await streams_of(link)
                await link.xadd(stream, {"mine": "not"})
        assert await reader.read() == [HINT]
    use = store.hint_use()
    assert use is not None
    assert use.works is False
    await reader.close()
    await store.close()


async def test_workers_poll_seldom_while_redis_answers_and_they_listen(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that continue are told by notifications alone."""
    connect, is_back = Listeners._connect, asyncio.Event()

    async def connect_later(self: Listeners) -> object:
        await is_back.wait()
        return await connect(self)

    def pauses(workers: list[Worker]) -> list[float]:
        return [worker._claimer._longest_pause for worker in workers]

    async with working(database_url, redis.url) as workers:
        await until(lambda: pauses(workers) == [0.75] * 3)
        redis.kill()
        await until(lambda: pauses(workers) == [0.3] * 3)
        redis.start()
        await until(lambda: pauses(workers) == [0.75] * 3)
        monkeypatch.setattr(Listeners, "_connect", connect_later)
        for worker in workers:
            store = worker._store
            assert isinstance(store, RedisHintedStore)
            assert store._listeners._connection is not None
            store._listeners._connection.terminate()
        await until(lambda: pauses(workers) == [0.3] * 3)
        is_back.set()
        await until(lambda: pauses(workers) == [0.75] * 3)


async def test_redis_is_flushed_at_any_moment(database_url: str, redis: Valkey, job: Job) -> None:
    async with (
        working(database_url, redis.url),
        client_of(database_url, redis.url) as client,
        Redis.from_url(redis.url) as link,
    ):
        done = asyncio.Event()

        async def flush() -> None:
            while not done.is_set():
                await link.flushall()
                await asyncio.sleep(0.003)

        flushing = asyncio.create_task(flush())
        await run_all(client, job=job)
        done.set()
        await flushing
        await until_reading(redis, 3)  # they have made their groups again
        await run_all(client, job=job)
    assert_each_once(database_url, 2 * RUNS, job)


async def test_redis_is_stopped_and_answers_later(
    database_url: str, redis: Valkey, job: Job
) -> None:
    def trouble(n: int) -> None:
        if n == 5:
            redis.pause()
        elif n == RUNS - 5:
            redis.resume()

    async with working(database_url, redis.url), client_of(database_url, redis.url) as client:
        await until_reading(redis, 3)
        await run_all(client, trouble, job=job)
    assert_each_once(database_url, RUNS, job)


async def test_redis_that_stays_stopped_holds_up_neither_work_nor_the_end(
    database_url: str, redis: Valkey, job: Job
) -> None:
    async with working(database_url, redis.url), client_of(database_url, redis.url) as client:
        await until_reading(redis, 3)
        redis.pause()
        await run_all(client, job=job)
    redis.resume()
    assert_each_once(database_url, RUNS, job)


async def test_a_worker_that_passes_hints_on_stops_although_redis_does_not_answer(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_ANSWER_SECONDS", 3600.0)
    held = App("held")
    may_end, passes_on = asyncio.Event(), asyncio.Event()
    pass_on = reading.Reader.pass_on

    async def pass_on_in_vain(self: reading.Reader, hints: Sequence[Notice]) -> bool:
        redis.pause()
        passes_on.set()
        return await pass_on(self, hints)

    monkeypatch.setattr(reading.Reader, "pass_on", pass_on_in_vain)

    @held.step
    async def wait() -> None:
        await may_end.wait()

    @held.workflow
    async def hold(ctx: Context, n: int) -> None:
        await wait()

    async with (
        asyncio.timeout(60),
        working(database_url, redis.url, 1, served=held, concurrency=1) as [worker],
        Client(database_url, redis=redis.url, app=held) as client,
    ):
        await until_reading(redis, 1)
        await client.start_many(hold, range(2))
        await passes_on.wait()
        may_end.set()
        await worker.stop(1)
        redis.resume()


async def test_a_reader_that_closes_leaves_no_hint_to_take_over(
    database_url: str, redis: Valkey
) -> None:
    """The worker has told others of what it read in vain."""
    store = store_on(database_url, redis.url)
    await store.open()
    reader = store.read_hints("w", ["default"], ["hinted/calculate@1"])
    assert reader is not None
    async with asyncio.timeout(60), Redis.from_url(redis.url) as link:
        assert await reader.read() == [HINT]  # it has joined
        await store.notify([HINT])
        assert await reader.read() == [HINT]
        [stream] = await streams_of(link)
        [group] = await link.xinfo_groups(stream)
        assert (group["consumers"], group["pending"]) == (1, 1)
        await reader.close()
        [group] = await link.xinfo_groups(stream)
        assert (group["consumers"], group["pending"]) == (0, 0)
    await store.close()


@pytest.mark.usefixtures("patience")
async def test_a_reader_that_closes_returns_the_hint_that_was_on_its_way(
    database_url: str, redis: Valkey
) -> None:
    """Fault: Redis had given it to this worker, which stopped before it arrived."""
    with Proxy(f"postgresql://any?host={redis.folder}") as proxy:
        store = store_on(database_url, f"redis://127.0.0.1:{proxy.port}/0")
        await store.open()
        reader = store.read_hints("w", ["default"], ["hinted/calculate@1"])
        assert reader is not None
        async with asyncio.timeout(60), Redis.from_url(redis.url) as link:
            assert await reader.read() == [HINT]  # it has joined
            reading = asyncio.create_task(reader.read())
            await until_reading(redis, 1)
            proxy.delay(10)
            [stream] = await streams_of(link)
            await link.xadd(stream, {"queue": "default"})
            [group] = await link.xinfo_groups(stream)
            assert group["pending"] == 1
            while not reading.done():
                reading.cancel()
                await asyncio.wait([reading], timeout=0.05)
            assert reading.cancelled()
            proxy.delay(0)
            assert await reader.close() == [HINT]
        await store.close()


@pytest.mark.usefixtures("patience")
async def test_a_reader_whose_close_is_cancelled_closes_its_connection(
    database_url: str, redis: Valkey
) -> None:
    store = store_on(database_url, redis.url)
    await store.open()
    reader = store.read_hints("w", ["default"], ["hinted/calculate@1"])
    assert isinstance(reader, reading.Reader)
    await reader.read()
    assert reader._redis is not None
    connection = reader._redis.connection
    assert connection is not None
    redis.pause()
    closing = asyncio.create_task(reader.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.wait([closing])
    redis.resume()
    assert not connection.is_connected
    await store.close()


async def test_redis_is_slow_and_is_cut_off(database_url: str, redis: Valkey, job: Job) -> None:
    with Proxy(f"postgresql://any?host={redis.folder}") as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"

        def trouble(n: int) -> None:
            proxy.delay(0.2 if n % 10 < 5 else 0)
            if n % 10 == 7:
                proxy.cut()
            elif n % 10 == 9:
                proxy.mute()

        async with working(database_url, url), client_of(database_url, url) as client:
            await until_reading(redis, 3)
            await run_all(client, trouble, job=job)
    assert_each_once(database_url, RUNS, job)


async def test_entries_of_others_are_passed_over(
    database_url: str, redis: Valkey, job: Job
) -> None:
    """Garbage, hints of work that there is not, and hints of queues that nobody has."""
    async with (
        working(database_url, redis.url),
        client_of(database_url, redis.url) as client,
        Redis.from_url(redis.url) as link,
    ):
        await until_reading(redis, 3)
        [stream] = await streams_of(link, "wf")
        for n in range(200):
            await link.xadd(stream, {b"\xff\x00": b"\xff" * n})
            await link.xadd(stream, {"queue": "another"})
            await link.xadd(stream, {"queue": "default", "more": str(n)})
        await run_all(client, job=job)
        await until_reading(redis, 3)
        [group] = await link.xinfo_groups(stream)
        assert group["pending"] == 0
    assert_each_once(database_url, RUNS, job)


@pytest.mark.usefixtures("no_polls")
async def test_the_hint_of_a_worker_that_died_is_taken_over(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the hint, and never claimed."""
    monkeypatch.setattr(reading, "_ABANDONED_SECONDS", 0.2)
    monkeypatch.setattr(reading, "_BLOCK_SECONDS", 0.1)
    async with Redis.from_url(redis.url) as link, asyncio.timeout(60):
        async with working(database_url, redis.url, 1):  # makes the group
            await until_reading(redis, 1)
            [stream] = await streams_of(link, "wf")
        [group] = await link.xinfo_groups(stream)
        await link.xadd(stream, {"queue": "default"})
        [(_, [_])] = await link.xreadgroup(group["name"], "dead", {stream: ">"})
        looks: list[str] = []
        take = claimer.Claimer.notified

        def notified(self: claimer.Claimer, queue: str) -> None:
            looks.append(queue)
            take(self, queue)

        monkeypatch.setattr(claimer.Claimer, "notified", notified)
        async with working(database_url, redis.url, 1, poll_seconds=3600):
            while (await link.xpending(stream, group["name"]))["pending"]:
                await asyncio.sleep(0.01)
        assert looks.count("default") == 3  # for either stream when it joined, and for the hint


async def test_workers_that_were_killed_do_not_stay_in_their_group(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one that has a hint stays until the hint is taken over."""
    monkeypatch.setattr(reading, "_DEAD_SECONDS", 0.0)
    async with Redis.from_url(redis.url) as link:
        async with working(database_url, redis.url, 1):  # makes the group
            await until_reading(redis, 1)
            [stream] = await streams_of(link, "wf")
        [group] = await link.xinfo_groups(stream)
        await link.xgroup_createconsumer(stream, group["name"], "dead")
        await link.xadd(stream, {"queue": "default"})
        await link.xreadgroup(group["name"], "dead with a hint", {stream: ">"})
        async with working(database_url, redis.url, 1) as [worker]:
            await until_reading(redis, 1)
            found = await link.xinfo_consumers(stream, group["name"])
    names = {each["name"].decode() for each in found}
    assert names - {worker.worker_id} == {"dead with a hint"}  # Redis 7.0 adds it with a hint


async def test_groups_of_earlier_deployments_do_not_stay(database_url: str, redis: Valkey) -> None:
    """Fault: each deployment with other handlers left a group, as long as its queue was in use."""
    async with Redis.from_url(redis.url) as link, asyncio.timeout(60):
        store = store_on(database_url, redis.url)
        await store.open()
        for version in range(5):
            reader = store.read_hints("w", ["default"], [f"hinted/calculate@{version + 1}"])
            assert reader is not None
            await reader.read()
            await reader.close()
        async with working(database_url, redis.url, 1), working(database_url, redis.url, 1):
            async with working(database_url, redis.url, 1, served=other):
                await until_reading(redis, 3)
                [stream] = await streams_of(link, "wf")
                groups = await link.xinfo_groups(stream)
                assert sorted(each["consumers"] for each in groups) == [1, 2]
        await store.close()


@pytest.mark.usefixtures("patience")
async def test_a_key_of_another_type_is_left_alone(
    database_url: str, redis: Valkey, caplog: pytest.LogCaptureFixture, job: Job
) -> None:
    store = store_on(database_url, redis.url)
    assert isinstance(store, RedisHintedStore)
    await store.open()
    streams = (await store._streams([HINT, Notice(ACTIVITIES_TOPIC, "default")])).values()
    await store.close()
    async with Redis.from_url(redis.url) as link:
        for stream in streams:
            await link.set(stream, "mine")
        async with working(database_url, redis.url), client_of(database_url, redis.url) as client:
            await run_all(client, job=job)
        for stream in streams:
            assert await link.get(stream) == b"mine"
            assert await link.ttl(stream) == -1
        assert await link.dbsize() == 2
    assert_each_once(database_url, RUNS, job)
    said = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    for each in said:
        assert any(f"the key {stream} is not a stream" in each for stream in streams)
        assert "delete this key" in each
    assert 1 <= len(said) <= 2


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("redis://:wrong@127.0.0.1:{port}/0", ("--requirepass", "right"), "correct user and pass"),
        ("redis://127.0.0.1:{port}/0", ("--requirepass", "right"), "give user and password"),
        ("redis://:wrong@127.0.0.1:{port}/0", (), "leave it out of --redis"),
        ("redis://127.0.0.1:{port}/0", ("--cluster-enabled", "yes"), "cluster is not supported"),
        ("redis://127.0.0.1:{port}/99", (), "name a database that the server has"),
        ("redis://127.0.0.1:{port}/shop", (), "write redis://HOST:6379/0 in --redis"),
        ("http://127.0.0.1:{port}/0", (), "write redis://HOST:6379/0 in --redis"),
        ("redis://:wrong/word@127.0.0.1:1/0", (), "write redis://HOST:6379/0 in --redis"),
        ("redis://127.0.0.1:{refusing}/0", (), "start it, or correct --redis"),
    ],
)
@pytest.mark.usefixtures("patience")
async def test_a_redis_that_cannot_be_used_is_said_once(
    url: str,
    options: tuple[str, ...],
    said: str,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    job: Job,
) -> None:
    """Workers continue by PostgreSQL alone, and no password is shown."""
    with valkey(*options) as server, refusing_port() as refusing:
        address = url.format(port=server.port, refusing=refusing)
        async with working(database_url, address), client_of(database_url, address) as client:
            await run_all(client, job=job)
        store = store_on(database_url, address)
        check = await store.check_hints()
        await store.close()
    assert_each_once(database_url, RUNS, job)
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warned
    assert len(warned) <= 4  # each of three workers, and the client
    assert all(said in each for each in warned)
    assert "wrong" not in caplog.text.replace("WRONGPASS", "")
    assert check is not None
    assert said in f"{check.trouble}; {check.way_out}"


async def calls_of(link: Redis, command: str) -> int:
    """How often a server was given a command."""
    found = (await link.info("commandstats")).get(f"cmdstat_{command}", {"calls": 0})
    return int(found["calls"])


@pytest.mark.parametrize("given", ["nothing", "entries of others"])
async def test_a_server_that_does_not_let_a_read_wait_is_asked_seldom(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Fault: a proxy that ignores BLOCK made each worker read 1,500 times a second."""
    read = Redis.xreadgroup

    async def at_once(self: Redis, *arguments: Any, block: int | None, **options: Any) -> Any:
        if given != "nothing":
            for stream in await streams_of(link):
                await link.xadd(stream, {"other": "x"})
        return await read(self, *arguments, block=None, **options)

    monkeypatch.setattr(Redis, "xreadgroup", at_once)
    async with Redis.from_url(redis.url) as link:
        async with working(database_url, redis.url, 1), client_of(database_url, redis.url):
            while await calls_of(link, "xreadgroup") < 8:
                await asyncio.sleep(0.05)
            before = await calls_of(link, "xreadgroup")
            await asyncio.sleep(2)
            assert await calls_of(link, "xreadgroup") - before <= 10


async def test_a_server_that_is_flushed_all_the_time_is_joined_seldom_and_not_blamed(
    database_url: str,
    redis: Valkey,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: each flush made a worker join and claim at once, and one in a join was warned of."""
    monkeypatch.setattr(reading, "_FIRST_WAIT_SECONDS", 0.25)
    monkeypatch.setattr(reading, "_LONGEST_WAIT_SECONDS", 10.0)
    async with Redis.from_url(redis.url) as link, working(database_url, redis.url, 1):
        await until_reading(redis, 1)
        before, began = await calls_of(link, "xgroup|create"), time.monotonic()
        for _ in range(400):
            await link.flushall()
            await asyncio.sleep(0.005)
        creates = await calls_of(link, "xgroup|create") - before  # one or two in a join
    assert creates <= 5 + 8 * (time.monotonic() - began)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []


async def test_a_connection_that_the_server_closed_while_idle_is_replaced(
    database_url: str, redis: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: the hint was refused, and the log said to start a server that runs."""
    async with Redis.from_url(redis.url) as link:
        await link.config_set("timeout", 1)
    async with working(database_url, redis.url), client_of(database_url, redis.url) as client:
        await until_reading(redis, 3)
        store = client._session.store
        for n in range(3):
            assert await client.run(calculate, n) == 2 * n
            await asyncio.sleep(2.5)
        use = store.hint_use()
    assert use is not None
    assert (use.sent, use.refused) == (3, 0)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []


@pytest.mark.parametrize("what", ["a replica", "no rights", "no memory"])
@pytest.mark.usefixtures("patience")
async def test_a_redis_that_takes_no_hints_is_not_said_to_be_fit(
    database_url: str, redis: Valkey, what: str
) -> None:
    """Fault: it was enough that it answered."""
    said = {
        "a replica": "name the primary server",
        "no rights": "let the user have +@stream",
        "no memory": "give the server more memory",
    }
    address = redis.url
    async with Redis.from_url(redis.url) as link:
        if what == "a replica":
            await link.replicaof("127.0.0.1", "1")
        elif what == "no memory":
            await link.config_set("maxmemory", "1")
        else:
            rights = ("+@connection", "+info", "~holdfast:*")
            await link.execute_command("ACL", "SETUSER", "shop", "on", ">word", *rights)
            address = redis.url.replace("//", "//shop:word@")
        store = store_on(database_url, address)
        check = await store.check_hints()
        assert check is not None
        assert said[what] in (check.way_out or "")
        assert await link.dbsize() == 0
    await store.close()


@pytest.mark.parametrize("lacking", ["-xautoclaim", "-xreadgroup"])
@pytest.mark.usefixtures("patience")
async def test_rights_that_are_not_enough_are_said_once(
    database_url: str, redis: Valkey, caplog: pytest.LogCaptureFixture, job: Job, lacking: str
) -> None:
    """A worker may join and not read; it does not look again and again for that."""
    caplog.set_level(logging.INFO, "holdfast.redis")
    async with Redis.from_url(redis.url) as link:
        rights = ("+@stream", lacking, "+@connection", "+expire", "+info", "~holdfast:*")
        await link.execute_command("ACL", "SETUSER", "shop", "on", ">word", *rights)
        address = redis.url.replace("//", "//shop:word@")
        async with working(database_url, address, 2), client_of(database_url, address) as client:
            await run_all(client, job=job)
            refused = 0
            while refused < 10:
                refused = int((await link.info("errorstats"))["errorstat_NOPERM"]["count"])
                await asyncio.sleep(0.01)
    assert_each_once(database_url, RUNS, job)
    [one, two] = [each.getMessage() for each in caplog.records if each.name == "holdfast.redis"]
    assert one == two
    assert "let the user have +@stream" in one


@pytest.mark.usefixtures("patience")
async def test_the_rights_that_the_page_names_are_enough(
    database_url: str, redis: Valkey, caplog: pytest.LogCaptureFixture, job: Job
) -> None:
    async with Redis.from_url(redis.url) as link:
        rights = ("+@stream", "+@connection", "+expire", "+info", "~holdfast:*")
        await link.execute_command("ACL", "SETUSER", "shop", "on", ">word", *rights)
    address = redis.url.replace("//", "//shop:word@")
    async with working(database_url, address), client_of(database_url, address) as client:
        await until_reading(redis, 3)
        await run_all(client, job=job)
    assert_each_once(database_url, RUNS, job)
    assert caplog.text == ""


async def test_an_old_server_is_refused(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def info(_: Redis) -> dict[str, object]:
        return {"redis_version": "6.0.16", "cluster_enabled": 0}

    monkeypatch.setattr(Redis, "info", info)
    store = store_on(database_url, redis.url)
    check = await store.check_hints()
    await store.close()
    assert check is not None
    assert (check.trouble, check.way_out) == (
        "the server has version 6.0.16",
        "Redis 6.2 or Valkey 7.2 or newer is needed",
    )


async def test_calls_at_once_share_a_connection_that_the_close_ends(
    database_url: str, redis: Valkey
) -> None:
    """A client and workers may have one store. A second connection would never be closed."""
    store = store_on(database_url, redis.url)
    assert isinstance(store, RedisHintedStore)
    await store.open()
    async with Redis.from_url(redis.url) as link:

        async def connections() -> int:
            return int((await link.info("clients"))["connected_clients"])

        before = await connections()
        await asyncio.gather(*(store.notify([HINT]) for _ in range(10)))
        assert await connections() == before + 1
        await store.close()
        async with asyncio.timeout(60):
            while await connections() > before:
                await asyncio.sleep(0.01)


async def test_streams_are_trimmed_and_expire(database_url: str, redis: Valkey) -> None:
    store = store_on(database_url, redis.url)
    assert isinstance(store, RedisHintedStore)
    await store.open()
    for _ in range(3000):
        assert await store._hint([HINT]) == []
    async with Redis.from_url(redis.url) as link:
        [stream] = await streams_of(link, "wf")
        assert await link.xlen(stream) < 1500
        assert await link.ttl(stream) > 0
        assert await link.dbsize() == 1
    await store.close()


def test_the_client_of_redis_is_loaded_when_a_store_opens(database_url: str, redis: Valkey) -> None:
    """The first hint has no time for that on a busy machine, and a fork during it would hang."""
    program = (
        "import sys\n"
        "from holdfast import SyncClient\n"
        f"with SyncClient({database_url!r}, redis={redis.url!r}):\n"
        "    print('redis.asyncio.client' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_without_redis_nothing_of_it_is_loaded(database_url: str) -> None:
    program = (
        "import sys\n"
        "from holdfast import SyncClient\n"
        "import holdfast.worker, holdfast.server.running\n"
        f"with SyncClient({database_url!r}) as client: client.runs.list()\n"
        "print([name for name in sys.modules if 'redis' in name])"
    )
    environment = {**os.environ, "HOLDFAST_REDIS_URL": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "[]\n"


def test_the_doctor_says_whether_redis_can_be_used(database_url: str, redis: Valkey) -> None:
    """Without Redis it says nothing of it."""

    def look(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(holdfast, ["--database", database_url, *options, "doctor"])
        return done.exit_code, " ".join(done.output.split())

    code, said = look("--redis", redis.url.replace("//", "//:hidden@"))
    assert code == 0
    assert "redis" in said
    assert "does not wake workers, PostgreSQL does: the server refuses" in said
    assert "hidden" not in said
    assert "takes hints" in look("--redis", redis.url)[1]
    assert "redis" not in look()[1]
