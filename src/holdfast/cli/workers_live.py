"""Which workers live, and what they would claim."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.types import RunRecord, ThreadUse, WorkerInfo

SILENT_SECONDS = 8  # a worker not heard of for so long is taken for dead


def live_workers(workers: Sequence[WorkerInfo], now: int) -> list[WorkerInfo]:
    """Return the workers that were heard of lately."""
    return [each for each in workers if not is_silent(each, now)]


def is_silent(worker: WorkerInfo, now: int) -> bool:
    """Say whether a worker has not been heard of for so long that it counts as dead."""
    return now - worker.heard_at > SILENT_SECONDS * 1_000_000


def serves(worker: WorkerInfo, run: RunRecord) -> bool:
    """Say whether a worker would claim a run."""
    return run.queue in worker.queues and run.handler in worker.handlers


def threads_in_use(use: ThreadUse | None) -> str:
    """Say how a worker's threads are used: `3/32`, or `8/8, 5 wait`."""
    if use is None:
        return ""
    return f"{use.taken}/{use.size}" + (f", {use.waiting} wait" if use.waiting else "")


def thread_shortage(worker: WorkerInfo) -> str:
    """Say that attempts wait for a thread of a worker, in words; empty where none does."""
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
