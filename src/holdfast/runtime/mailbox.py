"""The signals of a run: kept until somebody waits for them, first in, first out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.codec import contains, decoder
from holdfast.types import JSON

if TYPE_CHECKING:
    from holdfast.runtime.loop import WorkflowLoop

_read_plain = decoder(object)


class Mailbox:
    """Messages by the signal's name, and who waits for them."""

    __slots__ = ("_loop", "_messages", "_waiters")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._messages: dict[str, list[msgspec.Raw]] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names that somebody waits for."""
        return tuple(self._waiters)

    @property
    def unread(self) -> dict[str, list[str]]:
        """The messages that nobody has taken, as JSON text."""
        return {
            name: [bytes(message).decode() for message in messages]
            for name, messages in self._messages.items()
            if messages
        }

    def put(self, name: str, message: msgspec.Raw) -> None:
        """Keep a message and wake who waits for its name."""
        self._messages.setdefault(name, []).append(message)
        for waiter in self._waiters.get(name, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def take(self, name: str, match: JSON) -> msgspec.Raw:
        """Wait for the first message that contains `match`; None matches every message.

        As in asyncio.Queue, a message leaves the buffer when its waiter runs, not when it
        arrives: a waiter that is cancelled in between has lost nothing.
        """
        while True:
            messages = self._messages.get(name, [])
            for place, message in enumerate(messages):
                if match is None or contains(_read_plain(message), match):
                    return messages.pop(place)
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
