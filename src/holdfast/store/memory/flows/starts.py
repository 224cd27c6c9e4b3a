"""Start runs of flows: each begins with its root steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput, RunExists, UnknownFlow
from holdfast.store.memory.flows.cascade import advance
from holdfast.store.memory.flows.judging import json_type
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import Place, shape_of
from holdfast.store.memory.flows.shapes import newest_shape
from holdfast.store.memory.payloads import check_run
from holdfast.store.memory.rows import END, NEVER, TURN, Parent, ShapeRow
from holdfast.store.memory.starts import insert_run
from holdfast.store.memory.tables import Tables
from holdfast.types import NewRun, Notice, StartedRun


def start_flows(
    tables: Tables, now: int, runs: Sequence[NewRun]
) -> tuple[list[StartedRun], list[Notice]]:
    """Start runs of flows; one that exists is left as it is."""
    for new in runs:  # version 0 is the newest
        check_run(msgspec.structs.replace(new, version=1))
    named = [with_shape(tables, new) for new in runs]
    _refuse_others(tables, named)
    created = {new.run_id: new for new in reversed(named) if new.run_id not in tables.runs}
    notices = begin_flows(tables, now, [(new, None) for new in created.values()])
    answers: list[StartedRun] = []
    for new in named:
        status = tables.runs[new.run_id].status
        if new.waiter is not None and status == "running":
            tables.waiters[new.run_id].add(new.waiter)
        is_new = created.pop(new.run_id, None) is not None
        answers.append(StartedRun(new.run_id, is_new, status))
    return answers, notices


def start_child_flow(tables: Tables, now: int, new: NewRun, parent: Parent) -> list[Notice]:
    """Start a run of a flow that another run asked for, under an id that is free.

    Raises UnknownFlow, and InvalidInput for an input over which a root step cannot map.
    """
    return begin_flows(tables, now, [(with_shape(tables, new), parent)])


def begin_flows(
    tables: Tables, now: int, runs: Sequence[tuple[NewRun, Parent | None]]
) -> list[Notice]:
    """Insert runs, and advance them from their root steps."""
    starts = {new.run_id: insert_flow(tables, now, new, parent) for new, parent in runs}
    progress = Progress(tables, now)
    advance(progress, ready=[root for new, _ in runs for root in _roots(tables, new)])
    for run_id, start in starts.items():
        if start != now:
            _start_later(tables, run_id, start - now)
    return progress.notices


def run_as_flow(
    tables: Tables, now: int, worker_id: str, run_id: UUID, lease_no: int
) -> list[Notice] | None:
    """Make the run of a flow of a claimed run that was started as one of a workflow.

    Return None if the lease is lost, or if code of the run has run.
    """
    new = with_shape(tables, tables.runs[run_id].new)
    turn = tables.tasks.get((run_id, TURN))
    if turn is None or (turn.kind, turn.worker, turn.lease_no) != ("workflow", worker_id, lease_no):
        return None
    if any(row.token is not None for row in tables.logs[run_id]):
        return None
    turn.kind, turn.worker, turn.sticky_worker = "flow", None, None
    turn.visible_at, turn.attempts = NEVER, 0
    tables.runs[run_id].new = new
    progress = Progress(tables, now)
    advance(progress, ready=_roots(tables, new))
    return progress.notices


def with_shape(tables: Tables, new: NewRun) -> NewRun:
    """Return the run with the full name and the version of its shape.

    Raises UnknownFlow, and InvalidInput for an input over which a root step cannot map.
    """
    row = tables.shapes.get(f"{new.name}@{new.version}")
    if new.version == 0:
        row = newest_shape(tables, new.name)
    if row is None:
        which = f"{new.name}@{new.version}" if new.version else new.name
        raise UnknownFlow(
            f"flow {which} does not exist: start a worker that has it, or run "
            "`holdfast flows compile`"
        )
    check_input(row, new)
    return msgspec.structs.replace(
        new,
        kind="flow",
        name=row.shape.name,
        version=row.shape.version,
        queue=new.queue or row.shape.queue,
    )


def check_input(row: ShapeRow, new: NewRun) -> None:
    """Raise InvalidInput if a root step maps over the input, which is not an array."""
    found = json_type(json.loads(new.input))
    for step in row.shape.steps:
        if step.kind == "map" and not step.deps and found != "array":
            raise InvalidInput(
                f"step {step.slug} of flow {new.name} maps over the input, "
                f"which must be an array, not {found}"
            )


def _refuse_others(tables: Tables, runs: Sequence[NewRun]) -> None:
    """Refuse ids of other flows' runs: to the caller they would look like the runs asked for."""
    names = {
        new.run_id: tables.runs[new.run_id].new.name for new in runs if new.run_id in tables.runs
    }
    for new in runs:
        if (found := names.setdefault(new.run_id, new.name)) != new.name:
            raise RunExists.of_another(new.run_id, found, new.name)


def insert_flow(tables: Tables, now: int, new: NewRun, parent: Parent | None = None) -> int:
    """Write the run, and a turn row that nobody claims; return when the run is to start.

    No run is older than its shape.
    """
    turn = insert_run(tables, now, new, parent)
    run = tables.runs[new.run_id]
    run.created_at = max(now, shape_of(tables, new.run_id).created_at)
    start, turn.visible_at = turn.visible_at, NEVER
    turn.kind, turn.started_at = "flow", now
    return start


def _start_later(tables: Tables, run_id: UUID, delay: int) -> None:
    """Move the steps that a run has at first to the moments from which they may run."""
    for _, task in tables.tasks_of_run(run_id):
        if task.kind == "step" and task.visible_at < NEVER:
            task.visible_at += delay


def _roots(tables: Tables, new: NewRun) -> list[Place]:
    """Return the steps that wait for no other; of a flow without steps, the end."""
    row = tables.shapes[f"{new.name}@{new.version}"]
    roots = [slug for slug in row.steps if not row.waits(slug)]
    return [(new.run_id, slug) for slug in roots or [END]]
