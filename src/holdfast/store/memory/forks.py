"""Forks and retries: new runs with copies of other runs' logs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.details import Forked
from holdfast.errors import InvalidInput
from holdfast.events import (
    ACTIVITY_COMPLETED,
    CANCEL_REQUESTED,
    CHILD_STARTED,
    COMMAND_ENDS,
    COMMAND_OF,
    EVENT_SUBSCRIBED,
    FORKED,
    PAUSED,
    RESCHEDULED,
    RESUMED,
    SIGNAL_SENT,
    STEP_COMPLETED,
    STEP_ENDS,
    STEP_RETRY,
    STREAM_WRITTEN,
    TERMINAL,
    VALUE_RECORDED,
    WEBHOOK_OPENED,
    WORKER_LOST,
    YIELDED,
    read_forked,
    read_seen,
    without_mark,
)
from holdfast.store.memory import details
from holdfast.store.memory.builds import set_build
from holdfast.store.memory.children import successor
from holdfast.store.memory.database import Part
from holdfast.store.memory.large_payloads import share_payloads
from holdfast.store.memory.left_children import Left, hear, left_children, take_over_children
from holdfast.store.memory.payloads import check_fork, is_unreadable
from holdfast.store.memory.retries import Fatal, made_again, without_failures
from holdfast.store.memory.rows import EventRow, RunRow
from holdfast.store.memory.starts import insert_run
from holdfast.store.memory.streams import continue_streams
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.webhooks import take_over
from holdfast.store.port import WORK_TOPIC
from holdfast.types import Event, Fork, Forking, Notice, RetryPlan

_ENDS: Final[Mapping[str, frozenset[str]]] = {
    command: frozenset(kind for kind in COMMAND_ENDS if COMMAND_OF[kind] == command)
    for command in map(COMMAND_OF.__getitem__, COMMAND_ENDS)
}
# A subscription has no end: the code of the fork asks for its own.
NEVER_COPIED: Final = TERMINAL | {
    EVENT_SUBSCRIBED,
    PAUSED,
    RESCHEDULED,
    RESUMED,
    STREAM_WRITTEN,
    WORKER_LOST,
    YIELDED,
}
_LEFT_OUT: Final = NEVER_COPIED - {STREAM_WRITTEN}  # a retry continues the streams
_ENDED: Final = COMMAND_ENDS | STEP_ENDS | {SIGNAL_SENT}
_REPLACEABLE: Final = frozenset({STEP_COMPLETED, ACTIVITY_COMPLETED})


class _Child(msgspec.Struct, frozen=True):
    child_run_id: str


class _Sent(msgspec.Struct, frozen=True):
    run_id: str


class MemoryForks(Part):
    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_fork(fork)
            if fork.run_id in tables.runs and tables.runs[fork.run_id].is_flow:
                raise InvalidInput(f"run {fork.run_id} is one of a flow: fork it with fork_flow")
            if fork.new_run_id in tables.runs:
                return "exists", []
            if fork.run_id not in tables.runs:
                return "missing", []
            origin, log = tables.runs[fork.run_id], tables.logs[fork.run_id]
            if fork.retry and origin.status in ("running", "completed", "continued"):
                return "running", []
            if fork.until is not None and not 1 <= fork.until <= len(log):
                return "bad_index", []
            until = len(log) if fork.until is None else fork.until
            events = [row.event for row in log[:until]]
            fatal, left = None, Left()
            if fork.retry:
                fatal = made_again(events, origin, failed_steps=fork.failed_steps)
                left = left_children(tables, fork.run_id, events, fatal)
            never = _LEFT_OUT if fork.retry else NEVER_COPIED
            events = forked_events(events, fatal, never, left.keys(tables))
            keys = {event.key for event in events if event.type in _REPLACEABLE}
            if not fork.results.keys() <= keys:
                return "unknown_key", []
            if any(is_unreadable(event) for event in events):
                return "unreadable", []
            new = msgspec.structs.replace(
                successor(origin),
                run_id=fork.new_run_id,
                version=origin.new.version if fork.version is None else fork.version,
                input=origin.new.input if fork.input is None else fork.input,
            )
            insert_run(tables, now, new)
            set_build(tables, new.run_id, origin.build)
            events = [_replaced(event, fork.results) for event in events]
            told = forked(origin, until, log, fatal, now)
            if fork.retry:
                continue_streams(tables, fork.run_id, new.run_id)
            take_over_children(tables, left, fork.run_id, fork.new_run_id)
            write_log(tables, fork.run_id, fork.new_run_id, [*events, told])
            notices = hear(tables, now, fork.new_run_id, left)
            return "forked", [Notice(WORK_TOPIC, tables.runs[fork.new_run_id].queue), *notices]

    async def retry_plan(self, run_id: UUID, *, failed_steps: bool = False) -> RetryPlan:
        async with self._transaction() as (tables, _):
            run = tables.runs.get(run_id)
            if run is None or run.is_flow or run.status in ("running", "completed", "continued"):
                return RetryPlan()
            events = [row.event for row in tables.logs[run_id]]
            fatal = made_again(events, run, failed_steps=failed_steps)
            left = left_children(tables, run_id, events, fatal).keys(tables)
            copy = forked_events(events, fatal, left=left)
            kept = {each.key for each in copy if each.type in _ENDED} | left
            after = fatal.after - fatal.calls
            keys = [
                each.key or ""
                for each in events
                if each.type in _ENDED or (each.type == CHILD_STARTED and each.key in left)
            ]
            return RetryPlan(
                kept=tuple(key for key in keys if key in kept),
                failed=tuple(key for key in keys if key not in kept | after),
                after=tuple(key for key in keys if key not in kept and key in after),
                cancel=not fatal.uncancelled
                and any(event.type == CANCEL_REQUESTED for event in events),
            )


def write_log(tables: Tables, run_id: UUID, new_run_id: UUID, events: Sequence[Event]) -> None:
    """Write the log of a new run that begins with that of another, and what goes with it."""
    origin = tables.runs[run_id]
    running = origin.status == "running"
    began = tables.turn(run_id).started_at if running else origin.started_at
    clock = began if origin.clock_at is None else origin.clock_at
    tables.runs[new_run_id].clock_at = clock
    tables.logs[new_run_id] = []
    for event in events:
        tables.append(new_run_id, event)
    share_payloads(tables, run_id, new_run_id)
    take_over(tables, new_run_id)


def forked_events(
    events: Sequence[Event],
    fatal: Fatal | None,
    never: Container[str] = NEVER_COPIED,
    left: Container[str | None] = (),
) -> list[Event]:
    """Return the events that a fork gets, or a retry without the calls that it makes again.

    Events of the types in `never` are left out, and what the code of the copy says again of the
    exceptions that it handles. So are writes to a stream after one that is: keys count them. The
    children of the calls `left` are taken over.
    """
    events = _as_delivered(events)
    if fatal is not None:
        events = _untried(events, fatal)
    after = () if fatal is None else [_numbered(key) for key in fatal.after]
    return _answered(
        [event for event in events if event.type not in never and not _is_said_again(event, after)],
        left,
    )


def _is_said_again(event: Event, after: Sequence[tuple[str, int]]) -> bool:
    key = event.key or ""
    if event.type != STREAM_WRITTEN:
        return event.type == VALUE_RECORDED and key.startswith("caught:")
    name, number = _numbered(key)
    return any(other == name and before < number for other, before in after)


def _numbered(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition("#")
    return (name, int(number)) if number.isdecimal() and name else (key, 1)


def _as_delivered(events: Sequence[Event]) -> list[Event]:
    """Return events in the order in which the code saw them; the log may have another one."""
    places = {id(event): _place(idx, event) for idx, event in enumerate(events)}
    return [without_mark(event) for event in sorted(events, key=lambda event: places[id(event)])]


def _place(idx: int, event: Event) -> tuple[int, bool, int]:
    """Return a key that sorts events into the order in which the code saw them."""
    seen = read_seen(event)
    return (idx, True, idx) if seen is None else (seen, False, idx)


def _untried(events: Sequence[Event], fatal: Fatal) -> list[Event]:
    """Leave out the calls that are made again. Steps without an end begin at attempt 1."""
    events = list(without_failures(events, fatal))
    ended = {event.key for event in events if event.type in STEP_ENDS}
    return [
        event
        for event in events
        if (event.type != STEP_RETRY or event.key in ended)
        and not (event.type == CANCEL_REQUESTED and fatal.uncancelled)
    ]


def _answered(events: Sequence[Event], left: Container[str | None]) -> list[Event]:
    """Leave out commands without an end, and events about them, such as a signal to a child.

    The fork starts such a child again, as another run, unless the call is `left`. A webhook stays:
    others have its URL.
    """
    ends = {(event.type, event.key) for event in events}
    commands = {
        (event.type, event.key)
        for event in events
        if any((end, event.key) in ends for end in _ENDS.get(event.type, ()))
        or (event.type == CHILD_STARTED and event.key in left)
    }
    strangers = {
        details.read(event.details, _Child).child_run_id
        for event in events
        if event.type == CHILD_STARTED and (event.type, event.key) not in commands
    }
    return [
        event
        for event in events
        if (
            event.type not in _ENDS
            or event.type == WEBHOOK_OPENED
            or (event.type, event.key) in commands
        )
        and (event.type not in COMMAND_OF or (COMMAND_OF[event.type], event.key) in commands)
        and not (
            event.type == SIGNAL_SENT and details.read(event.details, _Sent).run_id in strangers
        )
    ]


def _replaced(event: Event, results: Mapping[str, str]) -> Event:
    """Return an event with the result that the fork gives instead, if it gives one."""
    if event.type not in _REPLACEABLE or event.key is None or event.key not in results:
        return event
    fields = details.read(event.details, dict[str, msgspec.Raw])
    fields["result"] = msgspec.Raw(results[event.key].encode())
    return Event(event.type, event.key, details.write(**fields), event.at)


def forked(
    origin: RunRow,
    until: int,
    log: Sequence[EventRow],
    fatal: Fatal | None,
    now: int,
    **attempt: object,
) -> Event:
    """Return the last event of the copy. Ids and random numbers keep the first origin's seed.

    `attempt` is what it says of the attempt that failed before, and its error.
    """
    run_id = origin.new.run_id
    mark = _mark([row.event for row in log]) or Forked(run_id, run_id)
    if key := origin.new.key or mark.run_key:
        attempt["run_key"] = key
    again = _again(fatal, [row.event for row in log], until)
    after = None if fatal is None or until < len(log) else sorted(fatal.after)
    told = details.write(
        run_id=run_id, idx=until, seed=mark.seed, again=again, after=after, **attempt
    )
    return Event(FORKED, None, told, now)


def _mark(events: Sequence[Event]) -> Forked | None:
    found = [event for event in events if event.type == FORKED]
    return read_forked(found[-1].details or "") if found else None


def _again(fatal: Fatal | None, events: Sequence[Event], until: int) -> list[str] | None:
    """Return the calls that the copy of a log lacks, None if any other call may come before them.

    If it lacks a cancel, it may have what the code did beside it. If it ends before the log says
    that it is that of a retry, it lacks what that retry makes again.
    """
    left = [
        read_forked(event.details or "").again for event in events[until:] if event.type == FORKED
    ]
    if None in left or (fatal is not None and fatal.uncancelled):
        return None
    lacks = {key for each in left for key in each or ()}
    return sorted(lacks if fatal is None else lacks | fatal.calls)
