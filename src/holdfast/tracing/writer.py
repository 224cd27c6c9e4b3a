"""Spans that have ended go through a bounded queue to a thread that writes them.

The caller, mostly an event loop, only appends a value. If the queue is full, the span is dropped
and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from holdfast.tracing.provider import Tracer, flush
from holdfast.types.base import Value
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.tracing")

Kind: TypeAlias = Literal["internal", "consumer"]

_CAPACITY: Final = 10_000
_GATHER_SECONDS: Final = 0.05  # between a span and its writing, so that many are written in one go
_STOP_SECONDS: Final = 3.0

_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "consumer": SpanKind.CONSUMER,
}


class EndedSpan(Value, frozen=True, gc=False):
    """A span to write. `parent` is the id of its parent in the same trace; moments are in µs.

    `links` are pairs of a trace's id and a span's. `error` is the type of an error.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    began_at: int
    ended_at: int
    attributes: Mapping[str, str | int]
    kind: Kind = "internal"
    error: str | None = None
    links: Sequence[tuple[int, int]] = ()


class SpanWriter:
    """Write spans of sampled traces in a thread of its own."""

    def __init__(self, tracer: Tracer, capacity: int = _CAPACITY) -> None:
        self._tracer, self._capacity = tracer, capacity
        self._queue: deque[EndedSpan | Callable[[], EndedSpan]] = deque()
        self._filled, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = self._told = 0  # spans, of which it was told in the log

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._work, name="holdfast-spans", daemon=True)
            self._thread.start()

    def put(self, span: EndedSpan | Callable[[], EndedSpan]) -> None:
        """Take a span to write, or what makes it; drop it if too many wait."""
        if len(self._queue) >= self._capacity:
            self.dropped += 1
            return
        self._queue.append(span)
        if not self._filled.is_set():
            self._filled.set()

    def stop(self) -> None:
        """Write and send what waits, within a few seconds. Idempotent. Blocks: not for a loop."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            self._filled.set()
            thread.join(_STOP_SECONDS)
        flush(self._tracer.provider)
        if self.dropped > self._told:
            logger.warning(
                "%d span(s) were dropped: more ended than could be written",
                self.dropped - self._told,
            )
            self._told = self.dropped

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._filled.wait()
            self._stopping.wait(_GATHER_SECONDS)
            self._filled.clear()
            self._write_all()
        self._write_all()

    def _write_all(self) -> None:
        while self._queue:
            try:
                span = self._queue.popleft()
                self._write(span if isinstance(span, EndedSpan) else span())
            except Exception:  # of a span processor of the program, say
                logger.exception("a span could not be written")

    def _write(self, span: EndedSpan) -> None:
        context = Context()
        if span.parent_id is not None:
            parent = sampled_context(span.trace_id, span.parent_id)
            context = trace.set_span_in_context(NonRecordingSpan(parent), context)
        self._tracer.ids.choose(span.trace_id, span.span_id)
        written = self._tracer.otel.start_span(
            span.name,
            context,
            _KINDS[span.kind],
            dict(span.attributes),
            [Link(sampled_context(*link)) for link in span.links],
            span.began_at * 1000,
        )
        if span.error is not None:
            written.set_attribute("error.type", span.error)
            written.set_status(Status(StatusCode.ERROR))
        written.end(max(span.ended_at, span.began_at) * 1000)


def sampled_context(trace_id: int, span_id: int, *, is_remote: bool = True) -> SpanContext:
    """Return the context of a span that another process, or a later moment, writes."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote, flags)
