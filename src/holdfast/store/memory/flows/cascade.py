"""What follows from the ends of steps, up to the steps that begin and the runs that end.

Nothing begins before the cascade rests, so that a run that fails on the way begins nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory.ends import end_from_outside, tell_parents
from holdfast.store.memory.flows.begin import begin_maps, begin_singles
from holdfast.store.memory.flows.inputs import run_output
from holdfast.store.memory.flows.judging import Judgment, judge, judge_ends
from holdfast.store.memory.flows.large import end_overfull
from holdfast.store.memory.flows.progress import Entry, Progress, StepEnd
from holdfast.store.memory.flows.rows import Place, known_step, shape_of, step_row
from holdfast.store.memory.flows.skips import skip_steps
from holdfast.store.memory.rows import END
from holdfast.store.memory.stats import count_ends
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.traces import keep_ends
from holdfast.types import Event


def advance(
    progress: Progress, *, ends: Sequence[StepEnd] = (), ready: Sequence[Place] = ()
) -> None:
    """Advance runs from steps that ended, or from steps that are ready.

    Then write what was gathered: steps begin, logs get their entries, runs end. There is no limit
    to the number of rounds: each has the steps that the round before has ended without work.
    """
    begun = Judgment()
    ends, ready = list(ends), list(ready)
    while ends or ready:
        if ends:
            ready, ends = _count_ends(progress.tables, ends)
        judgment = judge(progress.tables, ready, progress.failures)
        begun.maps += judgment.maps
        progress.failures |= judge_ends(progress.tables, judgment.done)
        singles, done, large = end_overfull(progress, judgment.singles, judgment.done)
        begun.singles += singles
        begun.done += done
        ends += large
        for place, error in judgment.wrong:
            progress.fail(place, error)
        ends += [_complete_empty(progress, place) for place in judgment.empty]
        ends += skip_steps(progress, judgment.unmet, "condition_unmet", judgment.errors)
        ready = []
    failed = progress.failures
    begin_singles(progress, [place for place in begun.singles if place[0] not in failed])
    begin_maps(progress, [(place, size) for place, size in begun.maps if place[0] not in failed])
    _end_runs(progress, [run_id for run_id in begun.done if run_id not in failed])
    children, progress.children = progress.children, []
    if children:  # last: one may end at once, which advances its run
        progress.notices += progress.tables.nesting.start(progress.tables, progress.now, children)


def _count_ends(tables: Tables, ends: Sequence[StepEnd]) -> tuple[list[Place], list[StepEnd]]:
    """Count what ends mean for the steps after them; return which are ready, and which passed.

    Steps with another rule than none_failed are not skipped because of others.

    A step that was skipped because of one dependency passes, that is ends for those after it, only
    when all its dependencies have ended; so does one whose output a fork was given. So the end is
    ready when every step has ended, although it depends on the leaves alone.
    """
    counts: Counter[Place] = Counter()
    for (run_id, slug), *_ in ends:
        counts.update((run_id, after) for after in shape_of(tables, run_id).dependents[slug])
    ready: list[Place] = []
    passed: list[StepEnd] = []
    for place, count in counts.items():
        run_id, slug = place
        needed = len(shape_of(tables, run_id).waits(slug))
        if needed > 1:
            step = step_row(tables, place)
            step.deps_done += count
            if step.deps_done < needed:
                continue
        found = known_step(tables, place)
        if slug != END and found is not None and found.status in ("skipped", "completed"):
            passed.append(StepEnd(place, cascades=found.status == "skipped"))
        else:
            ready.append(place)
    return ready, passed


def _complete_empty(progress: Progress, place: Place) -> StepEnd:
    """Complete a map without elements."""
    step = step_row(progress.tables, place)
    step.status, step.output = "completed", "[]"
    step.initial_tasks = step.remaining_tasks = 0
    step.started_at = step.ended_at = progress.now
    progress.log(place, "FlowStepCompleted")
    return StepEnd(place)


def _end_runs(progress: Progress, done: Sequence[UUID]) -> None:
    """Write the entries of logs, then end the runs that are complete or fail."""
    tables, now = progress.tables, progress.now
    completed = [Entry(run_id, "WorkflowCompleted", None) for run_id in done]
    for entry in [*progress.entries, *completed]:
        tables.append(entry.run_id, Event(entry.type, entry.key, entry.details, now))
    for run_id in done:
        output = run_output(tables, run_id)
        progress.notices += tables.end(run_id, "completed", now, output=output)
    count_ends(tables, now, done, "completed")
    keep_ends(tables, now, done)
    progress.notices += tell_parents(tables, now, done)
    failed = Event("WorkflowFailed", None, None, now)
    errors = {run_id: text for run_id, text in progress.failures.items() if text is not None}
    progress.notices += end_from_outside(tables, errors, "failed", failed, errors=errors)[1]
    cancelled = progress.failures.keys() - errors.keys()
    event = Event("WorkflowCanceled", None, None, now)
    progress.notices += end_from_outside(tables, cancelled, "cancelled", event)[1]
