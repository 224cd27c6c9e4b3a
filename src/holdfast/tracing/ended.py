"""The spans of a run that has ended: its own, and those of what it waited for, from its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from holdfast.events import CHILD_STARTED, SIGNAL_RECEIVED
from holdfast.insight.spans import Span, read_details, text_of
from holdfast.insight.timeline import read_spans
from holdfast.store.port import Store
from holdfast.tracing.writer import EndedSpan
from holdfast.types import Event, RunRecord
from holdfast.values.trace_ids import (
    TRACE_LINK,
    call_span_id,
    own_ids,
    own_trace_id,
    parent_of,
    read_parent,
    run_span_id,
    trace_id_of,
)

_WAITS: Final[Mapping[str, str]] = {
    "timer": "sleep",
    "approval": "approval",
    "webhook": "webhook",
    "child": "child",
}
_FAILED: Final = ("failed", "timed_out", "terminated")


async def read_ended(
    store: Store, run_id: UUID, is_sampled: Callable[[RunRecord], bool]
) -> list[EndedSpan]:
    """Return the spans of a run that has ended; none if it has been deleted, or is not sampled."""
    run = (await store.get_runs([run_id])).get(run_id)
    if run is None or run.completed_at is None or not is_sampled(run):
        return []
    log = (await store.read_events([(run_id, 0)])).get(run_id, [])
    spans = read_spans(log, run.completed_at)
    return [_run_span(run, log), *_waits(run, spans, _children(log))]


def _run_span(run: RunRecord, log: Sequence[Event]) -> EndedSpan:
    parent, span_id = parent_of(run.headers), run_span_id(run.run_id)
    trace_id = own_trace_id(run.run_id) if parent is None else parent.trace_id
    parent_id = None if parent is None or parent.span_id == span_id else parent.span_id
    if parent is not None and run.parent_run_id is not None:
        parent_id = run_span_id(run.parent_run_id)
    assert run.completed_at is not None, "the run has ended"
    return EndedSpan(
        "workflow.run",
        trace_id,
        span_id,
        parent_id,
        run.created_at,
        run.completed_at,
        {**_of_run(run), "workflow.version": run.version, "workflow.status": run.status},
        error=run.status if run.status in _FAILED else None,
        links=list(_links(run, log)),
    )


def _links(run: RunRecord, log: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Yield the spans that have acted on a run: what it comes from, and senders of signals.

    A child that is in no trace comes from a parent that is in none, as a flow may be: it has the
    headers of its parent. Each of the two is the root of its own trace.
    """
    origin = (run.headers or {}).get(TRACE_LINK)
    if run.parent_run_id is not None and origin is None and parent_of(run.headers) is None:
        yield own_ids(run.parent_run_id)
    texts = [origin]
    for event in log:
        if event.type == SIGNAL_RECEIVED:
            texts.append(text_of(read_details(event.details), "trace"))
    for text in texts:
        span = read_parent(text)
        if span is not None:
            yield span.trace_id, span.span_id


def _of_run(run: RunRecord) -> dict[str, str | int]:
    return {"workflow.name": run.name, "run_id": str(run.run_id)}


def _children(log: Sequence[Event]) -> dict[str, tuple[int, int]]:
    """Return the spans of the children that a run has started, by their ids."""
    spans: dict[str, tuple[int, int]] = {}
    for event in log:
        if event.type == CHILD_STARTED:
            details = read_details(event.details)
            child, headers = text_of(details, "child_run_id"), details.get("headers")
            if child:
                own = headers if isinstance(headers, dict) else {}
                texts = {name: text for name, text in own.items() if isinstance(text, str)}
                spans[child] = trace_id_of(UUID(child), texts), run_span_id(UUID(child))
    return spans


def _waits(
    run: RunRecord, spans: list[Span], children: Mapping[str, tuple[int, int]]
) -> Iterator[EndedSpan]:
    """Return the spans of sleeps, approvals and children, which have no attempts."""
    parent = parent_of(run.headers)
    trace_id = own_trace_id(run.run_id) if parent is None else parent.trace_id
    for span in spans:
        if span.kind not in _WAITS or span.ended_at is None:
            continue
        child, key = span.child_run_id, span.key or span.label
        yield EndedSpan(
            "workflow.step",
            trace_id,
            call_span_id(run.run_id, key),
            run_span_id(run.run_id),
            span.began_at,
            span.ended_at,
            {
                **_of_run(run),
                "step.name": span.label,
                "step.kind": _WAITS[span.kind],
                "step.attempt": 1,
                "holdfast.key": key,
            },
            error="failed" if span.outcome == "failed" else None,
            links=(children[child],) if child in children else (),
        )
