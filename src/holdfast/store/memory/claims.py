"""Claims: lease due tasks, and give them back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.details import WorkerLost
from holdfast.store.memory import details
from holdfast.store.memory.activities import forget_stopped, is_waited_out
from holdfast.store.memory.chains import first_parent
from holdfast.store.memory.choosing import choose, slots_of
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.flows.inputs import known_key, task_input
from holdfast.store.memory.flows.losses import fail_lost, is_lost_for_good, lost_tasks
from holdfast.store.memory.messages import give_back_all
from holdfast.store.memory.rows import NEVER, TURN, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.memory.workers import rivals_of, spared_by
from holdfast.store.port import WORK_TOPIC
from holdfast.store.port.claims import SUSPECT_ATTEMPTS
from holdfast.types import ClaimedTask, Claims, ErrorInfo, Event, Notice, Release
from holdfast.values.composing import compose

_NEAR = 8  # so many events come with a claim, if the worker has the run in its cache


class MemoryClaims(Part):
    async def claim_tasks(
        self,
        worker_id: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        ahead_seconds: float = 0.0,
        sticky_seconds: float = 0.25,
        max_attempts: int = 5,
        seeks_leases: bool = False,
    ) -> Claims:
        async with self._transaction() as (tables, now):
            claim = Claim(
                worker_id=worker_id,
                queues=frozenset(queues),
                handlers=frozenset(handlers),
                limit=limit,
                lease_micros=to_micros(lease_seconds),
                ahead_micros=to_micros(ahead_seconds),
                sticky_micros=to_micros(sticky_seconds),
                rivals=rivals_of(tables, now, worker_id),
                spared=spared_by(tables, now, worker_id, to_micros(lease_seconds)),
                max_attempts=max_attempts,
            )
            due = [task for task in _served(tables, claim) if claim.takes(task, now)]
            due.sort(key=lambda task: (task.priority, task.visible_at, task.run_id, task.key))
            suspects = [task for task in due if _is_suspect(tables, task)]
            if suspects:
                tried = [] if _holds_suspect(tables, now, claim) else suspects[:1]
                due = [task for task in due if task in tried or not _is_suspect(tables, task)]
            chosen, allowed_at = choose(tables, now, due, claim.limit)
            taken = _without_cancelled(tables, now, chosen)
            poisoned = [task for task in taken if _is_poisoned(tables, task, claim.max_attempts)]
            healthy = [task for task in taken if task not in poisoned]
            _record_lost_workers(tables, now, healthy)
            claimed = [_lease(tables, now, task, claim) for task in healthy]
            next_due_at = (
                now if len(taken) == claim.limit else _next_due_at(tables, claim, now, allowed_at)
            )
            notices = _fail(tables, now, poisoned)
            limited = any(task.worker is None and slots_of(tables, task) for task in due)
            return Claims(
                now, claimed, next_due_at, notices, limited=limited, suspects=bool(suspects)
            )

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        async with self._transaction() as (tables, now):
            notices: list[Notice] = []
            for release in releases:
                task = tables.tasks.get((release.run_id, release.key))
                if task is None or task.worker != worker_id or task.lease_no != release.lease_no:
                    continue
                if task.cancelled and is_waited_out(task):
                    task.visible_at = now  # its lease expires: a claim tells the run
                    continue
                if task.cancelled:
                    del tables.tasks[task.run_id, task.key]
                    continue
                task.worker = task.sticky_worker = None
                task.attempts, task.innocent = max(task.attempts - 1, 0), False
                task.visible_at = now if release.visible_at is None else release.visible_at
                task.stuck = release.stuck
                if task.stuck is not None and not task.key:
                    task.stuck_tries = min(task.stuck_tries + 1, 16)
                    pause = min(2**task.stuck_tries, 300) * 1_000_000
                    task.visible_at = max(task.visible_at, now + pause)
                if task.kind == "step":  # between two attempts, none is open
                    task.claimed_idx = 0
                notices.append(Notice(WORK_TOPIC, task.queue))
            return distinct(notices)

    async def remove_worker(self, worker_id: str, *, with_messages: bool = False) -> None:
        async with self._transaction() as (tables, now):
            tables.workers.pop(worker_id, None)
            if with_messages:
                give_back_all(tables.queues, worker_id, now)


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for.

    `rivals` are the other live workers: runs that they suspended are left to them for a moment.
    Expired leases of `spared` workers are left alone.
    """

    worker_id: str
    queues: Collection[str]
    handlers: Collection[str]
    limit: int
    lease_micros: int
    ahead_micros: int
    sticky_micros: int
    rivals: Collection[str]
    spared: Collection[str]
    max_attempts: int

    def serves(self, task: TaskRow) -> bool:
        """Return True if the worker serves the queue and the handler of the task."""
        return task.queue in self.queues and task.handler in self.handlers

    def due_at(self, task: TaskRow) -> int:
        """Return when this worker may have the task: later if another live worker suspended it."""
        if task.worker is None and task.sticky_worker in self.rivals:
            return task.visible_at + self.sticky_micros
        return task.visible_at

    def takes(self, task: TaskRow, now: int) -> bool:
        """Return True if the task is due. A lease is never taken before it has expired."""
        if task.worker in self.spared:
            return False
        ahead = self.ahead_micros if task.worker is None else 0
        return self.serves(task) and self.due_at(task) <= now + ahead


