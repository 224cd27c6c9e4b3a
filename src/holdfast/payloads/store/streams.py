"""Streams: what an attempt has gathered is one payload."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.payloads.store.part import PayloadPart
from holdfast.types import (
    Chunk,
    LogChunk,
    NewChunk,
    StreamPart,
    StreamRead,
    WrittenChunks,
    WrittenLogs,
)


class PayloadStreams(PayloadPart):
    """Encodes what is written to streams."""

    async def write_streams(
        self, worker_id: str, chunks: Sequence[NewChunk], *, again: bool = False
    ) -> WrittenChunks:
        """Append chunks; see `StreamStore.write_streams`. They stay in the database."""
        sealed = [
            replace(each, items=self.payloads.seal(each.items, f"what is written to {each.name}"))
            for each in chunks
        ]
        return await self._store.write_streams(worker_id, sealed, again=again)

    async def write_logs(
        self, writer: int, chunks: Sequence[LogChunk], *, most_bytes: int, again: bool = False
    ) -> WrittenLogs:
        sealed = [
            replace(each, items=self.payloads.seal(each.items, "what is written to a log"))
            for each in chunks
        ]
        return await self._store.write_logs(writer, sealed, most_bytes=most_bytes, again=again)

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        found = await self._store.read_streams(reads, limit=limit, most_bytes=most_bytes)
        return [
            replace(part, chunks=[self._values(each) for each in part.chunks]) for part in found
        ]

    def _values(self, chunk: Chunk) -> Chunk:
        """Return a chunk decoded. If that cannot be, what is said instead is each of its values."""
        opened = self._opened(chunk, "items")
        if not opened.items.startswith('"'):
            return opened
        return replace(opened, items=f"[{','.join([opened.items] * opened.count)}]")
