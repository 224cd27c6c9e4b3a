"""`holdfast server` in a process of its own, and connections to it with little HTTP in them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import Server, serve
from benchmarks.worker import cpu_seconds

HOLDFAST = ("-m", "holdfast", "server")
WIDE = ("-m", "benchmarks.wide_server")
"""The same server, but one caller may have thousands of streams."""


@dataclass(frozen=True)
class HttpServer:
    """A server that listens. `ready_seconds` went by until then."""

    host: str
    port: int
    key: str
    pid: int
    ready_seconds: float

    @property
    def url(self) -> str:
        """The URL of its first page."""
        return f"http://{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used so far."""
        return cpu_seconds(process=self.pid)

    def memory_bytes(self) -> int:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(url: str, home: Path, program: Sequence[str] = HOLDFAST) -> Iterator[HttpServer]:
    """Run a server while the block lasts."""
    command = [sys.executable, *program, "--database", url, "--port", "0"]
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    log = home / "server.log"  # a pipe that nobody reads would fill, and stop the server
    with log.open("w") as written:
        began = time.perf_counter()
        process = subprocess.Popen(command, stderr=written, env=environment)
        try:
            host, port = _listening(process, log)
            took = time.perf_counter() - began
            key = (home / "server.key").read_text().strip()
            yield HttpServer(host, port, key, process.pid, took)
        finally:
            process.terminate()
            process.wait()


def _listening(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    """Wait until a server says where it listens, and return that."""
    while process.poll() is None:
        if found := re.search(r"at http://([\d.]+):(\d+)\n", log.read_text()):
            return found[1], int(found[2])
        time.sleep(0.005)
    raise RuntimeError(f"the server ended by itself:\n{log.read_text()}")


@contextmanager
def fresh(home: Path, name: str) -> Iterator[tuple[Server, str]]:
    """Provide an embedded PostgreSQL server, and the URL of a new database with the schema.

    The database counts the calls of its functions.
    """
    with serve(None, home) as server:
        url = server.fresh_database(name)
        server.ask(f"alter database \"{name}\" set track_functions = 'all'")
        migrate = [sys.executable, "-m", "holdfast", "migrate", "--database", url]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        try:
            yield server, url
        finally:
            server.drop_database(name)


class Connection:
    """One connection that stays open."""

    def __init__(self, server: HttpServer) -> None:
        self._place = server.host, server.port
        self._head = (
            f"Host: localhost\r\nAuthorization: Bearer {server.key}\r\nAccept: application/json\r\n"
        ).encode()

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._place, limit=1 << 22)

    async def post(self, path: str, body: bytes) -> None:
        """Send a body, and check that something was made of it."""
        self._writer.write(
            b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), self._head, len(body), body)
        )
        await self._answer(b"HTTP/1.1 201")

    async def get(self, path: str, cookie: str = "") -> bytes:
        """Return what is at a path."""
        more = f"Cookie: {cookie}\r\n".encode() if cookie else b""
        self._writer.write(b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), self._head, more))
        return await self._answer(b"HTTP/1.1 200")

    async def log_in(self, key: str) -> str:
        """Return the cookie that opens the pages."""
        self._writer.write(b"GET /login?key=%b HTTP/1.1\r\n%b\r\n" % (key.encode(), self._head))
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"set-cookie: ([^;\r]+)", head, re.IGNORECASE)
        assert found is not None, head
        return found[1].decode()

    async def stream(self, path: str, cookie: str = "") -> asyncio.StreamReader:
        """Open a stream and return what it is read from; the connection has no other use then."""
        more = f"Cookie: {cookie}\r\n".encode() if cookie else b""
        self._writer.write(b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), self._head, more))
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return self._reader

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    async def _answer(self, status: bytes) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        body = await self._reader.readexactly(int(found[1])) if found is not None else b""
        assert head.startswith(status), head + body[:500]
        return body
