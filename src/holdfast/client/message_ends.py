"""Acknowledge messages, give them back, and keep them in flight, by their receipts."""

from __future__ import annotations

from functools import partial

from holdfast.client.messages import Messages, receipts_of
from holdfast.client.session import Session
from holdfast.client.transactions import ack_within
from holdfast.codec import storable
from holdfast.store.port.locks import persist
from holdfast.types import MessageReturn
from holdfast.values.durations import Duration, seconds


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


async def extend_messages(session: Session, messages: Messages, visibility: Duration) -> list[bool]:
    """Keep messages in flight. Return what `Queues.extend` says."""
    call = partial(
        session.store.extend_deliveries, receipts_of(messages), seconds=seconds(visibility)
    )
    return await persist(call)
