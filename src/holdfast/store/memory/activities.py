"""Activities: their runs schedule and cancel them, workers and other programs end them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.details import RetryPolicy
from holdfast.retry import Retry
from holdfast.store.memory import details
from holdfast.store.memory.choosing import correct_units
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_end
from holdfast.store.memory.rows import NEVER, TURN, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import WORK_TOPIC, worker_topic
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    ActivityOutcome,
    ErrorInfo,
    Event,
    Notice,
    OpenActivity,
)
from holdfast.values.composing import compose

_token_key: Final = re.compile(r"@(\d+)/(.+)", re.DOTALL)
_OVERDUE: Final = ErrorInfo(
    kind="holdfast.errors.ActivityTimedOut",
    message="the activity did not end within its schedule-to-close time",
)
_STOPPED: Final = ErrorInfo(
    kind="asyncio.exceptions.CancelledError", message="the activity was cancelled"
)


class _Scheduled(msgspec.Struct, frozen=True):
    """The fields of ActivityScheduled that the store reads."""

    activity_name: str
    queue: str
    retry: RetryPolicy
    start_to_close: float | None
    schedule_to_close: float | None
    on_cancel: str = "try"
    priority: int | None = None  # None: that of the run


class MemoryActivities(Part):
    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        async with self._transaction() as (tables, now):
            for end in ends:
                check_end(end)
            outcomes: list[ActivityOutcome] = []
            notices: list[Notice] = []
            ended: set[tuple[UUID, str]] = set()
            for end in ends:
                place = end.run_id, end.key if worker_id else _key_of_token(tables, end)
                task = tables.tasks.get(place)
                if task is None or place in ended or not _holds(task, worker_id, end):
                    outcomes.append("lost")
                    continue
                ended.add(place)
                if end.units is not None:
                    correct_units(tables, now, task, end.units)
                outcome, told = _end(tables, now, task, end)
                outcomes.append(outcome)
                notices += told
            return ActivitiesEnded(now, outcomes, distinct(notices))

    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        async with self._transaction() as (tables, now):
            due = [place for place in tables.activity_deadlines() if place[0] <= now][:limit]
            notices: list[Notice] = []
            for _, run_id, key in due:
                task = tables.tasks[run_id, key]
                if task.worker is not None:
                    notices.append(stop_notice(task.worker, task))
                notices += _fail(tables, now, task, _OVERDUE, task.attempts, timed_out=True)
            later = tables.activity_deadlines()
            return len(due), later[0][0] if later else None, distinct(notices)

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        async with self._transaction() as (tables, _):
            found = [
                compose(
                    OpenActivity,
                    task,
                    visible_at=None if task.visible_at >= NEVER else task.visible_at,
                )
                for task in tables.tasks.values()
                if task.kind == "activity" and task.run_id == run_id
            ]
            return sorted(found, key=lambda activity: activity.key)[:limit]


def schedule(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ActivityScheduled: insert a task for the workers of the queue."""
    if not tables.is_running(run_id) or event.key is None:
        return []
    command = details.read(event.details, _Scheduled)
    deadline_at = None
    if command.schedule_to_close is not None:
        deadline_at = now + to_micros(command.schedule_to_close)
    turn = tables.turn(run_id)
    tables.tasks[run_id, event.key] = TaskRow(
        run_id=run_id,
        key=event.key,
        kind="activity",
        queue=command.queue,
        name=command.activity_name,
        version=0,
        priority=turn.priority if command.priority is None else command.priority,
        visible_at=now,
        payload=event.details,
        paused=turn.paused,
        deadline_at=deadline_at,
    )
    return [Notice(WORK_TOPIC, command.queue)]


