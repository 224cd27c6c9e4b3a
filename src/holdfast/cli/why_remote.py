"""Why what a run asked of others has not come: activities, children, approvals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.cli.forms import decide_command
from holdfast.cli.spans import Span
from holdfast.cli.surroundings import Surroundings
from holdfast.cli.wording import ago, several, shorten
from holdfast.cli.workers_live import live_workers, thread_shortage
from holdfast.moments import to_micros
from holdfast.types import OpenActivity, Pause, RunRecord, Scope

_SHOWN = 10
_NOUNS = (
    ("activity", "activity", "activities"),
    ("child", "child", "children"),
    ("approval", "decision", "decisions"),
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one thing has not come, and the command that would move it."""

    text: str
    command: str = ""


def count_open(spans: Sequence[Span]) -> str:
    """Say how many of which kind have not come: `2 activities and 1 child`."""
    parts: list[str] = []
    for kind, one, many in _NOUNS:
        count = sum(span.kind == kind and span.outcome == "open" for span in spans)
        if count:
            parts.append(f"{count:,} {one if count == 1 else many}")
    return " and ".join(parts)


def remote_reasons(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> list[Reason]:
    """Explain each open call, the first few of them."""
    reasons = [
        reason for span in spans if span.outcome == "open" for reason in _reasons(run, span, around)
    ]
    rest = len(reasons) - _SHOWN
    return [*reasons[:_SHOWN], Reason(f"… and {rest:,} more")] if rest > 0 else reasons


def pause_reason(scope: Scope, pause: Pause, now: int) -> Reason:
    """Say that a queue or a workflow is paused, and what ends that."""
    why = f" ({pause.reason})" if pause.reason else ""
    text = f"{scope} {pause.name!r} was paused {ago(pause.paused_at, now)}{why}"
    return Reason(text, f"holdfast {scope}s resume {pause.name}")


def _reasons(run: RunRecord, span: Span, around: Surroundings) -> Iterator[Reason]:
    match span.kind:
        case "activity":
            found = next((each for each in around.activities if each.key == span.key), None)
            if found is not None:
                yield _activity(run, span, found, around)
        case "child":
            yield _child(span, around)
        case "approval":
            for each in around.approvals:
                if each.key == span.key:
                    asked = f"asked {ago(to_micros(each.requested_at), around.now)}"
                    text = f"decision {each.key}: {each.title!r}, {asked}"
                    yield Reason(text, decide_command(each))
        case _:
            pass


def _activity(run: RunRecord, span: Span, found: OpenActivity, around: Surroundings) -> Reason:
    name, now = f"activity {found.key}", around.now
    said = f"; it said {shorten(found.heartbeat, 60)}" if found.heartbeat else ""
    if found.worker is not None:
        attempt = max(found.attempts, span.attempts)
        return Reason(f"{name}: attempt {attempt} runs on worker {found.worker}{said}")
    if found.visible_at is None:
        return Reason(f"{name}: waits to be completed from outside, with its token{said}")
    failed = f"attempt {span.attempts} failed: {span.failures[-1].error}" if span.failures else ""
    if found.visible_at > now:
        if found.attempts > (span.failures[-1].number if span.failures else 0):
            over = f"its attempt is over {ago(found.visible_at, now)}"
            return Reason(
                f"{name}: waits to be completed from outside, with its token; {over}{said}"
            )
        again = f"is tried again {ago(found.visible_at, now)}" if failed else "is not due yet"
        return Reason(f"{name}: {again}; {failed}" if failed else f"{name}: {again}")
    pause = around.pause_of("queue", found.queue)
    if pause is not None:
        reason = pause_reason("queue", pause, now)
        return Reason(f"{name}: {reason.text}", reason.command)
    serving = [
        each
        for each in live_workers(around.workers, now)
        if found.queue in each.queues and f"{found.name}@0" in each.handlers
    ]
    waits = f"{name}: due for a worker of queue {found.queue!r}"
    if serving:
        shortages = "".join(f"; {text}" for each in serving if (text := thread_shortage(each)))
        return Reason(f"{waits}; {several(len(serving), 'worker')} could take it{shortages}")
    return Reason(
        f"{waits}; none that lives serves {found.name}{_offered(found, around)}",
        f"holdfast worker MODULE:APP --queue {found.queue}",
    )


def _offered(found: OpenActivity, around: Surroundings) -> str:
    """Name the queues of the workers that have an activity, else what its queue's workers have.

    Where the queue or the activity is mistyped, the one that was meant is among them.
    """
    live = live_workers(around.workers, around.now)
    having = [each for each in live if f"{found.name}@0" in each.handlers]
    if queues := sorted({queue for each in having for queue in each.queues}):
        return f"; workers that have it serve {', '.join(map(repr, queues))}"
    known = {name for each in live if found.queue in each.queues for name in each.handlers}
    activities = sorted(name.removesuffix("@0") for name in known if name.endswith("@0"))
    return f"; that queue's workers have {', '.join(activities)}" if activities else ""


def _child(span: Span, around: Surroundings) -> Reason:
    child = around.children.get(UUID(span.child_run_id))
    if child is None:
        return Reason(f"child {span.key}: run {span.child_run_id} is gone")
    state = child.state.replace("_", " ")
    return Reason(
        f"child {span.key}: run {child.run_id} of {child.full_name} is {state}",
        f"holdfast runs why {child.run_id}",
    )
