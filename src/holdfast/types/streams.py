"""Streams: values that a run appends under a name while it works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from holdfast.types.base import Notice, Status, Value

T = TypeVar("T")

MOST_STREAMS: Final = 100
"""Streams that a run may have; `write_streams` of the database holds steps to the same number."""

WriterState: TypeAlias = Literal["open", "final", "dead"]
"""What became of an attempt that has written: its step or activity ended by it, or by another."""


class Writer(Value, frozen=True):
    """One attempt that writes: of the call `key`, under a lease. The workflow's code has key ''."""

    key: str
    lease_no: int
    attempt: int


class NewChunk(Value, frozen=True, kw_only=True):
    """What an attempt has gathered for a stream: `items` is a JSON array of `count` values.

    `task` is the key of the task whose lease the worker has: '' for the turn of a run. `begins` is
    true for the attempt's first chunk in the stream. In a repeated call, `after` is how far the
    stream was after the attempt's chunk before this one. A chunk that `closes` the stream counts
    as one value, and has none.
    """

    run_id: UUID
    name: str
    task: str
    writer: Writer
    count: int
    items: str
    closes: bool = False
    begins: bool = False
    after: int = 0


class WrittenChunks(Value, frozen=True):
    """The offsets of the last values of chunks, in the order given.

    None: the lease is lost, and nothing was written. -1: the run has too many streams.
    """

    now: int
    offsets: Sequence[int | None]
    notices: list[Notice]


class StreamRead(Value, frozen=True):
    """A question for what a stream has after an offset, and for the fate of writers.

    `open` has writers with how long the log was when they were asked for last: their end is after
    that. A `resumed` reader does not know who wrote what is before the offset: it is told of those
    that are not final.
    """

    run_id: UUID
    name: str
    after: int = 0
    resumed: bool = False
    open: tuple[tuple[Writer, int], ...] = ()


class Chunk(Value, frozen=True):
    """What a writer has appended to a stream; `state` is what became of the writer.

    `by_attempt` is the number of the attempt that counts instead of it.
    """

    last_offset: int
    count: int
    writer: Writer
    closes: bool
    items: str
    state: WriterState
    by_attempt: int | None = None


class Fate(Value, frozen=True):
    """What became of a writer; `by_attempt` is the number of the attempt that counts instead."""

    writer: Writer
    state: WriterState
    by_attempt: int | None


class StreamPart(Value, frozen=True):
    """A part of a stream, all of one moment. `status` is that of the run, None if there is none.

    `base` is the last offset of the run that continued or was retried as this one, 0 without.
    `last_offset` is that of the whole stream, 0 if it does not exist. There may be more after the
    last chunk if that has another offset.
    """

    status: Status | None
    base: int
    last_offset: int
    log_length: int
    chunks: list[Chunk]
    fates: list[Fate]


class StreamItem(Value, Generic[T], frozen=True):
    """A value of a stream, with its offset: reading `after` it continues with the next one.

    `key` is that of the step or activity that wrote it, '' if the workflow's code did.
    """

    offset: int
    value: T
    key: str
    attempt: int


class Restarted(Value, frozen=True):
    """Forget what you have of the step or activity `key`: `attempt` of it counts now.

    If the run is retried and makes the call again, that is the first attempt of the retry. Keep
    what you have up to the offset `after`: runs that continued as this one wrote it, and their
    calls may have the same key.
    """

    key: str
    attempt: int
    after: int = 0


class StreamPage(Value, Generic[T], frozen=True):
    """Values of a stream. `next` is the `after` that continues; if it has `ended`, nothing does."""

    items: list[StreamItem[T]]
    next: int
    ended: bool


class StreamInfo(Value, frozen=True):
    """A stream of a run: its values of all attempts, and what they take as they are stored.

    `last_offset` is more than `values` if the run continues or retries another one.
    """

    name: str
    values: int
    last_offset: int
    bytes: int
