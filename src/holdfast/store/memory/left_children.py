"""Children that a run has let go: its retry takes them over, so that none is started twice."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.events import CHILD_CANCEL, CHILD_COMPLETED, CHILD_FAILED, CHILD_STARTED, SIGNAL_SENT
from holdfast.store.memory import children, details
from holdfast.store.memory.chains import receiver
from holdfast.store.memory.ends import tell_parents
from holdfast.store.memory.retries import Fatal, without_failures
from holdfast.store.memory.tables import Tables
from holdfast.types import Event, Notice


class _Sent(msgspec.Struct, frozen=True):
    run_id: UUID


def left_children(
    tables: Tables, run_id: UUID, events: Sequence[Event], fatal: Fatal
) -> dict[UUID, str]:
    """Return the children that a retry takes over, with the keys of their calls.

    The run has let them go, has not asked them to stop, and was not told of their ends. Of a child
    that continued as new, return all runs.
    """
    over = {CHILD_COMPLETED, CHILD_FAILED, CHILD_CANCEL}
    known = {row.event.key for row in tables.logs[run_id] if row.event.type in over}
    kept = (each for each in without_failures(events, fatal) if each.type == CHILD_STARTED)
    keys = {each.key for each in kept} - known
    parents = {child_id: tables.runs[child_id].parent for child_id in tables.children[run_id]}
    return {
        child_id: parent.key
        for child_id, parent in parents.items()
        if parent is not None and parent.close == "abandon" and parent.key in keys
    }


def take_over_children(
    tables: Tables, left: dict[UUID, str], run_id: UUID, new_run_id: UUID
) -> None:
    """Let a retry be told of the ends of these children."""
    for child_id in left:
        row = tables.runs[child_id]
        assert row.parent is not None, "a child has a parent"
        row.parent = msgspec.structs.replace(row.parent, run_id=new_run_id)
        tables.children[run_id].remove(child_id)
        tables.children[new_run_id].append(child_id)


def left_keys(tables: Tables, left: dict[UUID, str]) -> set[str]:
    """Return the keys of the calls that the log of a retry has without an end."""
    return {key for child_id, key in left.items() if tables.runs[child_id].status != "continued"}


def hear(tables: Tables, now: int, child_ids: Sequence[UUID]) -> list[Notice]:
    """Tell a retry what the children that it has taken over have sent to the runs that it retries.

    And how those have ended that did so meanwhile. A signal that its log has is not sent again.
    """
    sent = [
        (row.event.at, run_id, idx, row.event)
        for run_id in child_ids
        for idx, row in enumerate(tables.logs[run_id])
        if row.event.type == SIGNAL_SENT
    ]
    notices: list[Notice] = []
    for _, run_id, _, event in sorted(sent, key=lambda each: each[:3]):
        target = details.read(event.details, _Sent).run_id
        if receiver(tables, run_id, target) != target:
            notices += children.signal([], tables, now, run_id, event)
    ended = [run_id for run_id in child_ids if not tables.is_running(run_id)]
    return notices + tell_parents(tables, now, sorted(ended))
