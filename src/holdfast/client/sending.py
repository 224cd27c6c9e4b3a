"""Send messages to a queue: alone, together, or within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.coalescing import MAX_BATCH
from holdfast.client.session import Session
from holdfast.client.transactions import send_within
from holdfast.errors import ConfigurationError
from holdfast.types import NewMessage
from holdfast.values.names import check_queue_name


async def send_messages(
    session: Session,
    queue: str,
    messages: Sequence[NewMessage],
    connection: object,
    notify: bool,
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
