"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.sync.base import SyncMessageBase
from holdfast.values.durations import Duration


class SyncMessage(SyncMessageBase):
    """A message that was received: its values, and what can be done to it.

    `receipt` proves the receive: with it the message is acknowledged or given back. `attempts`
    counts the receives with this one; `error` says why it was given back last.

    ```python
    [message] = client.queues.receive("parcels")
    print(message.id, message.payload)
    message.ack()
    ```
    """

    def ack(self, *, connection: object = None) -> bool:
        """Acknowledge the message: it is done. Return False if it was not in flight any more.

        Then others may have received it. With a `connection` this is part of its transaction. To
        acknowledge several messages in one call, see `SyncQueues.ack`.

        ```python
        [message] = client.queues.receive("parcels")
        assert message.ack()
        ```
        """
        return self._call(self._target.ack, connection=connection)

    def nack(self, *, delay: Duration = 0, error: str | None = None, counted: bool = True) -> bool:
        """Give the message back; see `SyncQueues.nack`. Return False if it was not in flight.

        ```python
        [message] = client.queues.receive("parcels")
        message.nack(delay="10s", error="the warehouse does not answer")
        ```
        """
        return self._call(self._target.nack, delay=delay, error=error, counted=counted)

    def extend(self, visibility: Duration) -> bool:
        """Keep the message in flight for so long from now. Return False if it was not any more.

        What was received together with it is kept as well.

        ```python
        [message] = client.queues.receive("parcels")
        message.extend("5m")
        ```
        """
        return self._call(self._target.extend, visibility)