def cancel(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ActivityCancelRequested: delete a free task, notify the holder of a leased one."""
    task = tables.tasks.get((run_id, event.key or TURN))
    if task is None or task.kind != "activity":
        return []
    task.cancelled = True
    if task.worker is None:
        return forget_stopped(tables, now, task)
    return [stop_notice(task.worker, task)]


def is_waited_out(task: TaskRow) -> bool:
    """Return True if the run waits for the end of an activity that it has asked to stop."""
    return task.cancelled and details.read(task.payload, _Scheduled).on_cancel == "wait"


def forget_stopped(tables: Tables, now: int, task: TaskRow) -> list[Notice]:
    """Delete an activity that was asked to stop and that no worker has; tell a run that waits."""
    if not is_waited_out(task):
        del tables.tasks[task.run_id, task.key]
        return []
    return _fail(tables, now, task, _STOPPED, task.attempts)


def stop_notice(worker_id: str, task: TaskRow) -> Notice:
    """Return the notice that tells a worker to stop an activity that it executes."""
    return Notice(worker_topic(worker_id), f"{task.run_id} {task.key}")


def _key_of_token(tables: Tables, end: ActivityEnd) -> str:
    """Return the key of the activity that a token names, by `@BEGAN/KEY` or by the key alone.

    One that began at another moment was called by a deleted run that had the same id: then the key
    is returned as it is given, and no activity has that.
    """
    if (found := _token_key.fullmatch(end.key)) is not None:
        began, key = found.groups()
        task = tables.tasks.get((end.run_id, key))
        if task is not None and str(task.started_at) == began:
            return key
    return end.key


def _holds(task: TaskRow, worker_id: str | None, end: ActivityEnd) -> bool:
    """Return True if the end is of the current attempt; from outside, only its number counts.

    Between a failed attempt and the claim that follows, no attempt is under way.
    """
    if task.kind != "activity" or task.lease_no != end.lease_no:
        return False
    return task.claimed_idx > 0 if worker_id is None else task.worker == worker_id


def _end(
    tables: Tables, now: int, task: TaskRow, end: ActivityEnd
) -> tuple[ActivityOutcome, list[Notice]]:
    if end.result is not None:
        return "recorded", _complete(tables, now, task, end)
    command = details.read(task.payload, _Scheduled)
    attempt, ended = _attempt(task), (end.timed_out, end.started_at)
    if end.error is None and is_waited_out(task):
        return "recorded", _fail(tables, now, task, _STOPPED, attempt, *ended)
    if end.error is None:
        _free(task, end, _deferred_until(now, end, command.start_to_close))
        if task.cancelled:
            del tables.tasks[task.run_id, task.key]
        return "deferred", []
    retry_at = _retry_at(now, task, command.retry, end.delay_seconds) if end.retryable else None
    if retry_at is None:
        return "recorded", _fail(tables, now, task, raw(end.error), attempt, *ended)
    failed = details.write(
        activity_name=task.name,
        attempt=attempt,
        error=raw(end.error),
        retry_at=retry_at,
        timed_out=end.timed_out,
        started_at=end.started_at,
        worker=task.worker,
    )
    tables.append(task.run_id, Event("ActivityRetryScheduled", task.key, failed, now))
    _free(task, end, retry_at)
    task.claimed_idx = 0
    return "retried", [Notice(WORK_TOPIC, task.queue)]


def _attempt(task: TaskRow) -> int:
    """Return the attempt's number; one that was given back and completed later counts as 1."""
    return max(task.attempts, 1)


def _lease(task: TaskRow, attempt: int) -> dict[str, object]:
    """Return the number of the lease, which is said if it is not that of the attempt."""
    return {} if task.lease_no == attempt else {"lease_no": task.lease_no}


def _deferred_until(now: int, end: ActivityEnd, limit: float | None) -> int:
    """Return when an attempt that is completed from outside times out."""
    if limit is None:
        return NEVER
    return (now if end.started_at is None else end.started_at) + to_micros(limit)


def _free(task: TaskRow, end: ActivityEnd, visible_at: int) -> None:
    """Give the lease back; the attempt's last heartbeat details stay for the next attempt."""
    task.worker, task.innocent, task.visible_at = None, False, visible_at
    task.stuck = None
    task.heartbeat = task.heartbeat if end.details is None else end.details


def _retry_at(now: int, task: TaskRow, policy: RetryPolicy, asked: float | None) -> int | None:
    """Return when the next attempt is due, None if this was the last one."""
    exhausted = policy.attempts is not None and _attempt(task) >= policy.attempts
    if exhausted or task.cancelled:
        return None
    if asked is None:
        retry = Retry(**msgspec.structs.asdict(policy))
        asked = retry.delay_seconds(_attempt(task), random.random)
    retry_at = now + to_micros(asked)
    overdue = task.deadline_at is not None and retry_at >= task.deadline_at
    return None if overdue else retry_at


def _complete(tables: Tables, now: int, task: TaskRow, end: ActivityEnd) -> list[Notice]:
    told = details.write(
        activity_name=task.name,
        result=raw(end.result),
        attempt=_attempt(task),
        **_lease(task, _attempt(task)),
        started_at=end.started_at,
        worker=task.worker,
    )
    return _write_end(tables, task, Event("ActivityCompleted", task.key, told, now))


def _fail(
    tables: Tables,
    now: int,
    task: TaskRow,
    error: object,
    attempt: int,
    timed_out: bool = False,
    started_at: int | None = None,
) -> list[Notice]:
    told = details.write(
        activity_name=task.name,
        error=error,
        attempt=attempt,
        **_lease(task, attempt),
        timed_out=timed_out,
        started_at=started_at,
        worker=task.worker,
    )
    return _write_end(tables, task, Event("ActivityFailed", task.key, told, now))


def _write_end(tables: Tables, task: TaskRow, event: Event) -> list[Notice]:
    """Append an activity's end, and wake its run unless it has asked it to stop and let it go."""
    del tables.tasks[task.run_id, task.key]
    if task.cancelled and not is_waited_out(task):
        tables.append(task.run_id, event)
        return []
    return tables.tell(task.run_id, event)
