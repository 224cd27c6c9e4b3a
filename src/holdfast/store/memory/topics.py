"""Listeners: who is called back with what is sent to a topic, on the loop it listens from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.types import Notice


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A callback and the loop on which it is to run."""

    topic: str
    callback: Callable[[str], None]
    loop: asyncio.AbstractEventLoop

    def call(self, payload: str) -> None:
        """Call back soon; a listener whose loop is gone misses it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._run, payload)

    def _run(self, payload: str) -> None:
        self.callback(payload)


class Topics:
    """The listeners of every topic. Not thread-safe: the store's lock guards it."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def add(self, listener: Listener) -> None:
        """Begin to call back."""
        self._listeners.add(listener)

    def remove(self, listener: Listener) -> None:
        """Call back no more."""
        self._listeners.discard(listener)

    def send(self, notices: Iterable[Notice]) -> None:
        """Call every listener of each notice's topic."""
        for notice in notices:
            for listener in self._listeners:
                if listener.topic == notice.topic:
                    listener.call(notice.payload)

    def clear(self) -> None:
        """Forget all listeners."""
        self._listeners.clear()
