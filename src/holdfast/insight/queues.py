"""What message queues look like to a person who asks if all is well."""

from __future__ import annotations

from typing import Final

from holdfast.insight.findings import Finding
from holdfast.insight.serving import live_workers
from holdfast.insight.wording import count_of, length, several
from holdfast.store.port import Store
from holdfast.types import QueueMetrics

_UNCONSUMED_MICROS: Final = 30 * 1_000_000
_PILED_UP_MICROS: Final = 300 * 1_000_000
_MOST: Final = 1_000  # counts end here
_NAMED: Final = 5
_REMEDY: Final = (
    "start consumers, or more of them, for what piles up; look at the errors of dead letters, and "
    "move them back when the cause is gone"
)


async def check_queues(store: Store) -> Finding:
    """Name message queues that nobody empties, have dead letters, or are consumed and missing."""
    counted = await store.queue_metrics(limit=_MOST)
    now = await store.now()
    queues = await store.list_queues()
    names = {info.settings.name for info in queues}
    paused = {info.settings.name for info in queues if info.is_paused}
    consumed, all_say = await _consumed(store, now)
    missing = sorted(consumed - names)
    letters = {info.settings.dead_letters for info in queues} - consumed
    served = consumed if all_say else names
    problems = [
        f"{name}: a live worker consumes it, and there is no such queue" for name in missing
    ]
    problems += [
        problem
        for each in counted
        if each.name not in letters  # they are counted with the queue that they come from
        and (problem := _problem(each, now, each.name in paused, each.name in served))
    ]
    if not problems:
        return Finding("message queues", "ok", f"{several(len(counted), 'queue')}; none piles up")
    named = "; ".join(problems[:_NAMED])
    more = len(problems) - _NAMED
    remedies = [f"create what is missing: `holdfast queue create {missing[0]}`"] if missing else []
    if len(problems) > len(missing):
        remedies.append(_REMEDY)
    return Finding(
        "message queues",
        "warn",
        named + (f"; and {several(more, 'other queue')}" if more > 0 else ""),
        "; ".join(remedies),
    )


async def _consumed(store: Store, now: int) -> tuple[set[str], bool]:
    """Return the queues that live workers say they consume, and if all of them say it."""
    said = [worker.consumes for worker in live_workers(await store.list_workers(), now)]
    return {name for each in said if each is not None for name in each}, None not in said


def _problem(counted: QueueMetrics, now: int, is_paused: bool, is_served: bool) -> str | None:
    """Return what is wrong with a queue.

    One that no worker consumes may be that of a program that receives: nothing is said if
    messages are in flight.
    """
    parts: list[str] = []
    waits = 0 if counted.oldest_due_at is None else now - counted.oldest_due_at
    unserved = not (is_served or is_paused or counted.in_flight)
    if waits > (_UNCONSUMED_MICROS if unserved else _PILED_UP_MICROS):
        why = " while the queue is paused" if is_paused else ""
        why += ", and no live worker consumes the queue" if unserved else ""
        due = count_of(counted, "due", "message")
        parts.append(f"{due} due, the oldest for {length(waits)}{why}")
    if counted.dead:
        parts.append(count_of(counted, "dead", "dead letter"))
    return f"{counted.name}: {', '.join(parts)}" if parts else None
