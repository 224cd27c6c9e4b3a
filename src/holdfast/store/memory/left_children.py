"""Children that a run has let go: its retry takes them over, so that none is started twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from holdfast.events import CHILD_CANCEL, CHILD_COMPLETED, CHILD_FAILED, CHILD_STARTED, SIGNAL_SENT
from holdfast.store.memory import children, details
from holdfast.store.memory.chains import newest, receiver
from holdfast.store.memory.ends import tell_parents
from holdfast.store.memory.retries import Fatal, without_failures
from holdfast.store.memory.rows import ParentClose
from holdfast.store.memory.tables import Tables
from holdfast.types import ErrorInfo, Event, Notice, RunKind


class _Sent(msgspec.Struct, frozen=True):
    run_id: UUID
    signal_id: str | None = None


class _Started(msgspec.Struct, frozen=True):
    workflow_name: str
    child_run_id: UUID
    parent_close: ParentClose
    kind: RunKind | None = None

    def is_gone(self, tables: Tables) -> bool:
        """Return True for a run of a workflow that was let go, and deleted after its end.

        Its first run may be kept for an hour after the last. No rule can have refused it in the
        commit that ended the run.
        """
        last = tables.runs.get(newest(tables, self.child_run_id))
        return (
            (self.parent_close, self.kind) == ("abandon", "workflow")
            and (last is None or last.status == "continued")
            and self.workflow_name not in tables.start_rules
        )


class Left(msgspec.Struct, frozen=True):
    """The children of a run that its retry takes over, with the keys of their calls.

    Of a child that continued as new, all runs. `gone` are those that were deleted, by key.
    """

    children: Mapping[UUID, str] = {}
    gone: Mapping[str, UUID] = {}

    def keys(self, tables: Tables) -> set[str]:
        """Return the keys of the calls that the log of a retry has without an end."""
        runs = tables.runs
        return {k for each, k in self.children.items() if runs[each].status != "continued"} | {
            *self.gone
        }


def left_children(tables: Tables, run_id: UUID, events: Sequence[Event], fatal: Fatal) -> Left:
    """Return the children that a retry takes over.

    The run has let them go, has not asked them to stop, and was not told of their ends.
    """
    over = {CHILD_COMPLETED, CHILD_FAILED, CHILD_CANCEL}
    known = {row.event.key for row in tables.logs[run_id] if row.event.type in over}
    calls = {
        event.key or "": details.read(event.details, _Started)
        for event in without_failures(events, fatal)
        if event.type == CHILD_STARTED and event.key not in known
    }
    parents = {child_id: tables.runs[child_id].parent for child_id in tables.children[run_id]}
    left = {
        child_id: parent.key
        for child_id, parent in parents.items()
        if parent is not None and parent.close == "abandon" and parent.key in calls
    }
    there = Left(left).keys(tables)
    gone = {
        key: call.child_run_id
        for key, call in calls.items()
        if key not in there and call.is_gone(tables)
    }
    return Left(left, gone)


def take_over_children(tables: Tables, left: Left, run_id: UUID, new_run_id: UUID) -> None:
    """Let a retry be told of the ends of these children."""
    for child_id in left.children:
        row = tables.runs[child_id]
        assert row.parent is not None, "a child has a parent"
        row.parent = msgspec.structs.replace(row.parent, run_id=new_run_id)
        tables.children[run_id].remove(child_id)
        tables.children[new_run_id].append(child_id)


def hear(tables: Tables, now: int, new_run_id: UUID, left: Left) -> list[Notice]:
    """Tell a retry what the children that it has taken over did meanwhile.

    It gets the signals that they sent to the runs that it retries, except those that its log has,
    and their ends, also of those that were deleted.
    """
    for key, gone in sorted(left.gone.items()):
        why = f"run {gone} was deleted before this retry"
        error = ErrorInfo("holdfast.errors.RunNotFound", why)
        told = details.write(child_run_id=str(gone), status="deleted", error=error)
        tables.append(new_run_id, Event(CHILD_FAILED, key, told, now))
    child_ids = list(left.children)
    sent = [
        (row.event.at, run_id, idx, row.event)
        for run_id in child_ids
        for idx, row in enumerate(tables.logs[run_id])
        if row.event.type == SIGNAL_SENT
    ]
    notices: list[Notice] = []
    for _, run_id, _, event in sorted(sent, key=lambda each: each[:3]):
        sent_to = details.read(event.details, _Sent)
        if sent_to.signal_id and receiver(tables, run_id, sent_to.run_id) != sent_to.run_id:
            notices += children.signal([], tables, now, run_id, event)
    ended = [run_id for run_id in child_ids if not tables.is_running(run_id)]
    return notices + tell_parents(tables, now, sorted(ended))
