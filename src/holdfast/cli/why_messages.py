"""The messages that have come to a waiting run and that nothing there asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.cli.spans import Span
from holdfast.cli.wording import ago
from holdfast.types import Wait, update_topic

_MESSAGES = ("signal", "update", "pause")


def message_notes(wait: Wait, spans: Sequence[Span], now: int) -> Iterator[str]:
    """Name each update without a handler, and each signal of a name that is not waited for.

    A log does not say whether a signal was taken. Those with anything but messages behind them
    may have been, and are passed over.
    """
    done_at = max((_last(span) for span in spans if span.kind not in _MESSAGES), default=0)
    came: dict[tuple[str, str], list[int]] = {}
    for span in spans:
        if span.kind == "update" and span.outcome == "open":
            if update_topic(span.label) not in wait.awaiting:
                came.setdefault((span.kind, span.label), []).append(span.began_at)
        elif span.kind == "signal" and span.began_at >= done_at and span.label not in wait.awaiting:
            came.setdefault((span.kind, span.label), []).append(span.began_at)
    for (kind, name), moments in came.items():
        when = ago(moments[-1], now)
        what = f"{kind} {name!r} came {when}"
        if len(moments) > 1:
            what = f"{len(moments):,} {kind}s {name!r} came, the last {when}"
        if kind == "update":
            yield f"{what}: no handler serves it, so it waits until the code sets one"
        else:
            yield f"{what}: nothing waits for this name now; what is not taken is kept"


def _last(span: Span) -> int:
    return span.began_at if span.ended_at is None else span.ended_at
