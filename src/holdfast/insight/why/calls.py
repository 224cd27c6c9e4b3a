"""Why the calls of a run have not ended: activities, children, approvals, webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from holdfast.codec import shown_words
from holdfast.insight.actions import Action, resume_action
from holdfast.insight.approvals import decide_action
from holdfast.insight.limits import limits_text
from holdfast.insight.serving import live_workers, serves_queue, thread_shortage
from holdfast.insight.spans import Span, is_external
from holdfast.insight.why.explanation import Reason, pause_text
from holdfast.insight.why.surroundings import Surroundings
from holdfast.insight.wording import ago, several, shorten
from holdfast.types import OpenActivity, RunRecord
from holdfast.values.moments import to_micros

_SHOWN = 10
_NOUNS = (
    ("activity", "activity", "activities"),
    ("child", "child", "children"),
    ("approval", "decision", "decisions"),
    ("webhook", "POST", "POSTs"),
)


def count_open(spans: Sequence[Span]) -> str:
    """Return how many calls of which kind are open: `2 activities and 1 child`."""
    parts: list[str] = []
    for kind, one, many in _NOUNS:
        count = sum(span.kind == kind and span.outcome == "open" for span in spans)
        if count:
            parts.append(f"{count:,} {one if count == 1 else many}")
    return " and ".join(parts)


def call_reasons(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> list[Reason]:
    """Return a reason for each open call, at most ten, and how many more there are."""
    reasons = [
        reason for span in spans if span.outcome == "open" for reason in _reasons(run, span, around)
    ]
    reasons += [_asked(key, entity, around) for key, entity in around.asked.items()]
    reasons = [*_deadlock(around.deadlock), *reasons]
    rest = len(reasons) - _SHOWN
    return [*reasons[:_SHOWN], Reason(f"… and {rest:,} more")] if rest > 0 else reasons


def _reasons(run: RunRecord, span: Span, around: Surroundings) -> Iterator[Reason]:
    match span.kind:
        case "activity":
            found = next((each for each in around.activities if each.key == span.key), None)
            if found is not None:
                yield _activity(span, found, around)
        case "child":
            yield _child(span, around)
        case "approval":
            for each in around.approvals:
                if each.key == span.key:
                    asked = f"asked {ago(to_micros(each.requested_at), around.now)}"
                    text = f"decision {each.key}: {each.title!r}, {asked}"
                    yield Reason(text, decide_action(each))
        case "webhook":
            opened = f"opened {ago(span.began_at, around.now)}"
            yield Reason(f"webhook {span.key}: nothing was posted to its URL, {opened}")
        case _:
            pass


def _activity(span: Span, found: OpenActivity, around: Surroundings) -> Reason:
    name, now = f"activity {found.key}", around.now
    said = "; it was asked to stop" if found.cancelled else ""
    said += f"; it reported {shorten(found.heartbeat, 60)}" if found.heartbeat else ""
    if found.worker is not None:
        attempt = max(found.attempts, span.attempts)
        return Reason(f"{name}: attempt {attempt} runs on worker {found.worker}{said}")
    if is_external(found, span, now):
        at = found.visible_at
        over = "" if at is None else f"; its attempt ends {ago(at, now)}"
        return Reason(f"{name}: waits to be completed from outside, with its token{over}{said}")
    assert found.visible_at is not None, "else it is external"
    if found.stuck is not None:
        again = "soon" if found.visible_at <= now else ago(found.visible_at, now)
        return Reason(
            f"{name}: it cannot be begun, and is tried again {again}: {shown_words(found.stuck)}",
            Action("start_worker", name=found.queue),
        )
    failed = f"attempt {span.attempts} failed: {span.failures[-1].error}" if span.failures else ""
    if found.visible_at > now:
        again = f"is tried again {ago(found.visible_at, now)}" if failed else "is not due yet"
        return Reason(f"{name}: {again}; {failed}" if failed else f"{name}: {again}")
    pause = around.pause_of("queue", found.queue)
    if pause is not None:
        return Reason(f"{name}: {pause_text(pause, now)}", resume_action(pause))
    handler, live = f"{found.name}@0", live_workers(around.workers, now)
    serving = [each for each in live if serves_queue(each, handler, found.queue)]
    waits = f"{name}: due for a worker of queue {found.queue!r}"
    limits = [each for each in around.limits if each.task_key == found.key]
    if serving and limits:
        return Reason(f"{waits}; {limits_text(limits, now)}")
    if serving:
        shortages = "".join(f"; {text}" for each in serving if (text := thread_shortage(each)))
        return Reason(f"{waits}; {several(len(serving), 'worker')} could take it{shortages}")
    return Reason(
        f"{waits}; no live worker of that queue has {found.name}{_offered(found, around)}",
        Action("start_worker", name=found.queue),
    )


def _offered(found: OpenActivity, around: Surroundings) -> str:
    """Return the queues of the workers that have an activity, else what its queue's workers have.

    If the queue or the activity is mistyped, the right name is among them.
    """
    live = live_workers(around.workers, around.now)
    having = [each for each in live if f"{found.name}@0" in each.handlers]
    if queues := sorted({queue for each in having for queue in each.queues}):
        return f"; workers that have it serve {', '.join(map(repr, queues))}"
    known = {name for each in live if found.queue in each.queues for name in each.handlers}
    activities = sorted(name.removesuffix("@0") for name in known if name.endswith("@0"))
    return f"; that queue's workers have {', '.join(activities)}" if activities else ""


def _asked(key: str, entity: RunRecord | None, around: Surroundings) -> Reason:
    if entity is None:
        return Reason(f"call {key}: the run of its entity {around.lost or 'is not found'}")
    state = entity.state.replace("_", " ")
    return Reason(
        f"call {key}: run {entity.run_id} of {_named(entity)} is {state}",
        Action("why", entity.run_id),
    )


def _deadlock(runs: Sequence[RunRecord]) -> Iterator[Reason]:
    if runs:
        shown = ", ".join(map(_named, runs[:_SHOWN])) + (", …" if len(runs) > _SHOWN else "")
        yield Reason(
            f"{shown} wait for each other, and no timer ends it: give a call of an entity in "
            "them a timeout, start workers with that code, then pause and resume the run that "
            "makes it"
        )


def _named(run: RunRecord) -> str:
    of = run.key or next(iter(run.tags), "")  # of an entity that was continued
    return f"{run.full_name} {of!r}" if of else f"{run.full_name} {run.run_id}"


def _child(span: Span, around: Surroundings) -> Reason:
    child = around.children.get(UUID(span.child_run_id))
    if child is None:
        return Reason(f"child {span.key}: run {span.child_run_id} is not found")
    state = child.state.replace("_", " ")
    return Reason(
        f"child {span.key}: run {child.run_id} of {child.full_name} is {state}",
        Action("why", child.run_id),
    )
