"""What message queues look like to a person who asks if all is well."""

from __future__ import annotations

from typing import Final

from holdfast.insight.findings import Finding
from holdfast.insight.wording import length, several
from holdfast.store.port import Store
from holdfast.types import QueueMetrics

_PILED_UP_MICROS: Final = 300 * 1_000_000
_MOST: Final = 1_000  # counts end here
_NAMED: Final = 5


async def check_queues(store: Store) -> Finding:
    """Name the message queues that nobody empties, and those that have dead letters."""
    counted = await store.queue_metrics(limit=_MOST)
    now = await store.now()
    paused = {info.settings.name for info in await store.list_queues() if info.is_paused}
    problems = [
        problem
        for each in counted
        if (problem := _problem(each, now, is_paused=each.name in paused))
    ]
    if not problems:
        return Finding("message queues", "ok", f"{several(len(counted), 'queue')}; none piles up")
    named = "; ".join(problems[:_NAMED])
    more = len(problems) - _NAMED
    return Finding(
        "message queues",
        "warn",
        named + (f"; and {several(more, 'other queue')}" if more > 0 else ""),
        "start more consumers of what piles up; look at the errors of dead letters, and move them "
        "back when the cause is gone",
    )


def _problem(counted: QueueMetrics, now: int, *, is_paused: bool) -> str | None:
    """Return what is wrong with a queue."""
    parts: list[str] = []
    since = counted.oldest_due_at
    if since is not None and now - since > _PILED_UP_MICROS:
        why = " while the queue is paused" if is_paused else ""
        parts.append(
            f"{several(counted.due, 'message')} due, the oldest for {length(now - since)}{why}"
        )
    if counted.dead:
        parts.append(several(counted.dead, "dead letter"))
    return f"{counted.name}: {', '.join(parts)}" if parts else None
