"""Runs as they are started, seen, listed and forked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.types.base import AttributeValue, Event, RunKind, State, Status, Value
from holdfast.types.start_rules import RefusedBy
from holdfast.values.names import turn_handler

CountBy: TypeAlias = str
"""What runs are counted by: `workflow`, `state`, `queue`, `tag`, or the name of an attribute."""


class NewRun(Value, frozen=True, kw_only=True):
    """A run to start. Times are None for "now" and "never"; `input` is JSON text.

    `name` is the full name of the workflow or flow, `app/name`. A flow's version 0 is its newest.
    A `queue`, `priority` or `retention_seconds` of None is as its code has declared. If one of them
    is None, so is the timeout; else a `timeout_seconds` of None means that there is none.
    """

    run_id: UUID
    kind: RunKind = "workflow"
    name: str
    version: int = 1
    key: str | None = None
    queue: str | None = None
    priority: int | None = None
    input: str = "null"
    start_at: int | None = None
    delay_seconds: float | None = None
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    waiter: str | None = None  # a topic that is told of the run's end
    rules: str | None = None  # JSON text of a `RulesOfStart`
    attributes: Mapping[str, AttributeValue] = {}


class StartedRun(Value, frozen=True):
    """What became of a start: `created` is False if the run existed already.

    If a rule of the workflow refused the start, `refused` says which: because of a singleton
    `run_id` is the active run, because of a throttle a start is possible from `refused_until` on.
    `gone`: the run after which it was to start is deleted.
    `status` is that of the run; None if a throttle refused it, as there is no run.
    """

    run_id: UUID
    created: bool
    status: Status | None
    refused: RefusedBy | None = None
    refused_until: int | None = None


class Wait(Value, frozen=True):
    """What a run that has not ended is doing: the row of its next turn."""

    visible_at: int | None
    awaiting: tuple[str, ...]
    worker: str | None
    attempts: int
    lease_no: int
    stuck: str | None
    paused: bool = False


class LastFailureRecord(Value, frozen=True, kw_only=True):
    """An attempt of a run that failed, and that the policy of its workflow retries.

    `number` counts from 1, of `attempts` at most, None for no limit. `error` is JSON text.
    """

    number: int
    attempts: int | None
    error: str


class RunRecord(Value, frozen=True, kw_only=True):
    """A run as a caller sees it. `wait` is there until it has ended.

    In lists `input` and `output` are None unless payloads were asked for. `archive` is where a run
    stands that is not in the database any more.

    `started_at` is the first claim by a worker. Since `created_at`, or `due_at` if its start was
    delayed until then, the run had waited in its queue.

    `app` is empty in a run of a flow that SQL has made without one. `build` is the one that the run
    stays with, None if it is not pinned. `last_failure` is the last of its attempts that was
    retried: itself if it has continued as the next one, else the one before it.
    """

    run_id: UUID
    kind: RunKind = "workflow"
    app: str = ""
    name: str
    version: int
    key: str | None
    queue: str
    priority: int
    status: Status
    state: State
    input: str | None
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
    parent_run_id: UUID | None = None
    parent_key: str | None = None
    archive: str | None = None
    due_at: int | None = None
    attributes: Mapping[str, AttributeValue] = {}
    build: str | None = None
    last_failure: LastFailureRecord | None = None

    @property
    def could_begin_at(self) -> int:
        """When a worker could claim it: at its creation, or when its delay was over."""
        return max(self.created_at, self.due_at or 0)

    @property
    def begun_at(self) -> int | None:
        """When it began: at its first claim, a flow as soon as it could. None before that."""
        return None if self.started_at is None else max(self.started_at, self.could_begin_at)

    @property
    def full_name(self) -> str:
        """The workflow's name with its app, as `app/name`."""
        return f"{self.app}/{self.name}" if self.app else self.name

    @property
    def handler(self) -> str:
        """What the worker of its turns has: `app/name@version`, of a pinned run with `+build`."""
        return turn_handler(self.full_name, self.version, self.build)


