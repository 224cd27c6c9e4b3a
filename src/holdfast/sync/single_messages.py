"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET

from holdfast.client.single_messages import SingleMessages
from holdfast.sync.base import SyncGroup
from holdfast.types import FoundMessage
from holdfast.values.durations import Duration


class SyncSingleMessages(SyncGroup[SingleMessages], of=SingleMessages):
    """One message of a queue, by the id that its send returned: look at it, cancel it,
    change it.
    """

    def get(self, queue: str, message_id: int) -> FoundMessage:
        """Return a message that waits or is in flight, with the errors of its receives."""
        return self._call(self._target.get, queue, message_id)

    def cancel(self, queue: str, message_id: int) -> bool:
        """Delete a message that waits. Return False if the queue does not have it."""
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
        """Change what is given of a message that waits. Return False if the queue does not have
        it.
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