def _served(tables: Tables, claim: Claim) -> list[TaskRow]:
    """Return the tasks that this worker serves and that are not paused."""
    return [
        task for task in tables.tasks.values() if claim.serves(task) and not tables.is_paused(task)
    ]


def _is_suspect(tables: Tables, task: TaskRow) -> bool:
    """Return True if the task has lost three workers, the one that has it now among them."""
    has_tried = task.worker is not None and task.attempts >= SUSPECT_ATTEMPTS
    return has_tried and _has_lost(tables, task, SUSPECT_ATTEMPTS - 1)


def _has_lost(tables: Tables, task: TaskRow, losses: int) -> bool:
    """Return True if at least so many attempts were lost with their workers.

    Attempts of an activity may also have failed: the log says which were lost.
    """
    if task.key == TURN:
        return True
    events = (row.event for row in tables.logs[task.run_id])
    fences = (event.details for event in events if event.type == "WorkerLost")
    lost = (fence for fence in fences if details.read(fence, WorkerLost).task_key == task.key)
    return sum(1 for _ in lost) >= losses


def _holds_suspect(tables: Tables, now: int, claim: Claim) -> bool:
    """Return True if the worker already holds a suspect that has made no progress here."""
    return any(
        task.worker == claim.worker_id
        and task.attempts > 3
        and task.visible_at > now
        and _has_lost(tables, task, 3)
        and not (task.key == TURN and _made_progress(tables, task))
        for task in tables.tasks.values()
    )


def _without_cancelled(tables: Tables, now: int, taken: Sequence[TaskRow]) -> list[TaskRow]:
    """Delete the cancelled activities whose leases expired, and return the other tasks."""
    forgotten = [task for task in taken if task.cancelled and task.worker is not None]
    for task in forgotten:
        forget_stopped(tables, now, task)
    return [task for task in taken if task not in forgotten]


def _record_lost_workers(tables: Tables, now: int, tasks: Sequence[TaskRow]) -> None:
    """Record the loss of workers with expired leases, which can then write no more.

    After progress, the attempts of a turn count from 0 again. Those of activities and steps do not:
    their policies limit them. A step also counts its lost workers. What an innocent worker lost
    does not count.
    """
    lost = [task for task in tasks if task.worker is not None]
    for task in sorted(lost, key=lambda task: (task.run_id, task.key)):
        fence = details.write(task_key=task.key, lease_no=task.lease_no, worker=task.worker)
        tables.append(task.run_id, Event("WorkerLost", None, fence, now))
        if task.innocent:
            task.attempts, task.innocent = max(task.attempts - 1, 0), False
        elif task.key == TURN and _made_progress(tables, task):
            task.attempts = 0
        elif task.kind == "step":
            task.losses += 1


