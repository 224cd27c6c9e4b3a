"""What a transactional step costs beside the same transaction without holdfast.

`python -m benchmarks.transactions [--rounds N] [--calls N] [--database URL]`. In each round, all
ways take turns: the transaction alone, on a connection of a pool of asyncpg; a transactional step;
a plain step that makes the transaction itself, which records its result by a second commit. One
call follows another, in one run. The figures are medians over the rounds of milliseconds a call,
and the median of the ratios of each round to the transaction alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg

from holdfast import App, Client, Context, local
from holdfast.database.resolve import resolve_database

INSERT = "insert into public.bench_bookings (room) values ($1)"

app = App("bench-transactions")
pools: list[asyncpg.Pool] = []


async def book_alone(room: int) -> int:
    async with pools[0].acquire() as connection, connection.transaction():
        await connection.execute(INSERT, room)
    return room


@app.transaction
async def book(connection: asyncpg.Connection, room: int) -> int:
    await connection.execute(INSERT, room)
    return room


@app.step
async def book_plain(room: int) -> int:
    return await book_alone(room)


@app.workflow
async def transactional(ctx: Context, calls: int) -> None:
    for room in range(calls):
        await book(room)


@app.workflow
async def plain(ctx: Context, calls: int) -> None:
    for room in range(calls):
        await book_plain(room)


async def alone(calls: int) -> None:
    for room in range(calls):
        await book_alone(room)


async def millis(work: Callable[[int], Awaitable[object]], calls: int) -> float:
    """Return the milliseconds that a call takes."""
    began = time.perf_counter()
    await work(calls)
    return (time.perf_counter() - began) / calls * 1e3


async def measure(client: Client, rounds: int, calls: int) -> dict[str, list[float]]:
    """Return the milliseconds of a call in each round, by way; the first round is not counted."""
    ways: dict[str, Callable[[int], Awaitable[object]]] = {
        "the transaction alone": alone,
        "a transactional step": lambda calls: client.run(transactional, calls),
        "a plain step with its own": lambda calls: client.run(plain, calls),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, work in ways.items():
            took = await millis(work, calls)
            if number:
                found[name].append(took)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--database")
    options = parser.parse_args()
    with resolve_database(options.database) as database:
        async with local(app, options.database) as client:
            pools.append(await asyncpg.create_pool(database.url, min_size=1, max_size=4))
            async with pools[0].acquire() as connection:
                await connection.execute("create table public.bench_bookings (room int)")
            found = await measure(client, options.rounds, options.calls)
            await pools[0].execute("drop table public.bench_bookings")
            await pools[0].close()
    base = found["the transaction alone"]
    for name, took in found.items():
        ratio = statistics.median(a / b for a, b in zip(took, base, strict=True))
        print(f"{name:28} {statistics.median(took):7.3f} ms  x {ratio:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
