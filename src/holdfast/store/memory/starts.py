"""Start runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from holdfast.errors import RunExists
from holdfast.store.memory.builds import build_of_start, set_build
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.declared import with_declared
from holdfast.store.memory.payloads import check_run
from holdfast.store.memory.rows import TURN, Parent, RunRow, TaskRow
from holdfast.store.memory.start_rules import lock_order, read_rules, rules_of, start_ruled
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import WORK_TOPIC
from holdfast.types import Event, NewRun, Notice, StartedRun


class MemoryStarts(Part):
    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        async with self._transaction() as (tables, now):
            return start_all(tables, now, runs)


def start_all(
    tables: Tables, now: int, runs: Sequence[NewRun]
) -> tuple[list[StartedRun], list[Notice]]:
    asked = {new.run_id for new in runs}
    names = {run_id: tables.runs[run_id].new.name for run_id in asked & tables.runs.keys()}
    for new in runs:
        check_run(new)
        if (found := names.setdefault(new.run_id, new.name)) != new.name:
            raise RunExists.of_another(new.run_id, found, new.name)
    answers: dict[int, StartedRun] = {}
    notices: list[Notice] = []
    places: Sequence[int] = range(len(runs))
    if any(rules_of(tables, new) is not None for new in runs):
        places = sorted(places, key=lambda place: lock_order(tables, runs[place]))
    for place in places:
        new = runs[place]
        answer = start_run(tables, now, new)
        if answer.created:
            notices.append(Notice(WORK_TOPIC, tables.runs[answer.run_id].queue))
        if new.waiter is not None and answer.status == "running" and not answer.refused:
            tables.waiters[answer.run_id].add(new.waiter)
        answers[place] = answer
    return [answer for _, answer in sorted(answers.items())], distinct(notices)


def start_run(tables: Tables, now: int, new: NewRun) -> StartedRun:
    """Start a run of a workflow as the rules for its starts allow; one that exists is left."""
    after = None if new.rules is None else read_rules(new.rules).after
    if after is not None and after not in tables.runs:
        return StartedRun(new.run_id, False, None, "gone")
    if new.run_id in tables.runs:
        return StartedRun(new.run_id, False, tables.runs[new.run_id].status)
    return start_free(tables, now, new)


def start_free(tables: Tables, now: int, new: NewRun, parent: Parent | None = None) -> StartedRun:
    """Start a run of a workflow, whose id is free, as the rules for its starts allow."""
    rules = rules_of(tables, new)
    insert = partial(insert_run, tables, now, parent=parent)
    if rules is not None:
        return start_ruled(tables, now, new, rules, insert, is_child=parent is not None)
    insert(new)
    return StartedRun(new.run_id, True, "running")


def insert_run(
    tables: Tables,
    now: int,
    new: NewRun,
    parent: Parent | None = None,
    continues: UUID | None = None,
) -> TaskRow:
    """Write the run, the first entry of its log and its first task; return the task.

    The run's timeout counts from the moment at which it may start. The entry says which run it
    `continues`.
    """
    new = with_declared(tables, new)
    visible_at = new.start_at
    if visible_at is None:
        visible_at = now + to_micros(new.delay_seconds or 0.0)
    deadline_at = None
    if new.timeout_seconds is not None:
        deadline_at = max(now, visible_at) + to_micros(new.timeout_seconds)
    due_at = visible_at if visible_at > now else None
    run = tables.runs[new.run_id] = RunRow(new, now, deadline_at, parent, due_at=due_at)
    if parent is not None:
        tables.children[parent.run_id].append(new.run_id)
    tables.logs[new.run_id] = []
    key = None if continues is None else str(continues)
    tables.append(new.run_id, Event("WorkflowStarted", key, None, now))
    turn = tables.tasks[new.run_id, TURN] = TaskRow(
        run_id=new.run_id,
        key=TURN,
        kind="workflow",
        queue=run.queue,
        name=new.name,
        version=new.version,
        priority=run.priority,
        visible_at=visible_at,
    )
    set_build(tables, new.run_id, build_of_start(tables, new, parent))
    return turn
