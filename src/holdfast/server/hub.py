"""Read the logs of all followed runs together, for any number of followers.

A follower is a position in a log, not a queue: it asks for what comes after its position, and is
answered when there is something. So one that does not read costs nothing and holds up no other.
Each tick asks the database once, whatever the number of followed runs. The answer is bounded: if
there is more, each follower gets a part, and what a stream would not show is not read.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.errors import DatabaseError
from holdfast.insight.shapes import LARGEST_SHOWN
from holdfast.store.port import Store
from holdfast.types import ClippedEvent
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within

logger = get_logger("holdfast.server")

TICK_SECONDS: Final = 0.05  # between questions, while things happen
QUIET_SECONDS: Final = (0.1, 1.0)  # while nothing does: as seldom as it costs
SHARE: Final = 0.05  # of the time that questions take, while nothing happens
MOST_PLACES: Final = 1_000  # of one question
MOST_EVENTS: Final = 1_000  # of one answer
MOST_BYTES: Final = 4 * 1024 * 1024  # of details, after which an answer ends

_Place: TypeAlias = tuple[UUID, int]  # a run, and an index of its log


class Hub:
    """Tells followers what is new in the logs of their runs. If none waits, it does nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[_Place, set[asyncio.Future[list[ClippedEvent]]]] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.ticks = 0  # questions that were asked

    async def after(self, run_id: UUID, position: int) -> list[ClippedEvent]:
        """Return events of a run from a position on, as soon as there are any; not always all.

        Details that are larger than what is shown of them are cut.
        """
        place = run_id, position
        events: asyncio.Future[list[ClippedEvent]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, set()).add(events)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._tick_on())
        try:
            return await events
        finally:
            followers = self._waiting.get(place, set())
            followers.discard(events)
            if not followers:
                self._waiting.pop(place, None)

    async def close(self) -> None:
        """Stop. Followers are not answered any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _tick_on(self) -> None:
        interval = TICK_SECONDS
        try:
            while self._waiting:
                self._arrived.clear()
                began = time.perf_counter()
                try:
                    found = await self._tick()
                except DatabaseError as error:
                    logger.warning("cannot read logs that are followed: %s", error)
                    await asyncio.sleep(QUIET_SECONDS[1])
                    continue
                quiet = quiet_seconds(time.perf_counter() - began)
                interval = TICK_SECONDS if found else min(interval * 1.5, quiet)
                await asyncio.sleep(TICK_SECONDS)
                if (rest := interval - TICK_SECONDS) > 0:
                    await set_within(self._arrived, rest)
        except Exception as error:
            logger.exception("logs cannot be followed any more")
            for followers in self._waiting.values():
                for each in followers:
                    if not each.done():
                        each.set_exception(error)
        finally:
            self._task = None

    async def _tick(self) -> bool:
        """Ask once for all followed runs, and answer followers. Return False if nothing is new."""
        self.ticks += 1
        places, found = list(self._waiting), False
        for at in range(0, len(places), MOST_PLACES):
            asked = places[at : at + MOST_PLACES]
            tails = await self._store.read_tails(
                asked, limit=MOST_EVENTS, clip=LARGEST_SHOWN, most_bytes=MOST_BYTES
            )
            for place, events in zip(asked, tails, strict=True):
                if events:
                    found = True
                    self._answer(place, events)
        return found

    def _answer(self, place: _Place, events: list[ClippedEvent]) -> None:
        for each in self._waiting.get(place, ()):
            if not each.done():
                each.set_result(events)


def quiet_seconds(took: float) -> float:
    """Return how long to wait between questions while nothing happens, if one took so long."""
    least, most = QUIET_SECONDS
    return min(max(took / SHARE, least), most)
