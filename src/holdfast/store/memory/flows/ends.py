"""The ends of attempts at steps: outputs are recorded, failures are tried again or are final."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import random
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.codec import raw
from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.flows.begin import begin_elements
from holdfast.store.memory.flows.cascade import advance
from holdfast.store.memory.flows.large import end_large_maps
from holdfast.store.memory.flows.progress import Progress, StepEnd
from holdfast.store.memory.flows.rows import Place, place_of, shape_of, split_key, step_row
from holdfast.store.memory.flows.skips import skip_steps
from holdfast.store.memory.rows import TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import WORK_TOPIC
from holdfast.types import FlowShape, Notice, Otherwise, StepShape, StepTaskEnd, StepTaskOutcome
from holdfast.values.durations import LONGEST_SECONDS

_FAILED: Final = "holdfast.errors.StepFailed"
_LARGEST_EXPONENT: Final = 60

IsOpen: TypeAlias = Callable[[TaskRow, StepTaskEnd], bool]


class _Line(msgspec.Struct, frozen=True):
    kind: str = ""
    message: str = ""


class _Failure(msgspec.Struct, frozen=True):
    """An attempt that failed: its number in the call, and when the next is due, None for never."""

    number: int
    task: TaskRow
    error: str
    retry_at: int | None
    exhausted: Otherwise
    tolerance: str = ""  # what its error adds if its map tolerates failures, but not as many

    @property
    def place(self) -> Place:
        return place_of(self.task)


def end_tasks(
    progress: Progress, ends: Sequence[StepTaskEnd], is_open: IsOpen
) -> list[StepTaskOutcome]:
    """Record how attempts ended, and advance their runs; return what became of each end.

    `is_open` tells whether an end is that of the attempt that a task has under way. Outputs come
    before failures: a step that has completed stays so in a run that fails.
    """
    outputs = {n: end for n, end in enumerate(ends) if end.error is None}
    errors = {n: end for n, end in enumerate(ends) if end.error is not None}
    completed = _open_tasks(progress.tables, outputs, is_open)
    ended = _record_outputs(progress, [(task, outputs[n]) for n, task in completed.items()])
    failed = _open_tasks(progress.tables, errors, is_open)
    failures = [_failure(progress, n, task, errors[n]) for n, task in failed.items()]
    skipped = _end_failures(progress, failures)
    children, progress.children = progress.children, []
    if progress.entries:  # every end, retry and failure has one
        advance(progress, ends=end_large_maps(progress, [*ended, *skipped]))
    if children:  # after the entries of this call
        nesting = progress.tables.nesting
        progress.notices += nesting.start(progress.tables, progress.now, children)
    retried = {failure.number for failure in failures if failure.retry_at is not None}
    return [
        "retried" if n in retried else "recorded" if n in completed or n in failed else "lost"
        for n in range(len(ends))
    ]


def _open_tasks(
    tables: Tables, ends: dict[int, StepTaskEnd], is_open: IsOpen
) -> dict[int, TaskRow]:
    """Return the tasks whose open attempts end, by the number of the end; each task once."""
    found: dict[tuple[UUID, str], tuple[int, TaskRow]] = {}
    for number, end in ends.items():
        task = tables.tasks.get((end.run_id, end.key))
        if task is not None and is_open(task, end):
            found.setdefault((end.run_id, end.key), (number, task))
    return dict(found.values())


def _record_outputs(
    progress: Progress, completed: Iterable[tuple[TaskRow, StepTaskEnd]]
) -> list[StepEnd]:
    """Write outputs; return the steps that are completed by it."""
    tables, ended = progress.tables, list[Place]()
    counts: Counter[Place] = Counter()
    for task, end in completed:
        del tables.tasks[task.run_id, task.key]
        slug, index = split_key(task.key)
        place, output = (task.run_id, slug), end.output or "null"
        if index is None:
            _complete_single(progress, task, output)
            ended.append(place)
        else:
            tables.elements[place][index] = output
            counts[place] += 1
    ended += [place for place in sorted(counts) if _count_down(progress, place, counts[place])]
    for place in ended:
        progress.log(place, "FlowStepCompleted")
    return [StepEnd(place) for place in ended]


def _complete_single(progress: Progress, task: TaskRow, output: str) -> None:
    step = step_row(progress.tables, place_of(task))
    step.status, step.output = "completed", output
    step.initial_tasks, step.remaining_tasks = 1, 0
    step.attempts, step.worker = task.attempts, task.worker
    step.started_at = min(task.started_at or progress.now, progress.now)
    step.ended_at = progress.now


def _count_down(progress: Progress, place: Place, elements: int) -> bool:
    """Count elements of a map down that have ended; return True if it has completed.

    Of a map with a concurrency, as many others begin.
    """
    step = step_row(progress.tables, place)
    step.remaining_tasks = (step.remaining_tasks or 0) - elements
    if step.remaining_tasks > 0:
        if step.next_task is not None:
            begin_elements(progress, place, elements)
        return False
    step.status, step.ended_at = "completed", progress.now
    return True


def _failure(progress: Progress, number: int, task: TaskRow, end: StepTaskEnd) -> _Failure:
    """Decide whether another attempt follows, by the step's options or those of its flow."""
    shape = shape_of(progress.tables, task.run_id)
    step, flow = shape.steps[split_key(task.key)[0]], shape.shape
    attempts = flow.max_attempts if step.max_attempts is None else step.max_attempts
    retry_at = None
    if end.retryable and task.attempts < attempts:
        retry_at = progress.now + to_micros(retry_pause(flow, step, task.attempts))
    return _Failure(number, task, end.error or "null", retry_at, step.when_exhausted)


