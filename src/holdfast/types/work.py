"""What workers claim, commit and report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.types.base import EndStatus, Event, Notice, Value

SILENT_SECONDS: Final = 8.0  # a worker without a heartbeat for longer is dead

ANY_UPDATE: Final = "update:"  # awaited: an update of any name
UPDATE_REPLY: Final = "update-reply"  # awaited: the signal that answers an update of a run
ANY_END: Final = ":end"  # awaited: an activity's, a child's or an approval's end

HEAVY: Final = 8 << 20  # of one call to a store: what is longer goes in parts, one after another


def count_bearable(weights: Iterable[int]) -> int:
    """Return how many of the first entries one call takes: `HEAVY` in all, or one entry.

    >>> count_bearable([5, HEAVY, 5]), count_bearable([HEAVY + 1, 5]), count_bearable([5, 5])
    (1, 1, 2)
    """
    weights = list(weights)
    if sum(weights) <= HEAVY:  # nearly always
        return len(weights)
    total = count = 0
    for weight in weights:
        total += weight
        if total > HEAVY:
            return count or 1
        count += 1
    return count


def update_topic(name: str) -> str:
    """Name an update among what a run awaits."""
    return f"update:{name}"


def awaits_update(awaiting: Collection[str], name: str) -> bool:
    """Return True if a run that awaits this serves an update of a name."""
    return update_topic(name) in awaiting or ANY_UPDATE in awaiting


class ClaimedTask(Value, frozen=True, gc=False):
    """A task leased to this worker.

    `log_length` counts the run's events, a WorkerLost that this claim appended included.
    `input` and `deadline_at` are given if the log has no more than WorkflowStarted; no input if
    the run continues another one, as its log says.
    `started_at` is the moment of the task's first claim; of a fork's turn, where the clock of its
    code begins, and `first_claimed_at` is the moment of its own first claim. `name` is the full
    name, `app/name`. An activity has version 0, the details of its ActivityScheduled as `payload`,
    and as `heartbeat` what its last attempt said last. The worker that was the last to suspend the
    run is given the log from `tail_from` on, which is the log's end if there is much of it; every
    other worker is given None, and the key and the headers that the run was started with.
    `shape_hash` is that of a step's flow, "" if SQL has made the flow. It is None for a step that
    is handed over at the end of another one of its run: the worker has the shape.
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
    heartbeat: str | None = None
    parent_run_id: UUID | None = None
    tail_from: int | None = None
    tail: Sequence[Event] = ()
    run_key: str | None = None
    headers: Mapping[str, str] | None = None
    first_claimed_at: int | None = None
    shape_hash: str | None = None


class Claims(Value, frozen=True):
    """The answer to a claim: `next_due_at` is when the next task becomes due, None for never.

    `limited` is True if tasks that the worker serves wait for limits: an end may let them begin.
    `suspects` is True if tasks that have lost several workers were found, of which a worker holds
    one at a time; None if the claim did not look for tasks of lost workers.
    """

    now: int
    tasks: list[ClaimedTask]
    next_due_at: int | None
    notices: list[Notice]
    limited: bool = False
    suspects: bool | None = None


class Suspend(Value, frozen=True, gc=False):
    """Give the lease back until `visible_at` (None: no timer) or until one of `awaiting`.

    `awaiting` names signals, updates as `update:NAME`, and `:end` (`holdfast.types.ANY_END`) for
    the end of an activity or a child and the decision of an approval. A cancel, a pause and a
    resume wake a suspended run in any case.
    """

    visible_at: int | None = None
    awaiting: tuple[str, ...] = ()


class Finish(Value, frozen=True, gc=False):
    """End the run. `output` is JSON text; `error` is an encoded ErrorInfo.

    A run that continues as new has the status `continued`, WorkflowContinuedAsNew as its last
    event, which is a command, and `{"run_id": …}` as its output.
    """

    status: EndStatus
    output: str | None = None
    error: str | None = None


class TurnCommit(Value, frozen=True, gc=False):
    """One run's part of a commit: at least one event at the expected index, then what follows.

    `has_commands` is True if some of the events are commands (`holdfast.events.COMMANDS`), which
    the store carries out in the same transaction. `touches` names every other run that the commit
    may write to: the parent of a run that ends, runs that are signalled or asked to stop.
    `has_children` is True if the run has started children, which its end may concern.

    `after_others` is True if the events may be written after events that others have appended
    from `expected` on, provided that all of those can wait (`holdfast.events.can_wait`). Such a
    part neither suspends its run nor continues it as new: the run would sleep although there are
    signals, or lose them.

    `last_at` is the moment of the entry before `expected`, as the worker knows it; 0 if it does not
    say. If the log has another entry there, the part is refused: a restore, or a failover to a
    replica that lagged, has lost what the worker relies on.
    """

    run_id: UUID
    lease_no: int
    expected: int
    events: Sequence[Event]
    then: Suspend | Finish | None = None
    has_commands: bool = False
    touches: tuple[UUID, ...] = ()
    has_children: bool = False
    after_others: bool = False
    last_at: int = 0


class Refusal(Value, frozen=True):
    """Why a turn's part was not committed; nothing of it was written.

    `conflict`: `tail` holds what stands from the expected index on; it is empty if the log is not
    the one that the worker knows. `lost`: the lease is another's, or the run is gone or has ended
    (the tail says what is known of it). `invalid`: the database refuses a value of it, as `message`
    says. `failed`: the database fails at this part, and not at others, for a reason that no worker
    knows. `busy`: another open transaction holds the run's row; the same part may be committed
    again.
    """

    reason: Literal["conflict", "lost", "invalid", "failed", "busy"]
    tail: list[Event]
    message: str = ""


