"""Chains of runs: each continued as the next."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec

from holdfast.events import CHILD_STARTED, FORKED, read_forked
from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.rows import Parent, RunRow
from holdfast.store.memory.tables import Tables
from holdfast.values.ids import retry_run_id


class _Continued(msgspec.Struct, frozen=True, omit_defaults=True):
    run_id: UUID
    attempt: int | None = None
    passed_over: bool = False


def _rewrite(run: RunRow, **changes: Any) -> None:
    said = msgspec.structs.replace(details.read(run.output, _Continued), **changes)
    run.output = msgspec.json.encode(said).decode()


def newest(tables: Tables, run_id: UUID) -> UUID:
    """Return the last run of a chain of runs that continued as new."""
    while run_id in tables.runs and tables.runs[run_id].status == "continued":
        following = next_of(tables.runs[run_id])
        if following not in tables.runs:
            break
        run_id = following
    return run_id


def receiver(tables: Tables, sender: UUID, target: UUID) -> UUID:
    """Return the run that gets a signal: the sender's parent, if that retries the target."""
    row = tables.runs.get(sender)
    if row is None or row.parent is None or row.parent.close != "abandon":
        return target
    is_retried = not tables.is_running(target) and target in _since(tables, row.parent)
    return row.parent.run_id if is_retried else target


def first_parent(tables: Tables, parent: Parent) -> UUID:
    """Return the parent that a child's code knows: the run that started it."""
    return next(iter(_since(tables, parent)), parent.run_id)


def _since(tables: Tables, parent: Parent) -> list[UUID]:
    """Return the runs that a parent retries and that knew the child, the first one first."""
    if parent.run_id not in tables.runs or tables.runs[parent.run_id].clock_at is None:
        return []
    events = [row.event for row in tables.logs[parent.run_id]]
    calls = (i for i, e in enumerate(events) if (e.type, e.key) == (CHILD_STARTED, parent.key))
    later = events[next(calls, len(events)) :]
    return [read_forked(e.details or "").run_id for e in later if e.type == FORKED]


def next_of(continued: RunRow) -> UUID:
    """Return the run that a run continued as."""
    return details.read(continued.output, _Continued).run_id


def pass_over(tables: Tables, now: int, first: RunRow) -> None:
    """Let a run that continued point past those whose retention is over; they need not be kept.

    One with a stream is not passed over: readers read a stream run by run.
    """
    run_id = next_of(first)
    while (run := tables.runs.get(run_id)) is not None and run.status == "continued":
        kept_for = run.new.retention_seconds
        is_over = kept_for is not None and (run.completed_at or 0) + to_micros(kept_for) <= now
        if not is_over or any(not name.startswith("$") for name in tables.streams.get(run_id, ())):
            break
        run_id = next_of(run)
        _rewrite(run, passed_over=True)
    if run_id != next_of(first):
        _rewrite(first, run_id=run_id)


def is_passed_over(run: RunRow) -> bool:
    """Return True if the run that continued as this one points past it."""
    return run.status == "continued" and details.read(run.output, _Continued).passed_over


def runs_of_key(tables: Tables, names: Collection[str], key: str) -> set[UUID]:
    """Return the runs started with a key, and all that continued or retried one of them.

    They are runs of these workflows, without names of any.
    """
    found: set[UUID] = set()
    left = [
        run_id
        for run_id, run in tables.runs.items()
        if run.new.key == key and (not names or run.new.name in names)
    ]
    while left:
        run_id = left.pop()
        run = tables.runs.get(run_id)
        if run is not None and run_id not in found:
            found.add(run_id)
            left.append(next_of(run) if run.status == "continued" else retry_run_id(run_id))
    return found
