"""A connection that stays open and carries nothing, as behind a firewall that forgot it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres import PostgresStore, connections


class Proxy:
    """A way to the server whose connections can be made to swallow all that they are given."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._user, self._path = parts.username, parts.path
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Proxy]:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}{self._path}"
        try:
            yield self
        finally:
            server.close()
            self.swallow()
            for writer in self._writers:
                writer.transport.abort()

    def swallow(self) -> None:
        """Carry nothing more over the connections that there are; new ones work."""
        for pipe in self._pipes:
            pipe.cancel()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._socket)
        self._writers += writer, far_writer
        for source, target in ((reader, far_writer), (far_reader, writer)):
            pipe = asyncio.create_task(self._carry(source, target))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    @staticmethod
    async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
            target.close()


async def test_a_call_over_a_mute_connection_fails_and_the_next_one_takes_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12. Whoever waited for an answer for ever would never claim again."""
    monkeypatch.setattr(connections, "_CALL_SECONDS", 0.3)
    async with Proxy(database_url).listening() as proxy:
        store = PostgresStore(proxy.url, connections=1)
        await store.open()
        before = await store.now()
        proxy.swallow()
        with pytest.raises(DatabaseUnavailable, match="TimeoutError"):
            await asyncio.wait_for(store.now(), 30)
        assert await asyncio.wait_for(store.now(), 30) > before
        await store.close()
