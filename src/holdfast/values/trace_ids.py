"""Which trace a run belongs to, and the ids of its spans: values, without OpenTelemetry.

All ids follow from the run, so any process can name a span before another one has written it, and
nothing that is repeated makes a second one. The trace's id of a run that was started without a
trace context is a hash: ratio samplers read its low 64 bits, and those of a UUIDv7 are not random.
The hash is one that PostgreSQL has too: `_successor_headers` names spans in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final
from uuid import UUID

from holdfast.types.base import Value

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACE_LINK: Final = "holdfast-trace-link"  # the span that a run with a trace of its own comes from

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class Parent(Value, frozen=True):
    """The span in whose context a run was started, as a W3C `traceparent` has it."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


class QuietHeaders(dict[str, str]):
    """The headers of a run whose trace is not sampled: its attempts have no spans.

    `enter` makes the run's place in its trace the current one, so that what the code of an attempt
    traces by itself is not sampled either.
    """

    __slots__ = ("enter",)

    def __init__(self, headers: Mapping[str, str], enter: Callable[[], object]) -> None:
        super().__init__(headers)
        self.enter = enter


def read_parent(text: str | None) -> Parent | None:
    """Return what a `traceparent` says; None for none, and for one that is not valid."""
    found = None if text is None else _TRACEPARENT.fullmatch(text.strip())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    parent = Parent(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & _SAMPLED))
    return parent if parent.trace_id and parent.span_id else None


def parent_of(headers: Mapping[str, str] | None) -> Parent | None:
    """Return the span in whose context a run with these headers was started, if there is one."""
    return read_parent(headers.get(TRACEPARENT)) if headers else None


def trace_id_of(run_id: UUID, headers: Mapping[str, str] | None) -> int:
    """Return the id of a run's trace: its caller's, or one of its own."""
    parent = parent_of(headers)
    return own_trace_id(run_id) if parent is None else parent.trace_id


def trace_text(run_id: UUID, headers: Mapping[str, str] | None) -> str:
    """Return the id of a run's trace as 32 hexadecimal digits."""
    return f"{trace_id_of(run_id, headers):032x}"


def own_ids(run_id: UUID) -> tuple[int, int]:
    """Return the ids of the trace and the span of a run that was started without a context."""
    value = _hash(run_id)
    return _number(value[:16]), _number(value[16:24])


def own_trace_id(run_id: UUID) -> int:
    """Return the trace's id of a run that was started without a trace context."""
    return _number(_hash(run_id)[:16])


def run_span_id(run_id: UUID) -> int:
    """Return the id of a run's span."""
    return _number(_hash(run_id)[16:24])


def call_span_id(run_id: UUID, key: str) -> int:
    """Return the id of the span of a call that has no attempts of its own, such as a sleep."""
    return _number(_hash(run_id, key)[:8])


def attempt_span_id(run_id: UUID, key: str, attempt: int, lease_no: int) -> int:
    """Return the id of the span of an attempt: another lease makes another attempt."""
    return _number(_hash(run_id, f"{key}\0{attempt}\0{lease_no}")[:8])


def successor_headers(
    headers: Mapping[str, str] | None, origin: UUID | None
) -> Mapping[str, str] | None:
    """Return the headers of a run that is made of another: its trace is its own, with a link.

    Without an origin the link is to the span in the headers, as of a schedule's.
    """
    parent = parent_of(headers)
    if headers is None or parent is None:
        return headers
    kept = {name: text for name, text in headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    span_id = parent.span_id if origin is None else run_span_id(origin)
    return kept | {TRACE_LINK: str(Parent(parent.trace_id, span_id, parent.sampled))}


def _hash(run_id: UUID, call: str = "") -> bytes:
    return sha256(run_id.bytes + call.encode()).digest()


def _number(value: bytes) -> int:
    return int.from_bytes(value) or 1
