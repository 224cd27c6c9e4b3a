"""What shows if Redis is used and works: the list of workers, metrics, doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from tests.proxy import Proxy
from tests.valkey import Valkey, needs_valkey

from holdfast.cli.root import holdfast
from holdfast.database.resolve import Connecting, resolve_database
from holdfast.insight.doctor import check_hints
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.memory import MemoryStore
from holdfast.store.opening import opened_store
from holdfast.store.port import Store
from holdfast.store.redis import server
from holdfast.telemetry.sending import hint_families
from holdfast.telemetry.worker import WorkerMetrics
from holdfast.types import HintCheck, HintUse, WorkerInfo
from holdfast.worker import Worker

from .hinted import RUNS, app, client_of, run_all, until_reading, working


def shown(worker: Worker) -> dict[str, float]:
    """Return the metrics of hints, by name and label."""
    metrics = WorkerMetrics()
    metrics.watch(worker)
    return {
        " ".join([family.name, *sample.labels.values()]): sample.value
        for family in metrics.families()
        if "hints" in family.name or "redis" in family.name
        for sample in family.samples
    }


async def until_listed(store: Store, wanted: Callable[[list[WorkerInfo]], bool]) -> None:
    async with asyncio.timeout(60):
        while not wanted(await store.list_workers()):
            await asyncio.sleep(0.05)


@needs_valkey
async def test_workers_say_if_redis_reaches_them(database_url: str, redis: Valkey) -> None:
    async def cli(*arguments: str) -> str:
        command = ["--database", database_url, *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, holdfast, command)
        assert done.exit_code == 0
        return " ".join(done.output.split())

    async with (
        working(database_url, redis.url) as workers,
        client_of(database_url, redis.url) as client,
        opened_store(resolve_database(database_url), "holdfast") as store,
    ):
        await until_reading(redis, 3)
        await until_listed(store, lambda found: all(each.hints is True for each in found))
        assert "redis" in await cli("workers")
        assert "this program does not use it; Redis is used by 3 of 3 live workers" in await cli(
            "doctor"
        )
        seen = await cli("--redis", redis.url, "doctor")
        assert "takes hints; Redis is used by 3 of 3 live workers" in seen
        await run_all(client)
        numbers = [shown(worker) for worker in workers]
        assert all(each["holdfast_redis_up"] == 1 for each in numbers)
        assert sum(each["holdfast_hints_total read"] for each in numbers) > 0
        assert all(each["holdfast_hints_total refused"] == 0 for each in numbers)
        redis.kill()
        await until_listed(store, lambda found: all(each.hints is False for each in found))
        assert all(shown(worker)["holdfast_redis_up"] == 0 for worker in workers)
        assert "away" in await cli("workers")
        said = await cli("doctor")
        assert "does not reach 3 of 3" in said
        assert all(each.worker_id in said for each in workers)
        redis.start()
        await until_listed(store, lambda found: all(each.hints is True for each in found))


@needs_valkey
async def test_a_client_knows_how_many_hints_it_has_sent(database_url: str, redis: Valkey) -> None:
    """Before the first it does not know if Redis works."""
    async with client_of(database_url, redis.url) as client:
        store = client._session.store
        assert store.hint_use() == HintUse(works=None)
        assert [each.name for each in hint_families(store.hint_use())] == ["holdfast_hints_total"]
        async with working(database_url, redis.url):
            await until_reading(redis, 3)
            await run_all(client)
        use = store.hint_use()
        assert use is not None
        assert (use.works, use.refused) == (True, 0)
        assert 0 < use.sent <= RUNS


@needs_valkey
async def test_the_metrics_of_a_server_show_the_hints_of_what_it_starts(
    database_url: str, redis: Valkey
) -> None:
    """Fault: they showed those of the connection that it reads with, which sends none."""
    database = resolve_database(database_url, connecting=Connecting(redis_url=redis.url))
    server = Server(database, auth=KeyAccess("k"), app=app, hosts=["ops.test"])
    transport = httpx.ASGITransport(server)
    async with (
        working(database_url, redis.url),
        httpx.AsyncClient(
            transport=transport, base_url="http://ops.test", headers={"Authorization": "Bearer k"}
        ) as http,
    ):
        await until_reading(redis, 3)
        started = await http.post("/v1/workflows/calculate/runs", json={"input": 1})
        assert started.status_code == 201
        async with asyncio.timeout(60):  # it may be sent after the answer
            while 'holdfast_hints_total{what="sent"} 1' not in (await http.get("/metrics")).text:
                await asyncio.sleep(0.05)
        assert "holdfast_redis_up 1" in (await http.get("/metrics")).text
    await server.site.close()


async def test_without_redis_there_are_no_metrics_of_hints() -> None:
    assert hint_families(MemoryStore().hint_use()) == []


class CheckedStore(MemoryStore):
    """A store with Redis, or without."""

    check: HintCheck | None = None

    async def check_hints(self) -> HintCheck | None:
        return self.check


ADDRESS = "redis://host:6379/0"
WORKER = WorkerInfo(
    worker_id="ann",
    hostname="h",
    pid=1,
    queues=("default",),
    handlers=("a/b@1",),
    concurrency=1,
    holdfast_version="0",
)


@pytest.mark.parametrize(
    ("check", "hints", "said"),
    [
        (None, [], []),
        (None, [None], []),
        (None, [True], ["ok", "this program does not use it; Redis is used by 1 of 1 live worker"]),
        (HintCheck(ADDRESS), [], ["ok", f"{ADDRESS} takes hints"]),
        (
            HintCheck(ADDRESS),
            [True, None],
            ["ok", f"{ADDRESS} takes hints; Redis is used by 1 of 2 live workers"],
        ),
        (
            HintCheck(ADDRESS),
            [None],
            ["warn", f"{ADDRESS} takes hints; Redis is used by 0 of 1 live worker"],
        ),
        (
            HintCheck(ADDRESS),
            [True, False],
            ["warn", "Redis does not reach 1 of 2 that use it: w1"],
        ),
        (
            HintCheck(ADDRESS, "no answer", "start it"),
            [True],
            ["warn", f"{ADDRESS} does not wake workers, PostgreSQL does: no answer"],
        ),
    ],
)
async def test_doctor_says_who_uses_redis(
    check: HintCheck | None, hints: list[bool | None], said: list[str]
) -> None:
    store = CheckedStore()
    store.check = check
    await store.open()
    for number, each in enumerate(hints):
        info = msgspec.structs.replace(WORKER, worker_id=f"w{number}", hints=each)
        await store.heartbeat(info, [], lease_seconds=30)
    found = await check_hints(store)
    assert [word for each in found for word in (each.level, each.message)] == said


@needs_valkey
async def test_a_redis_that_answers_too_late_for_hints_is_said_not_to_be_used(
    database_url: str, redis: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.redis.server._CONNECT_SECONDS", 60.0)
    with Proxy(f"postgresql://any?host={redis.folder}") as proxy:
        proxy.delay(0.35)  # for each direction
        url = f"redis://127.0.0.1:{proxy.port}/0"
        connecting = Connecting(redis_url=url)
        database = resolve_database(database_url, connecting=connecting)
        async with opened_store(database, "holdfast") as store:
            found = await store.check_hints()
    assert found is not None
    assert found.trouble is not None
    assert "Timeout" in found.trouble


def test_a_trouble_that_comes_and_goes_is_not_said_each_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But it is said again later: also if it then stays."""
    caplog.set_level("INFO", "holdfast.redis")
    redis = server.RedisServer("redis://127.0.0.1:6379/0")
    cut, full = (
        server.RedisTrouble("cut off", "start it"),
        server.RedisTrouble("full", "enlarge it"),
    )
    for _ in range(3):
        redis.fails("reading", cut)
        redis.works("reading")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    redis.fails("sending", full)
    redis.works("sending")
    redis.fails("reading", cut)
    assert [record.levelname for record in caplog.records] == 2 * ["WARNING", "INFO"]
    monkeypatch.setattr(server, "_SAY_AGAIN_SECONDS", 0.0)
    redis.fails("reading", cut)
    assert caplog.records[-1].levelname == "WARNING"


def test_two_troubles_at_once_do_not_displace_each_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: each was said again and again, and that Redis works was said while one lasted."""
    caplog.set_level("INFO", "holdfast.redis")
    monkeypatch.setattr(server, "_SAY_AGAIN_SECONDS", 0.0)
    redis = server.RedisServer("redis://127.0.0.1:6379/0")
    cut = server.RedisTrouble("cut off", "start it")
    full = server.RedisTrouble("full", "enlarge it")
    for _ in range(3):
        redis.fails("reading", cut)
        redis.fails("sending", full)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    redis.works("sending")
    assert len(caplog.records) == 2
    redis.works("reading")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    redis.fails("sending", cut)
    redis.fails("reading", cut)  # the same, so it is said once
    redis.works("sending")
    assert len(caplog.records) == 4
    redis.works("reading")
    assert "is used again" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 5
