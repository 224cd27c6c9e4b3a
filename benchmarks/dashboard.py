"""What lists, counts and pages cost beside a million runs, 200,000 of them open.

The rows are written by SQL; that takes a minute or two. The server runs in a process of its own.
Each answer is asked for one after the other over one connection that stays open. `--only` chooses
a part: lists, page (a run of 10,000 events in Chromium) or viewers (50 who look at one list).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from uuid import UUID

import asyncpg

from benchmarks.budgets import Figure, figure, parser, percentile, tell
from benchmarks.http_server import WIDE, Connection, HttpServer, fresh, running
from benchmarks.many_runs import write_log, write_runs
from holdfast.client import Client

PARTS = ("lists", "page", "viewers")
EVENTS = 10_000
VIEWERS = 50
WATCHED_SECONDS = 20.0
FLUSH_SECONDS = 11.0  # after which a session of PostgreSQL has told what it counted
PAINTS = 5
SLOW_MS = 50
PAINTED = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"""
ASKED = ("list_runs", "get_runs")
CALLS = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = $1"
LISTS = {
    "newest": "/v1/runs",
    "of-200": "/v1/runs?limit=200",
    "failed": "/v1/runs?status=failed",
    "failed-of-one": "/v1/runs?status=failed&workflow=shop/work-1",
    "waiting": "/v1/runs?status=waiting",
    "queued": "/v1/runs?status=queued",
    "running": "/v1/runs?status=running",
    "stuck": "/v1/runs?status=stuck",
    "paused": "/v1/runs?status=paused",
    "nobody": "/v1/runs?workflow=shop/nobody",
    "key": "/v1/runs?workflow=shop/work-7&key=order-7",
    "tag": "/v1/runs?tag=vip",
    "tag-nobody": "/v1/runs?tag=none",
    "tag-failed": "/v1/runs?tag=none&status=failed",
    "queue-filter": "/v1/runs?queue=queue-1",
    "input": "/v1/runs?input.customer=7",
    "input-nobody": "/v1/runs?input.customer=none",
    "approvals": "/v1/approvals",
    "workflows": "/v1/workflows",
    "workflow": "/v1/workflows/work-1",
    "queues": "/v1/queues",
    "events": "/v1/events?since=30s",
    "page-overview": "/",
    "page-runs": "/runs",
    "page-approvals": "/approvals",
    "page-workflows": "/workflows",
    "page-workflow": "/workflow?name=shop/work-1",
    "page-queues": "/queues",
    "page-doctor": "/doctor",
}


async def lists(server: HttpServer, times: int) -> list[Figure]:
    """Return for each list the p95 of its answers."""
    connection = Connection(server)
    await connection.open()
    cookie = await connection.log_in(server.key)
    found: list[Figure] = []
    for name, path in LISTS.items():
        took: list[float] = []
        for _ in range(times + 3):
            began = time.perf_counter()
            await connection.get(path, cookie)
            took.append((time.perf_counter() - began) * 1e3)
        warm = took[3:]
        noise = percentile(warm, 95) - statistics.median(warm)
        title = f"{path}, p95"
        found.append(Figure(f"list-{name}", title, "ms", percentile(warm, 95), noise, SLOW_MS))
    connection.close()
    return found


async def long_run(url: str) -> UUID:
    """Return a run of 10,000 events."""
    connection = await asyncpg.connect(url)
    try:
        async with Client(url) as client:
            run_id = (await client.start("shop/long", 1)).run_id
        await write_log(connection, run_id, EVENTS)
        return run_id
    finally:
        await connection.close()


async def page_bytes(server: HttpServer, run_id: UUID) -> int:
    """Return how large the page of a run is."""
    connection = Connection(server)
    await connection.open()
    cookie = await connection.log_in(server.key)
    html = await connection.get(f"/runs/{run_id}", cookie)
    connection.close()
    return len(html)


def paints(server: HttpServer, run_id: UUID) -> list[float]:
    """Return the milliseconds until Chromium first shows the page of a run, several times."""
    from playwright.sync_api import sync_playwright

    programs = ("chromium", "chromium-browser", "chromium-headless-shell")
    chromium = next(filter(None, map(shutil.which, programs)), None)
    if chromium is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    found: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context().new_page()
        page.goto(f"{server.url}/login?key={server.key}&next=/workers")
        for _ in range(PAINTS):
            page.goto(f"{server.url}/workers")
            page.goto(f"{server.url}/runs/{run_id}", wait_until="domcontentloaded")
            while (painted := page.evaluate(PAINTED)) is None:  # the CSP refuses wait_for_function
                page.wait_for_timeout(10)
            found.append(float(painted))
        browser.close()
    return found


