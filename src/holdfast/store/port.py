"""The store port: what the engine asks of a database, one method for one SQL function.

Two stores keep this contract: `PostgresStore` and `MemoryStore`; one suite tests both.
Every method is one transaction. A method that changes runs takes many of them, and is all or
nothing per run. Methods that wake somebody return notices, without those that they have sent;
the caller passes them to `notify` *after* the method has returned, because a NOTIFY inside each
writing transaction would serialise commits.

Errors: `TransientDatabaseError` and `DatabaseUnavailable` leave the caller free to repeat the
call; `PayloadError` names a value the database refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    AppInfo,
    Approval,
    Claims,
    Committed,
    Decided,
    Decision,
    Delivered,
    EndStatus,
    Event,
    Fork,
    Forking,
    Heartbeat,
    Lease,
    LoggedEvent,
    NewRun,
    NewSignal,
    Notice,
    OpenActivity,
    Pause,
    RecordPage,
    Release,
    RunFilter,
    RunRecord,
    Scope,
    SignedOn,
    StartedRun,
    TurnCommit,
    WorkerInfo,
)

_TOLD_BYTES = 7000  # PostgreSQL takes payloads of up to 7,999 bytes
WORK_TOPIC = "work"  # payload: a queue that has new work


def worker_topic(worker_id: str) -> str:
    """Name the topic of a worker.

    Payloads: the id of a run it holds that has unread events; or `RUN KEY`, an activity that it
    executes and that is to stop.
    """
    return f"worker/{worker_id}"


def end_payload(run_id: UUID, status: EndStatus, output: str | None) -> str:
    """Write what those who wait for a run's end are told: its id, and its output if it is small.

    >>> end_payload(UUID(int=1), "completed", '{"ok":true}')
    '00000000-0000-0000-0000-000000000001 {"ok":true}'
    """
    if status == "completed" and output is not None and len(output.encode()) <= _TOLD_BYTES:
        return f"{run_id} {output}"
    return str(run_id)


def read_end(payload: str) -> tuple[UUID, str | None]:
    """Read an end's payload: the run's id, and its output where that was told."""
    run_id, _, output = payload.partition(" ")
    return UUID(run_id), output or None


class Store(Protocol):
    """The transitions of runs, tasks and logs, and the questions about them."""

    async def open(self) -> None:
        """Connect. Idempotent."""
        ...

    async def close(self) -> None:
        """Let go of every connection. Idempotent."""
        ...

    async def now(self) -> int:
        """Return engine time, microseconds since 1970 UTC."""
        ...

    # Transitions

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; an id that exists is left as it is and reported with its status.

        Writes the run, its WorkflowStarted event and its first task. Answers keep the order
        given; the same id twice in one call is one run, created once.
        """
        ...

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
    ) -> Claims:
        """Lease up to `limit` due tasks of these queues and handlers, by priority, then age.

        `ahead_seconds` takes tasks due that soon. A task that another worker suspended is left
        to that worker until `sticky_seconds` after it came due, if it was heard of lately. A lease
        that ran out is left to a worker that is signed on, unless the one that claims was heard
        for a lease's length without a gap. A task whose lease ran out gets WorkerLost in its
        run's log; one that lost `max_attempts` workers without progress fails its run instead of
        being claimed.
        """
        ...

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Record how attempts of activities ended, in their runs' logs, and wake the runs.

        Fenced by the lease's number; `worker_id` None speaks from outside, with the token of
        an attempt that is still under way or was given back to be completed later. A failure is
        retried as the policy in the task's payload says: ActivityRetryScheduled, and the task is
        due again after the pause; else it is ActivityFailed. Repeating a call is harmless: what
        was recorded is `lost` then.
        """
        ...

    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        """Fail activities that are past their schedule-to-close time, leased or not.

        Returns how many were ended, when the next one is due, and the notices.
        """
        ...

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        """Read logs, each from an index on. The details of WorkflowStarted are the run's input.

        A run that does not exist has an empty list. Where the answer is not there in time, the
        error's cause is a TimeoutError; with `patience` it is given so many times the usual time.
        """
        ...

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append the turns' events, then suspend or finish. All or nothing per run.

        `token` is drawn by the caller, once for a call and all its repetitions: a repeated call
        recognises what its first try wrote, and answers as that would have. A run twice in
        one call is refused with ValueError.
        """
        ...

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        """Give tasks back without an event and without counting the attempt; fenced by lease."""
        ...

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
    ) -> Heartbeat:
        """Say that the worker lives, renew its leases, and bring back news of its runs.

        `interval_seconds` is the time between two heartbeats: a worker that misses two was away.
        """
        ...

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Append SignalReceived to each run's log and wake it where it awaits that signal."""
        ...

    async def cancel_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Append WorkflowCancelRequested and wake the run; one never claimed ends at once."""
        ...

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None
    ) -> Delivered:
        """End runs at once, without their code: WorkflowTerminated."""
        ...

    async def pause_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Claim nothing of these runs until they are resumed: WorkflowPaused.

        The holder of a leased run is told: running steps end and are recorded, no new one
        starts, and the lease is given back. A paused run is a `duplicate`.
        """
        ...

    async def resume_runs(self, run_ids: Sequence[UUID]) -> Delivered:
        """Let paused runs go on: WorkflowResumed. One that is not paused is a `duplicate`."""
        ...

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Claim nothing of a queue or a workflow, or again. Says whether that changed anything."""
        ...

    async def decide_approval(self, decision: Decision) -> Decided:
        """Decide an approval: ApprovalResolved in its run's log; the first decision wins."""
        ...

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log.

        Its log ends with WorkflowForked. `exists` where the new id is taken (a repeated call),
        `running` for the retry of a run that has not failed, `unknown_key` for a result whose
        key the copied part does not have, `bad_index` beyond the log's end or below 1,
        `unreadable` for a log with an event that no worker can read.
        """
        ...

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        """End runs past their deadline: WorkflowTimedOut.

        Returns how many were ended, when the next deadline is due, and the notices.
        """
        ...

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = 8.0,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        """Forget workers that fell silent, or are named, and make their tasks due at once.

        `observer` is the worker that judges the silence: it must have been heard for as long
        itself, without a gap. Without one only those named are forgotten. Losses that a run cannot
        have caused do not count as attempts: those of workers on several hosts at once, and those
        of an absence of the database.
        """
        ...

    async def remove_worker(self, worker_id: str) -> None:
        """Sign a worker off that has released its tasks."""
        ...

    async def sign_on_app(
        self, app: AppInfo, activities: Sequence[str], *, replaces: str | None = None
    ) -> SignedOn:
        """Note that an app has a worker here, and which names it has.

        `replaces` is the origin of an app of this name whose place this one takes.
        """
        ...

    async def adopt_tasks(
        self, app: str, handlers: Sequence[str], queues: Sequence[str], *, limit: int = 1000
    ) -> int:
        """Take over what waits under handlers without an app; return how many tasks that were."""
        ...

    async def adopt_ended(self, app: str, workflows: Sequence[str], *, limit: int = 1000) -> int:
        """Give ended runs of names without an app this one; return how many those were."""
        ...

    # Questions

    async def apps_with(self, workflow: str) -> list[str]:
        """Return the apps that have ever signed on with a workflow of this name."""
        ...

    async def list_apps(self) -> list[AppInfo]:
        """Return the apps that have ever signed on, by name."""
        ...

    async def former_names(self) -> frozenset[str]:
        """Return the names that runs had before names had apps."""
        ...

    async def get_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Return the runs that exist."""
        ...

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs newest first; the cursor is stable while runs come and go.

        The work for a page is bounded, so a page may be short and have a cursor.
        """
        ...

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        """Return the ids of at most `limit` runs from `first` to `last`, in order."""
        ...

    async def find_run(self, name: str, key: str) -> UUID | None:
        """Return the id of the run that was started with this key, None if there is none."""
        ...

    async def recent_events(self, *, since: int, limit: int = 1000) -> list[LoggedEvent]:
        """Say what happened across all runs since a moment, oldest first."""
        ...

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        """Return the newest value of each name that the runs have set, as JSON text."""
        ...

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        """Return open approvals, the oldest first."""
        ...

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        """Return a run's activities that have not ended, by key."""
        ...

    async def list_pauses(self) -> list[Pause]:
        """Return the queues and workflows that are paused."""
        ...

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        """Return the run's UpdateCompleted or UpdateRejected of this id, None before it."""
        ...

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return, for each run that exists, the end of its chain of runs that continued as new."""
        ...

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers signed on."""
        ...

    async def unserved(self) -> list[tuple[str, str, int]]:
        """Return (queue, handler, tasks) that no live worker claims; counts stop at 1,000."""
        ...

    # Notification

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic to be told of the runs' ends; return those that have ended already.

        The payload of each notice is an `end_payload`.
        """
        ...

    async def forget_waits(self, topic: str) -> None:
        """Drop every registration of a topic."""
        ...

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups. They may get lost: who listens must also look by itself at times."""
        ...

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call back with each payload sent to a topic; returns how to stop.

        After a lost connection it listens again, and calls back once with "" because wake-ups
        may have been missed.
        """
        ...
