"""What one change of runs of flows gathers while it follows from step to step."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.store.memory import details
from holdfast.store.memory.flows.rows import Place, step_row
from holdfast.store.memory.rows import TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.types import Notice, Taker


class StepEnd(NamedTuple):
    """A step that has ended. If it cascades, all that depends on it is skipped."""

    place: Place
    cascades: bool = False
    failed: bool = False


class Entry(NamedTuple):
    """An entry for the log of a run."""

    run_id: UUID
    type: str
    key: str | None
    details: str | None = None


class Progress(msgspec.Struct):
    """A change at one moment: entries for the logs, runs that fail, tasks that begin.

    Nothing of it is written to logs or begins before the cascade rests. `failures` are the errors
    of runs, as JSON texts, None for a run that is cancelled. Tasks that become ready are leased to
    `worker_id` at once, as far as `taker` takes them. For the tasks of `children`, runs are started
    as the last.
    """

    tables: Tables
    now: int
    worker_id: str | None = None
    taker: Taker | None = None
    entries: list[Entry] = []
    failures: dict[UUID, str | None] = {}
    notices: list[Notice] = []
    handed: list[TaskRow] = []
    children: list[tuple[UUID, str]] = []

    def log(self, place: Place, event_type: str, told: str | None = None) -> None:
        """Write an entry about a step."""
        run_id, slug = place
        self.entries.append(Entry(run_id, event_type, slug, told))

    def fail(self, place: Place, error: str) -> None:
        """Record the step because of which its run fails. It has not completed any more."""
        run_id, slug = place
        step = step_row(self.tables, place)
        step.status, step.output, step.error, step.ended_at = "failed", None, error, self.now
        completed = Entry(run_id, "FlowStepCompleted", slug)
        self.entries = [entry for entry in self.entries if entry != completed]
        self.log(place, "FlowStepFailed", details.write(error=raw(error)))
        self.failures[run_id] = error
