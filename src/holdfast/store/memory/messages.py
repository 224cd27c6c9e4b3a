"""Message queues: send, receive and acknowledge messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from holdfast.errors import InvalidInput, QueueExists, QueueInUse
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.flows.starts import start_flows
from holdfast.store.memory.message_limits import MessageLimits, take_groups, take_plain
from holdfast.store.memory.queue_looks import find_queue
from holdfast.store.memory.queue_rows import DeliveryRow, MessageRow, QueueRow, QueueTable
from holdfast.store.memory.queue_values import check_message, check_queue, check_receive, delayed
from holdfast.store.memory.starts import start_all
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import messages_topic, refusal
from holdfast.types import (
    MessageDelivery,
    MessageReturn,
    NewMessage,
    NewRun,
    Notice,
    QueueInfo,
    QueueSettings,
    Receipt,
    Receive,
    Received,
    StoredMessage,
)

_SECOND: Final = 1_000_000
EXPIRED: Final = "the visibility timeout ended"


class MemoryMessages(Part):
    async def create_queue(self, settings: QueueSettings) -> bool:
        async with self._transaction() as (tables, now):
            wanted = _complete(settings)
            check_queue(wanted, tables.queues.rows)
            found = tables.queues.rows.get(wanted.name)
            if found is None:
                tables.queues.add(wanted, now)
                tables.queues.ensure_dead_letters(wanted, now)
                return True
            if found.settings != wanted:
                raise QueueExists(
                    f"there is a message queue {wanted.name} with other settings: update it, or "
                    "delete it first"
                )
            return False

    async def update_queue(self, settings: QueueSettings) -> bool:
        async with self._transaction() as (tables, now):
            row, wanted = find_queue(tables, settings.name), _complete(settings)
            if _kind(row.settings) != _kind(wanted):
                raise QueueExists(
                    f"message queue {wanted.name} is of another kind: delete it, and create it "
                    "again"
                )
            check_queue(wanted, tables.queues.rows)
            if row.settings == wanted:
                return False
            row.settings = wanted
            tables.queues.ensure_dead_letters(wanted, now)
            return True

    async def delete_queue(self, name: str) -> bool:
        async with self._transaction() as (tables, _):
            rows = tables.queues.rows
            for row in rows.values():
                if row.settings.dead_letters == name:
                    raise QueueInUse(
                        f"queue {name} has the dead letters of queue {row.settings.name}: delete "
                        "that one first, or give it another queue for them"
                    )
            return rows.pop(name, None) is not None

    async def list_queues(self, name: str | None = None) -> list[QueueInfo]:
        async with self._transaction() as (tables, _):
            return [
                QueueInfo(row.settings, row.created_at, ("queue", each) in tables.pauses)
                for each, row in sorted(tables.queues.rows.items())
                if name is None or name == each
            ]

    async def send_messages(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> tuple[list[int], list[Notice]]:
        async with self._transaction() as (tables, now):
            row = find_queue(tables, queue)
            messages = [delayed(message, now) for message in messages]
            for message in messages:
                check_message(row.settings, message)
            ids = [send_message(tables.queues, row, message, now) for message in messages]
            return ids, [Notice(messages_topic(queue), queue)]

    async def receive_messages(self, receive: Receive) -> Received:
        """Hand messages out; see `MessageStore.receive_messages`.

        All that is due is found, also with `since`.
        """
        async with self._transaction() as (tables, now):
            row = find_queue(tables, receive.queue)
            check_receive(row.settings, receive)
            acked = [_ack(row, delivery_id, None, now) for delivery_id in receive.acks]
            if receive.since is None:
                _return_expired(tables.queues, [row], now, 100)
            limits = MessageLimits(tables, row, now)
            freed = (row.settings.fifo or limits.holds) and any(acked)
            if ("queue", receive.queue) in tables.pauses:
                return Received(now=now, acked=acked, notices=_notices([row] if freed else []))
            take = take_groups if row.settings.fifo else take_plain
            taken = take(row, receive, now, limits) if limits.at_most(1) else []
            limits.count(message for _, each in taken for message in each)
            deliveries = [_deliver(row, receive, now, group, each) for group, each in taken]
            if receive.pops:
                popped = [_ack(row, each.delivery_id, None, now) for each in deliveries]
                freed = row.settings.fifo and (freed or any(popped))
            found = len(taken) if row.settings.fifo else sum(len(each) for _, each in taken)
            most = 1 if limits.are_set else receive.limit
            if limits.are_set and not row.settings.fifo and receive.contains is None:
                freed = freed and found >= (1 if limits.keyed else receive.limit)
            return Received(
                now=now,
                next_due_at=now if found >= most else _next_due_at(row, now, limits),
                acked=acked,
                deliveries=deliveries,
                notices=_notices([row] if freed else []),
            )

    async def ack_messages(self, receipts: Sequence[Receipt]) -> tuple[list[bool], list[Notice]]:
        async with self._transaction() as (tables, now):
            found = [(tables.queues.of_id(each.queue_id), each) for each in receipts]
            acked = [
                row is not None and _ack(row, each.delivery_id, each.place, now)
                for row, each in found
            ]
            freed = [
                row
                for (row, _), ok in zip(found, acked, strict=True)
                if row is not None and ok and _may_free(tables, row, now)
            ]
            return acked, _notices(freed)

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = tables.queues.of_id(receipts[0].queue_id)
            if row is None or not all(_places(row, r.delivery_id, r.place) for r in receipts):
                return False, []
            flows = [run for run in runs if run.kind == "flow"]
            workflows = [run for run in runs if run.kind != "flow"]
            for each in (deepcopy(tables), tables):  # first without effect: one may be refused
                answers, notices = start_all(each, now, workflows)
                for run, answer in zip(workflows, answers, strict=True):
                    if answer.refused is not None:
                        raise refusal(run.name, answer)
                notices = [*notices, *start_flows(each, now, flows)[1]]
            for receipt in receipts:
                _ack(row, receipt.delivery_id, receipt.place, now)
            freed = [row] if _may_free(tables, row, now) else []
            return True, distinct([*_notices(freed), *notices])

    async def return_messages(
        self, returns: Sequence[MessageReturn]
    ) -> tuple[list[bool], list[Notice]]:
        async with self._transaction() as (tables, now):
            for each in returns:
                if each.delay_seconds is not None and not 0 <= each.delay_seconds <= 1e10:
                    raise InvalidInput("a message is given back for 0 to 10,000,000,000 seconds")
            freed: list[QueueRow] = []
            returned = [give_back(tables.queues, each, now, freed) for each in returns]
            found = [tables.queues.of_id(each.receipt.queue_id) for each in returns]
            for row, ok in zip(found, returned, strict=True):
                if row is not None and ok and MessageLimits(tables, row, now).holds:
                    freed.append(row)
            return returned, _notices(freed)

    async def extend_deliveries(self, receipts: Sequence[Receipt], *, seconds: float) -> list[bool]:
        async with self._transaction() as (tables, now):
            if not 0 <= seconds <= 1e10:
                raise InvalidInput(
                    "the time to keep a message in flight is 0 to 10,000,000,000 seconds, not "
                    f"{seconds}"
                )
            found = [
                None if row is None else row.deliveries.get(each.delivery_id)
                for each in receipts
                for row in [tables.queues.of_id(each.queue_id)]
            ]
            for delivery in found:
                if delivery is not None:
                    delivery.visible_at = now + to_micros(seconds)
            return [delivery is not None for delivery in found]

    async def return_expired(self, *, limit: int = 100) -> tuple[int, int | None]:
        async with self._transaction() as (tables, now):
            rows = list(tables.queues.rows.values())
            returned = _return_expired(tables.queues, rows, now, limit)
            ends = [each.visible_at for row in rows for each in row.deliveries.values()]
            return returned, min(ends, default=None)

    async def purge_messages(self, queue: str, *, limit: int = 10_000) -> int:
        async with self._transaction() as (tables, _):
            row = find_queue(tables, queue)
            gone = list(row.waiting)[:limit]
            for message_id in gone:
                del row.waiting[message_id]
            return len(gone)

    async def sweep_queues(self, *, limit: int = 1000) -> int:
        async with self._transaction() as (tables, now):
            count = 0
            for row in tables.queues.rows.values():
                known = [each for each, (_, until) in row.known.items() if until <= now][:limit]
                kept = [each for each, (_, _, until) in row.kept.items() if until <= now][:limit]
                for dedup_id in known:
                    del row.known[dedup_id]
                for message_id in kept:
                    del row.kept[message_id]
                count += len(known) + len(kept)
            return count


def _kind(settings: QueueSettings) -> tuple[bool, bool, bool]:
    return settings.fifo, settings.has_priorities, settings.has_filters


def _complete(settings: QueueSettings) -> QueueSettings:
    if settings.max_receives is None or settings.dead_letters is not None:
        return settings
    return replace(settings, dead_letters=f"{settings.name}.dead")


def send_message(queues: QueueTable, row: QueueRow, new: NewMessage, now: int) -> int:
    """Put a message into a queue; return its id."""
    message_id = queues.next_message_id()
    if new.dedup_id is not None:
        known = row.known.get(new.dedup_id)
        if known is not None and known[1] > now:
            return known[0]
        row.known[new.dedup_id] = (message_id, now + to_micros(row.settings.dedup_seconds))
    row.put(MessageRow(message_id, new, now + to_micros(new.delay_seconds or 0), now))
    return message_id


def _deliver(
    row: QueueRow, receive: Receive, now: int, group: str | None, messages: list[MessageRow]
) -> MessageDelivery:
    seconds = receive.visibility_seconds
    until = now + to_micros(row.settings.visibility_seconds if seconds is None else seconds)
    for message in messages:
        del row.waiting[message.message_id]
    taken = [replace(message, attempts=message.attempts + 1) for message in messages]
    delivery_id = uuid4()
    held = dict(enumerate(taken, 1))
    row.deliveries[delivery_id] = DeliveryRow(until, now, group, held, receive.consumer)
    return MessageDelivery(
        row.queue_id,
        delivery_id,
        group,
        [
            StoredMessage(
                each.message_id,
                each.new.payload,
                each.attempts,
                each.sent_at,
                each.new.headers or None,
                each.error,
            )
            for each in taken
        ],
    )


def _may_free(tables: Tables, row: QueueRow, now: int) -> bool:
    """Return True if the end of a delivery may let others receive."""
    return row.settings.fifo or MessageLimits(tables, row, now).holds


def _next_due_at(row: QueueRow, now: int, limits: MessageLimits) -> int | None:
    late = any(delivery.visible_at <= now for delivery in row.deliveries.values())
    moments = [at for at in row.moments() if at > now] + ([now + _SECOND] if late else [])
    moments += [] if limits.next_at is None else [limits.next_at]
    return min(moments, default=None)


def _places(row: QueueRow, delivery_id: UUID, place: int | None) -> list[int]:
    """Return the places that a receipt stands for and that are in flight still."""
    delivery = row.deliveries.get(delivery_id)
    if delivery is None:
        return []
    return [each for each in delivery.messages if place in (None, each)]


def _drop(row: QueueRow, delivery_id: UUID, place: int) -> MessageRow:
    """Take a message out of its delivery, which ends with its last one."""
    delivery = row.deliveries[delivery_id]
    message = delivery.messages.pop(place)
    if not delivery.messages:
        del row.deliveries[delivery_id]
    return message


def _ack(row: QueueRow, delivery_id: UUID, place: int | None, now: int) -> bool:
    places = _places(row, delivery_id, place)
    for each in places:
        row.keep(_drop(row, delivery_id, each), now)
    return bool(places)


def give_back(queues: QueueTable, given: MessageReturn, now: int, freed: list[QueueRow]) -> bool:
    """Give messages back; add the queues that have something due to `freed`."""
    receipt = given.receipt
    row = queues.of_id(receipt.queue_id)
    if row is None:
        return False
    places = _places(row, receipt.delivery_id, receipt.place)
    for place in places:
        message = _drop(row, receipt.delivery_id, place)
        back = message.failed(given.error, given.counted, now)
        most = row.settings.max_receives
        dead = None
        is_last = given.counted and most is not None and message.attempts >= most
        if is_last or given.discarded:
            dead = queues.bury(row, back, now)
        if dead is not None:
            freed.append(dead)
            continue
        if given.discarded:
            row.keep(message, now)
            continue
        due_at = now + to_micros(given.delay_seconds or 0)
        attempts = message.attempts if given.counted else message.attempts - 1
        row.put(replace(back, attempts=attempts, visible_at=due_at))
        if due_at <= now:
            freed.append(row)
    if places and row.settings.fifo and receipt.delivery_id not in row.deliveries:
        freed.append(row)
    return bool(places)


def give_back_all(queues: QueueTable, consumer: str, now: int) -> None:
    """Give back all that a consumer has in flight; its receives do not count."""
    for row in queues.rows.values():
        for delivery_id in [id for id, each in row.deliveries.items() if each.consumer == consumer]:
            receipt = Receipt(row.queue_id, delivery_id)
            give_back(queues, MessageReturn(receipt, counted=False), now, [])


def _return_expired(queues: QueueTable, rows: Iterable[QueueRow], now: int, limit: int) -> int:
    late = sorted(
        (delivery.visible_at, row.queue_id, delivery_id)
        for row in rows
        for delivery_id, delivery in row.deliveries.items()
        if delivery.visible_at <= now
    )[:limit]
    for _, queue_id, delivery_id in late:
        give_back(queues, MessageReturn(Receipt(queue_id, delivery_id), error=EXPIRED), now, [])
    return len(late)


def _notices(rows: Iterable[QueueRow]) -> list[Notice]:
    names = sorted({row.settings.name for row in rows})
    return [Notice(messages_topic(name), name) for name in names]
