"""Streams: written by workers, read by clients."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.store.postgres.packing import Packing
from holdfast.store.postgres.rows import reader
from holdfast.types import (
    LOG_STREAM,
    Chunk,
    Fate,
    LogChunk,
    NewChunk,
    StreamInfo,
    StreamPart,
    StreamRead,
    Writer,
    WrittenChunks,
    WrittenLogs,
)

_read_info = reader(StreamInfo)
_WRITE_PACKING: Packing = (
    *((1, "uuid"), (2, "text"), (3, "text"), (4, "int")),
    *((5, "int"), (6, "text"), (7, "int"), (9, "json")),
)


class PostgresStreams(Part):
    async def write_streams(
        self, worker_id: str, chunks: Sequence[NewChunk], *, again: bool = False
    ) -> WrittenChunks:
        [row] = await self._database.rows(
            "write_streams",
            worker_id,
            *columns(chunks, "run_id", "task", "writer.key", "writer.lease_no", "writer.attempt"),
            *columns(chunks, "name", "count", "closes", "items", "begins"),
            [each.after for each in chunks] if again else None,
            self._database.tell,
            packing=_WRITE_PACKING,
        )
        return WrittenChunks(row["now"], row["offsets"], read_notices(row["notices"]))

    async def write_logs(
        self, writer: int, chunks: Sequence[LogChunk], *, most_bytes: int, again: bool = False
    ) -> WrittenLogs:
        [row] = await self._database.rows(
            "write_logs",
            LOG_STREAM,
            writer,
            *columns(chunks, "run_id", "number", "count", "items"),
            most_bytes,
            again,
            self._database.tell,
        )
        return WrittenLogs(row["now"], read_notices(row["notices"]))

    async def await_streams(self, streams: Sequence[tuple[UUID, str]], seconds: float) -> None:
        run_ids, names = [each for each, _ in streams], [each for _, each in streams]
        await self._database.row("await_streams", run_ids, names, seconds)

    async def list_streams(self, run_id: UUID) -> list[StreamInfo]:
        return [_read_info(row) for row in await self._database.rows("list_streams", run_id)]

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        opens = [(place, *each) for place, read in enumerate(reads, 1) for each in read.open]
        rows = await self._database.rows(
            "read_streams",
            *columns(reads, "run_id", "name", "after", "resumed"),
            limit,
            most_bytes,
            [place for place, _, _ in opens],
            [writer.key for _, writer, _ in opens],
            [writer.lease_no for _, writer, _ in opens],
            [writer.attempt for _, writer, _ in opens],
            [length for _, _, length in opens],
        )
        found: dict[int, StreamPart] = {}
        for row in rows:  # the first of each stream is what is said of all of it
            place, key = row["place"], row["key"]
            if key is None:
                status, base, last, length = (
                    row[name] for name in ("status", "base", "last_offset", "log_length")
                )
                found[place] = StreamPart(status, base, last, length, [], [])
                continue
            writer = Writer(key, row["lease_no"], row["attempt"])
            state, by_attempt = row["writer_state"], row["by_attempt"]
            if row["items"] is None:
                found[place].fates.append(Fate(writer, state, by_attempt))
                continue
            last, count, closes, items = (
                row[name] for name in ("last_offset", "count", "closes", "items")
            )
            found[place].chunks.append(Chunk(last, count, writer, closes, items, state, by_attempt))
        return [found[place] for place in range(1, len(reads) + 1)]
