"""The rows of message queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.store.memory.clock import to_micros
from holdfast.types import RECEIVES_HEADER, MessageFailure, NewMessage, QueueSettings

_LONGEST_ERROR: Final = 10_000
_MOST_FAILURES: Final = 20
_CLIP: Final = 2_000  # characters of an error among others


class MessageRow(msgspec.Struct, frozen=True):
    """A message, waiting or in flight; `origin` is the id of the queue whose dead letter it is."""

    message_id: int
    new: NewMessage
    visible_at: int
    sent_at: int
    attempts: int = 0
    origin: int | None = None
    origin_name: str | None = None
    error: str | None = None
    failures: tuple[MessageFailure, ...] = ()

    def failed(self, error: str | None, counted: bool, now: int) -> MessageRow:
        """Return it with the error of a receive, if it has one, which is kept if it counts."""
        if error is None:
            return self
        failures = self.failures
        if counted:
            failures = (*failures, MessageFailure(now, error[:_CLIP]))[-_MOST_FAILURES:]
        return replace(self, error=error[:_LONGEST_ERROR], failures=failures)

    @property
    def priority(self) -> int:
        """0 is the most urgent."""
        return 2 if self.new.priority is None else self.new.priority


class DeliveryRow(msgspec.Struct):
    """What is in flight of a receive, by place; `visible_at` is the end of the visibility."""

    visible_at: int
    received_at: int
    group: str | None
    messages: dict[int, MessageRow]
    consumer: str | None = None


class QueueRow(msgspec.Struct):
    """A message queue, and all that is in it."""

    queue_id: int
    settings: QueueSettings
    created_at: int
    waiting: dict[int, MessageRow] = {}
    deliveries: dict[UUID, DeliveryRow] = {}
    # The first message of each deduplication id, and until when it is known.
    known: dict[str, tuple[int, int]] = {}
    # Acknowledged messages, when each was acknowledged, and when it is deleted.
    kept: dict[int, tuple[MessageRow, int, int]] = {}
    # When each group was last looked at: others come first.
    looked_at: dict[str, int] = {}

    def put(self, message: MessageRow) -> None:
        """Let a message wait."""
        self.waiting[message.message_id] = message

    def keep(self, message: MessageRow, now: int) -> None:
        """Keep a message that is acknowledged, if the queue keeps those."""
        if self.settings.keep_seconds is not None:
            until = now + to_micros(self.settings.keep_seconds)
            self.kept[message.message_id] = (message, now, until)

    def in_order(self) -> list[MessageRow]:
        """Return what waits in the order of receives."""
        return sorted(
            self.waiting.values(),
            key=lambda each: (each.priority, each.visible_at, each.message_id),
        )

    def groups(self) -> dict[str, list[MessageRow]]:
        """Return what waits in each group, in its order."""
        found: dict[str, list[MessageRow]] = {}
        for message in sorted(self.waiting.values(), key=lambda each: each.message_id):
            found.setdefault(message.new.group or "", []).append(message)
        return found

    def moments(self) -> Iterator[int]:
        """Yield when something comes due, past moments too."""
        if self.settings.fifo:
            yield from (waiting[0].visible_at for waiting in self.groups().values())
        else:
            yield from (message.visible_at for message in self.waiting.values())
        yield from (delivery.visible_at for delivery in self.deliveries.values())


def with_headers(new: NewMessage, to: QueueRow, headers: Mapping[str, str]) -> NewMessage:
    """Return a message as a queue takes it, with these headers: some have no priorities."""
    priority = new.priority if to.settings.has_priorities else None
    return replace(new, priority=priority, headers=headers or None)


class QueueTable(msgspec.Struct):
    """All message queues, by name."""

    rows: dict[str, QueueRow] = {}
    queues_made: int = 0
    messages_made: int = 0

    def of_id(self, queue_id: int) -> QueueRow | None:
        return next((row for row in self.rows.values() if row.queue_id == queue_id), None)

    def add(self, settings: QueueSettings, now: int) -> None:
        """Make an empty queue."""
        self.queues_made += 1
        self.rows[settings.name] = QueueRow(self.queues_made, settings, now)

    def ensure_dead_letters(self, settings: QueueSettings, now: int) -> None:
        """Make the queue of the dead letters of another one, unless it exists."""
        name = settings.dead_letters
        if name is not None and name not in self.rows:
            self.add(QueueSettings(name=name, fifo=settings.fifo), now)

    def next_message_id(self) -> int:
        """Return a number that no message has had."""
        self.messages_made += 1
        return self.messages_made

    def bury(self, row: QueueRow, message: MessageRow, now: int) -> QueueRow | None:
        """Move a message to the dead letters of its queue; return their queue, if it exists."""
        dead = self.rows.get(row.settings.dead_letters or "")
        if dead is not None:
            headers = {**(message.new.headers or {}), RECEIVES_HEADER: str(message.attempts)}
            new = with_headers(message.new, dead, headers)
            dead.put(
                replace(
                    message,
                    new=new,
                    visible_at=now,
                    attempts=0,
                    origin=row.queue_id,
                    origin_name=row.settings.name,
                )
            )
        return dead
