"""Look into message queues, and get dead letters out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.errors import InvalidInput, UnknownQueue
from holdfast.store.memory.database import Part
from holdfast.store.memory.queue_rows import MessageRow, QueueRow, with_headers
from holdfast.store.memory.tables import Tables
from holdfast.store.port import messages_topic
from holdfast.types import (
    RECEIVES_HEADER,
    KeptMessage,
    ListedMessage,
    MessagePage,
    Notice,
    QueueMetrics,
    read_place,
    write_place,
)
from holdfast.values.composing import compose

_Key: TypeAlias = tuple[bool, int, int, str, int]


class MemoryQueueLooks(Part):
    """Counts and lists messages, and moves dead letters back."""

    async def redrive_messages(
        self,
        queue: str,
        *,
        limit: int = 1000,
        message_ids: Sequence[int] | None = None,
        before: int | None = None,
    ) -> tuple[int, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = find_queue(tables, queue)
            dead = tables.queues.rows.get(row.settings.dead_letters or "")
            if dead is None:
                raise InvalidInput(
                    f"queue {queue} has no dead letters of its own: name one created with "
                    "max_receives"
                )
            found = [
                each
                for each in _dead_letters(dead, row)
                if (message_ids is None or each.message_id in message_ids)
                and (before is None or not before < each.visible_at <= now)
            ][:limit]
            for message in found:
                del dead.waiting[message.message_id]
                row.put(_revived(row, message, now))
            return len(found), [Notice(messages_topic(queue), queue)] if found else []

    async def queue_metrics(
        self, queue: str | None = None, *, limit: int = 10_000
    ) -> list[QueueMetrics]:
        async with self._transaction() as (tables, now):
            if queue is not None:
                find_queue(tables, queue)
            return [
                _metrics(tables, row, now, limit)
                for name, row in sorted(tables.queues.rows.items())
                if queue in (None, name)
            ]

    async def list_messages(
        self, queue: str, *, limit: int = 100, clip: int | None = None
    ) -> list[ListedMessage]:
        async with self._transaction() as (tables, _):
            row = find_queue(tables, queue)
            flying = sorted(
                (
                    replace(message, visible_at=delivery.visible_at)
                    for delivery in row.deliveries.values()
                    for message in delivery.messages.values()
                ),
                key=lambda each: (each.priority, each.visible_at, each.message_id),
            )
            found = [
                *(listed(each, in_flight=False) for each in row.in_order()),
                *(listed(each, in_flight=True) for each in flying),
            ][:limit]
            if clip is None:
                return found
            return [replace(each, payload=each.payload[:clip]) for each in found]

    async def message_page(
        self,
        queue: str,
        *,
        limit: int,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        after = None if cursor is None else _key_of(read_place(cursor))
        async with self._transaction() as (tables, _):
            row = find_queue(tables, queue)
            found = [(_place(each, row), listed(each, in_flight=False)) for each in row.in_order()]
            for delivery_id, delivery in row.deliveries.items():
                for place, each in delivery.messages.items():
                    flying = replace(each, visible_at=delivery.visible_at)
                    key = (True, 0, 0, str(delivery_id), place)
                    found.append((key, listed(flying, in_flight=True)))
        if after is not None:
            found = [each for each in found if each[0] > after]
        found.sort(key=itemgetter(0))
        page = found[:limit]
        shown = [
            each if clip is None else replace(each, payload=each.payload[:clip])
            for _, each in page
            if origin is None or each.origin == origin
        ]
        more = 0 < limit == len(page)
        return MessagePage(shown, write_place([*map(str, page[-1][0])]) if more else None)

    async def list_kept(self, queue: str, *, limit: int = 100) -> list[KeptMessage]:
        async with self._transaction() as (tables, _):
            row = find_queue(tables, queue)
            return [
                compose(
                    KeptMessage, each, each.new, acked_at=acked_at, headers=each.new.headers or None
                )
                for _, (each, acked_at, _) in sorted(row.kept.items(), reverse=True)
            ][:limit]


def find_queue(tables: Tables, name: str) -> QueueRow:
    """Return a queue. Raises UnknownQueue."""
    row = tables.queues.rows.get(name)
    if row is None:
        raise UnknownQueue(f"there is no message queue '{name}': create it first")
    return row


def _dead_letters(dead: QueueRow, row: QueueRow) -> list[MessageRow]:
    return [each for each in dead.in_order() if each.origin == row.queue_id]


def _revived(row: QueueRow, message: MessageRow, now: int) -> MessageRow:
    headers = dict(message.new.headers or {})
    headers.pop(RECEIVES_HEADER, None)
    new = with_headers(message.new, row, headers)
    return replace(message, new=new, visible_at=now, attempts=0, origin=None, origin_name=None)


def _due_ats(row: QueueRow) -> Iterator[int]:
    """Give the moments at which what waits may be received: in a group, not before the first."""
    if not row.settings.fifo:
        yield from (each.visible_at for each in row.waiting.values())
        return
    for group in row.groups().values():
        yield from accumulate((each.visible_at for each in group), max)


def _metrics(tables: Tables, row: QueueRow, now: int, limit: int) -> QueueMetrics:
    due = [at for at in _due_ats(row) if at <= now]
    flying = sum(len(each.messages) for each in row.deliveries.values())
    dead = tables.queues.rows.get(row.settings.dead_letters or "")
    return QueueMetrics.counted(
        row.settings.name,
        min(len(due), limit),
        min(len(row.waiting) - len(due), limit),
        flying,
        0 if dead is None else min(len(_dead_letters(dead, row)), limit),
        min(due, default=None),
        limit=limit,
    )


def _place(message: MessageRow, row: QueueRow) -> _Key:
    if row.settings.fifo:
        return (False, 0, 0, message.new.group or "", message.message_id)
    return (False, message.priority, message.visible_at, "", message.message_id)


def _key_of(place: Sequence[str | None]) -> _Key:
    flying, priority, visible_at, group, number = (each or "" for each in place)
    return (flying == "True", int(priority), int(visible_at), group, int(number))


def listed(message: MessageRow, *, in_flight: bool) -> ListedMessage:
    """Return what callers see of a message."""
    return compose(
        ListedMessage,
        message,
        message.new,
        in_flight=in_flight,
        origin=message.origin_name,
        headers=message.new.headers or None,
    )
