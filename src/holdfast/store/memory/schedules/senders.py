"""Ticks that start no run: they publish to a topic, or send to a message queue."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidInput, UnknownQueue
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.messages import send_message
from holdfast.store.memory.queue_looks import find_queue
from holdfast.store.memory.queue_values import check_message
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.topics import publish
from holdfast.store.port import messages_topic
from holdfast.types import (
    Bucket,
    NewEvent,
    NewMessage,
    NewSchedule,
    Notice,
    SendTarget,
    tick_event,
    tick_headers,
    tick_jitter,
)


def send_tick(
    tables: Tables, now: int, new: NewSchedule, target: SendTarget, tick: Bucket
) -> tuple[Bucket, list[Notice]]:
    """Publish or send what a tick does; return its bucket."""
    tick = msgspec.structs.replace(tick, handled_at=now)
    try:
        if target.kind == "topic":
            event_id = tick_event(new.name, tick.tick_at)
            event = NewEvent(topic=target.name, payload=target.input, event_id=event_id)
            published, notices = publish(tables, now, event)
            reached = published.workflows + published.runs + published.queues + published.urls
            return msgspec.structs.replace(tick, outcome="sent", reached=reached), notices
        message_id = _send(tables, now, new, target, tick.tick_at)
    except (InvalidInput, UnknownQueue) as error:
        return msgspec.structs.replace(tick, outcome="failed", error=str(error)), []
    notices = [Notice(messages_topic(target.name), target.name)]
    return msgspec.structs.replace(tick, outcome="sent", message_id=message_id), notices


def check_queue_of(tables: Tables, new: NewSchedule) -> None:
    """Raise UnknownQueue if a schedule sends to a message queue that there is not."""
    if isinstance(new.target, SendTarget) and new.target.kind == "queue":
        find_queue(tables, new.target.name)


def _send(tables: Tables, now: int, new: NewSchedule, target: SendTarget, at: int) -> int:
    row = find_queue(tables, target.name)
    later = at + to_micros(tick_jitter(new.name, at, new.policy.jitter_seconds)) - now
    message = NewMessage(
        target.input,
        delay_seconds=later / 1e6 if later > 0 else None,
        group=new.name if target.group is None and row.settings.fifo else target.group,
        priority=target.priority,
        headers=tick_headers(target.headers, new.name, at),
    )
    check_message(row.settings, message)
    return send_message(tables.queues, row, message, now)
