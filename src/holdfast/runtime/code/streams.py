"""Streams that the code of a workflow writes: commands, carried out with the commit."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable
from typing import Any, TypeVar, overload

import msgspec

from holdfast.codec import texts_before_fields
from holdfast.definitions.streams import DONE, StreamWriter
from holdfast.details import StreamWritten
from holdfast.errors import ConfigurationError, StreamClosed
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import WRITE
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.types import MOST_STREAMS
from holdfast.values.names import check_stream_name

T = TypeVar("T")


class Streams(Ledger):
    """The streams that the code of one instance writes, by name."""

    __slots__ = ("_buffers", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._buffers: dict[str, _Buffer] = {}

    def open(self, name: str) -> _Buffer:
        """Return the buffer of a stream. Raises ConfigurationError for one too many."""
        if check_stream_name(name) not in self._buffers and len(self._buffers) >= MOST_STREAMS:
            raise ConfigurationError(
                f"stream {name!r}: a run has at most {MOST_STREAMS} streams. Use fewer names; one "
                "stream takes the values of many calls"
            )
        return self._buffers.setdefault(name, _Buffer(self._run, name))


class _Buffer:
    """Records each value at once: nothing is gathered."""

    __slots__ = ("_closed", "_name", "_run")

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name, self._closed = run, name, False

    def add(self, text: str, value: object) -> Awaitable[None]:
        """Record a value, once."""
        written = StreamWritten(self._name, msgspec.Raw(f"[{text}]".encode()))
        return self._record(written, text, value)

    def close(self) -> Awaitable[None]:
        """Record the end of the stream, once."""
        if self._closed:
            return DONE
        done = self._record(StreamWritten(self._name, msgspec.Raw(b"[]"), closes=True), "", None)
        self._closed = True
        return done

    def _record(self, written: StreamWritten, text: str, value: object) -> Awaitable[None]:
        if self._closed:
            raise StreamClosed(
                f"stream {self._name!r} takes nothing more of the workflow's code, which has "
                "closed it"
            )
        key = self._run.loop.scope().key(f"stream:{self._name}")
        command = Command(WRITE, key, self._name, written.fingerprint)
        if text:
            command.earlier = lambda: map(written.compared, texts_before_fields(text, value))
        self._run.ledger(Commands).give(command, lambda: written)
        return DONE


class StreamPart(ContextPart):
    """The part of a context that writes streams."""

    __slots__ = ()

    @overload
    def stream(self, name: str, *, type: builtins.type[T]) -> StreamWriter[T]: ...
    @overload
    def stream(self, name: str) -> StreamWriter[object]: ...
    def stream(self, name: str, *, type: object = None) -> StreamWriter[Any]:
        """Return a stream of the run, to write to; see `RunHandle.stream` for how it is read.

        ```python
        await ctx.stream("progress").write({"done": 3})
        ```

        Each value is recorded with the run's next commit, once: a replay writes nothing again.
        Steps that the code calls after this begin when the value is in the database. A step writes
        with `current_step().stream`, without an entry of the log for each value. `type` is for type
        checkers. Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, ConfigurationError
        for more than 100 streams.
        """
        return StreamWriter(name, self._run.ledger(Streams).open(name))
