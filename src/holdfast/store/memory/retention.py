"""Retention: delete ended runs whose time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final
from uuid import UUID

from holdfast.errors import InvalidInput
from holdfast.store.memory.chains import is_passed_over, next_of, pass_over
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import Tables
from holdfast.types import BegunDeletions, SweeperState, SweepShare, Swept
from holdfast.values.composing import compose
from holdfast.values.ids import former_retry_run_id, retry_run_id

_AGAIN: Final = to_micros(3600)  # a run that is kept is looked at again after this time
_RETRIED: Final = ("failed", "cancelled", "timed_out", "terminated")


class MemoryRetention(Part):
    async def begin_deletions(
        self,
        holder: str,
        *,
        interval_seconds: float,
        lease_seconds: float = 60.0,
        archive: str | None = None,
    ) -> BegunDeletions:
        async with self._transaction() as (tables, now):
            row = tables.sweeper
            is_held = (row.begun_at or 0) <= now < (row.held_until or 0)
            if row.holder not in (None, holder) and is_held:
                return "busy"
            since = now - to_micros(interval_seconds / 2)
            if row.ended_at is not None and since < row.ended_at <= now:
                return "done"
            if row.archive not in (None, archive):
                return "archive"
            row.holder, row.held_until = holder, now + to_micros(lease_seconds)
            row.begun_at, row.archive = now, archive or row.archive
            return "begun"

    async def end_deletions(
        self, holder: str, *, deleted: int, has_more: bool, error: str | None = None
    ) -> None:
        async with self._transaction() as (tables, now):
            row = tables.sweeper
            if row.holder == holder:
                row.holder = row.held_until = None
            if not has_more:
                row.ended_at = now
            row.deleted += deleted
            row.failed_at, row.error = None if error is None else now, error

    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        async with self._transaction() as (tables, now):
            check_batch(limit, rows)
            if tables.sweeper.archive is not None:
                raise InvalidInput(
                    "runs of this database are archived before they are deleted, in "
                    f"{tables.sweeper.archive}: sweep with that archive"
                )
            due = due_runs(tables, now, limit, rows, after)
            last = max((tables.runs[run_id].delete_after or 0 for run_id in due), default=None)
            has_more = len(due) == limit or len(due) < sum(1 for _ in _all_due(tables, now, after))
            kept = keep_runs(tables, now, due)
            gone = [run_id for run_id in due if run_id not in kept]
            tables.delete(gone)
            return Swept(deleted=len(gone), kept=len(kept), has_more=has_more, after=last)

    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        async with self._transaction() as (tables, now):
            due = list(_all_due(tables, now))[:limit]
            kept = kept_runs(tables, due)
            names = sorted({tables.runs[run_id].new.name for run_id in due})
            return [
                _share(
                    tables, name, [each for each in due if tables.runs[each].new.name == name], kept
                )
                for name in names
            ]

    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        async with self._transaction() as (tables, now):
            row, due = tables.sweeper, list(_all_due(tables, now))[:limit]
            return compose(
                SweeperState,
                row,
                holder=row.holder if (row.held_until or 0) > now else None,
                due=len(due),
                oldest=tables.runs[due[0]].delete_after if due else None,
            )


def due_runs(tables: Tables, now: int, limit: int, rows: int, after: int | None) -> list[UUID]:
    """Return runs whose retention is over, at most `limit`, with about `rows` rows."""
    found: list[UUID] = []
    for run_id in _all_due(tables, now, after):
        elements = sum(len(each) for place, each in tables.elements.items() if place[0] == run_id)
        steps = tables.steps.get(run_id, ())
        rows -= 1 + len(tables.logs[run_id]) + len(steps) + elements
        if found and (rows < 0 or len(found) == limit):
            break
        found.append(run_id)
    return found


def keep_runs(tables: Tables, now: int, run_ids: Collection[UUID]) -> set[UUID]:
    """Keep those that must be kept for an hour, or until what keeps them is due; return them."""
    for run_id in run_ids:
        if tables.runs[run_id].status == "continued":
            pass_over(tables, now, tables.runs[run_id])
    kept = kept_runs(tables, run_ids)
    until = dict.fromkeys(kept, now + _AGAIN)
    for run_id in kept:
        for linked in _links(tables, run_id):
            if linked not in run_ids:
                until[run_id] = max(until[run_id], tables.runs[linked].delete_after or 0)
    for run_id in kept:
        tables.runs[run_id].delete_after = until[run_id]
    return set(kept)


def kept_runs(tables: Tables, run_ids: Collection[UUID]) -> dict[UUID, str]:
    """Return those of some ended runs that must be kept, each with the reason.

    A reason whose end is known is preferred.
    """
    kept: dict[UUID, str] = {}
    asked = set(run_ids)
    for run_id in asked:
        away = [
            tables.runs[each].delete_after for each in _links(tables, run_id) if each not in asked
        ]
        if tables.open_children(run_id) and all(moment is None for moment in away):
            kept[run_id] = "child"
        elif away:
            kept[run_id] = _reason(tables, run_id)
    while more := {
        run_id
        for run_id in asked - kept.keys()
        if any(linked in kept for linked in _links(tables, run_id))
    }:
        kept.update({run_id: _reason(tables, run_id) for run_id in more})
    return kept


def check_batch(limit: int, rows: int) -> None:
    """Refuse a batch of a size that is not allowed."""
    if min(limit, rows) < 1:
        raise InvalidInput(
            f"runs are deleted in batches of 1 run and 1 row or more, not of {limit} and {rows}"
        )


def _all_due(tables: Tables, now: int, after: int | None = None) -> Iterator[UUID]:
    """Yield the runs whose retention is over, those first whose time came first."""
    due = [
        (run.delete_after, run_id)
        for run_id, run in tables.runs.items()
        if run.delete_after is not None and (after or 0) <= run.delete_after <= now
    ]
    return (run_id for _, run_id in sorted(due))


def _links(tables: Tables, run_id: UUID) -> list[UUID]:
    """Return the runs that callers find through an ended run: its successor, or its retry.

    The next run of a key has the id of a retry.
    """
    run = tables.runs[run_id]
    if is_passed_over(run):
        return []
    found = [next_of(run) if run.status == "continued" else retry_run_id(run_id)]
    if run.status in _RETRIED:
        former = tables.runs.get(former_retry_run_id(run_id))
        found += [former.new.run_id] if former is not None and former.new.key is None else []
    return [linked for linked in found if linked in tables.runs]


def _reason(tables: Tables, run_id: UUID) -> str:
    return "successor" if tables.runs[run_id].status == "continued" else "retry"


def _share(tables: Tables, name: str, due: Collection[UUID], kept: dict[UUID, str]) -> SweepShare:
    reasons = Counter(kept[run_id] for run_id in due if run_id in kept)
    return SweepShare(
        name=name,
        due=len(due),
        oldest=min((tables.runs[run_id].delete_after or 0 for run_id in due), default=None),
        kept_for_child=reasons["child"],
        kept_for_successor=reasons["successor"],
        kept_for_retry=reasons["retry"],
    )
