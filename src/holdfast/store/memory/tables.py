"""The tables, and the changes that several transitions share: append, wake, end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from uuid import UUID

from holdfast.store.port import WORK_TOPIC, end_payload, worker_topic
from holdfast.types import (
    ANY_END,
    AppInfo,
    EndStatus,
    Event,
    NewRun,
    Notice,
    Pause,
    Scope,
    Status,
    WorkerInfo,
)

NEVER: Final = 1 << 62  # as PostgreSQL's 'infinity'
TURN: Final = ""  # the key of a run's turn

ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]


@dataclass(frozen=True, slots=True)
class Parent:
    """Whose child a run is, by which call, and what becomes of it when the parent ends first."""

    run_id: UUID
    key: str
    close: ParentClose


@dataclass(slots=True)
class RunRow:
    """A run: what was asked for, and what became of it."""

    new: NewRun
    created_at: int
    deadline_at: int | None
    parent: Parent | None = None
    status: Status = "running"
    output: str | None = None
    error: str | None = None
    started_at: int | None = None
    completed_at: int | None = None


@dataclass(slots=True)
class EventRow:
    """An entry of a log. The first event of a worker's commit carries the commit's token."""

    event: Event
    token: UUID | None = None


@dataclass(slots=True)
class TaskRow:
    """Claimable work. Leased means that `worker` is set, whatever `visible_at` says."""

    run_id: UUID
    key: str
    kind: str
    queue: str
    name: str
    version: int
    priority: int
    visible_at: int
    attempts: int = 0  # leases since the last progress
    lease_no: int = 0  # leases ever
    claimed_idx: int = 0  # how long the log was at the last claim
    worker: str | None = None
    sticky_worker: str | None = None
    awaiting: tuple[str, ...] = ()
    payload: str | None = None
    started_at: int | None = None
    stuck: str | None = None
    paused: bool = False
    deadline_at: int | None = None  # an activity's: it is over then, whatever it does
    heartbeat: str | None = None  # an activity's: what its attempts said last
    cancelled: bool = False  # an activity's: nobody waits for it

    @property
    def handler(self) -> str:
        """What a worker must have to run this; an approval is nothing that workers run."""
        return "" if self.kind == "approval" else f"{self.name}@{self.version}"


@dataclass(slots=True)
class Tables:
    """Everything the store knows. Logs are lists: the place of an event is its idx."""

    runs: dict[UUID, RunRow] = field(default_factory=dict[UUID, RunRow])
    logs: dict[UUID, list[EventRow]] = field(default_factory=dict[UUID, list[EventRow]])
    tasks: dict[tuple[UUID, str], TaskRow] = field(default_factory=dict[tuple[UUID, str], TaskRow])
    workers: dict[str, WorkerInfo] = field(default_factory=dict[str, WorkerInfo])
    heard_since: dict[str, int] = field(default_factory=dict[str, int])  # without a gap
    waiters: defaultdict[UUID, set[str]] = field(
        default_factory=lambda: defaultdict[UUID, set[str]](set)
    )
    children: defaultdict[UUID, list[UUID]] = field(
        default_factory=lambda: defaultdict[UUID, list[UUID]](list)
    )
    apps: dict[str, AppInfo] = field(default_factory=dict[str, AppInfo])
    pauses: dict[tuple[Scope, str], Pause] = field(default_factory=dict[tuple[Scope, str], Pause])

    def append(self, run_id: UUID, event: Event, token: UUID | None = None) -> None:
        """Write the next event of a run's log."""
        self.logs[run_id].append(EventRow(event, token))

    def read(self, run_id: UUID, since: int = 0) -> list[Event]:
        """Return a run's events from an index on, with what its row holds filled in."""
        return [self.filled(run_id, row.event) for row in self.logs.get(run_id, [])[since:]]

    def filled(self, run_id: UUID, event: Event) -> Event:
        """Fill in the input, output or error, which are stored once: in the run's row."""
        run = self.runs[run_id]
        match event.type:
            case "WorkflowStarted":
                details: str | None = run.new.input
            case "WorkflowCompleted":
                details = run.output
            case "WorkflowFailed":
                details = run.error
            case _:
                return event
        return Event(event.type, event.key, details, event.at)

    def turn(self, run_id: UUID) -> TaskRow:
        """Return the row of a running run's turn."""
        return self.tasks[run_id, TURN]

    def deadlines(self) -> list[tuple[int, UUID]]:
        """Return when runs must have ended, the next first."""
        return sorted(
            (run.deadline_at, run_id)
            for run_id, run in self.runs.items()
            if run.status == "running" and run.deadline_at is not None
        )

    def activity_deadlines(self) -> list[tuple[int, UUID, str]]:
        """Return when activities must have ended, the next first."""
        return sorted(
            (task.deadline_at, task.run_id, task.key)
            for task in self.tasks.values()
            if task.deadline_at is not None
        )

    def is_running(self, run_id: UUID) -> bool:
        """Say whether there is such a run and it has not ended."""
        return run_id in self.runs and self.runs[run_id].status == "running"

    def open_children(self, run_id: UUID) -> list[UUID]:
        """Return the runs that this one has started and that have not ended, by id."""
        return sorted(filter(self.is_running, self.children[run_id]))

    def close_policy(self, child_id: UUID) -> ParentClose:
        """Return what becomes of a child when its parent ends."""
        parent = self.runs[child_id].parent
        return "abandon" if parent is None else parent.close

    def is_paused(self, task: TaskRow) -> bool:
        """Say whether nothing of the task is claimed because somebody paused it or its like."""
        workflow = task.kind == "workflow" and ("workflow", task.name) in self.pauses
        return task.paused or workflow or ("queue", task.queue) in self.pauses

    def tasks_of_run(self, run_id: UUID) -> list[tuple[tuple[UUID, str], TaskRow]]:
        """Return the tasks of a run, by key."""
        return sorted(
            ((place, task) for place, task in self.tasks.items() if place[0] == run_id),
            key=lambda item: item[0],
        )

    def tasks_of(self, worker_id: str) -> Iterator[TaskRow]:
        """Yield what a worker has leased."""
        return (task for task in self.tasks.values() if task.worker == worker_id)

    def wake(self, task: TaskRow, now: int) -> list[Notice]:
        """Make a task due. A leased row is left alone: its holder is told instead."""
        if task.worker is not None:
            return [Notice(worker_topic(task.worker), str(task.run_id))]
        task.visible_at = min(task.visible_at, now)
        return [Notice(WORK_TOPIC, task.queue)]

    def wake_for(self, run_id: UUID, topic: str, now: int) -> list[Notice]:
        """Wake a run that awaits this; one that is leased hears of every news."""
        turn = self.turn(run_id)
        awaited = turn.worker is not None or topic in turn.awaiting
        return self.wake(turn, now) if awaited else []

    def tell(self, run_id: UUID, event: Event) -> list[Notice]:
        """Append the end of what a run asked for, and wake the run where it awaits one."""
        self.append(run_id, event)
        return self.wake_for(run_id, ANY_END, event.at)

    def end(
        self,
        run_id: UUID,
        status: EndStatus,
        now: int,
        *,
        output: str | None = None,
        error: str | None = None,
    ) -> list[Notice]:
        """Give a run its end: nothing of it is dispatched any more, and its waiters are told."""
        run, turn = self.runs[run_id], self.turn(run_id)
        run.status, run.output, run.error = status, output, error
        run.started_at, run.completed_at = turn.started_at, now
        for key in [key for key in self.tasks if key[0] == run_id]:
            del self.tasks[key]
        payload = end_payload(run_id, status, output)
        return [Notice(topic, payload) for topic in sorted(self.waiters.pop(run_id, ()))]


def distinct(notices: list[Notice]) -> list[Notice]:
    """Return the notices, each once: a listener that looks once sees everything."""
    return list(dict.fromkeys(notices))
