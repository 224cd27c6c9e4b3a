"""Measure the HTTP server: `python -m benchmarks.rest [--seconds 5]`.

It starts an embedded database and `holdfast server` in a process of its own. The load comes from
this process, over 50 connections that stay open, so both share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer

CONNECTIONS = 50
IDLE = 300  # starts, one after the other


class Connection:
    """One connection that stays open, and as little HTTP as is needed."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._place, self._key = (host, port), key

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._place)

    async def start(self, number: int) -> None:
        body = b'{"input": %d}' % number
        self._writer.write(
            b"POST /v1/workflows/checkout/runs?app=shop HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer %b\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (self._key.encode(), len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201"), head
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None
        await self._reader.readexactly(int(found[1]))

    def close(self) -> None:
        self._writer.close()


@contextmanager
def server(url: str, home: Path) -> Iterator[tuple[str, int, str]]:
    """Run `holdfast server`, and return its address and its key."""
    command = [sys.executable, "-m", "holdfast", "server", "--database", url, "--port", "0"]
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"at http://([\d.]+):(\d+)", line):
                    yield found[1], int(found[2]), (home / "server.key").read_text().strip()
                    break
        finally:
            process.terminate()


async def throughput(place: tuple[str, int, str], seconds: float) -> float:
    """Return starts a second over all connections."""
    connections = [Connection(*place) for _ in range(CONNECTIONS)]
    for each in connections:
        await each.open()
    count, ends_at = 0, time.perf_counter() + seconds

    async def load(connection: Connection) -> None:
        nonlocal count
        while time.perf_counter() < ends_at:
            await connection.start(count)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(load(each) for each in connections))
    rate = count / (time.perf_counter() - began)
    for each in connections:
        each.close()
    return rate


async def direct(client: Client, seconds: float) -> float:
    """Return starts a second of as many callers of one client."""
    count, ends_at = 0, time.perf_counter() + seconds

    async def load() -> None:
        nonlocal count
        while time.perf_counter() < ends_at:
            await client.start("shop/checkout", count)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(load() for _ in range(CONNECTIONS)))
    return count / (time.perf_counter() - began)


async def idle(place: tuple[str, int, str], client: Client) -> tuple[float, float]:
    """Return the milliseconds of one start, over HTTP and by the client, taken by turns."""
    connection = Connection(*place)
    await connection.open()
    over_http: list[float] = []
    by_client: list[float] = []
    for number in range(IDLE):
        began = time.perf_counter()
        await connection.start(number)
        between = time.perf_counter()
        await client.start("shop/checkout", number)
        by_client.append(time.perf_counter() - between)
        over_http.append(between - began)
    connection.close()
    return statistics.median(over_http) * 1e3, statistics.median(by_client) * 1e3


async def measure(url: str, home: Path, seconds: float) -> None:
    with server(url, home) as place:
        async with Client(url) as client:
            await throughput(place, seconds / 5)  # warm
            for _ in range(3):
                print(
                    f"start over HTTP, {CONNECTIONS} connections: "
                    f"{await throughput(place, seconds):7,.0f}/s"
                )
                print(
                    f"client.start, {CONNECTIONS} callers:        "
                    f"{await direct(client, seconds):7,.0f}/s"
                )
                over_http, by_client = await idle(place, client)
                print(
                    f"idle: HTTP {over_http:.2f} ms, client.start {by_client:.2f} ms, "
                    f"added {over_http - by_client:.2f} ms"
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rest", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HOLDFAST_HOME"] = folder
        with EmbeddedServer.acquire(home) as database:
            migrate = [sys.executable, "-m", "holdfast", "migrate", "--database", database.url]
            subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
            asyncio.run(measure(database.url, home, options.seconds))


if __name__ == "__main__":
    main()
