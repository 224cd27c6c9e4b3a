"""The part of the port for streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import (
    LogChunk,
    NewChunk,
    StreamInfo,
    StreamPart,
    StreamRead,
    WrittenChunks,
    WrittenLogs,
)


class StreamStore(Protocol):
    """Appends to streams, and reads them."""

    async def write_streams(
        self, worker_id: str, chunks: Sequence[NewChunk], *, again: bool = False
    ) -> WrittenChunks:
        """Append chunks, in this order; one whose lease the worker does not have is not written.

        With `again`, what an earlier call with the same chunks has written is not written again.
        """
        ...

    async def write_logs(
        self, writer: int, chunks: Sequence[LogChunk], *, most_bytes: int, again: bool = False
    ) -> WrittenLogs:
        """Append lines to the logs of runs that exist, also if they have ended.

        Each log keeps about `most_bytes`: the oldest lines go. `writer` and the number of a chunk
        tell it from all others: with `again`, what an earlier call has written is not written
        again.
        """
        ...

    @readable
    async def await_streams(self, streams: Sequence[tuple[UUID, str]], seconds: float) -> None:
        """Send a wake-up to `stream_topic(run_id)` when one of these is written to, for a time."""
        ...

    @readable
    async def list_streams(self, run_id: UUID) -> list[StreamInfo]:
        """Return the streams of a run, by name."""
        ...

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        """Return parts of streams, in the order given: at most `limit` chunks of each.

        No more chunks follow once there are `most_bytes` of them.
        """
        ...
