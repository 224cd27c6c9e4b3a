"""Which workers live, and what they would claim."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.types import Run, WorkerInfo

SILENT_SECONDS = 8  # a worker not heard of for so long is taken for dead


def live_workers(workers: Sequence[WorkerInfo], now: int) -> list[WorkerInfo]:
    """Return the workers that were heard of lately."""
    return [each for each in workers if not is_silent(each, now)]


def is_silent(worker: WorkerInfo, now: int) -> bool:
    """Say whether a worker has not been heard of for so long that it counts as dead."""
    return now - worker.heard_at > SILENT_SECONDS * 1_000_000


def serves(worker: WorkerInfo, run: Run) -> bool:
    """Say whether a worker would claim a run."""
    return run.queue in worker.queues and run.handler in worker.handlers