def run_page(url: str, home: Path) -> list[Figure]:
    """Return what the page of a long run costs: the first look, and those after it."""
    run_id = asyncio.run(long_run(url))
    firsts, again = list[float](), list[float]()
    for _ in range(3):
        with running(url, home) as server:
            first, *others = paints(server, run_id)
            firsts.append(first)
            again += others
            size = asyncio.run(page_bytes(server, run_id))
    title = f"page of a run of {EVENTS:,} events"
    return [
        figure("run-first-paint", f"{title}: first paint, first look", "ms", firsts, 600),
        figure("run-paint", f"{title}: first paint, later looks", "ms", again, 600),
        Figure("run-html", f"{title}: HTML", "kB", size / 1000, budget=100),
    ]


async def viewers(url: str, server: HttpServer) -> list[Figure]:
    """Let many look at one list, and return how often it is asked for."""
    database = await asyncpg.connect(url)
    connections = [Connection(server) for _ in range(VIEWERS)]
    for each in connections:
        await each.open()
    cookies = [await each.log_in(server.key) for each in connections]  # streams of one take turns
    reading = [
        asyncio.create_task(_read(await _look(each, cookie)))
        for each, cookie in zip(connections, cookies, strict=True)
    ]
    await asyncio.sleep(FLUSH_SECONDS)
    before = {name: await database.fetchval(CALLS, name) for name in ASKED}
    used = server.cpu_seconds()
    await asyncio.sleep(WATCHED_SECONDS)
    cpu = (server.cpu_seconds() - used) / WATCHED_SECONDS * 100
    after = {name: await database.fetchval(CALLS, name) for name in ASKED}
    asked = {name: float(after[name] - before[name]) / WATCHED_SECONDS * 2 for name in ASKED}
    alive = sum(not each.done() for each in reading)
    for task in reading:
        task.cancel()
    for each in connections:
        each.close()
    await database.close()
    if alive != VIEWERS:
        raise SystemExit(f"only {alive} of {VIEWERS} streams stayed open")
    title = f"{VIEWERS} viewers of one list, each with other rows: calls of"
    return [
        *(
            Figure(f"viewers-{name}", f"{title} {name}", "per 2 s", count, budget=1.1)
            for name, count in asked.items()
        ),
        Figure("viewers-cpu", "processor of the server meanwhile", "%", cpu),
    ]


async def _look(connection: Connection, cookie: str) -> asyncio.StreamReader:
    """Open the list of runs and its stream, after another run was started."""
    await connection.post("/v1/workflows/checkout/runs?app=shop", b'{"input": 1}')
    html = await connection.get("/runs", cookie)
    path = html.partition(b'data-connect="')[2].partition(b'"')[0].decode().replace("&amp;", "&")
    if not path:
        raise SystemExit("the page of runs has no stream")
    return await connection.stream(path, cookie)


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def _fill(url: str, runs: int) -> None:
    connection = await asyncpg.connect(url)
    await write_runs(connection, runs)
    await connection.close()


def main() -> None:
    options = parser("dashboard", __doc__)
    options.add_argument("--runs", type=int, default=1_000_000, help="a fifth is open; 1,000,000")
    options.add_argument("--times", type=int, default=40, help="that each is asked for; 40")
    options.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    given = options.parse_args()
    chosen, figures = given.only or PARTS, list[Figure]()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HOLDFAST_HOME"] = folder
        with fresh(home, "bench_dashboard") as (_, url):
            if "page" in chosen:
                figures += run_page(url, home)
            if "lists" in chosen or "viewers" in chosen:
                began = time.perf_counter()
                asyncio.run(_fill(url, given.runs))
                print(f"{given.runs:,} runs written in {time.perf_counter() - began:.0f} s")
            if "lists" in chosen:
                with running(url, home) as server:
                    figures += asyncio.run(lists(server, given.times))
            if "viewers" in chosen:
                with running(url, home, WIDE) as server:
                    figures += asyncio.run(viewers(url, server))
    tell(figures, given.output)


if __name__ == "__main__":
    main()
