"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.message import Message
from holdfast.sync.base import SyncMessageBase
from holdfast.values.durations import Duration


class SyncMessage(SyncMessageBase, of=Message):
    """A message that was received: its values, and what can be done to it."""

    def ack(self, *, connection: object = None) -> bool:
        """Acknowledge the message: it is done. Return False if it was not in flight any more."""
        return self._call(self._target.ack, connection=connection)

    def nack(self, *, delay: Duration = 0, error: str | None = None, counted: bool = True) -> bool:
        """Give the message back; see `Queues.nack`. Return False if it was not in flight."""
        return self._call(self._target.nack, delay=delay, error=error, counted=counted)

    def extend(self, visibility: Duration) -> bool:
        """Keep the message in flight for so long from now. Return False if it was not any more."""
        return self._call(self._target.extend, visibility)
