"""What a run depends on besides its own log: workers, calls, pauses, its retry or its origin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from holdfast.events import FORKED, SIGNAL_RECEIVED, TERMINAL, read_signal
from holdfast.insight.approvals import OpenApproval, read_approval
from holdfast.insight.flow_progress import StepProgress, progress_of
from holdfast.insight.retries import find_retry
from holdfast.insight.spans import Span, read_details, read_json
from holdfast.insight.why.deadlocks import find_deadlock, newest_of
from holdfast.insight.why.start_rules import waits_for_rule
from holdfast.insight.wording import shorten
from holdfast.store.port import Store
from holdfast.types import (
    JSON,
    UPDATE_REPLY,
    Event,
    FailingPut,
    FlowShape,
    LimitWait,
    OpenActivity,
    OpenStepTasks,
    Pause,
    RetryPlan,
    RunRecord,
    Scope,
    StartWait,
    WorkerInfo,
)
from holdfast.values.ids import former_retry_run_id, retry_run_id

MOST_SIGNALS = 100
MOST_CALLS = 1_000  # activities, children and approvals that are read, of each

_COMPLETED = "FlowStepCompleted"
_WIDEST = 200  # characters of an element


@dataclass(frozen=True, slots=True)
class FlowSurroundings:
    """The steps of a flow's run that has not ended, and their open tasks.

    `shape` is None if the flow was deleted meanwhile.
    """

    steps: Sequence[StepProgress]
    tasks: Sequence[OpenStepTasks]
    shape: FlowShape | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What `explain` knows besides the run, at one moment; `now` is the database's time.

    `children` are the newest runs of the open children, by the id with which each was started.
    `retried_as` is the run that retries this one after it failed; without one, `plans` are what a
    retry would do, and one of all failed calls. `origin` is the run of which this one, if it is
    stuck, is a fork. `start_wait` is the rule because of which it has not begun.
    `targets` are the newest runs of those that signals were sent to, by the id that the sender
    gave. `misfit_at` is the entry of the signal whose wrong shape ended the run, 0 if calls were
    recorded between it and the end. `flow` is there if the run is one of a flow, and `element`
    says which element of a map ended it. `limits` are those that its tasks wait for.
    `failing_puts` say where a payload of it cannot be stored now. `asked` has the calls of entities
    that are not answered, by label: with the newest run of each entity, None if it is not found.
    `deadlock` has the runs that wait for each other, this one first, if it is one of them.
    `away` are the shards that did not answer: runs in them are not among the targets and the asked.
    """

    now: int
    workers: Sequence[WorkerInfo] = ()
    activities: Sequence[OpenActivity] = ()
    children: Mapping[UUID, RunRecord] = field(default_factory=dict[UUID, RunRecord])
    approvals: Sequence[OpenApproval] = ()
    pauses: Sequence[Pause] = ()
    retried_as: RunRecord | None = None
    plans: tuple[RetryPlan, RetryPlan] | None = None
    misfit_at: int | None = None
    origin: RunRecord | None = None
    targets: Mapping[UUID, RunRecord] = field(default_factory=dict[UUID, RunRecord])
    flow: FlowSurroundings | None = None
    element: str = ""
    start_wait: StartWait | None = None
    limits: Sequence[LimitWait] = ()
    failing_puts: Sequence[FailingPut] = ()
    asked: Mapping[str, RunRecord | None] = field(default_factory=dict[str, RunRecord | None])
    deadlock: Sequence[RunRecord] = ()
    away: Collection[int] = ()

    @property
    def lost(self) -> str:
        """Where a run may be that is not found; empty if all shards have answered."""
        which = ", ".join(map(str, sorted(self.away)))
        return f"may be in shard {which}, which is away" if which else ""

    def pause_of(self, scope: Scope, name: str) -> Pause | None:
        """Return the pause of a queue or a workflow."""
        return next(
            (each for each in self.pauses if (each.scope, each.name) == (scope, name)), None
        )


async def look_around(
    store: Store, run: RunRecord, spans: Sequence[Span], log: Sequence[Event]
) -> Surroundings:
    """Read what may keep a run from continuing; for a run that has ended, its retry."""
    now, away = await store.now(), set[int]()
    if run.status != "running":
        retried_as = await find_retry(store, run.run_id)
        return Surroundings(
            now,
            retried_as=retried_as,
            plans=None if retried_as is not None else await _plans(store, run),
            misfit_at=_misfit_at(log),
            targets=await _targets(store, spans, away),
            element=await _failed_element(store, run, log),
            away=away,
        )
    waited_for = {span.kind for span in spans if span.outcome == "open"}
    return Surroundings(
        now=now,
        workers=await store.list_workers(),
        activities=await store.list_activities(run.run_id, limit=MOST_CALLS)
        if "activity" in waited_for
        else (),
        children=await _open_children(store, spans) if "child" in waited_for else {},
        approvals=await _approvals(store, run) if "approval" in waited_for else (),
        pauses=await store.list_pauses(),
        origin=await _origin(store, run, spans) if run.state == "stuck" else None,
        targets=await _targets(store, spans, away),
        flow=await _flow(store, run) if run.kind == "flow" else None,
        start_wait=await store.start_wait(run.run_id) if waits_for_rule(run) else None,
        limits=await store.explain_limits(run.run_id),
        failing_puts=await store.failing_puts(run.run_id),
        asked=await _asked(store, run, spans, away),
        deadlock=await find_deadlock(store, run, spans),
        away=away,
    )


