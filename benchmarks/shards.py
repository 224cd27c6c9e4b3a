"""What several databases cost beside one, all on one server: `python -m benchmarks.shards`.

Lists: of 250,000 runs in one database, and in four of a quarter each, asked by turns. Calls: what
starts, signals, lists and others take of a client with 1, 4, 16 and 64 shards. Workers: what a
worker process does that has one of so many shards. `--only` chooses a part. It prints tables; the
whole takes about ten minutes, most of them to write the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import asyncpg

from benchmarks import machine
from benchmarks.bench import wait_until
from benchmarks.budgets import percentile
from benchmarks.counting import SETTLE_SECONDS
from benchmarks.engine_holdfast import APP, HOLDFAST
from benchmarks.many_runs import write_runs
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.worker import WorkerProcess
from holdfast import Client
from holdfast.store.postgres.database import Database

PARTS = ("lists", "calls", "workers")
QUARTERS = 4
BAR_MS = 50
IDLE_SECONDS = 20.0
RUNS = 2_000  # of a worker
WARM_UP = 8  # times in each shard: PostgreSQL plans the first five calls
LISTED = 100  # runs in each shard, at least, when calls are measured
SPACING = timedelta(seconds=0.2)  # between the runs of one database, as `many_runs` writes them
_VALUES = """
insert into holdfast.attributes (run_id, name, value, created_at)
select r.run_id, 'customer', r.input -> 'customer', r.created_at from holdfast.runs r
"""
_COUNTED = """
select coalesce(sum(xact_commit + xact_rollback) filter (where datname = current_database()), 0),
    coalesce(sum(xact_commit + xact_rollback) filter (where datname <> current_database()), 0),
    (select count(*) from pg_stat_activity
        where pid <> pg_backend_pid() and backend_type = 'client backend')
