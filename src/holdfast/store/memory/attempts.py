"""The next attempts of runs that have failed, if the policy of their workflow retries them."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from holdfast.details import ContinuedAsNew, WorkflowFailed
from holdfast.events import EVENT_SUBSCRIBED, STREAM_WRITTEN
from holdfast.store.memory import children, details
from holdfast.store.memory.builds import set_build
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.forks import NEVER_COPIED, forked, forked_events, write_log
from holdfast.store.memory.left_children import left_children, take_over_children
from holdfast.store.memory.retries import Fatal, answered
from holdfast.store.memory.starts import insert_run
from holdfast.store.memory.tables import Tables
from holdfast.store.port import WORK_TOPIC
from holdfast.types import Event, Notice

# The next attempt has the subscriptions and, as each retry, the streams of the one before.
_LEFT_OUT: Final = NEVER_COPIED - {EVENT_SUBSCRIBED, STREAM_WRITTEN}


def continue_run(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out WorkflowContinuedAsNew: start the next run, which may be this one's next attempt.

    Such an attempt begins after a pause, with a copy of the log as that of a retry.
    """
    ended, old = details.read(event.details, ContinuedAsNew), tables.runs[run_id]
    if ended.attempt is None:
        return children.continue_as_new(tables, now, run_id, event)
    new = msgspec.structs.replace(
        children.successor(old),
        run_id=ended.run_id,
        key=old.new.key,
        start_at=now + to_micros(ended.attempt.delay),
        timeout_seconds=None,
    )
    turn = insert_run(tables, now, new, old.parent)
    children.take_place(tables, old, turn)
    set_build(tables, new.run_id, old.build)
    row = tables.runs[new.run_id]
    # As old as the first attempt, so that its time limit is the same; lists have it after that one.
    row.due_at = turn.visible_at
    row.created_at, row.deadline_at = old.created_at + 1, old.deadline_at
    log, again = tables.logs[run_id], ended.again or WorkflowFailed()
    entries = [each.event for each in log]
    after = answered(entries, again.calls).union(again.after)
    fatal = Fatal(frozenset(again.calls), again.seen or 0, after)
    told = forked(old, len(log), log, fatal, now, attempt=ended.attempt, error=ended.error)
    left = left_children(tables, run_id, entries, fatal)
    take_over_children(tables, left, run_id, new.run_id)
    events = forked_events(entries, fatal, _LEFT_OUT, left.keys(tables))
    write_log(tables, run_id, new.run_id, [*events, told])
    return [Notice(WORK_TOPIC, row.queue)]
