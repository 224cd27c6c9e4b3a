"""Why a run that is due has not been taken by a worker."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.explanation import Explanation
from holdfast.cli.surroundings import Surroundings
from holdfast.cli.why_remote import pause_reason
from holdfast.cli.wording import length, several
from holdfast.cli.workers_live import live_workers, serves
from holdfast.types import RunRecord, Wait, WorkerInfo


def explain_queued(run: RunRecord, wait: Wait, around: Surroundings) -> Explanation:
    """Explain it: the queue or the workflow is paused, there is no room, or nobody serves it."""
    since = f"for {length(around.now - (wait.visible_at or around.now))}"
    for pause in (around.pause_of("queue", run.queue), around.pause_of("workflow", run.full_name)):
        if pause is not None:
            reason = pause_reason(pause.scope, pause, around.now)
            because = f"its {reason.text}; it has been due {since}"
            return Explanation(run.state, because, (), (reason.command,))
    live = live_workers(around.workers, around.now)
    serving = [each for each in live if serves(each, run)]
    if not serving:
        return _unserved(run, live, since)
    count = several(len(serving), "worker")
    return Explanation(
        run.state,
        f"it has been due {since}, and {count} could take it: it waits for room",
        tuple(f"{each.worker_id} takes {each.concurrency} runs at once" for each in serving),
    )


def _unserved(run: RunRecord, live: Sequence[WorkerInfo], since: str) -> Explanation:
    handler, like = run.handler, f"{run.full_name}@"
    others = sorted(
        {
            known
            for each in live
            for known in each.handlers
            if known.startswith(like) and known not in (handler, f"{like}0")
        }
    )
    details = [f"workers serve {', '.join(others)}"] if others else _offered(run.queue, live)
    details += [
        f"worker {each.worker_id} has {handler}, for other queues: {', '.join(each.queues)}"
        for each in live
        if handler in each.handlers
    ]
    return Explanation(
        run.state,
        f"no worker can run this: none that lives serves {handler} on queue {run.queue!r} "
        f"(it has been due {since})",
        tuple(details),
        (f"holdfast worker MODULE:APP --queue {run.queue}",),
    )


def _offered(queue: str, live: Sequence[WorkerInfo]) -> list[str]:
    """Name what is served on a queue: the name that was meant may be among it."""
    known = {handler for each in live if queue in each.queues for handler in each.handlers}
    workflows = sorted(handler for handler in known if not handler.endswith("@0"))
    return [f"workers on queue {queue!r} serve {', '.join(workflows)}"] if workflows else []
