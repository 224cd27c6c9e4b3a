"""What idle entities cost: `python -m benchmarks.entities [--count N] [--database URL]`.

A worker process is measured while it has nothing to do: without an entity, and beside N carts, each
of which was called once. Then carts that were idle are called, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import asyncpg

from benchmarks import machine
from benchmarks.budgets import percentile
from benchmarks.counting import SETTLE_SECONDS
from benchmarks.engine_holdfast import HOLDFAST
from benchmarks.runner import CACHE
from benchmarks.server import alone, serve
from benchmarks.worker import WorkerProcess
from holdfast import App, Client
from holdfast.database.migrate import prepare_schema

IDLE_SECONDS = 30.0
AT_ONCE = 100
CALLS = 300
_COUNTED = """
select (select xact_commit + xact_rollback from pg_stat_database
        where datname = current_database()),
    (select sum(pg_total_relation_size(c.oid)) from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'm'))
"""

app = App("bench-entities")


@app.entity
@dataclass
class Cart:
    """What a customer wants to buy."""

    items: dict[str, int] = field(default_factory=dict)

    async def add(self, item: str) -> int:
        """Add one of an item."""
        self.items[item] = self.items.get(item, 0) + 1
        return len(self.items)


async def call(client: Client, keys: Iterable[int]) -> list[float]:
    """Call carts one after another; return how long each took, in ms."""
    took: list[float] = []
    for key in keys:
        began = time.perf_counter()
        await client.entity(Cart, str(key)).add("lamp")
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def idle(connection: asyncpg.Connection, process: WorkerProcess) -> tuple[float, ...]:
    """Return what an idle worker takes: transactions/s, % of a core, MB; and bytes in tables."""
    await asyncio.sleep(SETTLE_SECONDS)
    before, _ = await connection.fetchrow(_COUNTED)
    used, began = process.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    took = time.perf_counter() - began
    used = process.cpu_seconds() - used
    await asyncio.sleep(SETTLE_SECONDS)  # idle sessions report late
    after, size = await connection.fetchrow(_COUNTED)
    seconds = took + SETTLE_SECONDS
    return (after - before) / seconds, used / took * 100, process.memory_bytes() / 1e6, float(size)


async def measure(url: str, count: int) -> None:
    """Measure, and print."""
    await prepare_schema(url, "holdfast")
    connection = await asyncpg.connect(url)
    command = [HOLDFAST, "worker", "benchmarks.entities:app", "--database", url]
    with WorkerProcess(command, CACHE / "entities.log") as process:
        async with Client(url) as client:
            few = await call(client, range(-CALLS, 0))
            rows = {"none": await idle(connection, process)}
            began, left = time.perf_counter(), iter(range(count))
            await asyncio.gather(*(call(client, left) for _ in range(AT_ONCE)))
            took = time.perf_counter() - began
            await connection.execute("vacuum analyze", timeout=300)
            rows[f"{count:,}"] = await idle(connection, process)
            cold = await call(client, random.Random(1).sample(range(count // 2), CALLS))
    await connection.close()
    print(f"first calls of {count:,} carts, {AT_ONCE} at once: {count / took:,.0f} a second")
    print("| idle carts | transactions/s | processor, % of a core | memory of the worker, MB |")
    print("|---|---:|---:|---:|")
    for name, (rate, cpu, memory, _) in rows.items():
        print(f"| {name} | {rate:.2f} | {cpu:.2f} | {memory:.0f} |")
    sizes = [size for *_, size in rows.values()]
    print(f"{(sizes[1] - sizes[0]) / count:,.0f} bytes of tables and indexes a cart")
    for name, calls in (("first call, few carts", few), ("call of an idle cart", cold)):
        print(f"{name}: p50 {statistics.median(calls):.2f} ms, p99 {percentile(calls, 99):.2f} ms")


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.entities",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=100_000, help="of idle carts; 100,000")
    parser.add_argument("--database", metavar="URL", help="a server instead of the embedded one")
    options = parser.parse_args()
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        print(f"{machine.describe(CACHE)}\n{server.describe()}")
        asyncio.run(measure(server.fresh_database("bench_entities"), options.count))


if __name__ == "__main__":
    main()
