"""A run's place in its trace, and whether the trace is sampled: the same answer in each process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from holdfast.tracing.provider import Tracer
from holdfast.values.loggers import get_logger
from holdfast.values.trace_ids import Parent, own_ids, parent_of, run_span_id

logger = get_logger("holdfast.tracing")


class Place:
    """A run's place in its trace. `parent` is its span, as its children have it in their headers.

    `context` is that of code within the run's span.
    """

    __slots__ = ("context", "parent", "sampled", "trace_id")

    def __init__(self, trace_id: int, span_id: int, sampled: bool) -> None:
        self.trace_id, self.sampled = trace_id, sampled
        self.parent = Parent(trace_id, span_id, sampled)
        self.context = context_within(self.parent, is_remote=False)


class PlacedHeaders(dict[str, str]):
    """The headers of a run that is sampled, with its place: so an attempt need not look it up."""

    def __init__(self, headers: Mapping[str, str], place: Place) -> None:
        super().__init__(headers)
        self.place = place


def place_of(tracer: Tracer, run_id: UUID, headers: Mapping[str, str] | None) -> Place:
    """Return a run's place, with the sampler's answer for its trace."""
    return place_within(tracer, run_id, parent_of(headers))


def place_within(tracer: Tracer, run_id: UUID, parent: Parent | None) -> Place:
    """Return the place of a run that was started in the context of a span, or of none."""
    if parent is None:
        return own_place(tracer, run_id)
    context = context_within(parent, is_remote=True)
    sampled = _is_sampled(tracer, parent.trace_id, context)
    return Place(parent.trace_id, run_span_id(run_id), sampled)


def own_place(tracer: Tracer, run_id: UUID) -> Place:
    """Return the place of a run that is the root of its own trace."""
    trace_id, span_id = own_ids(run_id)
    return Place(trace_id, span_id, _is_sampled(tracer, trace_id, None))


def context_within(span: Parent, *, is_remote: bool) -> Context:
    """Return the context in which a span is the current one."""
    flags = TraceFlags(TraceFlags.SAMPLED if span.sampled else TraceFlags.DEFAULT)
    named = SpanContext(span.trace_id, span.span_id, is_remote, flags)
    return trace.set_span_in_context(NonRecordingSpan(named), Context())


def _is_sampled(tracer: Tracer, trace_id: int, parent: Context | None) -> bool:
    try:
        answer = tracer.provider.sampler.should_sample(parent, trace_id, "workflow.run")
        return answer.decision is Decision.RECORD_AND_SAMPLE
    except Exception as error:  # of a sampler that the program has made: the run needs no span
        _tell(f"{type(error).__name__}: {error}")
        return False


@lru_cache(maxsize=8)  # once for each text: it is asked for each run
def _tell(error: str) -> None:
    logger.warning("the sampler of traces fails, and these runs have no spans: %s", error)
