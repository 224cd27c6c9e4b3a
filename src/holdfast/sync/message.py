"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.message import Message
from holdfast.sync.base import SyncMessageBase, blocking


class SyncMessage(SyncMessageBase, of=Message):
    """A message that was received: its values, and what can be done to it."""

    ack = blocking(Message.ack)
    """Acknowledge the message: it is done. Return False if it was not in flight any more."""
    nack = blocking(Message.nack)
    """Give the message back; see `Queues.nack`. Return False if it was not in flight."""
    extend = blocking(Message.extend)
    """Keep the message in flight for so long from now. Return False if it was not any more."""
