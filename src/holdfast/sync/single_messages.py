"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET

from holdfast.client.single_messages import SingleMessages
from holdfast.sync.base import SyncGroup
from holdfast.types import FoundMessage
from holdfast.values.durations import Duration


class SyncSingleMessages(SyncGroup[SingleMessages]):
    """One message of a queue, by the id that its send returned: look at it, cancel it, change it.

    A message that a receiver has is not touched: `cancel` and `change` raise MessageInFlight. Each
    call reads the index of the queue, which takes tenths of a second if a million messages wait.
    """

    def get(self, queue: str, message_id: int) -> FoundMessage:
        """Return a message that waits or is in flight, with the errors of its receives.

        Its payload is a JSON text. Of the errors there are the newest 20. A dead letter is in the
        queue of the dead letters. Raises UnknownQueue and MessageNotFound.

        ```python
        message_id = client.queues.send("parcels", {"id": 7}, delay="1h")
        message = client.messages.get("parcels", message_id)
        print(message.in_flight, message.attempts, [each.error for each in message.failures])
        ```
        """
        return self._call(self._target.get, queue, message_id)

    def cancel(self, queue: str, message_id: int) -> bool:
        """Delete a message that waits. Return False if the queue does not have it.

        Its deduplication id stays known. Raises UnknownQueue, and MessageInFlight if a receiver has
        it.

        ```python
        message_id = client.queues.send("parcels", {"id": 7}, delay="1h")
        assert client.messages.cancel("parcels", message_id)
        ```
        """
        return self._call(self._target.cancel, queue, message_id)

    def change(
        self,
        queue: str,
        message_id: int,
        *,
        payload: object = UNSET,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> bool:
        """Change what is given of a message that waits. Return False if the queue does not have it.

        It is due `delay` from now, or `at` a moment. The next receive has what was changed; how
        often it was received before still counts. In a FIFO queue it keeps its place in its group.

        Raises UnknownQueue, InvalidInput, PayloadError, and MessageInFlight if a receiver has it.

        ```python
        message_id = client.queues.send("parcels", {"id": 7}, delay="1h")
        client.messages.change("parcels", message_id, payload={"id": 8}, delay=0)
        ```
        """
        return self._call(
            self._target.change,
            queue,
            message_id,
            payload=payload,
            delay=delay,
            at=at,
            priority=priority,
        )
