"""A TCP way to a database server that a test can make mute, slow, or cut."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlsplit

from holdfast.database.urls import split_urls


@dataclass(eq=False)
class _Link:
    """One connection through the proxy, and what carries its two directions."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])
    to_server: asyncio.Task[None] | None = None
    to_client: asyncio.Task[None] | None = None


class Proxy:
    """Forwards to the server's socket, on a thread of its own; `url` leads through it.

    What is done to connections is done to those that there are; new ones work, unless `refuse`.
    """

    def __init__(self, server_url: str) -> None:
        databases = [urlsplit(each) for each in split_urls(server_url)]
        self._socket = f"{parse_qs(databases[0].query)['host'][0]}/.s.PGSQL.5432"
        self._user, self._paths = databases[0].username, [each.path for each in databases]
        self._links: set[_Link] = set()
        self._delay, self._refuses, self._is_silent = 0.0, False, False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._listening: Future[int] = Future()
        self.port = 0
        self.joined = 0  # connections so far

    @property
    def url(self) -> str:
        """The URL of the database, or of each of several, through the proxy."""
        server = f"postgresql://{self._user}@127.0.0.1:{self.port}"
        return " ".join(f"{server}{path}" for path in self._paths)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._listening.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def mute(self) -> None:
        """Carry nothing more in either direction, and leave the connections open."""
        self._do(lambda: [_stop(link.to_server, link.to_client) for link in self._links])

    def swallow_answers(self) -> None:
        """Carry what clients ask and lose what the server answers, for these connections."""
        self._do(lambda: [_stop(link.to_client) for link in self._links])

    def cut(self) -> None:
        """Reset every connection."""
        self._do(lambda: [_reset(link) for link in list(self._links)])

    def delay(self, seconds: float) -> None:
        """Carry everything so much later, from now on."""
        self._delay = seconds

    def refuse(self, refuses: bool = True) -> None:
        """Reset new connections, too, until told otherwise."""
        self._refuses = refuses

    def hush(self, is_silent: bool = True) -> None:
        """Accept connections, and carry nothing over old and new ones, until told otherwise."""
        self._is_silent = is_silent
        self.mute()

    def _do(self, work: Callable[[], object]) -> None:
        """Do something on the proxy's loop, and return when it is done."""
        done: Future[None] = Future()

        def call() -> None:
            work()
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result(60)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._join, "127.0.0.1", 0))
        self._listening.set_result(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()
        for link in list(self._links):
            _reset(link)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joined += 1
        link = _Link([writer])
        if self._refuses:
            _reset(link)
            return
        if self._is_silent:
            self._links.add(link)
            return
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._socket)
        except OSError:  # the server is away
            _reset(link)
            return
        link.writers.append(far_writer)
        self._links.add(link)
        link.to_server = asyncio.create_task(self._carry(link, reader, far_writer))
        link.to_client = asyncio.create_task(self._carry(link, far_reader, writer))

    async def _carry(
        self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if self._delay:
                    await asyncio.sleep(self._delay)
                target.write(data)
                await target.drain()
        for writer in link.writers:
            writer.close()
        self._links.discard(link)


def _stop(*pipes: asyncio.Task[None] | None) -> None:
    for pipe in pipes:
        if pipe is not None:
            pipe.cancel()


def _reset(link: _Link) -> None:
    _stop(link.to_server, link.to_client)
    for writer in link.writers:
        reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset one side of a connection."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.family == socket.AF_INET:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
