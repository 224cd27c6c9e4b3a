"""Streams: what attempts and the code of workflows write, and what readers ask."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.codec import MAX_DEPTH
from holdfast.events import ACTIVITY_COMPLETED, ACTIVITY_FAILED, STEP_ENDS, read_stream_written
from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import StreamRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import stream_topic
from holdfast.store.port.run_lines import ChunkFields, RunLine, StreamFields, json_raw, json_text
from holdfast.types import (
    LOG_STREAM,
    MOST_STREAMS,
    Chunk,
    Event,
    Fate,
    LogChunk,
    NewChunk,
    Notice,
    StreamInfo,
    StreamPart,
    StreamRead,
    Writer,
    WrittenChunks,
    WrittenLogs,
)
from holdfast.values.composing import compose

_CODE: Final = Writer("", 0, 0)
_LEVELS: Final = MAX_DEPTH + 1  # the values of a chunk stand in an array
_ACTIVITY_ENDS: Final = frozenset({ACTIVITY_COMPLETED, ACTIVITY_FAILED})


class MemoryStreams(Part):
    async def write_streams(
        self, worker_id: str, chunks: Sequence[NewChunk], *, again: bool = False
    ) -> WrittenChunks:
        async with self._transaction() as (tables, now):
            for chunk in chunks:
                check_json("value of a stream", chunk.items, _LEVELS)
            offsets = [_write(tables, worker_id, chunk, again=again) for chunk in chunks]
            notices = [each for chunk in chunks for each in _wake(tables, now, chunk)]
            return WrittenChunks(now, offsets, distinct(notices))

    async def write_logs(
        self, writer: int, chunks: Sequence[LogChunk], *, most_bytes: int, again: bool = False
    ) -> WrittenLogs:
        async with self._transaction() as (tables, now):
            for each in chunks:
                check_json("line of a log", each.items, _LEVELS)
            notices = [
                notice
                for each in chunks
                if each.run_id in tables.runs
                for notice in _log(tables, now, writer, each, most_bytes, again=again)
            ]
            return WrittenLogs(now, distinct(notices))

    async def await_streams(self, streams: Sequence[tuple[UUID, str]], seconds: float) -> None:
        async with self._transaction() as (tables, now):
            for run_id, name in streams:
                if tables.is_running(run_id):
                    tables.stream_readers[run_id, name] = now + to_micros(seconds)

    async def list_streams(self, run_id: UUID) -> list[StreamInfo]:
        async with self._transaction() as (tables, _):
            return [
                StreamInfo(
                    name,
                    row.items - row.base,
                    row.items,
                    sum(len(chunk.items.encode()) for chunk in row.chunks),
                )
                for name, row in sorted(tables.streams.get(run_id, {}).items())
            ]

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        async with self._transaction() as (tables, _):
            return [_read(tables, read, limit, most_bytes) for read in reads]


def write_of_code(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out StreamWritten: append what the code of a workflow has written."""
    told = read_stream_written(event.details or "")
    items = bytes(told.items).decode()
    chunk = NewChunk(
        run_id=run_id,
        name=told.stream,
        task="",
        writer=_CODE,
        count=1,
        items=items,
        closes=told.closes,
    )
    _append(tables, tables.streams[run_id].setdefault(told.stream, StreamRow()), chunk)
    return list(_wake(tables, now, chunk))


def continue_streams(tables: Tables, run_id: UUID, new_run_id: UUID) -> None:
    """Let the next run, a retry too, continue the streams of a run, but not its log."""
    for name, row in tables.streams.get(run_id, {}).items():
        if name != LOG_STREAM:
            tables.streams[new_run_id][name] = StreamRow(base=row.items, items=row.items)


def streams_of(tables: Tables, run_id: UUID) -> tuple[list[StreamFields], list[ChunkFields]]:
    """Return what the line of an archived run has of its streams."""
    found = sorted(tables.streams.get(run_id, {}).items())
    return [StreamFields(name, row.base) for name, row in found], [
        compose(ChunkFields, each, each.writer, name=name, items=json_raw(each.items))
        for name, row in found
        for each in row.chunks
    ]


def restore_streams(tables: Tables, run_id: UUID, lines: Sequence[RunLine]) -> None:
    """Make the streams of a run again from its lines."""
    rows = {each.name: StreamRow(each.base, each.base) for each in lines[0].streams}
    for each in [chunk for line in lines for chunk in line.chunks]:
        row, writer = rows[each.name], Writer(each.key, each.lease_no, each.attempt)
        row.items = each.last_offset
        items = json_text(each.items)
        row.chunks.append(Chunk(each.last_offset, each.count, writer, each.closes, items, "open"))
        if writer.key:
            row.writers.setdefault(writer, each.last_offset - each.count + 1)
    if rows:
        tables.streams[run_id] = rows


