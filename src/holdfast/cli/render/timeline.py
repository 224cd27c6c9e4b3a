"""The spans of a run as lines on a terminal: when, what, a bar, how long, the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.render.console import cut
from holdfast.insight.folding import Fold, fold
from holdfast.insight.spans import Span, is_queued, queue_text
from holdfast.insight.wording import length, moment, several, shorten

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BAR = 32
_NOTE = 48
_LABEL = 40
_FAILURES = 10  # of the failed attempts of a span
_TIMELESS = " "
_WORK = ("step", "activity", "child")  # something works on them; the others only wait

_SIGNS = {
    ("step", "done"): ("✓", "green"),
    ("step", "failed"): ("✗", "red"),
    ("step", "open"): ("↻", "yellow"),
    ("step", "dropped"): ("·", "dim"),
    ("activity", "done"): ("⇢", "green"),
    ("activity", "failed"): ("⇢", "red"),
    ("activity", "open"): ("⇢", "yellow"),
    ("activity", "dropped"): ("⇢", "dim"),
    ("child", "done"): ("↳", "green"),
    ("child", "failed"): ("↳", "red"),
    ("child", "open"): ("↳", "yellow"),
    ("child", "dropped"): ("↳", "dim"),
    ("entity", "done"): ("⇄", "green"),
    ("entity", "failed"): ("⇄", "red"),
    ("entity", "open"): ("⇄", "yellow"),
    ("entity", "dropped"): ("⇄", "dim"),
    ("approval", "done"): ("☑", "green"),
    ("approval", "failed"): ("☒", "red"),
    ("approval", "open"): ("☐", "yellow"),
    ("approval", "dropped"): ("☐", "dim"),
    ("webhook", "done"): ("⇠", "magenta"),
    ("webhook", "open"): ("⇠", "yellow"),
    ("webhook", "dropped"): ("⇠", "dim"),
    ("update", "done"): ("⇄", "magenta"),
    ("update", "failed"): ("⇄", "red"),
    ("update", "open"): ("⇄", "yellow"),
    ("update", "dropped"): ("⇄", "dim"),
    ("delay", "done"): ("◷", "dim"),
    ("delay", "open"): ("◷", "yellow"),
    ("queue", "done"): ("…", "dim"),
    ("queue", "open"): ("…", "yellow"),
    ("queue", "dropped"): ("…", "dim"),
    ("pause", "done"): ("‖", "yellow"),
    ("pause", "open"): ("‖", "yellow"),
    ("pause", "dropped"): ("‖", "dim"),
    ("fork", "noted"): ("⑂", "cyan"),
    ("timer", "done"): ("◷", "cyan"),
    ("timer", "open"): ("◷", "yellow"),
    ("timer", "dropped"): ("◷", "dim"),
    ("signal", "noted"): ("✉", "magenta"),
    ("sent", "noted"): ("✉", "magenta"),
    ("value", "noted"): ("=", "blue"),
    ("patch", "noted"): ("Δ", "blue"),
    ("change", "noted"): ("↪", "blue"),
    ("cancel", "noted"): ("⊘", "yellow"),
    ("end", "noted"): ("■", "dim"),
    ("lost", "failed"): ("☠", "red"),
}


def timeline(
    spans: Sequence[Span], began_at: int, ended_at: int | None, now: int, *, whole: bool = True
) -> Table:
    """Draw spans on one scale, from the run's creation to its end or to now.

    Unless `whole` is given, similar spans of a long timeline share one line, and so do all but the
    newest failed attempts of a span.
    """
    from rich.table import Table

    until = ended_at or max([now, *(span.ended_at or 0 for span in spans)])
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    # Labels and notes become narrow on a narrow terminal: see `cut`.
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(max_width=_LABEL)
    table.add_column(no_wrap=True, width=_BAR)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for each in spans if whole else fold(spans):
        if isinstance(each, Fold):
            table.add_row(*_folded_row(each, began_at, until))
            continue
        for row in _rows(each, began_at, until, None if whole else _FAILURES):
            table.add_row(*row)
    return table


def _folded_row(fold: Fold, began_at: int, until: int) -> tuple[str | Text, ...]:
    from rich.text import Text

    together = fold.together()
    sign, style = _SIGNS.get((together.kind, together.outcome), ("·", ""))
    ended_at = together.ended_at or until
    return (
        f"+{length(together.began_at - began_at)}",
        Text(sign, style),
        cut(_key_end(f"{fold.label} x {len(fold.spans):,}"), ""),
        _bar(together, began_at, until, style),
        length(ended_at - together.began_at),
        cut("each of them: --all", "dim"),
    )


def _rows(
    span: Span, began_at: int, until: int, most: int | None
) -> Iterator[tuple[str | Text, ...]]:
    from rich.text import Text

    sign, style = _SIGNS.get((span.kind, span.outcome), ("·", ""))
    if (span.kind, span.outcome, span.failures) == ("step", "open", ()):  # a flow's
        sign, style = "▶", "cyan"
    is_moment = span.began_at == span.ended_at
    lasted = _TIMELESS if is_moment else length((span.ended_at or until) - span.began_at)
    yield (
        f"+{length(span.began_at - began_at)}",
        Text(sign, style),
        cut(_key_end(span.label), style if span.outcome in ("failed", "dropped") else ""),
        _bar(span, began_at, until, style),
        lasted,
        cut(shorten(_note(span), _NOTE), "red" if span.outcome == "failed" else "dim"),
    )
    failed = [failure for failure in span.failures if failure.retry_at is not None]
    left = 0 if most is None else max(0, len(failed) - most)
    if left:
        label, note = f"  {left:,} attempts failed", "each of them: --all"
        yield f"+{length(failed[0].at - began_at)}", "", cut(label, "dim"), "", "", cut(note, "dim")
    for failure in failed[left:]:
        yield (
            f"+{length(failure.at - began_at)}",
            "",
            cut(f"  attempt {failure.number} failed", "dim"),
            "",
            "",
            cut(shorten(failure.error, _NOTE), "yellow"),
        )


def _key_end(label: str) -> str:
    """Return the end of a label that is too long: what was called stands at the end of a key."""
    return label if len(label) <= _LABEL else "…" + label[1 - _LABEL :]


def _bar(span: Span, began_at: int, until: int, style: str) -> Text:
    """Draw the position and length of a span, at least one cell wide."""
    from rich.text import Text

    scale = _BAR / max(1, until - began_at)
    first = min(_BAR - 1, max(0, int((span.began_at - began_at) * scale)))
    if span.began_at == span.ended_at:
        return Text(" " * first).append("◆", style)
    last = int(((span.ended_at or until) - began_at) * scale)
    cells = min(_BAR - first, max(1, last - first))
    rests = span.outcome in ("open", "dropped") and span.kind not in _WORK
    fill = "┄" if rests or span.kind == "delay" or is_queued(span) else "━"
    waited = 0
    if span.started_at is not None:  # in a queue, before a worker took it
        waited = min(cells - 1, int((span.started_at - began_at) * scale) - first)
    bar = Text(" " * first).append("┄" * waited, "dim")
    return bar.append(fill * (cells - max(waited, 0)), style)


def _note(span: Span) -> str:
    parts = [] if span.attempts == 1 else [several(span.attempts, "attempt")]
    parts += filter(None, [queue_text(span)])
    if span.outcome == "open" and span.due_at is not None:
        parts.append("until " + moment(span.due_at))
    elif span.note:
        parts.append(span.note)
    return " · ".join(parts)
