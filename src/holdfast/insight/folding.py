"""Fold many similar spans into one line, so that a long timeline stays readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.insight.spans import Span

MOST_SPANS = 60  # a timeline with more spans is folded
_LEAST = 4  # fewer similar spans than this are not folded
_FOLDED = ("step", "activity", "child", "entity", "timer", "signal", "sent", "value", "update")

_number = re.compile(r"[#:]\d+")


class Fold(Struct, frozen=True):
    """Spans whose labels differ only in their numbers, oldest first."""

    label: str
    spans: tuple[Span, ...]

    def together(self) -> Span:
        """Return one span that covers all of them."""
        ends = [span.ended_at for span in self.spans if span.ended_at is not None]
        return replace(self.spans[0], ended_at=max(ends, default=None))


def fold(spans: Sequence[Span]) -> Iterator[Span | Fold]:
    """Yield the spans in order; similar ones become one Fold at the position of the first.

    A span that failed or is still open is never folded; workers that were lost are.
    """
    if len(spans) <= MOST_SPANS:
        yield from spans
        return
    similar: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        if _may_be_folded(span):
            similar.setdefault(_likeness(span), []).append(span)
    for span in spans:
        group = similar.get(_likeness(span), []) if _may_be_folded(span) else []
        if len(group) < _LEAST:
            yield span
        elif group[0] is span:
            yield Fold(_likeness(span)[1], tuple(group))


def _may_be_folded(span: Span) -> bool:
    if span.kind == "lost":
        return True
    return span.kind in _FOLDED and span.outcome in ("done", "noted") and not span.failures


def _likeness(span: Span) -> tuple[str, str]:
    return span.kind, _number.sub("", span.label)
