"""The spans of a client: starts of runs and signals, with what links them to the runs' traces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.tracing.places import own_place
from holdfast.tracing.provider import Tracer
from holdfast.tracing.requests import request_trace
from holdfast.types import NewRun, NewSignal
from holdfast.values.names import split_name
from holdfast.values.trace_ids import TRACE_LINK, TRACEPARENT, parent_of

T = TypeVar("T", NewRun, NewSignal)


class ClientTracer:
    """Writes the spans of one client. With `roots`, runs are the roots of their own traces."""

    def __init__(self, tracer: Tracer, *, roots: bool) -> None:
        self._tracer, self._roots = tracer, roots

    @contextmanager
    def starts(self, runs: Sequence[NewRun]) -> Generator[Sequence[NewRun]]:
        """Span the start of runs within the block; give them the headers that continue the trace.

        A run whose headers have a trace context already is left as it is.
        """
        with self._each(runs, self._start) as started:
            yield started

    @contextmanager
    def signals(self, signals: Sequence[NewSignal]) -> Generator[Sequence[NewSignal]]:
        """Span the sending of signals within the block; give them what their runs link to."""
        with self._each(signals, self._signal) as sent:
            yield sent

    @contextmanager
    def _each(
        self, items: Sequence[T], begin: Callable[[T], tuple[Span, T]]
    ) -> Generator[Sequence[T]]:
        pairs = [begin(item) for item in items]
        try:
            yield [item for _, item in pairs]
        except BaseException as error:
            for span, _ in pairs:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            for span, _ in pairs:
                span.end()

    def _begin(self, name: str, attributes: Mapping[str, str]) -> Span:
        return self._tracer.otel.start_span(name, _caller(), SpanKind.PRODUCER, attributes)

    def _start(self, run: NewRun) -> tuple[Span, NewRun]:
        attributes = {"workflow.name": split_name(run.name)[1], "run_id": str(run.run_id)}
        span = self._begin("workflow.start", attributes)
        headers = dict(run.headers or {})
        if parent_of(headers) is None:
            carrier = _carrier(span)
            if self._roots:
                own = own_place(self._tracer, run.run_id).parent
                carrier = {TRACEPARENT: str(own), TRACE_LINK: carrier.get(TRACEPARENT, "")}
            run = msgspec.structs.replace(run, headers={**headers, **carrier})
        return span, run

    def _signal(self, signal: NewSignal) -> tuple[Span, NewSignal]:
        attributes = {"run_id": str(signal.run_id), "event": signal.name}
        span = self._begin("workflow.signal", attributes)
        carrier = _carrier(span)
        return span, msgspec.structs.replace(signal, trace=carrier.get(TRACEPARENT))


def _caller() -> Context | None:
    """Return the context of a request; None if the program's own span is the caller, or no span."""
    carrier = request_trace.get()
    if carrier is None or trace.get_current_span().get_span_context().is_valid:
        return None
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _carrier(span: Span) -> Mapping[str, str]:
    """Return the headers that continue a trace within a span."""
    context, carrier = span.get_span_context(), dict[str, str]()
    if context.is_valid:
        ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
        carrier[TRACEPARENT] = f"00-{ids}-{context.trace_flags & 1:02x}"
        if context.trace_state:
            carrier["tracestate"] = context.trace_state.to_header()
    return carrier