def _made_progress(tables: Tables, turn: TaskRow) -> bool:
    """Return True if a worker has committed since the claim.

    Events of others are not progress: a run that kills its workers must fail although it gets them.
    """
    return any(row.token is not None for row in tables.logs[turn.run_id][turn.claimed_idx :])


def _is_poisoned(tables: Tables, task: TaskRow, max_attempts: int) -> bool:
    """Return True if a turn or a step has lost too many workers."""
    return is_lost_for_good(task) or (
        task.key == TURN
        and task.worker is not None
        and task.attempts >= max_attempts
        and not _made_progress(tables, task)
    )


def _fail(tables: Tables, now: int, poisoned: Sequence[TaskRow]) -> list[Notice]:
    """Fail the runs, and the steps, that kill their workers."""
    lost = lost_tasks(tables, now, (task.run_id for task in poisoned if task.key != TURN))
    _record_lost_workers(tables, now, lost)
    notices = fail_lost(tables, now, lost)
    turns = [task for task in poisoned if task.key == TURN]
    _record_lost_workers(tables, now, turns)
    errors = {task.run_id: _poison(task.attempts) for task in turns}
    event = Event("WorkflowFailed", None, None, now)
    return distinct(notices + end_from_outside(tables, errors, "failed", event, errors=errors)[1])


def _poison(attempts: int) -> str:
    error = ErrorInfo(
        kind="holdfast.PoisonedRun",
        message=f"the run lost {attempts} workers without making progress",
    )
    return msgspec.json.encode(error).decode()


def _lease(tables: Tables, now: int, task: TaskRow, claim: Claim) -> ClaimedTask:
    log_length = len(tables.logs[task.run_id])
    since = None
    if task.worker is None and task.sticky_worker == claim.worker_id:
        since = task.claimed_idx if log_length - task.claimed_idx <= _NEAR else log_length
    task.worker, task.visible_at = claim.worker_id, now + claim.lease_micros
    task.attempts += 1
    task.lease_no += 1
    task.claimed_idx = log_length
    task.awaiting = ()
    if task.started_at is None:
        task.started_at = max(now, tables.logs[task.run_id][-1].event.at)
    run = tables.runs[task.run_id]
    fresh = log_length == 1
    known = since is not None and not fresh
    clock = run.clock_at if task.key == TURN else None
    return compose(
        ClaimedTask,
        task,
        log_length=log_length,
        started_at=task.started_at if clock is None else clock,
        input=run.new.input if fresh and tables.logs[task.run_id][0].event.key is None else None,
        payload=task_input(tables, task) if task.kind == "step" else task.payload,
        deadline_at=run.deadline_at if fresh else None,
        parent_run_id=first_parent(tables, run.parent) if run.parent and task.key == TURN else None,
        tail_from=since,
        tail=() if since is None else tables.read(task.run_id, since),
        run_key=None if known else known_key(tables, run),
        headers=None if known else run.new.headers,
        first_claimed_at=None if clock is None else task.started_at,
        shape_hash=tables.shapes[task.handler].shape_hash if task.kind == "step" else None,
    )


def _next_due_at(tables: Tables, claim: Claim, now: int, allowed_at: int | None) -> int | None:
    """Return when the next free task is due, or a rate allows more.

    Expired leases are found by the reaper. Tasks that are due and wait for a limit are left out.
    """
    waiting = (
        task
        for task in _served(tables, claim)
        if task.worker is None and not (claim.takes(task, now) and slots_of(tables, task))
    )
    next_at = min((claim.due_at(task) for task in waiting), default=NEVER)
    next_at = next_at if allowed_at is None else min(next_at, allowed_at)
    return None if next_at >= NEVER else next_at
