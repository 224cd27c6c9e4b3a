"""Commit turns: append at the expected index, suspend or finish, then carry out the commands.

First all parts are written, then what they do to other runs is carried out. So if a child ends in
the commit in which its parent suspends, it finds the parent suspended, and wakes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast import events
from holdfast.details import Target
from holdfast.errors import PayloadError
from holdfast.store.memory import (
    activities,
    approvals,
    attempts,
    attributes,
    children,
    details,
    streams,
    topics,
    webhooks,
)
from holdfast.store.memory.database import Part
from holdfast.store.memory.ends import close_children, tell_parents
from holdfast.store.memory.payloads import check_turn
from holdfast.store.memory.rows import NEVER, TURN
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    Ahead,
    Committed,
    Event,
    Finish,
    Notice,
    Refusal,
    Suspend,
    TurnCommit,
    Undelivered,
)


class MemoryCommits(Part):
    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        async with self._transaction() as (tables, now):
            if len({turn.run_id for turn in turns}) != len(turns):
                raise ValueError("a run occurs twice in one commit")
            if not all(turn.events for turn in turns):
                raise ValueError("a turn commits at least one event")
            refused: dict[UUID, Refusal] = {}
            written: list[TurnCommit] = []
            ahead: dict[UUID, Ahead] = {}
            for turn in turns:
                if (
                    turn.after_others
                    and (place := _place_after_others(tables, turn, token)) > turn.expected
                ):
                    tail = tables.read(turn.run_id, turn.expected)[: place - turn.expected]
                    ahead[turn.run_id] = Ahead(tail)
                    turn = msgspec.structs.replace(turn, expected=place, last_at=0)
                if _is_written(tables, turn, token):
                    continue
                refusal = _refusal(tables, worker_id, turn)
                if refusal is not None:
                    refused[turn.run_id] = refusal
                    ahead.pop(turn.run_id, None)
                    continue
                _check_flags(tables, turn)
                written.append(turn)
            written.sort(key=lambda turn: turn.run_id)
            notices: list[Notice] = []
            undelivered: list[Undelivered] = []
            for turn in written:
                notices += _apply(tables, now, worker_id, token, turn)
            commands = [(turn.run_id, event) for turn in written for event in turn.events]
            for kind in CARRIED_OUT:
                for run_id, event in commands:
                    if event.type == kind:
                        notices += _carry_out(tables, now, run_id, event, undelivered)
            ended = [turn.run_id for turn in written if isinstance(turn.then, Finish)]
            notices += tell_parents(tables, now, ended)
            notices += close_children(tables, now, ended)
            return Committed(now, refused, distinct(notices), ahead, undelivered)


CARRIED_OUT = (  # new things are made, then others are withdrawn, at last other runs are told
    events.ATTRIBUTES_SET,
    events.STREAM_WRITTEN,
    events.EVENT_SUBSCRIBED,
    events.ACTIVITY_SCHEDULED,
    events.APPROVAL_REQUESTED,
    events.WEBHOOK_OPENED,
    events.CHILD_STARTED,
    events.CONTINUED,
    events.ACTIVITY_CANCEL,
    events.APPROVAL_WITHDRAWN,
    events.WEBHOOK_CLOSED,
    events.SIGNAL_SENT,
    events.CHILD_CANCEL,
)


def _place_after_others(tables: Tables, turn: TurnCommit, token: UUID) -> int:
    """Return the index of a part that was, or may be, written after events of others."""
    log = tables.logs.get(turn.run_id, [])
    for place, row in enumerate(log[turn.expected :], turn.expected):
        if row.token == token:
            return place
    waits = _is_known(tables, turn) and all(
        events.can_wait(row.event) for row in log[turn.expected :]
    )
    return max(turn.expected, len(log)) if waits else turn.expected


def _is_known(tables: Tables, turn: TurnCommit) -> bool:
    """Return True if the log has the entry before the expected index that the worker knows."""
    known = tables.read(turn.run_id, turn.expected - 1)[:1]
    return turn.last_at in (0, *(event.at for event in known))


def _check_flags(tables: Tables, turn: TurnCommit) -> None:
    """Raise ValueError if a part does not announce what it does to others.

    PostgreSQL looks only at what is announced: a caller that works here must work there too.
    """
    touched: set[UUID | None] = set()
    for event in turn.events:
        if event.type in events.COMMANDS and not turn.has_commands:
            raise ValueError(f"{event.type} is a command, and the part does not say `has_commands`")
        if event.type == "SignalSent":
            touched.add(details.read(event.details, Target).run_id)
        if event.type == "ChildCancelRequested":
            touched.add(details.read(event.details, Target).child_run_id)
    if isinstance(turn.then, Finish):
        parent = tables.runs[turn.run_id].parent
        if parent is not None and turn.then.status != "continued":
            touched.add(parent.run_id)
        starts = any(event.type == events.CHILD_STARTED for event in turn.events)
        if not turn.has_children and (starts or tables.open_children(turn.run_id)):
            raise ValueError(f"run {turn.run_id} has children, and its end does not say so")
    if not touched <= {*turn.touches, turn.run_id}:
        raise ValueError(f"run {turn.run_id} writes to runs that `touches` does not name")


def _is_written(tables: Tables, turn: TurnCommit, token: UUID) -> bool:
    """Return True if an earlier attempt of this call wrote this part, and its answer was lost."""
    log = tables.logs.get(turn.run_id, [])
    return turn.expected < len(log) and log[turn.expected].token == token


def _refusal(tables: Tables, worker_id: str, turn: TurnCommit) -> Refusal | None:
    """Return why a part cannot be written, None if it can."""
    try:
        check_turn(turn)
    except PayloadError as error:
        return Refusal("invalid", [], str(error))
    task = tables.tasks.get((turn.run_id, TURN))
    tail = tables.read(turn.run_id, turn.expected)
    if task is None or task.worker != worker_id or task.lease_no != turn.lease_no:
        return Refusal("lost", tail)
    if not _is_known(tables, turn):
        return Refusal("conflict", [])
    if turn.expected != len(tables.logs[turn.run_id]):
        return Refusal("conflict", tail)
    return None


def _apply(tables: Tables, now: int, worker_id: str, token: UUID, turn: TurnCommit) -> list[Notice]:
    first, *others = turn.events
    tables.append(turn.run_id, first, token)
    for event in others:
        tables.append(turn.run_id, event)
    match turn.then:
        case Suspend():
            _suspend(tables, worker_id, turn.run_id, turn.then)
            return []
        case Finish(status, output, error):
            return tables.end(turn.run_id, status, now, output=output, error=error)
        case None:
            return []


def _suspend(tables: Tables, worker_id: str, run_id: UUID, suspend: Suspend) -> None:
    """Give the lease back; later, the worker that has the run in memory is preferred."""
    task = tables.turn(run_id)
    task.worker, task.sticky_worker = None, worker_id
    task.visible_at = NEVER if suspend.visible_at is None else suspend.visible_at
    task.awaiting = suspend.awaiting
    task.attempts, task.stuck, task.stuck_tries = 0, None, 0


def _carry_out(
    tables: Tables, now: int, run_id: UUID, event: Event, undelivered: list[Undelivered]
) -> list[Notice]:
    """Carry out an event of a commit if it is a command; return the notices.

    Signals that cannot be delivered are added to `undelivered`.
    """
    match event.type:
        case events.ATTRIBUTES_SET:
            attributes.carry_out(tables, run_id, event)
            return []
        case events.ACTIVITY_SCHEDULED:
            return activities.schedule(tables, now, run_id, event)
        case events.ACTIVITY_CANCEL:
            return activities.cancel(tables, now, run_id, event)
        case events.APPROVAL_REQUESTED:
            return approvals.request(tables, now, run_id, event)
        case events.APPROVAL_WITHDRAWN:
            return approvals.withdraw(tables, run_id, event)
        case events.WEBHOOK_OPENED:
            return webhooks.open_url(tables, run_id, event)
        case events.WEBHOOK_CLOSED:
            return webhooks.close_url(tables, run_id, event)
        case events.CHILD_STARTED:
            return children.start(tables, now, run_id, event)
        case events.CHILD_CANCEL:
            return children.cancel(tables, now, run_id, event)
        case events.STREAM_WRITTEN:
            return streams.write_of_code(tables, now, run_id, event)
        case events.EVENT_SUBSCRIBED:
            return topics.subscribe_run(tables, now, run_id, event)
        case events.SIGNAL_SENT:
            return children.signal(tables, now, run_id, event, undelivered)
        case events.CONTINUED:
            return attempts.continue_run(tables, now, run_id, event)
        case _:
            return []
