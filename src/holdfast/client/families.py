"""Find the failed runs that are left to the runs that started them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from holdfast.store.port import Store
from holdfast.store.port.shards import ask_most
from holdfast.types import RunRecord


async def left_to_parents(store: Store, runs: Sequence[RunRecord]) -> set[UUID]:
    """Return the runs whose parents were told of their ends, or start them again in a retry.

    A retry of such a run would do its work beside what the parent does. A parent that the store
    does not have may have been told.
    """
    parent_ids = list({run.parent_run_id for run in runs if run.parent_run_id is not None})
    if not parent_ids:
        return set()
    parents = await ask_most(partial(store.get_runs, payloads=False), parent_ids)
    return {
        run.run_id
        for run in runs
        if run.parent_run_id is not None and not _was_let_go(run, parents.get(run.parent_run_id))
    }


def _was_let_go(run: RunRecord, parent: RunRecord | None) -> bool:
    """Return True if the parent completed or continued as new before the child ended.

    Nobody was told of such an end. But the next attempt of a parent starts its open children again.
    """
    if parent is None or parent.completed_at is None or run.completed_at is None:
        return False
    ended_well = parent.status == "completed" or (
        parent.status == "continued" and parent.last_failure is None
    )
    return ended_well and parent.completed_at < run.completed_at
