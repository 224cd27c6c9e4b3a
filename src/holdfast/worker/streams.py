"""What attempts write to streams: gathered for all attempts of a worker, and sent together.

One call is in flight at a time; between two calls at least 30 ms pass, unless much has been
gathered or an attempt waits for its end. If the database cannot be reached, a call is repeated, and
writers wait as soon as their streams have gathered 1 MiB: nothing is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from holdfast.codec import describe
from holdfast.definitions.recorded import AttemptContext
from holdfast.definitions.streams import DONE, MAX_ITEM
from holdfast.errors import InvalidInput, StreamClosed
from holdfast.store.port import Store
from holdfast.types import MOST_STREAMS, NewChunk, Notice, WrittenChunks
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Execution
from holdfast.worker.clock import Clock
from holdfast.worker.gathering import Gathering
from holdfast.worker.recording import repeated

logger = get_logger("holdfast.streams")

AnyExecution: TypeAlias = Execution[Any]

_GATHER_SECONDS: Final = 0.03
_MUCH: Final = 8 * 1024  # bytes of a stream that are sent at once
_CALL: Final = 256 * 1024  # bytes of one call
_ROOM: Final = 1024 * 1024  # bytes that a stream gathers before its writer waits
_FULL: Final = -1  # an offset: the run has too many streams


class Streams:
    """Sends what the attempts of a worker write."""

    opened: Literal[False] = False

    def __init__(
        self, store: Store, worker_id: str, clock: Clock, notify: Callable[[list[Notice]], None]
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._due: dict[Buffer, None] = {}  # that have something to send, oldest first
        self._calls = Gathering(_GATHER_SECONDS, lambda: bool(self._due), self._flush)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def start(self) -> None:
        """Send on this event loop."""
        self._event_loop, self._stopped = asyncio.get_running_loop(), False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the worker."""
        assert self._event_loop is not None, "attempts run once the worker is started"
        return self._event_loop

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return not self._due and self._calls.idle

    def open(self, context: AttemptContext, name: str) -> Buffer:
        """Return the buffer of the first stream of an attempt."""
        attempt = context.streams = Attempt(self, context)
        context.note_streams()
        return attempt.open(context, name)

    def finish(self, execution: AnyExecution, report: Callable[[AnyExecution], None]) -> None:
        """Report at once: nothing was written."""
        report(execution)

    def gathered(self, buffer: Buffer, *, at_once: bool) -> None:
        """Send what a buffer has, soon or at once. Called on the event loop."""
        if self._stopped:  # a thread writes on
            buffer.written(None)
            return
        self._due[buffer] = None
        if at_once:
            self._calls.skip_pause()
        self._calls.plan()

    async def _flush(self) -> None:
        parts = self._take()
        try:
            if parts:
                await self._send(parts)
        finally:
            for buffer, _ in parts:
                buffer.sent()

    def _take(self) -> list[tuple[Buffer, NewChunk]]:
        """Take one chunk of each buffer, the oldest first, up to the size of a call."""
        parts: list[tuple[Buffer, NewChunk]] = []
        size = 0
        for buffer in list(self._due):
            if size >= _CALL:
                self._calls.skip_pause()
                break
            del self._due[buffer]
            chunk = buffer.take()
            if chunk is not None:
                parts.append((buffer, chunk))
                size += len(chunk.items)
            if buffer.has_more:
                self._due[buffer] = None
                self._calls.skip_pause()
        return parts

    async def _send(self, parts: Sequence[tuple[Buffer, NewChunk]], *, again: bool = False) -> None:
        chunks = [chunk for _, chunk in parts]

        async def write() -> WrittenChunks:
            nonlocal again
            repeats, again = again, True
            return await self._store.write_streams(self._worker_id, chunks, again=repeats)

        try:
            written = await repeated(write, self._clock, f"writing to {len(chunks)} stream(s)")
        except Exception as error:
            if len(parts) > 1:  # the chunk of one attempt must not fail the others
                for part in parts:
                    await self._send([part], again=True)
                return
            [(buffer, _)] = parts
            logger.exception("writing to stream %s failed", buffer.name)
            buffer.attempt.fail(error)
            return
        if written.notices:
            self._notify(written.notices)
        for (buffer, _), offset in zip(parts, written.offsets, strict=True):
            buffer.written(offset)

    async def stop(self) -> None:
        """Drop what waits, and cancel the call in flight: the leases are given back."""
        due, self._due, self._stopped = self._due, {}, True
        await self._calls.stop()
        for buffer in due:  # threads may wait for room
            buffer.written(None)


