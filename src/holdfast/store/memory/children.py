"""Commands to other runs: start a child, ask it to stop, signal, continue as a new run."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from holdfast.details import ChildCancelRequested, ContinuedAsNew
from holdfast.errors import HoldfastError, InvalidInput, RunExists, UnknownFlow
from holdfast.store.memory import details
from holdfast.store.memory.builds import build_of_start, set_build
from holdfast.store.memory.chains import newest, receiver
from holdfast.store.memory.choosing import pass_places
from holdfast.store.memory.ends import request_cancels
from holdfast.store.memory.flows.starts import start_child_flow
from holdfast.store.memory.forwarding import forward_signal
from holdfast.store.memory.rows import Parent, ParentClose, RunRow, TaskRow
from holdfast.store.memory.signals import pass_signals, send_signals
from holdfast.store.memory.starts import insert_run, start_free
from holdfast.store.memory.streams import continue_streams
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.topics import move_subscriptions
from holdfast.store.port import FORWARDS_TOPIC, WORK_TOPIC, refusal
from holdfast.types import (
    AttributeValue,
    ErrorInfo,
    Event,
    NewRun,
    NewSignal,
    Notice,
    RunKind,
    Undelivered,
)
from holdfast.values.composing import compose
from holdfast.values.trace_ids import successor_headers

_NULL: Final = msgspec.Raw(b"null")


class _ChildStarted(msgspec.Struct, frozen=True):
    workflow_name: str
    version: int
    child_run_id: UUID
    input: msgspec.Raw
    parent_close: ParentClose
    queue: str | None = None
    priority: int | None = None
    key: str | None = None
    timeout: float | None = None
    retention: float | None = None
    tags: tuple[str, ...] = ()
    attributes: dict[str, AttributeValue] = {}
    headers: dict[str, str] | None = None
    kind: RunKind | None = None  # None: the program that starts it knows its name only

    def is_flow(self, tables: Tables) -> bool:
        if self.kind is None:
            return f"{self.workflow_name}@{self.version}" in tables.shapes
        return self.kind == "flow"


class _SignalSent(msgspec.Struct, frozen=True):
    run_id: UUID
    signal_name: str
    input: msgspec.Raw = _NULL
    signal_id: str | None = None


def start(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ChildStarted. If the run exists, use it if it is this run's child, else refuse."""
    command = details.read(event.details, _ChildStarted)
    existing = tables.runs.get(command.child_run_id)
    if existing is not None:
        ours = existing.parent is not None and existing.parent.run_id == run_id
        ours = ours and _has_started(tables, run_id, command.child_run_id, event.key)
        exists = RunExists(command.child_run_id)
        return [] if ours else _refuse(tables, now, run_id, command.child_run_id, event.key, exists)
    new = compose(
        NewRun,
        command,
        run_id=command.child_run_id,
        kind="workflow",
        name=command.workflow_name,
        input=bytes(command.input).decode(),
        timeout_seconds=command.timeout,
        retention_seconds=command.retention,
    )
    parent = Parent(run_id, event.key or "", command.parent_close)
    if command.is_flow(tables):
        try:
            return start_child_flow(tables, now, new, parent)
        except (UnknownFlow, InvalidInput) as error:
            return _refuse(tables, now, run_id, command.child_run_id, event.key, error)
    started = start_free(tables, now, new, parent)
    if started.refused is None:
        return [Notice(WORK_TOPIC, tables.runs[started.run_id].queue)]
    return _refuse(tables, now, run_id, command.child_run_id, event.key, refusal(new.name, started))


def _has_started(tables: Tables, run_id: UUID, child_id: UUID, key: str | None) -> bool:
    """Return True if the log says that another call of a run has started a child.

    Otherwise a deleted run that had the same id has started it.
    """
    return any(
        details.read(event.details, _ChildStarted).child_run_id == child_id
        for event in tables.read(run_id)
        if event.type == "ChildStarted" and event.key != key
    )


def _refuse(
    tables: Tables, now: int, run_id: UUID, child_id: UUID, key: str | None, why: HoldfastError
) -> list[Notice]:
    if not tables.is_running(run_id):
        return []
    error = ErrorInfo(kind=f"holdfast.errors.{type(why).__name__}", message=str(why))
    told = details.write(child_run_id=str(child_id), status="refused", error=error)
    return tables.tell(run_id, Event("ChildFailed", key, told, now))


def cancel(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ChildCancelRequested: cancel the last run that the child continued as.

    A run that was refused as a child is left alone.
    """
    command = details.read(event.details, ChildCancelRequested)
    child_id = newest(tables, command.child_run_id)
    row = tables.runs.get(child_id)
    if row is None or row.parent is None or row.parent.run_id != run_id:
        return []
    return request_cancels(tables, now, {child_id: details.write(reason=command.reason)})[1]


def signal(
    undelivered: list[Undelivered], tables: Tables, now: int, sender: UUID, event: Event
) -> list[Notice]:
    """Carry out SignalSent; record it as undelivered if there is no such run, or it has ended.

    The retry of a parent gets what its children send to the run that it retries.
    """
    command = details.read(event.details, _SignalSent)
    target = receiver(tables, sender, command.run_id)
    run_id, payload = newest(tables, target), bytes(command.input).decode()
    sent = NewSignal(run_id, command.signal_name, payload, command.signal_id)
    delivered = send_signals(tables, now, [sent])
    [outcome] = delivered.outcomes
    if outcome == "missing" and forward_signal(tables, sent):
        return [Notice(FORWARDS_TOPIC, "")]
    if outcome in ("ended", "missing"):
        undelivered.append(Undelivered(sender, run_id, command.signal_name, outcome))
    return delivered.notices


def continue_as_new(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out WorkflowContinuedAsNew: start a run that takes the place of this one."""
    command, old = details.read(event.details, ContinuedAsNew), tables.runs[run_id]
    new = msgspec.structs.replace(
        successor(old),
        run_id=command.run_id,
        version=command.version,
        input=bytes(command.input).decode(),
    )
    take_place(tables, old, insert_run(tables, now, new, old.parent, run_id))
    set_build(tables, new.run_id, build_of_start(tables, new))
    for carried in command.signals:
        sent = NewSignal(
            command.run_id,
            carried.signal_name,
            bytes(carried.input).decode(),
            carried.key,
            carried.update,
            carried.reply_to,
        )
        pass_signals(tables, now, [sent])
    return [Notice(WORK_TOPIC, tables.runs[new.run_id].queue)]


def take_place(tables: Tables, old: RunRow, turn: TaskRow) -> None:
    """Let a new run have what belongs to the run that it continues."""
    run_id, key = turn.run_id, old.singleton_key
    pass_places(tables, old, turn)
    if key is not None:
        tables.runs[run_id].singleton_key = key
        tables.start_keys["singleton", old.new.name, key].run_id = run_id
    move_subscriptions(tables, old.new.run_id, run_id)
    continue_streams(tables, old.new.run_id, run_id)


def successor(old: RunRow) -> NewRun:
    """Return a new run with the properties of another one, but without its key."""
    timeout = None if old.deadline_at is None else (old.deadline_at - old.created_at) / 1e6
    return msgspec.structs.replace(
        old.new,
        key=None,
        headers=successor_headers(old.new.headers, old.new.run_id),
        start_at=None,
        delay_seconds=None,
        timeout_seconds=timeout,
        waiter=None,
    )
