"""What becomes of ticks: their policies, the runs that they start, their buckets."""

from __future__ import annotations

import json
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput, UnknownFlow
from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.ends import end_from_outside, request_cancels
from holdfast.store.memory.flows.starts import start_flows
from holdfast.store.memory.schedules.rows import ScheduleRow
from holdfast.store.memory.schedules.senders import send_tick
from holdfast.store.memory.starts import start_free
from holdfast.store.memory.tables import Tables
from holdfast.store.port import SCHEDULES_TOPIC, WORK_TOPIC, refusal
from holdfast.types import (
    MOST_BUFFERED,
    Bucket,
    Event,
    NewRun,
    Notice,
    Overlap,
    RunTarget,
    SendTarget,
    SkipCause,
    TickOrigin,
    TickOutcome,
    tick_headers,
    tick_jitter,
    tick_key,
)
from holdfast.values.composing import compose
from holdfast.values.ids import keyed_run_id
from holdfast.values.trace_ids import successor_headers

_MOST_OPEN = 100  # runs that a schedule remembers
_STOPPED = details.write(reason="the next tick of its schedule")


def still_open(tables: Tables, row: ScheduleRow) -> list[UUID]:
    """Return the runs of a schedule that have not ended; of a chain of runs, the newest."""
    found: list[UUID] = []
    for run_id in row.open_run_ids:
        newest = run_id
        while (run := tables.runs.get(newest)) is not None and run.status == "continued":
            newest = UUID(json.loads(run.output or "")["run_id"])
        if tables.is_running(newest) and newest not in found:
            found.append(newest)
    return found


def startable(tables: Tables, row: ScheduleRow) -> list[int]:
    """Return the buffered ticks that may start; during a pause, those that were asked for."""
    if not row.buffered:
        return []
    return [
        at
        for at, bucket in tables.buckets[row.new.name].items()
        if bucket.outcome == "buffered" and (row.paused_at is None or bucket.origin != "tick")
    ]


def fire_tick(
    tables: Tables, now: int, row: ScheduleRow, at: int, origin: TickOrigin, asked: Overlap | None
) -> list[Notice]:
    """Fire a tick of a schedule, unless it has been fired, and write its bucket."""
    name, overlap = row.new.name, asked or row.new.policy.overlap
    bucket = tables.buckets[name].get(at)
    if bucket is not None and bucket.until is None and _is_final(bucket, origin):
        return []
    opened, notices = still_open(tables, row), list[Notice]()
    stopped = None if bucket is None else bucket.stopped_run_id
    if opened and overlap == "terminate_running":
        stopped = opened[-1]
        event = Event("WorkflowTerminated", None, _STOPPED, now)
        notices += end_from_outside(tables, opened, "terminated", event)[1]
    if opened and overlap == "cancel_running":
        stopped = opened[-1]
        notices += request_cancels(tables, now, dict.fromkeys(opened, _STOPPED))[1]
    opened = still_open(tables, row)
    row.open_run_ids = opened
    if overlap in ("buffer_one", "buffer_all", "cancel_running"):
        await_ends(tables, opened)
    outcome, cause = _judge(len(startable(tables, row)), overlap, opened)
    if overlap in ("cancel_running", "terminate_running"):
        _replace_buffered(tables, row)
    tick = Bucket(
        schedule=name,
        tick_at=at,
        outcome=outcome,
        origin=origin,
        stopped_run_id=stopped,
        cause=cause,
        handled_at=now,
    )
    if outcome == "started":
        tick, told = start_tick(tables, now, row, tick)
        notices += told
    elif outcome == "buffered":
        row.buffered += 1
    _shorten_range(tables, name, at)
    tables.buckets[name][at] = tick
    row.last_tick_at = max(at, row.last_tick_at or at)
    return notices


def start_tick(
    tables: Tables, now: int, row: ScheduleRow, tick: Bucket
) -> tuple[Bucket, list[Notice]]:
    """Start the run of a tick, or send what it sends; return its bucket."""
    target = row.new.target
    if isinstance(target, SendTarget):
        return send_tick(tables, now, row.new, target, tick)
    run = _run_of(row, target, tick.tick_at, now)
    notices: list[Notice] = []
    if run.kind == "flow":
        try:
            notices = start_flows(tables, now, [run])[1]
        except (UnknownFlow, InvalidInput) as error:
            return (
                msgspec.structs.replace(
                    tick, outcome="failed", error=str(error), handled_at=now, run_id=None
                ),
                [],
            )
    elif run.run_id not in tables.runs:
        begun = start_free(tables, now, run)
        if begun.refused is not None:
            why = str(refusal(run.name, begun))
            return (
                msgspec.structs.replace(
                    tick, outcome="failed", error=why, handled_at=now, run_id=None
                ),
                [],
            )
        run = msgspec.structs.replace(run, run_id=begun.run_id)
        notices = [Notice(WORK_TOPIC, tables.runs[run.run_id].queue)]
    row.open_run_ids = [*row.open_run_ids, run.run_id][-_MOST_OPEN:]
    row.last_run_id = run.run_id
    started = msgspec.structs.replace(tick, outcome="started", run_id=run.run_id, handled_at=now)
    return started, notices


def await_ends(tables: Tables, run_ids: list[UUID]) -> None:
    """Have the schedulers told of the ends of runs."""
    for run_id in run_ids:
        tables.waiters[run_id].add(SCHEDULES_TOPIC)


def _is_final(bucket: Bucket, origin: TickOrigin) -> bool:
    """Return True if a tick with this bucket does not fire again. What is asked for may."""
    return origin == "tick" or bucket.outcome in ("started", "sent", "buffered")


def _judge(
    buffered: int, overlap: Overlap, opened: list[UUID]
) -> tuple[TickOutcome, SkipCause | None]:
    if overlap in ("allow", "terminate_running"):
        return "started", None
    if not opened and (not buffered or overlap == "cancel_running"):
        return "started", None
    if overlap == "cancel_running" or (overlap == "buffer_one" and not buffered):
        return "buffered", None
    if overlap == "buffer_all":
        if buffered < MOST_BUFFERED:
            return "buffered", None
        return "skipped", "buffer_full"
    return "skipped", "overlap"


def _replace_buffered(tables: Tables, row: ScheduleRow) -> None:
    buckets = tables.buckets[row.new.name]
    for at, bucket in buckets.items():
        if bucket.outcome == "buffered":
            buckets[at] = msgspec.structs.replace(bucket, outcome="skipped", cause="replaced")
    row.buffered = 0


def _shorten_range(tables: Tables, name: str, at: int) -> None:
    """Begin a range of skipped ticks later, if the first of them is fired after all."""
    bucket = tables.buckets[name].get(at)
    if bucket is not None and bucket.until is not None:
        ticks = None if bucket.ticks is None else bucket.ticks - 1
        later = msgspec.structs.replace(bucket, tick_at=at + 1, ticks=ticks)
        tables.buckets[name][at + 1] = later


def _run_of(row: ScheduleRow, target: RunTarget, at: int, now: int) -> NewRun:
    name = row.new.name
    key = tick_key(name, at)
    start_at = at + to_micros(tick_jitter(name, at, row.new.policy.jitter_seconds))
    version = target.version
    if version is None:
        version = 0 if target.kind == "flow" else 1
    return compose(
        NewRun,
        target,
        run_id=keyed_run_id(target.name, key),
        version=version,
        key=key,
        start_at=start_at if start_at > now else None,
        headers=tick_headers(successor_headers(target.headers, None), name, at),
    )
