"""Which workers are alive, which queues and workflows they serve, and what nobody serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from holdfast.store.port import Store
from holdfast.types import (
    OPEN_STATES,
    LimitScope,
    Pause,
    RunFilter,
    RunRecord,
    Scope,
    Value,
    WorkerInfo,
)
from holdfast.types.work import SILENT_SECONDS
from holdfast.values.moments import to_datetime
from holdfast.values.names import split_handler
from holdfast.values.suggestions import nearest

_NEWEST = 200  # runs whose names are suggested for a mistyped one


class Served(Value, frozen=True):
    """A queue or a workflow: how many live workers serve it, and whether it is paused.

    `unserved` counts the tasks that are due and that no live worker serves.
    """

    name: str
    workers: int
    versions: tuple[int, ...]
    paused: bool
    reason: str | None
    paused_at: datetime | None
    unserved: int


def live_workers(workers: Sequence[WorkerInfo], now: int) -> list[WorkerInfo]:
    """Return the workers that were heard of lately."""
    return [each for each in workers if not is_silent(each, now)]


def is_silent(worker: WorkerInfo, now: int) -> bool:
    """Return True if a worker has not been heard of for so long that it counts as dead.

    One that was heard of in the future was so before the clock was set back.
    """
    return abs(now - worker.heard_at) > SILENT_SECONDS * 1_000_000


def serves(worker: WorkerInfo, run: RunRecord) -> bool:
    """Return True if a worker has the code of a run and serves its queue."""
    return serves_queue(worker, run.handler, run.queue)


def serves_queue(worker: WorkerInfo, handler: str, queue: str) -> bool:
    """Return True if a worker has a handler and serves a queue: a flow's steps may have others."""
    return queue in worker.queues and handler in worker.handlers


async def queues_of(store: Store, run: RunRecord) -> Sequence[str]:
    """Return the queues that a run needs workers for: its own, or those of its flow's steps."""
    shape = await store.get_flow(run.full_name, run.version) if run.kind == "flow" else None
    if shape is None:
        return (run.queue,)
    return sorted({step.queue or run.queue for step in shape.steps})


def thread_shortage(worker: WorkerInfo) -> str:
    """Return a sentence if all threads of a worker are taken, else an empty text."""
    use = worker.threads
    if use is None or use.taken < use.size:
        return ""
    given_up = (
        f", {use.given_up} of them by attempts that have timed out or were cancelled"
        if use.given_up
        else ""
    )
    return (
        f"all {use.size} threads of worker {worker.worker_id} for plain functions are taken"
        f"{given_up}; {use.waiting} attempt(s) wait for one"
    )


async def read_served(store: Store, scope: Scope) -> list[Served]:
    """Return every queue or workflow that a worker, a pause or a waiting task names.

    Also one that only silent workers name: they may be heard again.
    """
    signed_on = await store.list_workers()
    workers = live_workers(signed_on, await store.now())
    pauses = {each.name: each for each in await store.list_pauses() if each.scope == scope}
    waiting: dict[str, int] = {}
    for queue, handler, tasks in await store.unserved():
        name, version, _ = split_handler(handler)
        if scope == "queue" or version != 0:
            key = queue if scope == "queue" else name
            waiting[key] = waiting.get(key, 0) + tasks
    names = {name for worker in signed_on for name in _names_served(scope, worker)}
    return [
        _served(scope, name, workers, pauses.get(name), waiting.get(name, 0))
        for name in sorted(names | pauses.keys() | waiting.keys())
    ]


async def live_activities(store: Store) -> list[str]:
    """Return the full names of all activities that live workers have."""
    workers = live_workers(await store.list_workers(), await store.now())
    handlers = {split_handler(handler) for each in workers for handler in each.handlers}
    return sorted(name for name, version, _ in handlers if version == 0)


async def find_unknown(
    store: Store, scope: LimitScope, names: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Return the names that no live worker, no run and no message queue has, with similar ones.

    A queue whose runs have all ended may be among them: it cannot be told from a mistyped one.
    Of activities only those of live workers are known.
    """
    if scope == "activity":
        activities = await live_activities(store)
        return {name: nearest(name, activities) for name in names if name not in activities}
    served = await read_served(store, scope)
    newest = (await store.list_runs(RunFilter(limit=_NEWEST))).runs
    known = {each.name for each in served if each.workers or each.unserved}
    known |= {run.queue if scope == "queue" else run.full_name for run in newest}
    if scope == "queue":
        known |= {each.settings.name for each in await store.list_queues()}
    return {
        name: nearest(name, sorted(known))
        for name in names
        if name not in known and not await _has_run(store, scope, name)
    }


async def _has_run(store: Store, scope: Scope, name: str) -> bool:
    if scope == "queue":
        where = RunFilter(queues=(name,), states=OPEN_STATES, limit=1)
    else:
        where = RunFilter(names=(name,), limit=1)
    page = await store.list_runs(where)
    return bool(page.runs) or page.cursor is not None  # a long search stops before it has found


def _names_served(scope: Scope, worker: WorkerInfo) -> set[str]:
    """Return the queues or the workflows of a worker, without its activities."""
    if scope == "queue":
        return set(worker.queues)
    return {name for name, _ in _versions([worker])}


def _served(
    scope: Scope, name: str, workers: Sequence[WorkerInfo], pause: Pause | None, unserved: int
) -> Served:
    serving = [each for each in workers if name in _names_served(scope, each)]
    versions = {version for known, version in _versions(serving) if known == name}
    return Served(
        name=name,
        workers=len(serving),
        versions=tuple(sorted(versions)) if scope == "workflow" else (),
        paused=pause is not None,
        reason=pause.reason if pause else None,
        paused_at=to_datetime(pause.paused_at) if pause else None,
        unserved=unserved,
    )


def _versions(workers: Iterable[WorkerInfo]) -> set[tuple[str, int]]:
    """Return the workflows that workers have, with their versions; an activity's version is 0."""
    handlers = {split_handler(handler) for worker in workers for handler in worker.handlers}
    return {(name, version) for name, version, _ in handlers if version != 0}
