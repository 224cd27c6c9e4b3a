"""An HTTP server in a process of its own, that answers as its paths say: for deliveries of events.

`python tests/targets.py` prints its port, and then a line of JSON for each request that it got.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

ANSWERS = {
    "/ok": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "/fails": b"HTTP/1.1 500 No\r\ncontent-length: 9\r\n\r\nnot today",
    "/binary": b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\na\0b\xff",
    "/busy": b"HTTP/1.1 429 Slow\r\nRetry-After: 900\r\ncontent-length: 0\r\n\r\n",
    "/later": b"HTTP/1.1 503 No\r\nretry-after: Fri, 31 Dec 9999 23:59:59 GMT\r\n\r\n",
    "/odd": b"HTTP/1.1 429 Slow\r\nretry-after: soon\r\ncontent-length: 0\r\n\r\n",
    "/asks": b"HTTP/1.1 500 No\r\nretry-after: 900\r\ncontent-length: 0\r\n\r\n",
    "/redirects": b"HTTP/1.1 302 Found\r\nlocation: /ok\r\ncontent-length: 0\r\n\r\n",
    "/garbage": b"SSH-2.0-OpenSSH\r\n\r\n",
    "/long": b"HTTP/1.1 99999999999 No\r\ncontent-length: 0\r\n\r\n",
    "/closes": b"",
    "/endless": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
}
HUGE = 10_000_000


async def answer(reader: StreamReader, writer: StreamWriter) -> None:
    """Read a request, say so, and answer as its path says."""
    with suppress(OSError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = (await reader.readexactly(int(headers["content-length"]))).decode()
        path = first.split(" ")[1]
        print(json.dumps({"path": path, "headers": headers, "body": body}), flush=True)
        if path == "/hangs":
            await asyncio.sleep(3_600)
        elif path == "/dribbles":
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"x: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        elif path == "/huge":
            writer.write(b"HTTP/1.1 500 No\r\ncontent-length: %d\r\n\r\n" % HUGE)
            for _ in range(HUGE // 100_000):
                writer.write(b"z" * 100_000)
                await writer.drain()
        else:
            writer.write(ANSWERS[path])
            await writer.drain()
    writer.close()


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass
class Target:
    """The server's process as tests see it."""

    process: asyncio.subprocess.Process
    port: int
    got: list[Any] = field(default_factory=list[Any])

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def next(self) -> Any:
        """Return the next request that the server gets."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = await self.process.stdout.readline()
        assert line, "the server has ended"
        self.got.append(json.loads(line))
        return self.got[-1]


@asynccontextmanager
async def target() -> AsyncGenerator[Target, None]:
    """Run the server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
        yield Target(process, port)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
