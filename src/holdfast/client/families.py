"""Find the failed runs that are left to the runs that started them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from holdfast.store.port import Store
from holdfast.store.port.shards import ask_most
from holdfast.types import RunRecord


async def left_to_parents(store: Store, runs: Sequence[RunRecord]) -> set[UUID]:
    """Return the runs whose ends a parent or its retry is told of, or that a retry starts again.

    A retry of such a run would do its work beside what the parent does, or a retry of a run above
    it. A run that the store does not have may have been told, or be retried.
    """
    left = set[UUID]()
    lines = {run.run_id: run for run in runs}  # the run itself, then its parent, and so on
    ends, is_direct = {run.run_id: run.completed_at for run in runs}, True
    while parent_ids := {
        run_id: each.parent_run_id
        for run_id, each in lines.items()
        if each.parent_run_id is not None
    }:
        parents, above = await _read(store, parent_ids.values()), dict[UUID, RunRecord]()
        for run_id, parent_id in parent_ids.items():
            parent, ended_at = parents.get(parent_id), ends[lines[run_id].run_id]
            if (
                parent is None
                or (is_direct and not _ended_before(parent, ended_at))
                or (
                    _is_done_again(parent, ended_at)
                    and (is_direct or not await _takes_over(store, parent, lines[run_id]))
                )
            ):
                left.add(run_id)
            else:
                above[run_id] = parent
        lines, ends, is_direct = above, await _ends(store, above.values()), False
    return left


def _is_done_again(parent: RunRecord, ended_at: int | None) -> bool:
    """Return True if a retry of a parent starts a child again, or is told of its end.

    So does the next attempt. It keeps the ends of children that the parent was told of.
    """
    ended_well = parent.status == "completed" or (
        parent.status == "continued" and parent.last_failure is None
    )
    return not ended_well and _ended_before(parent, ended_at)


async def _takes_over(store: Store, parent: RunRecord, child: RunRecord) -> bool:
    """Return True if a retry of a parent takes over a child, and does not start it again."""
    return child.parent_key in (await store.retry_plan(parent.run_id)).kept


def _ended_before(parent: RunRecord, ended_at: int | None) -> bool:
    """Return True if a parent had ended when its child did: it was not told of the child's end."""
    return parent.completed_at is not None and (ended_at is None or parent.completed_at < ended_at)


async def _ends(store: Store, runs: Iterable[RunRecord]) -> dict[UUID, int | None]:
    """Return when runs ended, or the last that they continued as; None for those that are open."""
    ends = {run.run_id: run.completed_at for run in runs if run.status != "continued"}
    continued = [run.run_id for run in runs if run.status == "continued"]
    if continued:
        newest = await ask_most(store.newest_runs, continued)
        found = await _read(store, newest.values())
        for run_id in continued:
            last = found.get(newest.get(run_id, run_id))
            ends[run_id] = None if last is None else last.completed_at
    return ends


async def _read(store: Store, run_ids: Iterable[UUID]) -> dict[UUID, RunRecord]:
    return await ask_most(partial(store.get_runs, payloads=False), list(set(run_ids)))