class Attempt:
    """The streams that one attempt has opened."""

    opened: Literal[True] = True

    def __init__(self, sink: Streams, context: AttemptContext) -> None:
        found = context.writer
        assert found is not None, "only attempts of runs have streams"
        self.sink = sink
        self.run_id, self.task, self.writer = found
        self.ended = False
        self.fault: Exception | None = None
        self._buffers: dict[str, Buffer] = {}
        self._report: Callable[[], None] | None = None

    def open(self, _: AttemptContext, name: str) -> Buffer:
        """Return the buffer of a stream."""
        self.check(name)
        return self._buffers.setdefault(name, Buffer(self, name))

    def check(self, name: str) -> None:
        """Raise StreamClosed if nothing can be written any more, or the error of a flush."""
        if self.fault is not None:
            raise self.fault.with_traceback(None)  # it may be raised for each value
        if self.ended:
            raise StreamClosed(
                f"stream {name!r} of run {self.run_id} takes nothing more of {self.writer.key!r}: "
                f"its attempt {self.writer.attempt} has ended. Write before the function returns"
            )

    def finish(self, execution: AnyExecution, report: Callable[[AnyExecution], None]) -> None:
        """Take nothing more; report the end once all is durable. See `StreamSink.finish`."""
        self.ended, self._report = True, partial(self._tell, execution, report)
        for buffer in self._buffers.values():
            if buffer.has_more:
                self.sink.gathered(buffer, at_once=True)
        self.check_end()

    def check_end(self) -> None:
        """Report the end if all is written."""
        if self._report is not None and (
            self.fault is not None or all(each.is_empty for each in self._buffers.values())
        ):
            report, self._report = self._report, None
            self.sink.loop.call_soon(report)

    def _tell(self, execution: AnyExecution, report: Callable[[AnyExecution], None]) -> None:
        """Report an end; it is a failure if something could not be written."""
        fault = self.fault
        if execution.error is None and fault is not None and not isinstance(fault, StreamClosed):
            execution.result = execution.restored = None
            execution.error, execution.retryable = describe(fault), False
        report(execution)

    def fail(self, fault: Exception) -> None:
        """Let nothing more be written."""
        self.fault = fault
        for buffer in self._buffers.values():
            buffer.drop()


class Buffer:
    """What one attempt writes to one stream. Threads write here, the event loop takes."""

    def __init__(self, attempt: Attempt, name: str) -> None:
        self.attempt, self.name = attempt, name
        self._texts: deque[str] = deque()
        self._size = 0  # of the texts
        self._lock = threading.Lock()
        self._closing = self._closed = False  # it is to be closed; it takes nothing more
        self._in_flight = False
        self._begun = False  # a chunk is written
        self._after = 0
        self._waiting: asyncio.Event | None = None

    # Writing

    def add(self, text: str, _: object) -> Awaitable[None]:
        """Add a value as JSON text; see `StreamBuffer.add`."""
        attempt = self.attempt
        if attempt.ended or attempt.fault is not None or self._closed:
            self._refuse()
        with self._lock:
            self._texts.append(text)
            size = self._size = self._size + len(text)
            is_first = len(self._texts) == 1
        if _get_running_loop() is attempt.sink.loop:
            if is_first or size >= _MUCH:
                attempt.sink.gathered(self, at_once=size >= _MUCH > size - len(text))
            return DONE if size < _ROOM else self._room()
        if is_first or size >= _MUCH:
            attempt.sink.loop.call_soon_threadsafe(self._gathered)
        if size >= _ROOM:
            asyncio.run_coroutine_threadsafe(self._room(), attempt.sink.loop).result()
        return DONE

    def close(self) -> Awaitable[None]:
        """Take nothing more, and tell readers so."""
        if not self._closed:
            self.attempt.check(self.name)
            self._closed = self._closing = True
            self.attempt.sink.loop.call_soon_threadsafe(self._gathered)
        return DONE

    def _refuse(self) -> None:
        self.attempt.check(self.name)
        raise StreamClosed(
            f"stream {self.name!r} of run {self.attempt.run_id} takes nothing more of "
            f"{self.attempt.writer.key!r}, which has closed it"
        )

    def _gathered(self) -> None:
        if self.has_more:
            self.attempt.sink.gathered(self, at_once=self._size >= _MUCH)

    async def _room(self) -> None:
        """Wait until there is room for more. Raises what keeps the stream from being written."""
        while self._size >= _ROOM and self.attempt.fault is None:
            if self._waiting is None:
                self._waiting = asyncio.Event()
            await self._waiting.wait()
        self.attempt.check(self.name)

    # Sending

    @property
    def has_more(self) -> bool:
        """True if there is something to take."""
        return bool(self._texts) or self._closing

    @property
    def is_empty(self) -> bool:
        """True if all is written."""
        return not (self._texts or self._closing or self._in_flight)

    def take(self) -> NewChunk | None:
        """Take a chunk; None if there is nothing to write."""
        texts, size = list[str](), 0
        with self._lock:
            while self._texts and (not texts or size + len(self._texts[0]) <= MAX_ITEM):
                size += len(self._texts[0])
                texts.append(self._texts.popleft())
            self._size -= size
        closes = not texts and self._closing
        if closes:
            self._closing = False
        if not texts and not closes:
            return None
        self._in_flight = True
        attempt = self.attempt
        return NewChunk(
            run_id=attempt.run_id,
            name=self.name,
            task=attempt.task,
            writer=attempt.writer,
            count=len(texts) or 1,
            items=f"[{','.join(texts)}]",
            closes=closes,
            begins=not self._begun,
            after=self._after,
        )

    def written(self, offset: int | None) -> None:
        """Learn the offset of the last value that was taken: see `WrittenChunks`."""
        if offset is None:
            self.attempt.fail(
                StreamClosed(
                    f"stream {self.name!r} of run {self.attempt.run_id} takes nothing more of "
                    f"{self.attempt.writer.key!r}: its lease is lost, or its run has ended"
                )
            )
        elif offset == _FULL:
            self.attempt.fail(
                InvalidInput(
                    f"run {self.attempt.run_id} has {MOST_STREAMS} streams and gets no more: "
                    f"stream {self.name!r} is not written. Use fewer names; one stream takes the "
                    "values of many steps"
                )
            )
        else:
            self._begun, self._after = True, offset

    def sent(self) -> None:
        """Let writers continue that wait for room, and attempts that wait for their end."""
        self._in_flight = False
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None
        self.attempt.check_end()

    def drop(self) -> None:
        """Drop what was not taken: it cannot be written."""
        with self._lock:
            self._texts.clear()
            self._size, self._closing = 0, False
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None
