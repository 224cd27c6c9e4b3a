"""One message that was received: its values, and what can be done to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.client.messages import MessageData, ack_messages, extend_messages, nack_messages
from holdfast.client.session import Session
from holdfast.codec import decoder
from holdfast.types import MessageDelivery, Receipt, Receive
from holdfast.values.durations import Duration, seconds


@dataclass(frozen=True)
class Message(MessageData):
    """A message that was received: its values, and what can be done to it.

    `receipt` proves the receive: with it the message is acknowledged or given back. `attempts`
    counts the receives with this one; `error` says why it was given back last.

    ```python
    [message] = await client.queues.receive("parcels")
    print(message.id, message.payload)
    await message.ack()
    ```
    """

    _session: Session = field(repr=False, compare=False)

    async def ack(self, *, connection: object = None) -> bool:
        """Acknowledge the message: it is done. Return False if it was not in flight any more.

        Then others may have received it. With a `connection` this is part of its transaction. To
        acknowledge several messages in one call, see `Queues.ack`.

        ```python
        [message] = await client.queues.receive("parcels")
        assert await message.ack()
        ```
        """
        return (await ack_messages(self._session, self, connection))[0]

    async def nack(
        self, *, delay: Duration = 0, error: str | None = None, counted: bool = True
    ) -> bool:
        """Give the message back; see `Queues.nack`. Return False if it was not in flight.

        ```python
        [message] = await client.queues.receive("parcels")
        await message.nack(delay="10s", error="the warehouse does not answer")
        ```
        """
        return (await nack_messages(self._session, self, delay, error, counted))[0]

    async def extend(self, visibility: Duration) -> bool:
        """Keep the message in flight for so long from now. Return False if it was not any more.

        What was received together with it is kept as well.

        ```python
        [message] = await client.queues.receive("parcels")
        await message.extend("5m")
        ```
        """
        return (await extend_messages(self._session, self, visibility))[0]


async def receive_messages(
    session: Session, receive: Receive, wait: Duration, type: object
) -> list[Message]:
    """Receive messages, and wait for them if none is due.

    Raises ConfigurationError for a type that no payload can have, before anything is received.
    """
    decoder(type)
    answer = await session.receives(receive.queue).receive(receive, seconds(wait))
    session.tell(answer.notices)
    return [
        message
        for delivery in answer.deliveries
        for message in _received(session, receive.queue, delivery, type)
    ]


def _received(
    session: Session, queue: str, delivery: MessageDelivery, type: object
) -> list[Message]:
    return [
        Message(
            queue,
            Receipt(delivery.queue_id, delivery.delivery_id, place),
            delivery.group,
            message,
            type,
            session,
        )
        for place, message in enumerate(delivery.messages, 1)
    ]