def retry_pause(flow: FlowShape, step: StepShape, failed: int) -> float:
    """Return how many seconds there are between an attempt that failed and the next."""
    base = flow.base_delay if step.base_delay is None else step.base_delay
    drawn = (step.jitter_percent or 0) / 100 * (2 * random() - 1)
    return min((base << min(failed, _LARGEST_EXPONENT)) * (1 + drawn), LONGEST_SECONDS)


def _end_failures(progress: Progress, failures: Sequence[_Failure]) -> list[StepEnd]:
    """Free what is tried again; fail runs, or skip steps, and return those that ended by it."""
    retried = [failure for failure in failures if failure.retry_at is not None]
    over = [failure for failure in failures if failure.retry_at is None]
    _log_retries(progress, retried)
    for failure in retried:
        _free(progress, failure)
    completed, over = _tolerate(progress, over)
    fatal: dict[UUID, _Failure] = {}
    for failure in over:
        shape = shape_of(progress.tables, failure.task.run_id)
        if failure.exhausted == "fail" and not shape.is_soft:
            fatal.setdefault(failure.task.run_id, failure)
    for _, failure in sorted(fatal.items()):
        progress.fail(failure.place, _error(failure))
    passed: dict[Place, _Failure] = {}
    for failure in over:
        if failure.task.run_id not in fatal:
            passed.setdefault(failure.place, failure)
    ends = [
        StepEnd(place, passed[place].exhausted != "skip", failed=passed[place].exhausted == "fail")
        for place in sorted(passed)
    ]
    errors = {place: _error(failure) for place, failure in passed.items()}
    return completed + skip_steps(progress, ends, "handler_failed", errors)


def _tolerate(progress: Progress, over: Sequence[_Failure]) -> tuple[list[StepEnd], list[_Failure]]:
    """Record the failures of elements that their maps tolerate.

    Returns the maps that complete by it, and the other failures. The first of these is counted.
    """
    tables, ended = progress.tables, list[Place]()
    by_step: defaultdict[Place, list[_Failure]] = defaultdict(list)
    for failure in over:
        by_step[failure.place].append(failure)
    fatal: list[_Failure] = []
    for place, failures in sorted(by_step.items()):
        spare = _spare(tables, place)
        if spare is None:
            fatal += failures
            continue
        row, over = step_row(tables, place), failures[spare:]
        tolerated = (row.failed_tasks or 0) + spare
        row.failed_tasks = (row.failed_tasks or 0) + min(len(failures), spare + 1)
        for failure in failures[:spare]:
            index = split_key(failure.task.key)[1]
            assert index is not None
            del tables.tasks[failure.task.run_id, failure.task.key]
            tables.elements[place][index] = "null"
            tables.failed[place][index] = _error(failure)
        if over:
            row.remaining_tasks = (row.remaining_tasks or 0) - spare
            told = (
                f"; {tolerated + 1} of {row.initial_tasks} elements failed, {tolerated} "
                f"{'is' if tolerated == 1 else 'are'} tolerated"
            )
            fatal += [replace(failure, tolerance=told) for failure in over]
        elif _count_down(progress, place, len(failures)):
            ended.append(place)
            progress.log(place, "FlowStepCompleted")
    fatal.sort(key=lambda failure: failure.number)
    return [StepEnd(place) for place in ended], fatal


def _spare(tables: Tables, place: Place) -> int | None:
    """Return how many more elements of a map may fail; None for a step that tolerates nothing."""
    step = shape_of(tables, place[0]).steps[place[1]]
    row = step_row(tables, place)
    limits = [] if step.tolerated_count is None else [step.tolerated_count]
    if step.tolerated_percent is not None:
        limits.append(step.tolerated_percent * (row.initial_tasks or 0) // 100)
    return min(limits) - (row.failed_tasks or 0) if limits else None


def _free(progress: Progress, failure: _Failure) -> None:
    """Make a task due after its pause. The next attempt finds the error of this one.

    If a run stands for the task, the next one is started; it waits for the pause to end.
    """
    task = failure.task
    assert failure.retry_at is not None
    task.heartbeat = details.write(error=raw(failure.error))
    if task.kind == "child":
        task.attempts += 1
        progress.children.append((task.run_id, task.key))
        return
    task.worker, task.innocent, task.stuck = None, False, None
    task.visible_at, task.claimed_idx = failure.retry_at, 0
    progress.notices.append(Notice(WORK_TOPIC, task.queue))


def _log_retries(progress: Progress, retried: Sequence[_Failure]) -> None:
    """Write one entry for each step, however many of its elements are tried again."""
    by_step: defaultdict[Place, list[_Failure]] = defaultdict(list)
    for failure in retried:
        by_step[failure.place].append(failure)
    for place, failures in sorted(by_step.items()):
        indexes = [split_key(failure.task.key)[1] for failure in failures]
        told = details.write(
            tasks=len(failures),
            task_index=min((index for index in indexes if index is not None), default=None),
            attempt=max(failure.task.attempts for failure in failures),
            error=raw(failures[0].error),
            retry_at=min(f.retry_at for f in failures if f.retry_at is not None),
        )
        progress.log(place, "FlowStepRetryScheduled", told)


def error_line(error: str) -> str:
    """Return an error, which is JSON text, as one line: its class and its message."""
    line = details.read(error, _Line)
    return ": ".join(filter(None, (line.kind.removeprefix("builtins."), line.message)))


def _error(failure: _Failure) -> str:
    """Return the error of a run that fails because of a step."""
    slug, index = split_key(failure.task.key)
    return details.write(
        kind=_FAILED,
        step=slug,
        task_index=index,
        attempts=failure.task.attempts,
        worker=failure.task.worker,
        message=f"step {failure.task.key} failed: {error_line(failure.error)}{failure.tolerance}",
        cause=raw(failure.error),
    )
