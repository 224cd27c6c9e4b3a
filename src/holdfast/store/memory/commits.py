"""Commit turns: append at the expected index, suspend or finish, then carry out the commands.

First all parts are written, then what they do to other runs is carried out. So if a child ends in
the commit in which its parent suspends, it finds the parent suspended, and wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias
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
from holdfast.store.memory.chains import first_parent
from holdfast.store.memory.database import Part
from holdfast.store.memory.ends import close_children, tell_parents
from holdfast.store.memory.payloads import check_turn
from holdfast.store.memory.rows import NEVER, TURN
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    Ahead,
    Committed,
    Finish,
    Notice,
    Refusal,
    Suspend,
    TurnCommit,
    Undelivered,
)

Carry: TypeAlias = Callable[..., list[Notice]]


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
            signal: Carry = partial(children.signal, undelivered)
            for kind, carry_out in {**CARRIED_OUT, events.SIGNAL_SENT: signal}.items():
                for run_id, event in commands:
                    if event.type == kind:
                        notices += carry_out(tables, now, run_id, event)
            ended = [turn.run_id for turn in written if isinstance(turn.then, Finish)]
            notices += tell_parents(tables, now, ended)
            notices += close_children(tables, now, ended)
            return Committed(now, refused, distinct(notices), ahead, undelivered)


# New things are made, then others are withdrawn, at last other runs are told. Each returns notices.
# That of signals is given a list for those that cannot be delivered, before the other arguments.
CARRIED_OUT: Final[dict[str, Carry]] = {
    events.ATTRIBUTES_SET: attributes.carry_out,
    events.STREAM_WRITTEN: streams.write_of_code,
    events.EVENT_SUBSCRIBED: topics.subscribe_run,
    events.ACTIVITY_SCHEDULED: activities.schedule,
    events.APPROVAL_REQUESTED: approvals.request,
    events.WEBHOOK_OPENED: webhooks.open_url,
    events.CHILD_STARTED: children.start,
    events.CONTINUED: attempts.continue_run,
    events.ACTIVITY_CANCEL: activities.cancel,
    events.APPROVAL_WITHDRAWN: approvals.withdraw,
    events.WEBHOOK_CLOSED: webhooks.close_url,
    events.SIGNAL_SENT: children.signal,
    events.CHILD_CANCEL: children.cancel,
}


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
            touched.add(first_parent(tables, parent))
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
