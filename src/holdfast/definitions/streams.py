"""Streams: what the code of an attempt writes while it works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Generic, Never, Protocol, TypeVar, cast

from holdfast.codec import encode


class _Done:
    """Awaited, it is there at once."""

    def __await__(self) -> Iterator[Never]:
        return iter(())


DONE: Final[Awaitable[None]] = cast("Awaitable[None]", _Done())

MAX_ITEM: Final = 64 * 1024
"""Bytes that one value of a stream may have as JSON."""

T_contra = TypeVar("T_contra", contravariant=True)


class StreamBuffer(Protocol):
    """Gathers what is written to one stream by one attempt."""

    def add(self, text: str, value: object, /) -> Awaitable[None]:
        """Add a value, which is `text` as JSON. In a thread it waits for room, else its result."""
        ...

    def close(self) -> Awaitable[None]:
        """Take nothing more, and tell readers so."""
        ...


class StreamSink(Protocol):
    """Where an attempt writes: the worker's, until it opens its first stream, then its own."""

    @property
    def opened(self) -> bool:
        """True if the attempt has opened a stream."""
        ...

    def open(self, context: Any, name: str, /) -> StreamBuffer:
        """Return the buffer of a stream for an attempt. Raises StreamClosed if that has ended."""
        ...

    def finish(self, execution: Any, report: Callable[[Any], None], /) -> None:
        """Take nothing more; report the end of the attempt once what it wrote is durable."""
        ...


class StreamWriter(Generic[T_contra]):
    """Writes to a stream of the run. The order of the values is kept.

    What an attempt writes is durable before its step is recorded as completed or failed. If the
    attempt is followed by another, readers forget what it has written.
    """

    __slots__ = ("_buffer", "name")

    def __init__(self, name: str, buffer: StreamBuffer) -> None:
        """Hold a stream: see `current_step().stream`."""
        self.name, self._buffer = name, buffer

    def __repr__(self) -> str:
        return f"<StreamWriter {self.name}>"

    def write(self, value: T_contra) -> Awaitable[None]:
        """Write a value; await the result, which is there once there is room for more.

        In a thread (a step that is a plain function) there is nothing to await: the call itself
        waits for room. Values are sent together, every 30 ms. Raises PayloadError for a value that
        cannot be stored or has more than 64 KiB, and StreamClosed if the attempt has ended or lost
        its lease, or the stream is closed.
        """
        return self._buffer.add(encode(value, MAX_ITEM), value)

    def close(self) -> Awaitable[None]:
        """End the stream: readers end there once the step is recorded. Await the result."""
        return self._buffer.close()
