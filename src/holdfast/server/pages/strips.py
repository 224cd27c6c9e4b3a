"""A timeline as rows with bars: where each lies on a scale that shortens times without work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from holdfast.insight.folding import Fold
from holdfast.insight.spans import Span, is_queued, queue_text
from holdfast.insight.wording import length, several

WIDTH: Final = 1000  # of the drawing of a bar, in its own units
WINDOW: Final = 100  # rows that are loaded together
_BINS: Final = 50  # of the drawing of a folded row
_IDLE_PART: Final = 0.25  # of the whole time: a pause without work that is longer is shortened
_IDLE_WIDTH: Final = 0.07
_WORK: Final = ("step", "activity", "child")

SIGNS: Final = {
    "step": "✓",
    "activity": "⇢",
    "child": "↳",
    "entity": "⇄",
    "approval": "☑",
    "webhook": "⇠",
    "update": "⇄",
    "pause": "‖",
    "fork": "↱",
    "timer": "◷",
    "delay": "◷",
    "queue": "…",
    "signal": "✉",
    "sent": "✉",
    "value": "=",
    "patch": "Δ",
    "change": "↪",
    "cancel": "⊘",
    "end": "■",
    "lost": "☠",
}


class Bar(msgspec.Struct, frozen=True):
    """A part of a row's drawing, in units of `WIDTH`."""

    x: float
    width: float


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a timeline. `wait` is the time in a queue, before the `bar`; `is_queued`
    says that the bar is all of that kind. `bins` are the heights (0 to 1) of the drawing of a
    folded row.
    """

    index: int
    span: Span
    label: str
    sign: str
    offset: str
    took: str
    note: str
    bar: Bar
    wait: Bar | None = None
    is_queued: bool = False
    is_moment: bool
    folded: int = 0
    bins: tuple[Bar, ...] = ()
    heights: tuple[float, ...] = ()


class Scale:
    """Places moments on a line; long times in which nothing works are shortened."""

    def __init__(self, spans: Iterable[Span], began_at: int, until: int) -> None:
        self.began_at, self.until = began_at, max(until, began_at + 1)
        self.idle = self._idle(spans)
        busy = self.until - began_at - sum(last - first for first, last in self.idle)
        self._per_idle = WIDTH * _IDLE_WIDTH
        self._unit = (WIDTH - self._per_idle * len(self.idle)) / max(1, busy)

    def place(self, at: int) -> float:
        """Return where a moment lies, from 0 to `WIDTH`."""
        at = min(max(at, self.began_at), self.until)
        x, since = 0.0, self.began_at
        for first, last in self.idle:
            if at <= first:
                break
            x += (first - since) * self._unit
            if at < last:
                return x + self._per_idle * (at - first) / (last - first)
            x, since = x + self._per_idle, last
        return x + (at - since) * self._unit

    def bar(self, first: int, last: int) -> Bar:
        """Return the bar of a span of time, wide enough to be seen."""
        x = min(self.place(first), WIDTH - 4)
        return Bar(round(x, 1), round(max(4.0, self.place(last) - x), 1))

    @property
    def gaps(self) -> list[Bar]:
        """The times that are shortened."""
        return [self.bar(first, last) for first, last in self.idle]

    @property
    def idle_text(self) -> str:
        """How much is shortened, in words; empty if nothing is."""
        total = sum(last - first for first, last in self.idle)
        return f"{length(total)} without work are shortened" if total else ""

    def _idle(self, spans: Iterable[Span]) -> list[tuple[int, int]]:
        """Return the long times in which nothing begins, ends or works."""
        marks = {self.began_at, self.until}
        busy: list[tuple[int, int]] = []
        for span in spans:
            end = self.until if span.ended_at is None else span.ended_at
            marks.update((span.began_at, end))
            if span.kind in _WORK:
                busy.append((span.began_at, end))
        shortest = (self.until - self.began_at) * _IDLE_PART
        found: list[tuple[int, int]] = []
        for first, last in pairwise(sorted(marks)):
            if last - first > shortest and not any(a <= first and b >= last for a, b in busy):
                found.append((first, last))
        return found


def make_strips(
    lines: Sequence[Span | Fold], scale: Scale, first: int = 0, most: int = WINDOW
) -> list[Strip]:
    """Return rows of a timeline, `most` of them from the row `first` on."""
    return [
        _folded(first + place, each, scale)
        if isinstance(each, Fold)
        else _strip(first + place, each, scale)
        for place, each in enumerate(lines[first : first + most])
    ]


def _strip(index: int, span: Span, scale: Scale) -> Strip:
    until = scale.until if span.ended_at is None else span.ended_at
    is_moment = span.began_at == span.ended_at
    failed = span.outcome == "failed" and span.kind in (*_WORK, "entity", "update")
    bar, wait = scale.bar(span.began_at, until), None
    if span.started_at is not None and span.began_at < span.started_at <= until:
        wait = Bar(bar.x, round(scale.place(span.started_at) - bar.x, 1))
        bar = scale.bar(span.started_at, until)
    sign = "✗" if failed else "↻" if _works(span) else SIGNS.get(span.kind, "·")
    return Strip(
        index=index,
        span=span,
        label=span.label,
        sign=sign,
        offset=f"+{length(span.began_at - scale.began_at)}",
        took="" if is_moment else length(until - span.began_at),
        note=_note(span),
        bar=bar,
        wait=wait if wait is not None and wait.width > 0 else None,
        is_queued=is_queued(span),
        is_moment=is_moment,
    )


def _works(span: Span) -> bool:
    return span.kind == "step" and span.outcome == "open"


def _folded(index: int, fold: Fold, scale: Scale) -> Strip:
    together = fold.together()
    counts = [0] * _BINS
    longest = 0
    for span in fold.spans:
        until = scale.until if span.ended_at is None else span.ended_at
        counts[min(_BINS - 1, int(scale.place(span.began_at) * _BINS / WIDTH))] += 1
        longest = max(longest, until - span.began_at)
    lengths = sorted((each.ended_at or scale.until) - each.began_at for each in fold.spans)
    most, step = max(counts), WIDTH / _BINS
    shown = [(place, count) for place, count in enumerate(counts) if count]
    end = scale.until if together.ended_at is None else together.ended_at
    return Strip(
        index=index,
        span=together,
        label=f"{fold.label} x {len(fold.spans):,}",
        sign=SIGNS.get(together.kind, "·"),
        offset=f"+{length(together.began_at - scale.began_at)}",
        took=length(end - together.began_at),
        note=f"half within {length(lengths[len(lengths) // 2])}, longest {length(longest)}",
        bar=scale.bar(together.began_at, end),
        is_moment=False,
        folded=len(fold.spans),
        bins=tuple(Bar(round(place * step, 1), round(step - 2, 1)) for place, _ in shown),
        heights=tuple(round(2 + 12 * count / most, 1) for _, count in shown),
    )


def _note(span: Span) -> str:
    parts = [] if span.attempts == 1 else [several(span.attempts, "attempt")]
    parts += filter(None, [queue_text(span)])
    return " · ".join([*parts, *([span.note] if span.note else [])])
