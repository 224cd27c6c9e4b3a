"""`client.messages`: one message of a queue, by its id."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.client.session import Group
from holdfast.codec import encode
from holdfast.errors import ConfigurationError, InvalidInput, MessageNotFound
from holdfast.types import FoundMessage, MessageChange
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import checked_micros
from holdfast.values.names import check_queue_name


class SingleMessages(Group):
    """One message of a queue, by the id that its send returned: look at it, cancel it, change it.

    A message that a receiver has is not touched: `cancel` and `change` raise MessageInFlight. Each
    call reads the index of the queue, which takes tenths of a second if a million messages wait.
    """

    async def get(self, queue: str, message_id: int) -> FoundMessage:
        """Return a message that waits or is in flight, with the errors of its receives.

        Its payload is a JSON text. Of the errors there are the newest 20. A dead letter is in the
        queue of the dead letters. Raises UnknownQueue and MessageNotFound.

        ```python
        message_id = await client.queues.send("parcels", {"id": 7}, delay="1h")
        message = await client.messages.get("parcels", message_id)
        print(message.in_flight, message.attempts, [each.error for each in message.failures])
        ```
        """
        name = check_queue_name(queue)
        found = await self._session.store.get_message(name, _checked(message_id))
        if found is None:
            raise MessageNotFound(name, message_id)
        failures = {}
        if found.error is not None:
            failures = await self._session.store.message_failures([message_id])
        return FoundMessage(**asdict(found), failures=failures.get(message_id, ()))

    async def cancel(self, queue: str, message_id: int) -> bool:
        """Delete a message that waits. Return False if the queue does not have it.

        Its deduplication id stays known. Raises UnknownQueue, and MessageInFlight if a receiver has
        it.

        ```python
        message_id = await client.queues.send("parcels", {"id": 7}, delay="1h")
        assert await client.messages.cancel("parcels", message_id)
        ```
        """
        name, number = check_queue_name(queue), _checked(message_id)
        call = partial(self._session.store.cancel_message, name, number)
        return await self._session.change(call)

    async def change(
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
        message_id = await client.queues.send("parcels", {"id": 7}, delay="1h")
        await client.messages.change("parcels", message_id, payload={"id": 8}, delay=0)
        ```
        """
        change = MessageChange(
            payload=None if payload is UNSET else encode(payload),
            delay_seconds=None if delay is None else seconds(delay),
            due_at=None if at is None else checked_micros(at),
            priority=priority,
        )
        if change == MessageChange():
            raise ConfigurationError("give what is to be changed: payload, delay, at or priority")
        if delay is not None and at is not None:
            raise ConfigurationError("give either delay or at, not both")
        name, number = check_queue_name(queue), _checked(message_id)
        call = partial(self._session.store.change_message, name, number, change)
        return await self._session.change(call)


def _checked(message_id: int) -> int:
    """Return the id of a message. Raises InvalidInput for what no message can have."""
    # Callers without a type checker pass anything.
    if isinstance(message_id, bool) or not isinstance(message_id, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"the id of a message is the number that its send returned, not {message_id!r}"
        )
    if not 0 < message_id < 2**63:
        raise InvalidInput(f"no message has the id {message_id}")
    return message_id
