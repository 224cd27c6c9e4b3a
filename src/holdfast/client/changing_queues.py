"""Create, fill, empty and redrive queues, and end receives; calls that met a lock are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.client.coalescing import MAX_BATCH
from holdfast.client.messages import Messages, other_settings, receipts_of
from holdfast.client.session import Session
from holdfast.client.transactions import ack_within, send_within
from holdfast.codec import storable
from holdfast.errors import ConfigurationError, QueueExists
from holdfast.store.port.locks import persist
from holdfast.types import MessageReturn, NewMessage, QueueSettings
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_queue_name


async def ack_messages(session: Session, messages: Messages, connection: object) -> list[bool]:
    """Acknowledge messages. Return what `Queues.ack` says."""
    receipts = receipts_of(messages)
    if connection is not None:
        return await ack_within(connection, receipts, schema=session.schema)
    acked, notices = await persist(partial(session.store.ack_messages, receipts))
    session.tell(notices)
    return acked


async def nack_messages(
    session: Session, messages: Messages, delay: Duration, error: str | None, counted: bool
) -> list[bool]:
    """Give messages back. Return what `Queues.nack` says."""
    why = None if error is None else storable(error)
    returns = [MessageReturn(each, seconds(delay), why, counted) for each in receipts_of(messages)]
    returned, notices = await persist(partial(session.store.return_messages, returns))
    session.tell(notices)
    return returned


async def create_queue(session: Session, settings: QueueSettings) -> bool:
    """Create a queue. Return False if one with the same settings exists.

    Raises QueueExists, which names the settings that differ.
    """
    try:
        return await persist(partial(session.store.create_queue, settings))
    except QueueExists:
        for found in await session.store.list_queues(settings.name):
            raise other_settings(settings, found.settings) from None
        raise


async def purge_messages(session: Session, queue: str) -> int:
    """Delete all messages that wait in a queue. Return how many."""
    total, call = 0, partial(session.store.purge_messages, check_queue_name(queue))
    while count := await persist(call):
        total += count
    return total


async def redrive_messages(session: Session, queue: str, ids: list[int] | None) -> int:
    """Move dead letters back to their queue, all or these. Return how many."""
    name = check_queue_name(queue)
    total, call = 0, partial(session.store.redrive_messages, name, message_ids=ids)
    while True:
        count, notices = await persist(call)
        if not count:
            return total
        session.tell(notices)
        total += count


async def extend_messages(session: Session, messages: Messages, visibility: Duration) -> list[bool]:
    """Keep messages in flight. Return what `Queues.extend` says."""
    call = partial(
        session.store.extend_deliveries, receipts_of(messages), seconds=seconds(visibility)
    )
    return await persist(call)


async def send_messages(
    session: Session, queue: str, messages: Sequence[NewMessage], connection: object, notify: bool
) -> list[int]:
    """Send messages, within the transaction of a connection if one is given. Return their ids.

    Else one message is sent in a transaction with others of the same moment, many in chunks.
    """
    check_queue_name(queue)
    if connection is not None:
        sealed = session.sealed_messages(queue, messages)
        return await send_within(connection, queue, sealed, schema=session.schema, notify=notify)
    if notify:
        raise ConfigurationError("notify is for a send within a connection's transaction")
    sends = session.sends(queue)
    if len(messages) == 1:
        return [await sends.submit(messages[0])]
    return [
        message_id
        for at in range(0, len(messages), MAX_BATCH)
        for message_id in await sends.send(messages[at : at + MAX_BATCH])
    ]
