"""The rows of the tables: what the store knows of a run, a task, a step, a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.types import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    AlertRule,
    Chunk,
    Event,
    EventTarget,
    FlowShape,
    LimitKind,
    LimitRule,
    LimitScope,
    NewRun,
    PausedBy,
    SkipReason,
    Status,
    StepShape,
    StepStatus,
    WebhookBody,
    WebhookScheme,
    Writer,
)
from holdfast.values.names import turn_handler

NEVER: Final = 1 << 62  # as PostgreSQL's 'infinity'
TURN: Final = ""  # the key of a run's turn
END: Final = ""  # the step that each flow has besides its own: it depends on all leaves

LimitPlace: TypeAlias = tuple[LimitScope, str, LimitKind, str]  # scope, name, kind, key

ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]


def of_each(kind: Callable[[], object]) -> Any:
    """Return the default of a field that makes a value of a kind for each new key."""
    return msgspec.field(default_factory=lambda: defaultdict[object, object](kind))


class Parent(msgspec.Struct, frozen=True):
    """The parent of a run: its id, the key of the call, and its close policy."""

    run_id: UUID
    key: str
    close: ParentClose


class StreamRow(msgspec.Struct):
    """A stream of a run: `items` is the offset of its last value."""

    base: int = 0
    items: int = 0
    chunks: list[Chunk] = []
    writers: dict[Writer, int] = {}  # their first offsets


class RunRow(msgspec.Struct):
    """A run: how it was started, and how it ended."""

    new: NewRun
    created_at: int
    deadline_at: int | None
    parent: Parent | None = None
    status: Status = "running"
    output: str | None = None
    error: str | None = None
    started_at: int | None = None
    completed_at: int | None = None
    singleton_key: str | None = None
    delete_after: int | None = None  # None: never
    due_at: int | None = None  # of a delayed start
    clock_at: int | None = None  # of a fork: when its first origin was first claimed
    build: str | None = None  # that it stays with

    @property
    def queue(self) -> str:
        """Return the queue; a run that exists has one."""
        return self.new.queue or DEFAULT_QUEUE

    @property
    def priority(self) -> int:
        """Return the priority; a run that exists has one."""
        return DEFAULT_PRIORITY if self.new.priority is None else self.new.priority

    @property
    def is_flow(self) -> bool:
        """Return True if the run is one of a flow, not of a workflow."""
        return self.new.kind == "flow"

    @property
    def handler(self) -> str:
        """Return `name@version`: the handler of the run's turns without a build, or the key of its
        shape.
        """
        return f"{self.new.name}@{self.new.version}"


class EventRow(msgspec.Struct):
    """An entry of a log. The first event of a worker's commit carries the commit's token."""

    event: Event
    token: UUID | None = None


class TaskRow(msgspec.Struct):
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
    stuck_tries: int = 0
    paused: bool = False
    deadline_at: int | None = None  # an activity's: it fails then, whatever it does
    heartbeat: str | None = None  # an activity's: the last heartbeat details of its attempts
    cancelled: bool = False  # an activity's: its run cancelled it
    losses: int = 0  # a step's: the number of its leases that expired
    held: frozenset[int] = frozenset()  # limits that it holds from the run that it continues
    innocent: bool = False  # not a turn's: its worker is lost, and the task did not cause that
    build: str | None = None  # a turn's: that its run stays with

    @property
    def handler(self) -> str:
        """The handler that a worker must have for this task; an approval has none."""
        return "" if self.kind == "approval" else turn_handler(self.name, self.version, self.build)

    def has_begun(self, now: int) -> bool:
        """Return True if it was claimed, or if the run that it stands for has begun."""
        return self.started_at is not None and self.started_at <= now


class LimitRow(msgspec.Struct, eq=False):
    """A limit; for a rate also when tasks began, or units were used, by the value of its key."""

    limit_id: int
    rule: LimitRule
    changed_at: int
    removed: bool = False
    app: str | None = None
    declared: LimitRule | None = None
    added_at: int = 0
    uses: defaultdict[str, list[tuple[int, int]]] = of_each(list)  # moments, and how many at each
    corrections: defaultdict[str, list[tuple[int, int]]] = of_each(list)


class SubscriptionRow(msgspec.Struct):
    """A subscription: of a target, or of a run, which is told by `signal`."""

    subscription_id: int
    pattern: str
    match: str | None  # JSON text
    created_at: int
    target: EventTarget | None = None
    run_id: UUID | None = None
    signal: str = ""
    app: str | None = None
    heard_at: int = 0
    paused_at: int | None = None
    paused_by: PausedBy | None = None


class WebhookRow(msgspec.Struct):
    """A URL that a run has given to others, which takes one POST."""

    run_id: UUID
    key: str
    body: WebhookBody
    secret: str | None
    scheme: WebhookScheme
    received: bool = False
    closed: bool = False


class AlertRow(msgspec.Struct):
    """An alert, and how things stand."""

    rule: AlertRule
    heard_at: int
    look_at: int
    looked_at: int | None = None
    value: float | None = None
    is_active: bool = False
    changed_at: int | None = None
    differs_since: int | None = None
    error: str | None = None


class BuildRow(msgspec.Struct):
    """A build of an app, and the handlers of its pinned workflows."""

    pinned: tuple[str, ...]
    first_known_at: int
    signed_on_at: int | None


class RouteRow(msgspec.Struct):
    """What new runs of an app get, and what they got before."""

    current: str | None = None
    former: list[str] = []
    ramped: str | None = None
    ramp_percent: float = 0.0


class DeliveryRow(msgspec.Struct):
    """An event to deliver to the URL of a subscription."""

    delivery_id: int
    subscription_id: int
    event_id: str
    topic: str
    payload: str
    published_at: int
    visible_at: int
    attempts: int = 0
    status: int | None = None
    error: str | None = None
    dead_at: int | None = None


@dataclass
class ShapeRow:
    """A version of a flow, with the edges of its graph."""

    shape: FlowShape
    shape_hash: str
    created_at: int
    replaced: ShapeRow | None = None  # what runs have that were created before

    def of_runs_from(self, created_at: int) -> ShapeRow:
        """Return the shape that an ended run had which was created at a moment."""
        row = self
        while row.replaced is not None and created_at < row.created_at:
            row = row.replaced
        return row

    def keep(self, shape: FlowShape, created_at: int) -> None:
        """Keep the shape that a run had which was created before the oldest that is known."""
        oldest = self.of_runs_from(created_at)
        if created_at < oldest.created_at and oldest.shape != shape:
            oldest.replaced = ShapeRow(shape, "", created_at)

    @cached_property
    def steps(self) -> dict[str, StepShape]:
        """Return the steps by slug, in the order of the shape; the end is not among them."""
        return {step.slug: step for step in self.shape.steps}

    @cached_property
    def dependents(self) -> dict[str, list[str]]:
        """Return for each step those that come after it; the end comes after the leaves."""
        found: dict[str, list[str]] = {slug: [] for slug in self.steps}
        for slug in [*self.steps, END]:
            for dep in self.waits(slug):
                found[dep].append(slug)
        return found

    @cached_property
    def leaves(self) -> list[str]:
        """Return the steps on which no other depends, by slug, without those that always run."""
        others = [step for step in self.shape.steps if step.trigger_rule != "always"]
        inner = {dep for step in others for dep in step.deps}
        return sorted({step.slug for step in others} - inner)

    @cached_property
    def last(self) -> list[str]:
        """Return the steps that always run at the end, in the order of the shape."""
        return [step.slug for step in self.shape.steps if step.trigger_rule == "always"]

    @cached_property
    def is_soft(self) -> bool:
        """True if a step that fails does not end the run: a step has another rule."""
        return any(step.trigger_rule != "none_failed" for step in self.shape.steps)

    def deps(self, slug: str) -> list[str]:
        """Return what a step is given, by slug; of the end the leaves."""
        return self.leaves if slug == END else sorted(set(self.steps[slug].deps))

    def waits(self, slug: str) -> list[str]:
        """Return the steps that must have ended before this one is ready."""
        if slug == END:
            return [*self.leaves, *self.last]
        if slug in self.last:
            return sorted({*self.deps(slug), *self.leaves})
        return self.deps(slug)


class StepRow(msgspec.Struct):
    """What is known of a step of a run. A step without a row is `created`."""

    status: StepStatus = "created"
    deps_done: int = 0
    initial_tasks: int | None = None
    remaining_tasks: int | None = None
    output: str | None = None  # of a map: None if its elements have the outputs
    error: str | None = None
    skip_reason: SkipReason | None = None
    attempts: int | None = None
    worker: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    failed_tasks: int | None = None
    next_task: int | None = None  # of a map with a concurrency: the first that has not begun

    @property
    def has_failed(self) -> bool:
        """True if it failed, or was skipped because a step before it failed."""
        return self.status == "failed" or self.skip_reason == "dependency_failed"


class StartKey(msgspec.Struct):
    """A key of a rule for starts.

    `run_id` is the active run of a singleton, or the run of a debounce that is to come: its first
    start was `since`. `not_before` is the moment that a throttle gave that run. `expires_at` is
    when the row has no meaning any more. `period` is the longest period of a throttle's rules.
    """

    run_id: UUID
    since: int = 0
    not_before: int = 0
    expires_at: int | None = None
    period: int = 0


class WaitingRun(msgspec.Struct, frozen=True):
    """A run that waits for the end of another: the earliest moment of its start, its timeout."""

    run_id: UUID
    visible_at: int
    timeout: int | None


class SweeperRow(msgspec.Struct):
    """Who deletes ended runs, and what came of it."""

    holder: str | None = None
    held_until: int | None = None
    begun_at: int | None = None
    ended_at: int | None = None
    deleted: int = 0
    failed_at: int | None = None
    error: str | None = None
    archive: str | None = None


class PayloadOwnerRow(msgspec.Struct):
    """A run that has objects at a URL, or is about to have some."""

    noted_at: int
    due_at: int | None = None
    removed_until: int | None = None
    failed: tuple[int, str] | None = None  # when a put failed last, and why
