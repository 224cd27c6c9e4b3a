"""The metrics of a server, and the statistics that it answers with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from urllib.request import urlopen

import asyncpg
import httpx
import pytest

from holdfast.server import Server, site
from holdfast.store.port import Store
from holdfast.telemetry.listener import MetricsListener
from holdfast.telemetry.server import CachedGauges
from holdfast.telemetry.tallies import gauge
from holdfast.telemetry.worker import WorkerMetrics
from holdfast.types import AppInfo, MinuteCounts, WorkerInfo
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED, MILLIS
from tests.server.shop import HOST, KEY, Api
from tests.server.test_database import on_database
from tests.telemetry.scrapes import Scrape

MINUTE = 60_000_000
INFO = WorkerInfo(
    worker_id="w",
    hostname="h",
    pid=1,
    queues=("default",),
    handlers=("shop/checkout@1",),
    concurrency=1,
    holdfast_version="0",
)


async def scraped(api: Api) -> Scrape:
    answer = await api.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(answer.text)


async def test_b11_the_server_shows_what_is_in_flight_and_counts_its_signals(api: Api) -> None:
    runs = [await api.start(), await api.start()]
    await api.ask("POST", f"/v1/runs/{runs[0]}/signals/packed", body=1)
    await api.ask("POST", f"/v1/runs/{runs[0]}/signals/packed", body=1)
    seen = await scraped(api)
    assert seen.value("workflow_runs_in_flight", workflow="checkout") == 2
    assert seen.value("workflow_signals_total", event="packed") == 2
    assert seen.value("holdfast_queue_due", queue="default") == 2
    assert seen.value("holdfast_unserved_tasks", queue="default") == 2
    assert {"holdfast_workers", "holdfast_approvals_open", "holdfast_runs_stuck"} <= seen.names
    routes = {each["route"] for each in seen.label_sets("holdfast_http_seconds_count")}
    assert any(each.startswith("POST /v1/runs/{run}/signals/") for each in routes)
    assert seen.value("holdfast_http_seconds_count") == 4


async def test_metrics_need_the_level_read(api: Api) -> None:
    answer = await api.http.get("/metrics", headers={"Authorization": "Bearer wrong"})
    assert answer.status_code == 401


async def test_what_the_database_does_not_answer_is_absent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "READ_SECONDS", 0.3)
    connection = await asyncpg.connect(database_url)
    async with on_database(database_url) as api:
        async with connection.transaction():
            await connection.execute("lock table holdfast.tasks in access exclusive mode")
            seen = await scraped(api)
        assert "workflow_runs_in_flight" not in seen.names
        assert {"workflow_signals_total", "holdfast_streams"} <= seen.names
    await connection.close()
    async with on_database("postgresql://nobody@127.0.0.1:1/none") as api:
        assert "holdfast_streams" in (await scraped(api)).names


async def test_gauges_are_asked_for_now_and_then() -> None:
    now, asked = 0.0, 0

    async def ask() -> list[object]:
        nonlocal asked, now
        asked += 1
        now += 2.0  # it takes so long
        return [gauge("asked", "", asked)]

    gauges = CachedGauges(lambda: now)
    read: Callable[[], Awaitable[object]] = lambda: gauges.read(ask)  # type: ignore[arg-type]  # noqa: E731
    await asyncio.gather(*(read() for _ in range(5)))
    assert asked == 1
    now += 39
    await read()
    assert asked == 1
    now += 2
    await read()
    assert asked == 2


def label_sets(metrics: WorkerMetrics) -> None:
    """Count steps of 200 workflows, each of which has 50."""
    for workflow in range(200):
        for step in range(50):
            metrics.step_seconds.observe((f"workflow-{workflow}", f"step-{step}"), 12_345)


async def longest_stall(work: Awaitable[object]) -> float:
    """Return for how much CPU time of this process its event loop stood still at most."""
    stalls, ended = [0.0], False

    async def tick() -> None:
        while not ended:
            before = time.process_time()
            await asyncio.sleep(0)
            stalls.append(time.process_time() - before)
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    await work
    ended = True
    await ticking
    return max(stalls)


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    metrics = WorkerMetrics()
    label_sets(metrics)
    listener = MetricsListener("127.0.0.1", 0, metrics.families)
    listener.start()
    yield listener
    listener.stop()


async def test_case_34_a_scrape_does_not_stall_the_loop(listener: MetricsListener) -> None:
    """Edge case 34. 200 workflows x 50 steps: no stall of more than 20 ms."""

    def read() -> bytes:
        with urlopen(listener.url, timeout=60) as answer:
            body: bytes = answer.read()
            return body

    stall = min([await longest_stall(asyncio.to_thread(read)) for _ in range(3)])
    seen = Scrape(read().decode())
    assert 900 < len(seen.label_sets("workflow_step_duration_seconds_count")) <= 1000
    assert seen.value("workflow_step_duration_seconds_count") == 10_000
    assert stall < 0.020


async def test_statistics_say_how_runs_ended_and_how_long_they_took(store: Store, api: Api) -> None:
    now = await store.now()
    counts = [0] * COUNTS
    counts[BEGUN], counts[ENDED["completed"]], counts[ENDED["timed_out"]] = 100, 90, 10
    counts[MILLIS], counts[BUCKETS + 4], counts[BUCKETS + 6] = 200_000, 95, 5
    rows = [
        MinuteCounts(now - ago * MINUTE, name, tuple(counts))
        for ago, name in ((3, "shop/checkout"), (4, "shop/checkout"), (5, "shop/other"))
    ]
    await store.heartbeat(INFO, [], lease_seconds=30, stats=rows)
    found = await api.ask("GET", "/v1/stats?since=10m&workflow=shop/checkout")
    (checkout,) = found["workflows"]
    assert checkout["name"] == "shop/checkout"
    assert (checkout["begun"], checkout["failed_percent"], checkout["mean"]) == (200, 10.0, 2.0)
    assert checkout["ended"] == {"completed": 180, "timed_out": 20}
    assert 0.3 <= checkout["p50"] <= 1
    assert 3 <= checkout["p99"] <= 10
    assert len(checkout["series"]) == 10
    assert [point["ended"] for point in checkout["series"] if point["ended"]] == [100, 100]
    assert [point["begun"] for point in checkout["series"] if point["begun"]] == [100, 100]
    assert {point["p50"] is None for point in checkout["series"] if not point["ended"]} == {True}
    total = (await api.ask("GET", "/v1/stats?since=10m"))["total"]
    assert (total["name"], total["begun"], total["ended"]["completed"]) == ("", 300, 270)
    assert {each["name"] for each in (await api.ask("GET", "/v1/stats"))["workflows"]} == {
        "shop/checkout",
        "shop/other",
    }
    for wrong in ("since=2y", "since=soon", "since=2999-01-01T00:00:00Z", "workflow="):
        await api.ask("GET", f"/v1/stats?{wrong}", status=400)


async def test_statistics_of_a_workflow_named_without_its_app(store: Store, api: Api) -> None:
    """Numbers of nothing look like a workflow that does not run."""
    await store.sign_on_app(AppInfo(app="shop", workflows=("checkout",)))
    counts = [0] * COUNTS
    counts[BEGUN] = counts[ENDED["completed"]] = 5
    row = MinuteCounts(await store.now() - 3 * MINUTE, "shop/checkout", tuple(counts))
    await store.heartbeat(INFO, [], lease_seconds=30, stats=[row])
    for name in ("checkout", "shop/checkout"):
        found = await api.ask("GET", f"/v1/stats?workflow={name}")
        assert [each["name"] for each in found["workflows"]] == ["shop/checkout"]
        assert (await api.ask("GET", f"/v1/load?workflow={name}"))["queues"] == []
    for path in ("stats", "load", "runs"):
        refused = await api.ask("GET", f"/v1/{path}?workflow=chekout", status=404)
        assert "chekout" in refused["detail"]


async def test_many_failures_are_found(store: Store) -> None:
    from holdfast.insight.stats import check_failures

    assert (await check_failures(store)).level == "ok"
    counts = [0] * COUNTS
    counts[ENDED["completed"]], counts[ENDED["failed"]] = 30, 12
    row = MinuteCounts(await store.now(), "shop/checkout", tuple(counts))
    await store.heartbeat(INFO, [], lease_seconds=30, stats=[row])
    finding = await check_failures(store)
    assert finding.level == "warn"
    assert "shop/checkout: 12 of 42 runs" in finding.message


async def test_a_server_that_is_asked_by_many_answers_each(server: Server) -> None:
    transport = httpx.ASGITransport(server)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://{HOST}", headers=headers
    ) as http:
        answers = await asyncio.gather(*(http.get("/metrics") for _ in range(20)))
    assert {each.status_code for each in answers} == {200}
