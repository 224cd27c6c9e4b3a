"""Refuse settings and messages that a message queue cannot have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory.payloads import check_json, checked
from holdfast.store.memory.queue_rows import QueueRow
from holdfast.types import PRIORITIES, MessageChange, NewMessage, QueueSettings, Receive
from holdfast.values.durations import LONGEST_SECONDS
from holdfast.values.names import check_queue_name
from holdfast.values.texts import check_id, check_text

_SHORTEST = 0.001
_MOST = 10_000


def check_queue(settings: QueueSettings, known: Mapping[str, QueueRow]) -> None:
    """Raise InvalidInput for a queue that cannot be."""
    checked(check_queue_name, settings.name)
    if settings.fifo and (settings.has_priorities or settings.has_filters):
        raise InvalidInput(
            "a FIFO queue hands out each group in order: it has neither priorities nor filters"
        )
    for what, seconds, least in (
        ("is in flight", settings.visibility_seconds, _SHORTEST),
        ("is known by its deduplication id", settings.dedup_seconds, 0),
        ("is kept", settings.keep_seconds, _SHORTEST),
    ):
        if seconds is not None and not least <= seconds <= LONGEST_SECONDS:
            raise InvalidInput(f"a message of queue {settings.name} {what} for {seconds} seconds")
    _check_dead_letters(settings, known)


def _check_dead_letters(settings: QueueSettings, known: Mapping[str, QueueRow]) -> None:
    dead = settings.dead_letters
    if dead is not None:
        checked(check_queue_name, dead)
    most = settings.max_receives
    row = known.get(dead or "")
    if most is not None and most < 1:
        flaw = f"a message is received 1 time or more before it is a dead letter, not {most} times"
    elif most is None and dead is not None:
        flaw = "say after how many receives a message goes to the dead letters"
    elif dead == settings.name:
        flaw = "its dead letters are in another queue"
    elif row is not None and row.settings.fifo != settings.fifo:
        kind = "FIFO" if settings.fifo else "not FIFO"
        flaw = f"queue {dead} has the dead letters, and must be {kind} as well"
    else:
        return
    raise InvalidInput(f"queue {settings.name}: {flaw}")


def check_message(settings: QueueSettings, message: NewMessage) -> None:
    """Raise InvalidInput or PayloadError for a message that the queue does not take."""
    check_json("payload", message.payload)
    delay = message.delay_seconds or 0
    if not 0 <= delay <= LONGEST_SECONDS:
        raise InvalidInput(f"a delay is 0 to 10,000,000,000 seconds, not {delay}")
    for what, text in (("group", message.group), ("deduplication id", message.dedup_id)):
        if text is not None:
            check_id(what, text)
    for text in (*(message.headers or {}).keys(), *(message.headers or {}).values()):
        check_text("header", text)
    if message.priority is not None and message.priority not in PRIORITIES:
        raise InvalidInput(f"a priority is 0 (most urgent) to 4, not {message.priority}")
    if settings.fifo and message.group is None:
        raise InvalidInput(f"queue {settings.name} is FIFO: each message needs a group")
    if message.group is not None and not settings.fifo:
        raise InvalidInput(f"queue {settings.name} is not FIFO: its messages do not have groups")
    if message.priority is not None and not settings.has_priorities:
        raise InvalidInput(f"queue {settings.name} was created without priorities")


def check_change(settings: QueueSettings, change: MessageChange, now: int) -> float | None:
    """Raise InvalidInput or PayloadError for a change that is not allowed; return the delay."""
    group = "a" if settings.fifo else None
    new = NewMessage(
        change.payload or "null",
        change.delay_seconds,
        group,
        priority=change.priority,
        due_at=change.due_at,
    )
    checked = delayed(new, now)
    check_message(settings, checked)
    return checked.delay_seconds


def delayed(message: NewMessage, now: int) -> NewMessage:
    """Return a message with a delay in place of a moment. Raises InvalidInput."""
    due_at = message.due_at
    if due_at is None:
        return message
    if message.delay_seconds is not None:
        raise InvalidInput("a message has a delay or a moment at which it is due, not both")
    if abs(due_at) > LONGEST_SECONDS * 1_000_000:
        raise InvalidInput(
            f"a message is within 10,000,000,000 seconds of 1970, not at {due_at} microseconds"
        )
    delay = max(0.0, (due_at - now) / 1_000_000)
    return msgspec.structs.replace(message, delay_seconds=delay, due_at=None)


def check_receive(settings: QueueSettings, receive: Receive) -> None:
    """Raise InvalidInput for a receive that the queue does not answer."""
    for what, count in (("", receive.limit), (" of a group", receive.per_group)):
        if not 1 <= count <= _MOST:
            raise InvalidInput(f"a receive asks for 1 to 10,000 messages{what}, not {count}")
    seconds = receive.visibility_seconds
    if seconds is not None and not _SHORTEST <= seconds <= LONGEST_SECONDS:
        raise InvalidInput(
            f"a message is in flight for 0.001 to 10,000,000,000 seconds, not {seconds}; "
            "list_messages shows messages without receiving them"
        )
    if receive.contains is not None:
        check_json("condition", receive.contains)
        if settings.fifo:
            raise InvalidInput(
                f"queue {settings.name} is FIFO: a condition would pass over the oldest message of "
                "a group"
            )
        if not settings.has_filters:
            raise InvalidInput(
                f"queue {settings.name} was created without filters: a condition would read all "
                "its messages"
            )
