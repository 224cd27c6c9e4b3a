"""Why no worker has taken a run that is due."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.insight.actions import Action, resume_action
from holdfast.insight.limits import holding, place_text, wait_text
from holdfast.insight.serving import live_workers, serves
from holdfast.insight.why.explanation import Explanation, explanation, pause_text
from holdfast.insight.why.surroundings import Surroundings
from holdfast.insight.wording import length, several
from holdfast.types import RunRecord, Wait, WorkerInfo


def explain_queued(run: RunRecord, wait: Wait, around: Surroundings) -> Explanation:
    """Explain a due run: its queue or workflow is paused, workers are full, or none serves it."""
    since = due_since(wait, around)
    for pause in (around.pause_of("queue", run.queue), around.pause_of("workflow", run.full_name)):
        if pause is not None:
            because = f"its {pause_text(pause, around.now)}; it has been due {since}"
            return explanation(run, because, (), (resume_action(pause),))
    live = live_workers(around.workers, around.now)
    serving = [each for each in live if serves(each, run)]
    if not serving:
        return _unserved(run, live, since)
    if around.limits:
        return _limited(run, since, around)
    return explanation(run, *room_texts(serving, since))


def due_since(wait: Wait, around: Surroundings) -> str:
    """Return for how long a run has been due."""
    return f"for {length(around.now - (wait.visible_at or around.now))}"


def room_texts(serving: Sequence[WorkerInfo], since: str) -> tuple[str, tuple[str, ...]]:
    """Return what a due run waits for, and the details, if these workers could take it."""
    count = several(len(serving), "worker")
    return (
        f"it has been due {since}, and {count} could take it: it waits for room",
        tuple(f"{each.worker_id} takes {each.concurrency} runs at once" for each in serving),
    )


def _limited(run: RunRecord, since: str, around: Surroundings) -> Explanation:
    """Explain a run that waits for limits: those that hold it now, else its turn."""
    waits = [wait for wait in around.limits if not wait.task_key]
    held_by = holding(waits)
    place = tuple(place_text(wait) for wait in waits[:1])
    if held_by:
        texts = [wait_text(wait, around.now) for wait in held_by]
        because = f"a limit holds it: {texts[0]} (it has been due {since})"
        more = tuple(f"another limit holds it: {text}" for text in texts[1:])
        return explanation(run, because, (*more, *place))
    because = f"it has been due {since}, and its limits allow it: it waits for its turn"
    return explanation(run, because, place)


def _unserved(run: RunRecord, live: Sequence[WorkerInfo], since: str) -> Explanation:
    return explanation(
        run,
        f"no worker can run this: {unserved_text(run)} (it has been due {since})",
        tuple(unserved_details(run, run.queue, live)),
        ways_out(run, live),
    )


def ways_out(run: RunRecord, live: Sequence[WorkerInfo]) -> tuple[Action, ...]:
    """Return what helps a run that no live worker can take."""
    start = Action("start_worker", name=run.queue)
    if run.build is not None:
        return start, Action("move_build", run.run_id)
    queues = sorted(
        {queue for each in live if run.handler in each.handlers for queue in each.queues}
    )
    return (*(Action("move_queue", run.run_id, queue) for queue in queues[:1]), start)


def unserved_text(run: RunRecord) -> str:
    """Return what is missing where no live worker can take a run."""
    if run.build is not None:
        return (
            f"it stays with build {run.build}, and no live worker of that build serves "
            f"{run.full_name}@{run.version} on queue {run.queue!r}"
        )
    return f"no live worker serves {run.handler} on queue {run.queue!r}"


def unserved_details(run: RunRecord, queue: str, live: Sequence[WorkerInfo]) -> list[str]:
    """Return what live workers serve instead of a run's handler on a queue."""
    handler, prefix = run.handler, f"{run.full_name}@"
    others = sorted(
        {
            known
            for each in live
            for known in each.handlers
            if known.startswith(prefix) and known not in (handler, f"{prefix}0")
        }
    )
    details = [f"workers serve {', '.join(others)}"] if others else _offered(queue, live)
    return details + [
        f"worker {each.worker_id} has {handler}, for other queues: {', '.join(each.queues)}"
        for each in live
        if handler in each.handlers
    ]


def _offered(queue: str, live: Sequence[WorkerInfo]) -> list[str]:
    """Return what is served on a queue: the right name of a mistyped workflow may be among it."""
    known = {handler for each in live if queue in each.queues for handler in each.handlers}
    workflows = sorted(handler for handler in known if not handler.endswith("@0"))
    return [f"workers on queue {queue!r} serve {', '.join(workflows)}"] if workflows else []
