"""The clock was set back: what was due at once while it was ahead must not wait until then."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from holdfast.store.memory.rows import TaskRow
from holdfast.store.memory.tables import Tables

_MINUTE: Final = 60_000_000  # µs
_SOON: Final = 10_000_000  # µs
_TRIES: Final = 10 * _MINUTE  # longer than a lease or a pause of a delivery to a URL


def watch_clock(tables: Tables, now: int) -> None:
    """Remember how far ahead the clock was, if a worker was heard ten seconds from now."""
    heard_at = max((each.heard_at for each in tables.workers.values()), default=now)
    if heard_at > now + _SOON:
        tables.clock_ahead = max(tables.clock_ahead, heard_at)


def catch_up(tables: Tables, now: int) -> None:
    """Let what was written while the clock was ahead, and was due within a minute, be due now.

    The visibility of what a consumer holds is counted from now. What waits for longer waits for its
    moment.
    """
    until, tables.clock_ahead = tables.clock_ahead + 2 * _MINUTE, 0
    if until <= now:
        return
    soon = now + _SOON
    for task in tables.tasks.values():
        if soon < task.visible_at <= until and _was_due(tables, task, now):
            task.visible_at = now
    for queue in tables.queues.rows.values():
        for message in list(queue.waiting.values()):
            wait = message.visible_at - message.sent_at
            if message.sent_at > now and message.visible_at > soon and 0 <= wait <= _MINUTE:
                queue.put(replace(message, visible_at=now))
        for held in queue.deliveries.values():
            if soon < held.received_at <= held.visible_at:
                held.visible_at -= held.received_at - now
                held.received_at = now
    for row in tables.deliveries.values():
        is_first = row.attempts == 0
        if soon < row.visible_at <= until and (is_first or row.visible_at > now + _TRIES):
            row.visible_at = now


def _was_due(tables: Tables, task: TaskRow, now: int) -> bool:
    """Return True if an event that is ahead made the task due, at once or soon after."""
    events = (row.event for row in tables.logs[task.run_id])
    return task.worker is None and any(
        now < event.at <= task.visible_at <= event.at + _MINUTE for event in events
    )