class Reschedule(Value, frozen=True, kw_only=True):
    """A change of where, from when and until when a run may run. None changes nothing.

    A deadline is `deadline_at`, or `timeout_seconds` after the moment from which the run may run.
    """

    queue: str | None = None
    start_at: int | None = None
    delay_seconds: float | None = None
    deadline_at: int | None = None
    timeout_seconds: float | None = None
    no_deadline: bool = False


class End(Value, frozen=True):
    """How a run ended: its output as JSON text, or its error as an encoded ErrorInfo."""

    run_id: UUID
    status: Status
    output: str | None = None
    error: str | None = None


class _Continued(msgspec.Struct):
    """The output of a run that continued as new."""

    run_id: UUID


def continued_as(run: RunRecord | End) -> UUID | None:
    """Return the run that an ended run continued as, None if it did not continue."""
    if run.status != "continued" or run.output is None:
        return None
    return msgspec.json.decode(run.output, type=_Continued).run_id


class RunFilter(Value, frozen=True, kw_only=True):
    """Which runs to list, newest first. Empty fields do not restrict; `names` are full names."""

    states: tuple[State, ...] = ()
    names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # all of them
    attributes: Mapping[str, AttributeValue] = {}  # all of them, by the texts of their values
    build: str | None = None  # that they stay with
    key: str | None = None  # runs started with it, and all that continued or retried one of them
    since: int | None = None  # created_at >= since
    until: int | None = None  # created_at < until
    parent_run_id: UUID | None = None
    input_contains: str | None = None  # JSON text, as PostgreSQL's jsonb @>
    limit: int = 50
    cursor: str | None = None
    payloads: bool = False  # input and output too


class RunCounts(Value, frozen=True):
    """How many runs there are of each workflow, state, queue, tag or attribute value, most first.

    With `searched_until`, only runs created since then were counted: there may be more.
    """

    by: CountBy
    counts: dict[str, int]
    searched_until: datetime | None = None


class RecordPage(Value, frozen=True):
    """A page of runs; `cursor` continues after it, None at the end.

    A filter by tag, queue, build or input looks at 5,000 runs at most for one page, and at fewer
    where that takes long. So does one by several attributes, and a state like `queued` that more
    than 5,000 runs are in. Where that was not enough, `searched_until` is the creation
    (microseconds since 1970) of the last run that was looked at, and the page has fewer runs than
    the limit, or none, although more may follow.
    """

    runs: list[RunRecord]
    cursor: str | None
    searched_until: int | None = None


class LoggedEvent(Value, frozen=True):
    """An event with its place, for readers of logs."""

    run_id: UUID
    idx: int
    event: Event


class ClippedEvent(Value, frozen=True):
    """An event with its place, whose details may be cut; `size` is that of all of them in bytes."""

    idx: int
    event: Event
    size: int

    @classmethod
    def of(cls, idx: int, event: Event, clip: int) -> ClippedEvent:
        """Return an event with the first `clip` characters of its details."""
        if event.details is None:
            return cls(idx, event, 0)
        cut = msgspec.structs.replace(event, details=event.details[:clip])
        return cls(idx, cut, len(event.details.encode()))


class Fork(Value, frozen=True, kw_only=True):
    """A run to be made of another's log.

    The first `until` events are copied (None: all that led to the end); what had been asked for
    and not answered by then, such as an activity, is left out and asked for again. `retry` besides
    leaves out the failures that ended the run, and the calls that the code made because of them;
    with `failed_steps` all failures, and the calls that the code made while it handled one.
    `input` replaces the input, `results` those of completed steps and activities, by key; both are
    JSON text.
    """

    run_id: UUID
    new_run_id: UUID
    until: int | None = None
    retry: bool = False
    failed_steps: bool = False
    input: str | None = None
    results: Mapping[str, str] = {}
    version: int | None = None


class RetryPlan(Value, frozen=True, kw_only=True):
    """Which ended calls of a run its retry keeps, and which it makes again, by key.

    `kept` has also those of children that the retry takes over. `failed` are those that failed,
    `after` those that the code made because of that. With `cancel` the retry has the cancel of the
    run.
    """

    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cancel: bool = False


Forking: TypeAlias = Literal[
    "forked", "exists", "missing", "running", "unknown_key", "bad_index", "unreadable"
]
