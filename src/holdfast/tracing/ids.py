"""Which trace a run belongs to, and the ids of its spans: values, without OpenTelemetry.

All ids follow from the run, so any process can name a span before another one has written it, and
nothing that is repeated makes a second one. The trace's id of a run that was started without a
trace context is a hash: ratio samplers read its low 64 bits, and those of a UUIDv7 are not random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final
from uuid import UUID

from holdfast.types.base import Value

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class Parent(Value, frozen=True):
    """The span in whose context a run was started, as a W3C `traceparent` has it."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


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


def own_trace_id(run_id: UUID) -> int:
    """Return the trace's id of a run that was started without a trace context."""
    return _number(run_id.bytes, 16)


def run_span_id(run_id: UUID) -> int:
    """Return the id of a run's span."""
    return _number(run_id.bytes, 8)


def call_span_id(run_id: UUID, key: str) -> int:
    """Return the id of the span of a call that has no attempts of its own, such as a sleep."""
    return _number(run_id.bytes + key.encode(), 8)


def attempt_span_id(run_id: UUID, key: str, attempt: int, lease_no: int) -> int:
    """Return the id of the span of an attempt: another lease makes another attempt."""
    return _number(run_id.bytes + f"{key}\0{attempt}\0{lease_no}".encode(), 8)


def _number(value: bytes, size: int) -> int:
    return int.from_bytes(blake2b(value, digest_size=size).digest()) or 1
