"""Waiting between tries of a call that fails."""

from __future__ import annotations

import asyncio
import random


def spread(seconds: float, by: float = 0.2) -> float:
    """Return about so many seconds, up to a share of them more or fewer: others wait as well."""
    return seconds * random.uniform(1 - by, 1 + by)


class Backoff:
    """Wait longer after each failure, with jitter, so that many workers do not return at once."""

    def __init__(self, first: float = 0.05, limit: float = 2.0) -> None:
        self._first, self._limit = first, limit
        self._next = first

    def reset(self) -> None:
        """Start with the shortest wait again."""
        self._next = self._first

    def take(self) -> float:
        """Return how many seconds to wait now, and make the next wait longer."""
        seconds = spread(self._next, 0.25)
        self._next = min(self._next * 2, self._limit)
        return seconds

    async def wait(self) -> None:
        """Sleep for `take()` seconds."""
        await asyncio.sleep(self.take())


async def first_of(one: asyncio.Event, other: asyncio.Event, seconds: float) -> None:
    """Wait for one of two events, for so long at most."""
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