class Ahead(Value, frozen=True):
    """What others wrote from the expected index on, ahead of a part that is durable behind it."""

    tail: list[Event]


class Undelivered(Value, frozen=True):
    """A signal that a run sent to `target`, which does not exist (`missing`) or has ended."""

    run_id: UUID
    target: UUID
    name: str
    outcome: Literal["ended", "missing"]


class Committed(Value, frozen=True):
    """The answer to a commit: every run that `refused` does not name is durable.

    `ahead` tells what stands ahead of the parts that were written behind it. `undelivered` are
    the signals that the runs sent to runs which cannot receive them.
    """

    now: int
    refused: dict[UUID, Refusal]
    notices: list[Notice]
    ahead: Mapping[UUID, Ahead] = msgspec.field(default_factory=dict[UUID, Ahead])
    undelivered: Sequence[Undelivered] = ()


class Release(Value, frozen=True):
    """Give a task back unfinished. Try it again at `visible_at`.

    With `stuck`, say why. A turn is then tried again after a pause that grows with each try, and
    not before `visible_at`. A reason that `quotes` an exception of the app's code, or a value, is
    a payload.
    """

    run_id: UUID
    key: str
    lease_no: int
    visible_at: int | None = None
    stuck: str | None = None
    quotes: bool = False


class Lease(Value, frozen=True, gc=False):
    """A lease that a heartbeat renews. `log_length` is how many of the run's events the holder has.

    For an activity `log_length` is 0 and means nothing; `details` are its newest heartbeat
    details, None if they are recorded already.
    """

    run_id: UUID
    key: str
    lease_no: int
    log_length: int
    details: str | None = None


class ThreadUse(Value, frozen=True):
    """How the threads of a worker are used.

    Of `size` threads so many are `taken`, and of these so many `given_up`: by attempts that have
    timed out or were cancelled, and cannot be stopped. `waiting` attempts wait for a thread.
    """

    size: int
    taken: int
    given_up: int
    waiting: int


class WorkerInfo(Value, frozen=True, kw_only=True):
    """A worker as the others see it.

    `handlers` are `app/name@version`, of a pinned workflow also `app/name@version+build`.

    `consumes` are the message queues of its consumers, None if it does not say so: workers of an
    earlier release do not. `hints` is True if Redis tells it of new work now, False if that is
    away, None if it uses no Redis or does not say so; `listens` the same of
    notifications. `shard` is its shard if several databases are one engine.
    """

    worker_id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    concurrency: int
    holdfast_version: str
    started_at: int = 0
    heard_at: int = 0
    threads: ThreadUse | None = None
    consumes: tuple[str, ...] | None = None
    hints: bool | None = None
    listens: bool | None = None
    shard: int | None = None

    @property
    def serves(self) -> tuple[str, ...]:
        """What it executes, each once: activities and steps have no version."""
        return tuple(each.removesuffix("@0") for each in self.handlers if "+" not in each)

    @property
    def builds(self) -> tuple[str, ...]:
        """The builds of its apps, as far as they pin workflows: others are not recorded."""
        return tuple(dict.fromkeys(each.partition("+")[2] for each in self.handlers if "+" in each))


# The duties of maintenance of which the answer to a heartbeat says if there is something to do.
# "other releases" is not one: it says that workers of several releases are signed on.
Duty: TypeAlias = Literal[
    "workers",
    "deadlines",
    "schedules",
    "deliveries",
    "queues",
    "singletons",
    "start keys",
    "limits",
    "ends",
    "alerts",
    "sign on",
    "other releases",
]


class Heartbeat(Value, frozen=True):
    """The answer to a heartbeat: leases that are lost, and runs with `unread` events.

    `cancelled` are the activities that their runs have cancelled. `duties` are those that may have
    something to do within ten seconds, if the worker asked for them.
    """

    now: int
    lost: list[tuple[UUID, str]]
    unread: list[UUID]
    cancelled: Sequence[tuple[UUID, str]] = ()
    duties: Sequence[str] = ()


class ActivityEnd(Value, frozen=True, kw_only=True):
    """How an attempt of an activity ended: with a `result`, an `error`, or not yet.

    `result` is JSON text, `error` an encoded ErrorInfo. Without either, the activity is to be
    completed from outside with its token, and the lease is given back. `retryable` False makes
    an error final whatever the policy says; `delay_seconds` is the pause that the error
    asks for, None for the policy's. `details` is what the attempt said last. `units` is how many
    units of rates it has used, None if that is what was counted when it began.
    """

    run_id: UUID
    key: str
    lease_no: int
    result: str | None = None
    error: str | None = None
    retryable: bool = True
    timed_out: bool = False
    started_at: int | None = None
    details: str | None = None
    delay_seconds: float | None = None
    units: int | None = None


class OpenActivity(Value, frozen=True, kw_only=True):
    """An activity that has not ended: who executes it, or when it is due.

    `attempts` counts its claims. `worker` is None while it waits for one; if `visible_at` is None
    as well, it waits to be completed from outside. `heartbeat` is the last details that its
    attempts have recorded. `stuck` is why the last worker could not begin with it.
    """

    run_id: UUID
    key: str
    name: str
    queue: str
    attempts: int
    worker: str | None
    visible_at: int | None
    started_at: int | None
    deadline_at: int | None
    heartbeat: str | None
    cancelled: bool
    stuck: str | None = None


ActivityOutcome: TypeAlias = Literal["recorded", "retried", "deferred", "lost", "busy"]


class ActivitiesEnded(Value, frozen=True):
    """What became of each end, in the order given; `lost` if the lease was another worker's."""

    now: int
    outcomes: list[ActivityOutcome]
    notices: list[Notice]
