"""One message by its id: look at it, cancel it, change it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import MessageInFlight
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.messages import EXPIRED, give_back
from holdfast.store.memory.queue_looks import find_queue, listed
from holdfast.store.memory.queue_rows import MessageRow, QueueRow
from holdfast.store.memory.queue_values import check_change
from holdfast.store.memory.tables import Tables
from holdfast.store.port import messages_topic
from holdfast.types import (
    ListedMessage,
    MessageChange,
    MessageFailure,
    MessageReturn,
    Notice,
    Receipt,
)


class MemoryOneMessage(Part):
    """Looks at single messages, cancels and changes them."""

    async def get_message(self, queue: str, message_id: int) -> ListedMessage | None:
        async with self._transaction() as (tables, _):
            row = find_queue(tables, queue)
            if message_id in row.waiting:
                return listed(row.waiting[message_id], in_flight=False)
            _, flying = _in_flight(row, message_id)
            return None if flying is None else listed(flying, in_flight=True)

    async def message_failures(
        self, message_ids: Sequence[int]
    ) -> dict[int, tuple[MessageFailure, ...]]:
        async with self._transaction() as (tables, _):
            return {
                message_id: found.failures
                for row in tables.queues.rows.values()
                for message_id in message_ids
                for found in [row.waiting.get(message_id) or _in_flight(row, message_id)[1]]
                if found is not None and found.failures
            }

    async def cancel_message(self, queue: str, message_id: int) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = find_queue(tables, queue)
            found = _waiting(tables, row, message_id, now)
            if found is None:
                return False, []
            del row.waiting[message_id]
            return True, [Notice(messages_topic(queue), queue)]

    async def change_message(
        self, queue: str, message_id: int, change: MessageChange
    ) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = find_queue(tables, queue)
            delay = check_change(row.settings, change, now)
            found = _waiting(tables, row, message_id, now)
            if found is None:
                return False, []
            payload = found.new.payload if change.payload is None else change.payload
            priority = found.new.priority if change.priority is None else change.priority
            new = replace(found.new, payload=payload, priority=priority)
            due_at = found.visible_at if delay is None else now + to_micros(delay)
            row.put(replace(found, new=new, visible_at=due_at))
            return True, [Notice(messages_topic(queue), queue)]


def _in_flight(row: QueueRow, message_id: int) -> tuple[UUID | None, MessageRow | None]:
    for delivery_id, delivery in row.deliveries.items():
        for message in delivery.messages.values():
            if message.message_id == message_id:
                return delivery_id, replace(message, visible_at=delivery.visible_at)
    return None, None


def _waiting(tables: Tables, row: QueueRow, message_id: int, now: int) -> MessageRow | None:
    """Return a message that waits; one whose visibility has ended is given back first."""
    delivery_id, flying = _in_flight(row, message_id)
    if delivery_id is not None and flying is not None:
        if flying.visible_at > now:
            raise MessageInFlight(
                f"message {message_id} of queue {row.settings.name} is in flight: it can be "
                "cancelled or changed when its receiver has given it back, or when its visibility "
                "has ended"
            )
        late = MessageReturn(Receipt(row.queue_id, delivery_id), error=EXPIRED)
        give_back(tables.queues, late, now, [])
    return row.waiting.get(message_id)
