"""Gathering while calls are in flight: what the committer and the reporter have in common.

With nothing in flight an entry leaves at once, with those of the same moment; while all lanes
are taken the next ones gather, and leave together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from holdfast.types import count_bearable

T = TypeVar("T")


class Lanes(Generic[T]):
    """Give entries to `send` in batches, so many at a time.

    Two lanes keep the database busy while answers are worked through; more lanes only make the
    batches smaller. Entries that all come at once would leave at once, and the database and this
    process would wait for each other by turns: where `halves` says so, they take both lanes.
    A batch weighs no more than `HEAVY` by `weight`, or is one entry: a call that is too long for
    the connection, or for the server's memory, would be repeated for ever.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Coroutine[object, object, None]],
        *,
        weight: Callable[[T], int],
        halves: Callable[[list[T]], bool] = lambda _: False,
        lanes: int = 2,
        batch: int = 400,
    ) -> None:
        self._send, self._halves, self._lanes, self._batch = send, halves, lanes, batch
        self._weight = weight
        self._waiting: list[T] = []
        self._flights: set[asyncio.Task[None]] = set()
        self._called = False

    @property
    def idle(self) -> bool:
        """Say whether nothing waits and nothing is in flight."""
        return not self._waiting and not self._flights

    def add(self, entry: T) -> None:
        """Send an entry as soon as there is a lane."""
        self._waiting.append(entry)
        if not self._called and len(self._flights) < self._lanes:
            self._called = True  # entries of the same moment still join
            asyncio.get_running_loop().call_soon(self._launch)

    async def settle(self) -> None:
        """Return once nothing waits and nothing is in flight."""
        while not self.idle:
            if self._flights:
                await asyncio.wait(self._flights)
            await asyncio.sleep(0)  # the next batch is launched, and answers lead to new entries

    async def stop(self) -> None:
        """Call off what is in flight, and forget what waits."""
        self._waiting.clear()
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)

    def _launch(self) -> None:
        self._called = False
        while self._waiting and len(self._flights) < self._lanes:
            size = self._batch
            if not self._flights and self._halves(self._waiting):
                size = min(size, -(-len(self._waiting) // 2))
            size = count_bearable(map(self._weight, self._waiting[:size]))
            entries, self._waiting = self._waiting[:size], self._waiting[size:]
            flight = asyncio.get_running_loop().create_task(self._send(entries))
            self._flights.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if self._waiting and not self._called:
            self._launch()