def _log(
    tables: Tables, now: int, writer: int, given: LogChunk, most_bytes: int, *, again: bool
) -> Iterable[Notice]:
    chunk = NewChunk(
        run_id=given.run_id,
        name=LOG_STREAM,
        task="",
        writer=Writer("", given.number, writer),
        count=given.count,
        items=given.items,
    )
    row = tables.streams[given.run_id].setdefault(LOG_STREAM, StreamRow())
    if again and any(each.writer == chunk.writer for each in row.chunks):
        return ()
    _append(tables, row, chunk)
    sizes = [len(each.items.encode()) for each in row.chunks]
    if sum(sizes) > most_bytes:  # as in the database: three quarters of it stay
        while len(sizes) > 1 and sum(sizes) > most_bytes * 3 // 4:
            del row.chunks[0], sizes[0]
    return _wake(tables, now, chunk)


class _End(msgspec.Struct, frozen=True):
    attempt: int = 1
    streams: int | None = None
    lease_no: int | None = None


def _write(tables: Tables, worker_id: str, chunk: NewChunk, *, again: bool) -> int | None:
    streams = tables.streams[chunk.run_id]
    row = streams.get(chunk.name)
    if again and row is not None:
        for each in row.chunks:
            if each.last_offset > chunk.after and each.writer == chunk.writer:
                return each.last_offset
    task = tables.tasks.get((chunk.run_id, chunk.task))
    if task is None or task.worker != worker_id or task.lease_no != chunk.writer.lease_no:
        return None
    if row is None:
        if sum(name != LOG_STREAM for name in streams) >= MOST_STREAMS:
            return -1
        row = streams[chunk.name] = StreamRow()
    if chunk.begins and chunk.writer not in row.writers:
        row.writers[chunk.writer] = row.items + 1
    return _append(tables, row, chunk)


def _append(tables: Tables, row: StreamRow, chunk: NewChunk) -> int:
    row.items += chunk.count
    row.chunks.append(
        Chunk(row.items, chunk.count, chunk.writer, chunk.closes, chunk.items, "open")
    )
    return row.items


def _wake(tables: Tables, now: int, chunk: NewChunk) -> Iterator[Notice]:
    if tables.stream_readers.get((chunk.run_id, chunk.name), 0) > now:
        yield Notice(stream_topic(chunk.run_id), chunk.name)


def _read(tables: Tables, read: StreamRead, limit: int, most_bytes: int) -> StreamPart:
    run = tables.runs.get(read.run_id)
    row = tables.streams.get(read.run_id, {}).get(read.name, StreamRow())
    chunks: list[Chunk] = []
    size, begin = 0, bisect_right(row.chunks, read.after, key=lambda each: each.last_offset)
    for chunk in row.chunks[begin : begin + limit]:
        if size < most_bytes:
            chunks.append(_judged(tables, read.run_id, chunk))
            size += len(chunk.items.encode())
    fates = [_fate(tables, read.run_id, writer) for writer, _ in read.open]
    if read.resumed:
        resumed = [_fate(tables, read.run_id, each) for each in _written_before(row, read.after)]
        fates += [fate for fate in resumed if fate.state != "final"]
    return StreamPart(
        None if run is None else run.status,
        row.base,
        row.items,
        len(tables.logs.get(read.run_id, ())),
        chunks,
        fates,
    )


def _written_before(row: StreamRow, after: int) -> Iterable[Writer]:
    """Return the newest writer of each key among those that began before an offset."""
    begun = [writer for writer, first in row.writers.items() if first <= after]
    return {each.key: each for each in sorted(begun, key=_age)}.values()


def _judged(tables: Tables, run_id: UUID, chunk: Chunk) -> Chunk:
    fate = _fate(tables, run_id, chunk.writer)
    return msgspec.structs.replace(chunk, state=fate.state, by_attempt=fate.by_attempt)


def _fate(tables: Tables, run_id: UUID, writer: Writer) -> Fate:
    """Return what became of an attempt: as the end of its call says, or newer writers do."""
    if writer.key == "":  # the code, and lines of a log
        return Fate(writer, "final", None)
    for row in tables.logs.get(run_id, ()):
        event = row.event
        if event.key != writer.key or event.type not in STEP_ENDS | _ACTIVITY_ENDS:
            continue
        end = details.read(event.details, _End)
        if event.type in STEP_ENDS:
            counts = (end.streams, end.attempt) == (writer.lease_no, writer.attempt)
        else:
            counts = (end.lease_no or end.attempt) == writer.lease_no
        return Fate(writer, "final" if counts else "dead", end.attempt)
    rows = tables.streams.get(run_id, {}).values()
    newer = [
        each
        for row in rows
        for each in row.writers
        if each.key == writer.key and _age(each) > _age(writer)
    ]
    if newer:
        return Fate(writer, "dead", max(newer, key=_age).attempt)
    return Fate(writer, "open", None)


def _age(writer: Writer) -> tuple[int, int]:
    return writer.lease_no, writer.attempt
