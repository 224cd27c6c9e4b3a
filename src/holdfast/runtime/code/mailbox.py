"""The signals of a run: kept until somebody waits for them, first in, first out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.codec import contains, decoder
from holdfast.runtime.log.details import read_signal
from holdfast.runtime.log.order_details import CarriedSignal
from holdfast.types import JSON, Event, Value

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

_read_plain = decoder(object)


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
        """Write it down for the run that this one continues as."""
        return CarriedSignal(self.name, self.payload, self.id, self.update, self.reply_to)


class Mailbox:
    """Messages by the signal's name, and who waits for them."""

    __slots__ = ("_loop", "_messages", "_waiters")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._messages: dict[str, list[Message]] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names that somebody waits for."""
        return tuple(self._waiters)

    @property
    def unread(self) -> list[Message]:
        """The messages that nobody has taken, by name."""
        return [message for messages in self._messages.values() for message in messages]

    def put(self, message: Message) -> None:
        """Keep a message and wake who waits for its name."""
        self._messages.setdefault(message.name, []).append(message)
        for waiter in self._waiters.get(message.name, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def take(self, name: str, match: JSON) -> msgspec.Raw:
        """Wait for the first message that contains `match`; None matches every message.

        As in asyncio.Queue, a message leaves the buffer when its waiter runs, not when it
        arrives: a waiter that is cancelled in between has lost nothing. Behind the end of the
        run's own code nobody takes any: they go along to the run that it continues as.
        """
        while True:
            messages = [] if self._loop.ended else self._messages.get(name, [])
            for place, message in enumerate(messages):
                if match is None or contains(_read_plain(message.payload), match):
                    return messages.pop(place).payload
            await self._arrival(name)

    async def _arrival(self, name: str) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._waiters.setdefault(name, [])
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(name, None)
