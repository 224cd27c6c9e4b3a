"""The trace of a request that came over HTTP: what it starts and sends continues that trace.

It works without OpenTelemetry: a server that writes no spans passes the context on to the runs,
whose workers may write some.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

from holdfast.types import NewRun, NewSignal
from holdfast.values.trace_ids import TRACEPARENT, TRACESTATE, parent_of, read_parent

_LONGEST_STATE: Final = 512  # what a trace's state must be passed on with, by its standard

request_trace: ContextVar[Mapping[str, str] | None] = ContextVar(
    "holdfast_request_trace", default=None
)
"""The headers that continue the trace of the request, None outside of one."""


@contextmanager
def within_request(traceparent: str | None, tracestate: str | None) -> Generator[None]:
    """Continue a request's trace within the block. Headers that are not valid are ignored."""
    if traceparent is None or read_parent(traceparent) is None:
        yield
        return
    carrier = {TRACEPARENT: traceparent.strip()}
    if tracestate and len(tracestate) <= _LONGEST_STATE:
        carrier[TRACESTATE] = tracestate
    token = request_trace.set(carrier)
    try:
        yield
    finally:
        request_trace.reset(token)


def continue_runs(runs: Sequence[NewRun], carrier: Mapping[str, str]) -> Sequence[NewRun]:
    """Let runs continue a request's trace, unless their own headers have one."""
    return [
        msgspec.structs.replace(run, headers={**(run.headers or {}), **carrier})
        if parent_of(run.headers) is None
        else run
        for run in runs
    ]


def link_signals(signals: Sequence[NewSignal], carrier: Mapping[str, str]) -> Sequence[NewSignal]:
    """Let the runs that receive signals link to a request's span."""
    return [msgspec.structs.replace(each, trace=carrier[TRACEPARENT]) for each in signals]
