"""The values that pass between the parts: events, tasks, commits, runs.

Moments are integers, microseconds since 1970 UTC, named `…_at`: exact through the database
and back, so that what a workflow sees live is what it sees on replay. Durations are seconds.
Payloads are JSON text (`str`): they are encoded once and decoded where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"

EndStatus: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out", "terminated"]
Status: TypeAlias = Literal["running", EndStatus]
State: TypeAlias = Literal["queued", "running", "waiting", "stuck", EndStatus]

PRIORITIES: Final = range(5)  # 0 is the most urgent
DEFAULT_PRIORITY: Final = 2
DEFAULT_QUEUE: Final = "default"


class Value(msgspec.Struct, frozen=True):
    """Base of the value classes: immutable, compared by content."""


class Event(Value, frozen=True, gc=False):
    """One entry of a log. `details` is JSON text; `at` is when the fact became true."""

    type: str
    key: str | None
    details: str | None
    at: int


class ErrorInfo(Value, frozen=True, omit_defaults=True):
    """An exception as it is recorded.

    `kind` is the class's qualified name (`builtins.ValueError`); `bases` are the qualified
    names of the classes it derives from, so that `matches` knows subclasses.
    """

    kind: str
    message: str
    traceback: str = ""
    bases: tuple[str, ...] = ()
    cause: ErrorInfo | None = None

    def __str__(self) -> str:
        name = self.kind.removeprefix("builtins.")
        return f"{name}: {self.message}" if self.message else name

    def matches(self, kind: type[BaseException]) -> bool:
        """Say whether the exception was a `kind` or a subclass of it."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        return name == self.kind or name in self.bases


class NewRun(Value, frozen=True, kw_only=True):
    """A run to start. Times are None for "now" and "never"; `input` is JSON text."""

    run_id: UUID
    name: str
    version: int = 1
    key: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    input: str = "null"
    start_at: int | None = None
    delay_seconds: float | None = None
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    waiter: str | None = None  # a topic that is told of the run's end


class StartedRun(Value, frozen=True):
    """What became of a start: `created` is False where the run existed already."""

    run_id: UUID
    created: bool
    status: Status


class ClaimedTask(Value, frozen=True, gc=False):
    """A task leased to this worker.

    `log_length` counts the run's events, a WorkerLost that this claim appended included.
    `input` and `deadline_at` are given where the log has no more than WorkflowStarted.
    `started_at` is the moment of the run's first claim.
    """

    run_id: UUID
    key: str
    kind: str
    queue: str
    name: str
    version: int
    attempts: int
    lease_no: int
    log_length: int
    started_at: int
    input: str | None
    payload: str | None
    deadline_at: int | None = None


class Claims(Value, frozen=True):
    """The answer to a claim: `next_due_at` is when the next task becomes due, None for never."""

    now: int
    tasks: list[ClaimedTask]
    next_due_at: int | None
    notices: list[Notice]


class Notice(Value, frozen=True, gc=False):
    """A wake-up to send once the change is committed: a payload for a topic's listeners."""

    topic: str
    payload: str


class Suspend(Value, frozen=True, gc=False):
    """Give the lease back until `visible_at` (None: no timer) or until one of `awaiting`.

    `awaiting` names signals; a cancel wakes a suspended run in any case.
    """

    visible_at: int | None = None
    awaiting: tuple[str, ...] = ()


class Finish(Value, frozen=True, gc=False):
    """End the run. `output` is JSON text; `error` is an encoded ErrorInfo."""

    status: EndStatus
    output: str | None = None
    error: str | None = None


class TurnCommit(Value, frozen=True, gc=False):
    """One run's part of a commit: at least one event at the expected index, then what follows."""

    run_id: UUID
    lease_no: int
    expected: int
    events: Sequence[Event]
    then: Suspend | Finish | None = None


class Refusal(Value, frozen=True):
    """Why a turn's part was not committed; nothing of it was written.

    `conflict`: `tail` holds what stands from the expected index on. `lost`: the lease is
    another's, or the run is gone or has ended (the tail says what is known of it). `invalid`:
    the database refuses a value of it, as `message` says. `busy`: somebody holds the run's row
    in an open transaction; the same part may be committed again.
    """

    reason: Literal["conflict", "lost", "invalid", "busy"]
    tail: list[Event]
    message: str = ""


class Committed(Value, frozen=True):
    """The answer to a commit: every run that `refused` does not name is durable."""

    now: int
    refused: dict[UUID, Refusal]
    notices: list[Notice]


class Release(Value, frozen=True):
    """Give a task back unfinished. With `stuck`, say why, and try again at `visible_at`."""

    run_id: UUID
    key: str
    lease_no: int
    visible_at: int | None = None
    stuck: str | None = None


class Lease(Value, frozen=True, gc=False):
    """A lease that a heartbeat renews. `known` is how many of the run's events the holder has."""

    run_id: UUID
    key: str
    lease_no: int
    known: int


class WorkerInfo(Value, frozen=True, kw_only=True):
    """A worker as the others see it. `handlers` are `name@version`."""

    worker_id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    concurrency: int
    holdfast_version: str
    started_at: int = 0
    heard_at: int = 0


class Heartbeat(Value, frozen=True):
    """The answer to a heartbeat: leases that are another's now, and runs with unread events."""

    now: int
    lost: list[tuple[UUID, str]]
    news: list[UUID]


class NewSignal(Value, frozen=True):
    """A signal to send. With a `signal_id` it is delivered once, however often it is sent."""

    run_id: UUID
    name: str
    payload: str = "null"
    signal_id: str | None = None


Delivery: TypeAlias = Literal["delivered", "duplicate", "ended", "missing"]


class Delivered(Value, frozen=True):
    """What became of signals, cancels or terminations, in the order in which they were given.

    `duplicate` is a signal id seen before, or a second cancel of the same run.
    """

    outcomes: list[Delivery]
    notices: list[Notice]


class Wait(Value, frozen=True):
    """What a run that has not ended is doing: the row of its next turn."""

    visible_at: int | None
    awaiting: tuple[str, ...]
    worker: str | None
    attempts: int
    lease_no: int
    stuck: str | None


class Run(Value, frozen=True, kw_only=True):
    """A run as a caller sees it. `wait` is there until it has ended."""

    run_id: UUID
    name: str
    version: int
    key: str | None
    queue: str
    priority: int
    status: Status
    state: State
    input: str
    output: str | None
    error: str | None
    tags: tuple[str, ...]
    headers: Mapping[str, str] | None
    retention_seconds: float | None
    created_at: int
    started_at: int | None
    completed_at: int | None
    deadline_at: int | None
    wait: Wait | None


class End(Value, frozen=True):
    """How a run ended: its output as JSON text, or its error as an encoded ErrorInfo."""

    run_id: UUID
    status: Status
    output: str | None = None
    error: str | None = None


class RunFilter(Value, frozen=True, kw_only=True):
    """Which runs to list, newest first. Empty fields do not restrict."""

    states: tuple[State, ...] = ()
    names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # all of them
    key: str | None = None
    since: int | None = None  # created_at >= since
    until: int | None = None  # created_at < until
    input_contains: str | None = None  # JSON text, as PostgreSQL's jsonb @>
    limit: int = 50
    cursor: str | None = None


class RunPage(Value, frozen=True):
    """A page of runs; `cursor` continues behind it, None at the end."""

    runs: list[Run]
    cursor: str | None


class LoggedEvent(Value, frozen=True):
    """An event with its place, for readers of logs."""

    run_id: UUID
    idx: int
    event: Event
