"""Begin steps: their tasks, of which some are leased to the caller at once, and rows of maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import Place, element_key, known_step, shape_of, step_row
from holdfast.store.memory.rows import NEVER, TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import WORK_TOPIC
from holdfast.types import Notice


def begin_singles(progress: Progress, places: Sequence[Place]) -> None:
    """Begin single steps: a task each."""
    room = _room(progress)
    for number, place in enumerate(places):
        _begin_task(progress, place, place[1], None, may_hand=number < room)


def begin_maps(progress: Progress, maps: Sequence[tuple[Place, int]]) -> None:
    """Begin maps that have elements: a row each, and a task for each element.

    In a run that retries another, elements that have their results get no task.
    """
    room, number = _room(progress), count()
    for place, size in maps:
        run_id, slug = place
        step = step_row(progress.tables, place)
        step.status, step.started_at = "started", progress.now
        step.deps_done = len(shape_of(progress.tables, run_id).deps(slug))
        results = progress.tables.elements.get(place, {})
        step.initial_tasks, step.remaining_tasks = size, size - len(results)
        progress.log(place, "FlowStepStarted", details.write(tasks=step.remaining_tasks))
        limit, begun = shape_of(progress.tables, run_id).steps[slug].concurrency, 0
        for index, payload in enumerate(_elements(progress.tables, place)):
            if index in results:
                continue
            key, may_hand = element_key(slug, index), next(number) < room
            waits = limit is not None and begun >= limit
            _begin_task(progress, place, key, payload, may_hand=may_hand, waits=waits)
            begun += 1
            if limit is not None and not waits:
                step.next_task = index + 1


def begin_elements(progress: Progress, place: Place, count: int) -> None:
    """Begin up to `count` more elements of a map with a concurrency, in their order."""
    run_id, slug = place
    step, shape = step_row(progress.tables, place), shape_of(progress.tables, run_id)
    assert step.next_task is not None
    assert step.initial_tasks is not None
    assert step.started_at is not None
    earliest = step.started_at + to_micros(shape.steps[slug].start_delay or 0)
    while count and step.next_task < step.initial_tasks:
        task = progress.tables.tasks.get((run_id, element_key(slug, step.next_task)))
        step.next_task += 1
        if task is None:
            continue
        count -= 1
        if task.kind == "child":
            progress.children.append((run_id, task.key))
        else:
            task.visible_at = max(progress.now, earliest)
            progress.notices.append(Notice(WORK_TOPIC, task.queue))


def _room(progress: Progress) -> int:
    """Return how many tasks more the caller takes: none while something is paused."""
    if progress.taker is None or progress.tables.pauses:
        return 0
    return max(progress.taker.room - len(progress.handed), 0)


def _elements(tables: Tables, place: Place) -> Iterator[str]:
    """Yield the elements of a map, each as the JSON text that it has in what it maps over."""
    run_id, slug = place
    source = tables.runs[run_id].new.input
    for dep in shape_of(tables, run_id).deps(slug):
        step = known_step(tables, (run_id, dep))
        if step is None or step.output is None:
            yield from (text for _, text in sorted(tables.elements[run_id, dep].items()))
            return
        source = step.output
    for element in msgspec.json.decode(source, type=list[msgspec.Raw]):
        yield bytes(element).decode()


def _begin_task(
    progress: Progress,
    place: Place,
    key: str,
    payload: str | None,
    *,
    may_hand: bool,
    waits: bool = False,
) -> None:
    """Insert a task of a step, and lease it to the caller if it takes such tasks.

    An element that waits for others of its map is due when `begin_elements` says so.
    """
    run_id, slug = place
    turn = progress.tables.turn(run_id)
    step = shape_of(progress.tables, run_id).steps[slug]
    task = progress.tables.tasks[run_id, key] = TaskRow(
        run_id=run_id,
        key=key,
        kind="step",
        queue=step.queue or turn.queue,
        name=turn.name,
        version=turn.version,
        priority=turn.priority,
        visible_at=progress.now + to_micros(step.start_delay or 0),
        payload=payload,
        paused=turn.paused,
    )
    if step.runs is not None:
        task.kind, task.visible_at = "child", NEVER
        task.started_at = None if turn.paused and payload is None else progress.now
        task.attempts = task.lease_no = task.claimed_idx = 1
        if not waits:
            progress.children.append((run_id, key))
    elif waits:
        task.visible_at = NEVER
    elif may_hand and not step.start_delay and _takes(progress, task):
        _lease(progress, task)
    else:
        progress.notices.append(Notice(WORK_TOPIC, task.queue))


def _takes(progress: Progress, task: TaskRow) -> bool:
    taker = progress.taker
    served = taker is not None and task.queue in taker.queues and task.handler in taker.handlers
    return served and not task.paused


def _lease(progress: Progress, task: TaskRow) -> None:
    assert progress.taker is not None
    task.worker, task.started_at = progress.worker_id, progress.now
    task.visible_at = progress.now + to_micros(progress.taker.lease_seconds)
    task.attempts = task.lease_no = task.claimed_idx = 1
    progress.handed.append(task)