from pg_stat_database where datname like $1
"""

Ask = Callable[[Client], Awaitable[Any]]
Cell = float | str


def _list(**filters: Any) -> Ask:
    return lambda client: client.runs.list(**filters)


LISTS: dict[str, Ask] = {
    "newest 50": _list(),
    "newest 100": _list(limit=100),
    "failed": _list(states="failed"),
    "waiting": _list(states="waiting"),
    "of a workflow": _list(names="shop/work-1"),
    "of a workflow, failed": _list(names="shop/work-1", states="failed"),
    "with an attribute": _list(where={"customer": 7}),
    "with a tag": _list(tags="vip"),
    "with a tag that none has": _list(tags="none"),
    "count by state": lambda client: client.runs.count("state"),
    "count of failed by workflow": lambda client: client.runs.count("workflow", states="failed"),
}


@contextmanager
def engine(server: Server, count: int) -> Iterator[list[str]]:
    """Provide the URLs of so many new databases that are one engine."""
    names = [f"bench_shards_{count}_{number}" for number in range(count)]
    first = server.fresh_database(names[0])
    urls = [urlsplit(first)._replace(path=f"/{name}").geturl() for name in names]
    try:
        _holdfast("migrate", "--database", first)
        for name in names[1:]:
            server.drop_database(name)
            server.ask(f'create database "{name}" template "{names[0]}"')
        if count > 1:
            _holdfast("shards", "add", *_named(urls))
        yield urls
    finally:
        for name in names:
            server.drop_database(name)


def _holdfast(*arguments: str) -> None:
    subprocess.run([HOLDFAST, *arguments], check=True, stdout=subprocess.DEVNULL)


def _named(urls: Sequence[str]) -> list[str]:
    return [part for url in urls for part in ("--database", url)]


async def fill(urls: Sequence[str], runs: int) -> None:
    """Write so many runs, as many into each database."""
    for url in urls:
        connection = await asyncpg.connect(url)
        await write_runs(connection, runs // len(urls))
        await connection.execute(_VALUES, timeout=300)
        await connection.execute("vacuum analyze", timeout=300)
        await connection.close()


async def lists(engines: Sequence[Sequence[str]], runs: int, times: int) -> list[list[Cell]]:
    """Return a row for each list: its median and 99th percentile with each engine, in ms."""
    rows: list[list[Cell]] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(" ".join(urls))) for urls in engines]
        middles = [
            _list(cursor=await _middle(client, runs // len(urls)))
            for client, urls in zip(clients, engines, strict=True)
        ]
        asked = {name: [ask] * len(clients) for name, ask in LISTS.items()}
        for name, asks in {**asked, "50 in the middle": middles}.items():
            took: list[list[float]] = [[] for _ in clients]
            for turn in range(times + 3):
                for client, ask, each in zip(clients, asks, took, strict=True):
                    began = time.perf_counter()
                    await ask(client)
                    if turn >= 3:
                        each.append((time.perf_counter() - began) * 1e3)
            rows.append([name, *(f(each) for each in took for f in (statistics.median, _slowest))])
    return rows


def _slowest(took: Sequence[float]) -> float:
    return percentile(took, 99)


async def _middle(client: Client, runs: int) -> str:
    """Return the cursor of a page in the middle, if each database has so many runs."""
    [newest] = (await client.runs.list(limit=1)).runs
    page = await client.runs.list(limit=1, until=newest.created_at - SPACING * runs / 2)
    assert page.cursor is not None, "half of all runs are older"
    return page.cursor


class Counter:
    """Counts the statements of this process, its processor time and what else goes by."""

    def __init__(self) -> None:
        self.statements = 0
        self.found: dict[str, list[tuple[float, int, float]]] = defaultdict(list)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count each call of a database's function within the block."""
        call = Database._call

        async def counted(database: Database, what: Any) -> Any:
            self.statements += 1
            return await call(database, what)

        with patch.object(Database, "_call", counted):
            yield

    async def measure(self, name: str, call: Awaitable[Any]) -> Any:
        """Await a call, and keep what it took."""
        began, used, before = time.perf_counter(), time.process_time(), self.statements
        answer = await call
        took, cpu = time.perf_counter() - began, time.process_time() - used
        self.found[name].append((took * 1e3, self.statements - before, cpu * 1e3))
        return answer

    def cells(self, times: int) -> dict[str, str]:
        """Return of each call the medians of the last: time, statements, processor time."""
        return {
            name: "{:.1f} / {:.0f} / {:.1f}".format(
                *map(statistics.median, zip(*each[-times:], strict=True))
            )
            for name, each in self.found.items()
        }


async def calls(urls: Sequence[str], times: int) -> dict[str, str]:
    """Return what each call of a client takes: no worker runs."""
    counter, url = Counter(), " ".join(urls)
    async with Client(url) as other:
        for _ in range(len(urls)):
            await other.start_many("bench/gated", [0] * 2 * LISTED)
        warm = WARM_UP * len(urls)
        theirs = [await other.start("bench/gated", 0) for _ in range(warm + times)]
    with counter.counting():
        async with Client(url) as client:
            for number, there in enumerate(theirs):
                key, measure = f"key-{number}", counter.measure
                here = await measure("start", client.start("bench/gated", 0))
                await measure("start with a key", client.start("bench/gated", 0, key=key))
                await measure("signal to a run that it knows", here.signal("go"))
                seen = client.handle(there.run_id)
                await measure("signal to a run of another program", seen.signal("go"))
                await measure("get by id", client.runs.get(here.run_id))
                await measure("get by key", client.runs.get(("bench/gated", key)))
                if number >= warm - WARM_UP:  # these ask all shards each time
                    await measure("list, newest 50", client.runs.list())
                    await measure("count by state", client.runs.count("state"))
    return counter.cells(times)


