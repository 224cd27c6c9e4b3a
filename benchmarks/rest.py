"""How soon the HTTP server listens, and what starts over HTTP cost.

It starts an embedded database and `holdfast server` in a process of its own. The load comes from
this process, over connections that stay open, so both share the machine's cores. Starts over HTTP
and by `client.start` take turns.
"""

from __future__ import annotations

import asyncio
import compileall
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import holdfast
from benchmarks.budgets import Figure, figure, parser, tell
from benchmarks.http_server import Connection, HttpServer, fresh, running
from holdfast.client import Client

CONNECTIONS = 50
IDLE = 300  # starts, one after the other
BEGINNINGS = 5  # of the server
PATH = "/v1/workflows/checkout/runs?app=shop"

Start = Callable[[int], Awaitable[object]]


def beginnings(url: str, home: Path) -> list[Figure]:
    """Start the server several times, and return what it has used when it listens.

    The package is compiled before, as pip does; some environments do not keep what they compile.
    """
    for folder in holdfast.__path__:
        compileall.compile_dir(folder, quiet=2)
    cpu, memory, took = list[float](), list[float](), list[float]()
    for _ in range(BEGINNINGS):
        with running(url, home) as server:
            cpu.append(server.cpu_seconds() * 1e3)
            memory.append(server.memory_bytes() / 2**20)
            took.append(server.ready_seconds * 1e3)
    return [
        figure("listen-cpu", "holdfast server to listening, processor", "ms", cpu, 250),
        figure("listen-memory", "holdfast server to listening, memory", "MB", memory, 60),
        figure("listen", "holdfast server to listening", "ms", took),
    ]


async def rate(starts: list[Start], seconds: float) -> float:
    """Return starts a second of callers that start one run after the other."""
    count, ends_at = 0, time.perf_counter() + seconds

    async def load(start: Start) -> None:
        nonlocal count
        while time.perf_counter() < ends_at:
            await start(count)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(load(each) for each in starts))
    return count / (time.perf_counter() - began)


async def idle(over_http: Start, by_client: Start) -> tuple[float, float]:
    """Return the milliseconds of one start, over HTTP and by the client, taken by turns."""
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(IDLE):
        for start, times in zip((over_http, by_client), took, strict=True):
            began = time.perf_counter()
            await start(number)
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[0]), statistics.median(took[1])


async def starts(url: str, server: HttpServer, rounds: int, seconds: float) -> list[Figure]:
    """Return starts a second, and the milliseconds that HTTP adds."""
    connections = [Connection(server) for _ in range(CONNECTIONS)]
    for each in connections:
        await each.open()

    def posting(connection: Connection) -> Start:
        return lambda number: connection.post(PATH, b'{"input": %d}' % number)

    over_http = [posting(each) for each in connections]
    rates, direct, added, alone = list[float](), list[float](), list[float](), list[float]()
    used = list[float]()
    async with Client(url) as client:

        async def by_client(number: int) -> object:
            return await client.start("shop/checkout", number)

        await rate(over_http, seconds / 5)  # warm
        for _ in range(rounds):
            before = server.cpu_seconds()
            rates.append(await rate(over_http, seconds))
            used.append((server.cpu_seconds() - before) / (rates[-1] * seconds) * 1e6)
            direct.append(await rate([by_client] * CONNECTIONS, seconds))
            with_http, without = await idle(over_http[0], by_client)
            added.append(with_http - without)
            alone.append(without)
    for each in connections:
        each.close()
    title = f"start over HTTP, {CONNECTIONS} connections"
    return [
        figure("http-starts", title, "starts/s", rates, 2_500, higher=True),
        figure("http-cpu", "the server's processor for each of them", "µs", used),
        figure("client-starts", f"client.start, {CONNECTIONS} callers", "starts/s", direct),
        figure("http-added", "what HTTP adds to client.start, idle, p50", "ms", added, 0.4),
        figure("client-start", "client.start, idle, p50", "ms", alone),
    ]


def main() -> None:
    options = parser("rest", __doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of each load; 5")
    options.add_argument("--rounds", type=int, default=3, help="of which the median counts; 3")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HOLDFAST_HOME"] = folder
        with fresh(home, "bench_rest") as (_, url):
            figures = beginnings(url, home)
            with running(url, home) as server:
                figures += asyncio.run(starts(url, server, given.rounds, given.seconds))
    tell(figures, given.output)


if __name__ == "__main__":
    main()
