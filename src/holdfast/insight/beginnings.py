"""What a run did before its first claim: it waited for its start, then in its queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.events import FORKED, read_last_failure
from holdfast.insight.spans import Outcome, Span
from holdfast.types import Event, RunRecord


def before_begin(run: RunRecord, begun: bool, log: Sequence[Event]) -> Iterator[Span]:
    """Yield how long the start was delayed, then how long the run waited in its queue.

    No worker claims the run of a flow: it begins with its steps. The next attempt of a run that has
    failed begins after a pause.
    """
    first, began_at, label = run.created_at, run.started_at, "start delayed"
    mark = next((each for each in reversed(log) if each.type == FORKED), None)
    if mark is not None and (failed := read_last_failure(mark.details)) is not None:
        first, label = mark.at, f"pause before attempt {failed.number + 1}"
    if run.due_at is not None:
        waits = run.state == "waiting" and not begun
        over_at = min(run.due_at, run.completed_at or run.due_at)
        outcome: Outcome = "open" if waits else "done"
        ended_at = None if waits else over_at
        yield Span("delay", label, first, ended_at, outcome, due_at=run.due_at)
        first = over_at
        if waits:
            return
    if run.kind == "workflow" and began_at is None and (run.completed_at or first + 1) > first:
        ended = run.completed_at is not None
        note = "no worker took it" if ended else f"no worker has taken it from queue {run.queue}"
        outcome = "dropped" if ended else "open"
        yield Span("queue", "in the queue", first, run.completed_at, outcome, note)
    elif run.kind == "workflow" and began_at is not None and began_at > first:
        yield Span("queue", "in the queue", first, began_at, "done", f"queue {run.queue}")
