"""Flows: their shapes, the ends of their steps' tasks, and how far their runs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import DEFAULT_QUEUE, Notice, RunKind, Value
from holdfast.types.work import ClaimedTask

StepKind: TypeAlias = Literal["single", "map"]
StepPhase: TypeAlias = Literal["running", "due", "retrying", "delayed", "waiting"]
StepStatus: TypeAlias = Literal["created", "started", "completed", "failed", "skipped"]
Otherwise: TypeAlias = Literal["fail", "skip", "skip-cascade"]
SkipReason: TypeAlias = Literal[
    "condition_unmet", "handler_failed", "dependency_skipped", "dependency_failed"
]
TriggerRule: TypeAlias = Literal["none_failed", "all_done", "one_failed", "always"]


class StepShape(Value, frozen=True, kw_only=True):
    """A step of a flow. None stands for the flow's value; durations are whole seconds.

    `deps` are the slugs of the steps whose outputs it is given; a map has at most one, over whose
    elements it maps; without one it maps over the run's input. `wants_run` is True if it is given
    the run's input as well. `required` and `forbidden` are JSON texts of objects: what the step is
    given must contain the one, and must not contain the other, or `when_unmet` says what happens.
    `when_exhausted` says what happens after the last attempt has failed.

    `runs` is the `name@version` of a workflow or a flow, which `runs_kind` tells apart, if the
    step's task, or that of each element, is a run of it: without a worker, and with one dependency
    at most, whose output is the run's input.

    `trigger_rule` says when it runs: if none of `deps` failed, when all are done whatever became of
    them, if one of them failed, or always, after all other steps, also of a run that is cancelled.

    Of a map, `tolerated_count` and `tolerated_percent` are how many elements may fail, and
    `concurrency` is how many are under way at once, None for all. By up to `jitter_percent` the
    pauses between attempts are shorter or longer.
    """

    slug: str
    kind: StepKind = "single"
    deps: tuple[str, ...] = ()
    wants_run: bool = False
    queue: str | None = None
    max_attempts: int | None = None
    base_delay: int | None = None
    timeout: int | None = None
    start_delay: int | None = None
    required: str | None = None
    forbidden: str | None = None
    when_unmet: Otherwise = "skip"
    when_exhausted: Otherwise = "fail"
    runs: str | None = None
    runs_kind: RunKind | None = None
    trigger_rule: TriggerRule = "none_failed"
    tolerated_count: int | None = None
    tolerated_percent: int | None = None
    concurrency: int | None = None
    jitter_percent: int | None = None


class FlowShape(Value, frozen=True, kw_only=True):
    """A version of a flow: its steps, each after those that it depends on.

    `name` is the full name, `app/slug`, or the slug alone for a flow that was made from SQL.
    The n-th failed attempt is followed by a pause of `base_delay * 2**n` seconds. `timeout` limits
    one attempt, in seconds.
    """

    name: str
    version: int = 1
    queue: str = DEFAULT_QUEUE
    max_attempts: int = 3
    base_delay: int = 5
    timeout: int = 60
    steps: tuple[StepShape, ...] = ()

    @property
    def handler(self) -> str:
        """What workers of its steps have, and what its tasks are claimed by: `name@version`."""
        return f"{self.name}@{self.version}"


class EnsuredFlow(Value, frozen=True):
    """The outcome of comparing the shape of a flow in the code with that in the database.

    `compiled`: the database did not have this version, and has it now. `verified`: it had the same
    shape. `replaced`: it had another shape, `found`, of which `ended` runs were terminated.
    `mismatch`: it has another shape, `found`, and nothing was changed.
    """

    status: Literal["compiled", "verified", "replaced", "mismatch"]
    found: FlowShape | None = None
    ended: int = 0
    notices: Sequence[Notice] = ()


class DeletedFlow(Value, frozen=True, kw_only=True):
    """What one call has deleted of a flow: `runs` of it, None if there is no such flow.

    If it is not done, the next call is given `name` and `before`: runs that are started later, of a
    flow that is defined again meanwhile, are kept.
    """

    runs: int | None
    is_done: bool = True
    name: str
    before: int | None = None
    notices: Sequence[Notice] = ()


class FlowInfo(Value, frozen=True, kw_only=True):
    """A version of a flow in the database, and how many runs of it have not ended.

    `from_code` is False for one that was made with create_flow and add_step. `open_runs` counts
    up to 10,000: of each flow, the newest of these are looked at.
    """

    name: str
    version: int
    steps: int
    from_code: bool
    created_at: int
    open_runs: int


class StepTaskEnd(Value, frozen=True, kw_only=True):
    """How an attempt at a step's task ended: with an `output` (JSON text) or an `error`.

    `error` is an encoded ErrorInfo. `retryable` False makes it final whatever the options say.
    """

    run_id: UUID
    key: str
    lease_no: int
    output: str | None = None
    error: str | None = None
    retryable: bool = True


StepTaskOutcome: TypeAlias = Literal["recorded", "retried", "lost", "busy"]


class Taker(Value, frozen=True):
    """To whom tasks that become ready are leased at once: `room` of them at most."""

    room: int
    queues: Sequence[str]
    handlers: Sequence[str]
    lease_seconds: float


class StepTasksEnded(Value, frozen=True):
    """What became of each end, in the order given, and the tasks that were leased to the caller."""

    now: int
    outcomes: list[StepTaskOutcome]
    notices: list[Notice]
    tasks: list[ClaimedTask]


class FlowStepState(Value, frozen=True, kw_only=True):
    """A step of a run. A map has counts of its elements as soon as it has begun.

    `output` is JSON text, `error` that of an ErrorInfo, if the error came from Python. `attempts`
    and `worker` are those of a single step's last attempt, and of a step or a map that failed those
    of the attempt that failed it. `delay_seconds` is how long its start is delayed. `failed_tasks`
    counts elements that failed of a map that tolerates some: in its output they are null. If the
    map failed, it is one more than are tolerated. A step that is a run which begins later is
    `created`, and `started_at` is that moment. Moments are microseconds.
    """

    run_id: UUID
    step: str
    kind: StepKind
    deps: tuple[str, ...]
    status: StepStatus
    initial_tasks: int | None = None
    remaining_tasks: int | None = None
    output: str | None = None
    error: str | None = None
    skip_reason: SkipReason | None = None
    attempts: int | None = None
    worker: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    delay_seconds: int = 0
    trigger_rule: TriggerRule = "none_failed"
    failed_tasks: int = 0


class OpenStepTasks(Value, frozen=True, kw_only=True):
    """Tasks of one step of a run that have not ended and are in the same phase.

    `running`: `worker` has them, with leases until `visible_at`. `due`: since `visible_at` any
    worker that serves their queue may claim them. `retrying`: their last attempt failed, and the
    next may be claimed at `visible_at`. `delayed`: the first may be. `waiting`: they begin when
    others of their map have ended, as its concurrency says; `visible_at` is now. Of several tasks,
    `visible_at` is the earliest, `attempts` the most that one has begun, `started_at` when the
    first was claimed first. `error` is the newest of their last attempts, an encoded ErrorInfo if
    it came from Python, and `index` the place of its task in a map. `stuck` is why the last worker
    could not begin with one. Moments are microseconds.
    """

    step: str
    phase: StepPhase
    queue: str
    tasks: int
    visible_at: int
    attempts: int
    worker: str | None = None
    started_at: int | None = None
    error: str | None = None
    index: int | None = None
    stuck: str | None = None


class FlowFork(Value, frozen=True, kw_only=True):
    """A run of a flow to be made of another's steps.

    `from_step` and all steps after it run again; an empty one is explained by
    `FlowStore.retry_flow`. `input` replaces the input, and then all steps run again; `results` are
    outputs of steps that do not run, by step. Both are JSON text.
    """

    run_id: UUID
    new_run_id: UUID
    from_step: str | None = None
    input: str | None = None
    results: Mapping[str, str] = {}


FlowRetry: TypeAlias = Literal["started", "exists", "missing", "running", "unknown_step"]
FlowForking: TypeAlias = Literal["forked", "exists", "missing", "unknown_key"]
