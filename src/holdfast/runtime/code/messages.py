"""What is sent to a run: signals, and updates, which are answered."""

from __future__ import annotations

import msgspec

from holdfast.codec import without_nul
from holdfast.events import CarriedSignal, read_signal
from holdfast.types import Event, Value


class Message(Value, frozen=True, gc=False):
    """A signal or an update; `id` is the sender's, `reply_to` the topic that an answer goes to."""

    name: str
    payload: msgspec.Raw
    id: str | None = None
    update: bool = False
    reply_to: str | None = None

    @classmethod
    def read(cls, event: Event) -> Message:
        """Read a SignalReceived."""
        signal = read_signal(event.details or "")
        return cls(signal.signal_name, signal.input, event.key, signal.update, signal.reply_to)

    def carried(self) -> CarriedSignal:
        """Write it down for the run that this one continues as.

        NUL characters, which PostgreSQL refuses now, and cannot carry, become U+FFFD.
        """
        payload = without_nul(self.payload)
        return CarriedSignal(self.name, payload, self.id, self.update, self.reply_to)