async def worker(urls: Sequence[str]) -> list[Cell]:
    """Return what a worker process of the last shard does: idle, and for so many runs."""
    number, own = len(urls) - 1, urls[-1]
    pattern = urlsplit(own).path[1:].rpartition("_")[0].replace("_", "\\_") + "\\_%"
    command = [HOLDFAST, "worker", APP, *_named(urls)]
    command += ["--shard", str(number)] if number else []
    connection = await asyncpg.connect(own)

    async def counted() -> tuple[float, float, float]:
        await asyncio.sleep(SETTLE_SECONDS)
        return tuple(map(float, await connection.fetchrow(_COUNTED, pattern)))

    async def ended() -> bool:
        open_runs = "select exists (select from holdfast.runs where status = 'running')"
        return not await connection.fetchval(open_runs)

    async def run(client: Client, runs: int) -> None:
        async with connection.transaction():
            await client.start_many("bench/many", [1] * runs, connection=connection)
        await wait_until(ended, process, pause_seconds=0.02)

    with WorkerProcess(command, CACHE / "shards.log") as process:
        async with Client(" ".join(urls)) as client:
            await run(client, 100)
        before, used = await counted(), process.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS - SETTLE_SECONDS)
        after = await counted()
        idle = [(after[place] - before[place]) / IDLE_SECONDS for place in (0, 1)]
        cpu = (process.cpu_seconds() - used) / IDLE_SECONDS
        async with Client(" ".join(urls)) as client:
            used = process.cpu_seconds()
            await run(client, RUNS)
        busy = (process.cpu_seconds() - used) / RUNS
        memory = process.memory_bytes() / 1e6
    await connection.close()
    return [len(urls), *idle, cpu * 100, busy * 1e6, memory, int(after[2])]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table as Markdown."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for row in rows:
        cells = (each if isinstance(each, str | int) else f"{each:,.1f}" for each in row)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def tell_lists(server: Server, runs: int, times: int) -> None:
    """Measure lists, and print them."""
    with engine(server, 1) as one, engine(server, QUARTERS) as several:
        for urls in (one, several):
            asyncio.run(fill(urls, runs))
        rows = asyncio.run(lists((one, several), runs, times))
    names = [f"{what} {which}" for which in ("one", "of four") for what in ("p50", "p99")]
    table(f"Lists of {runs:,} runs, a fifth of them open, ms", ["list", *names], rows)
    listed = [row for row in rows if not str(row[0]).startswith("count")]
    name, slowest = max(((row[0], float(row[-2])) for row in listed), key=lambda each: each[1])
    print(f"\nof four, the slowest list: {name}, p50 {slowest:.1f} ms; the bar is {BAR_MS} ms")


def tell_calls(server: Server, counts: Sequence[int], times: int) -> None:
    """Measure calls over numbers of shards, and print them."""
    found: list[dict[str, str]] = []
    for count in counts:
        with engine(server, count) as urls:
            found.append(asyncio.run(calls(urls, times)))
    rows = [[name, *(each[name] for each in found)] for name in found[0]]
    title = "Calls of a client, p50: ms / statements / ms of its processor; by the number of shards"
    table(title, ["call", *map(str, counts)], rows)


def tell_workers(server: Server, counts: Sequence[int]) -> None:
    """Measure a worker of one of so many shards, and print it."""
    rows: list[list[Cell]] = []
    for count in counts:
        with engine(server, count) as urls:
            rows.append(asyncio.run(worker(urls)))
    heads = [
        "shards", "idle: transactions/s in its own", "in all others", "processor, %",
        "a run of 1 step: µs of its processor", "memory, MB",
        "connections",
    ]  # fmt: skip
    table("A worker process of the last shard", heads, rows)


def main() -> None:
    options = _options()
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    chosen = options.only or PARTS
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        print(f"{machine.describe(CACHE)}\n{server.describe()}")
        if "lists" in chosen:
            tell_lists(server, options.runs, options.times)
        if "calls" in chosen:
            tell_calls(server, options.shards, options.times)
        if "workers" in chosen:
            tell_workers(server, options.shards)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=250_000, help="that are listed; 250,000")
    parser.add_argument("--times", type=int, default=100, help="that each is asked for; 100")
    parser.add_argument(
        "--shards", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 16, 64]
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--database", metavar="URL", help="a server instead of the embedded one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
