"""Listening in all shards: in one that is away as soon as it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.errors import DatabaseError
from holdfast.store.shards.members import Members

_PAUSE_SECONDS: Final = 1.0

Stop = Callable[[], Awaitable[None]]


class Listening:
    """One topic, in all databases that are named."""

    def __init__(self, members: Members, topic: str, callback: Callable[[str], None]) -> None:
        self._members, self._topic, self._callback = members, topic, callback
        self._stops: list[Stop] = []
        self._trying: list[asyncio.Task[None]] = []

    async def start(self) -> Stop:
        """Listen where it is possible now, and elsewhere later; return what stops it."""
        numbers = range(len(self._members.named))
        heard = await asyncio.gather(*(self._listen(number) for number in numbers))
        self._trying = [
            asyncio.create_task(self._keep_trying(number))
            for number, hears in zip(numbers, heard, strict=True)
            if not hears
        ]
        return self.stop

    async def stop(self) -> None:
        for task in self._trying:
            task.cancel()
        if self._trying:
            await asyncio.wait(self._trying)
        stops, self._stops = self._stops, []
        await asyncio.gather(*(stop() for stop in stops))

    async def _listen(self, number: int) -> bool:
        try:
            stop = await self._members.call(number, "listen", self._topic, self._callback)
        except DatabaseError:
            return False
        self._stops.append(stop)
        return True

    async def _keep_trying(self, number: int) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            if await self._listen(number):
                self._callback("")  # something may have been missed
                return