def _misfit_at(log: Sequence[Event]) -> int | None:
    """Find the signal that does not fit, if the run ended of it and did nothing more."""
    ends = TERMINAL | {FORKED}
    last = next((place for place in range(len(log) - 1, 0, -1) if log[place].type not in ends), 0)
    recorded = (log[last].key or "").rpartition("/")[2] if log else ""
    if not recorded.startswith("misfit:signal."):
        return None
    signal = log[last - 1]
    if signal.type != SIGNAL_RECEIVED:
        return 0
    name = read_signal(signal.details or "").signal_name
    return last - 1 if recorded == f"misfit:signal.{name}" else 0


async def _plans(store: Store, run: RunRecord) -> tuple[RetryPlan, RetryPlan] | None:
    if run.status in ("completed", "continued") or run.kind == "flow":
        return None
    plain = await store.retry_plan(run.run_id)
    return plain, await store.retry_plan(run.run_id, failed_steps=True)


async def _flow(store: Store, run: RunRecord) -> FlowSurroundings:
    states = (await store.flow_steps([run.run_id], outputs=False)).get(run.run_id, [])
    tasks = await store.open_step_tasks(run.run_id)
    shape = await store.get_flow(run.full_name, run.version)
    return FlowSurroundings(progress_of(states, tasks, ended=False), tasks, shape)


async def _asked(
    store: Store, run: RunRecord, spans: Sequence[Span], away: set[int]
) -> Mapping[str, RunRecord | None]:
    """Return the entities that a run waits for, by the labels of its calls."""
    if run.wait is None or UPDATE_REPLY not in run.wait.awaiting:
        return {}
    calls = [span for span in spans if span.kind == "entity" and span.outcome == "open"]
    runs = await newest_of(store, [UUID(each.target_run_id) for each in calls[:MOST_CALLS]], away)
    return {span.label: runs.get(UUID(span.target_run_id)) for span in calls}


async def _approvals(store: Store, run: RunRecord) -> list[OpenApproval]:
    found = await store.list_approvals(run_id=run.run_id, limit=MOST_CALLS)
    return [read_approval(each) for each in found]


async def _origin(store: Store, run: RunRecord, spans: Sequence[Span]) -> RunRecord | None:
    """Return the run that this one is a fork of; None if it is a retry, which changes nothing."""
    origins = [UUID(span.origin_run_id) for span in spans if span.kind == "fork"]
    retries = (retry_run_id, former_retry_run_id)
    if not origins or run.last_failure or run.run_id in [of(origins[-1]) for of in retries]:
        return None
    return (await store.get_runs([origins[-1]])).get(origins[-1])


async def _open_children(store: Store, spans: Sequence[Span]) -> Mapping[UUID, RunRecord]:
    started = [
        UUID(span.child_run_id) for span in spans if span.kind == "child" and span.outcome == "open"
    ]
    return await newest_of(store, started[:MOST_CALLS])


async def _targets(store: Store, spans: Sequence[Span], away: set[int]) -> Mapping[UUID, RunRecord]:
    sent = {UUID(span.target_run_id) for span in sent_signals(spans)}
    return await newest_of(store, list(sent), away) if sent else {}


def sent_signals(spans: Sequence[Span]) -> list[Span]:
    """Return the last signals that a run has sent to others."""
    return [span for span in spans if span.kind == "sent"][-MOST_SIGNALS:]


async def _failed_element(store: Store, run: RunRecord, log: Iterable[Event]) -> str:
    """Return where the element of a map stands that failed, and what it is; empty if none did."""
    error = read_json(run.error) if run.kind == "flow" and run.status == "failed" else None
    place = error.get("task_index") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(place, int):
        return ""
    shape = await store.shape_of_run(run.run_id, run.full_name, run.version, run.created_at)
    if shape is None:  # the flow was deleted
        return ""
    deps = next((each.deps for each in shape.steps if each.slug == error.get("step")), ())
    found = _output(log, deps[0]) if deps else read_json(run.input)
    element = ""
    if isinstance(found, list) and place < len(found):
        element = ": " + shorten(msgspec.json.encode(found[place]).decode(), _WIDEST)
    return f"it is element {place} of {deps[0] if deps else 'the input'}, counted from 0{element}"


def _output(log: Iterable[Event], step: str) -> JSON:
    """Return what a step of a flow returned, None if the log does not have it."""
    for event in log:
        if event.type == _COMPLETED and event.key == step:
            return read_details(event.details).get("output")
    return None
