"""Read the logs of all followed runs together, for any number of followers.

A follower is a position in a log, not a queue: it asks for what comes after its position, and is
answered when there is something. So one that does not read costs nothing and holds up no other.
Each tick asks the database once, whatever the number of followed runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from uuid import UUID

from holdfast.errors import DatabaseError
from holdfast.store.port import Store
from holdfast.types import Event

logger = logging.getLogger("holdfast.server")

TICK_SECONDS: Final = (0.05, 1.0)  # while things happen, and while nothing does
MOST_RUNS: Final = 1_000  # of one question


class _Follower:
    """A caller that waits for what comes after its position."""

    __slots__ = ("events", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.events: asyncio.Future[list[Event]] = asyncio.get_running_loop().create_future()


class Hub:
    """Tells followers what is new in the logs of their runs. If none waits, it does nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[UUID, set[_Follower]] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.ticks = 0  # questions that were asked

    async def after(self, run_id: UUID, position: int) -> list[Event]:
        """Return the events of a run from a position on, as soon as there are any."""
        follower = _Follower(position)
        self._waiting.setdefault(run_id, set()).add(follower)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._tick_on())
        try:
            return await follower.events
        finally:
            followers = self._waiting.get(run_id, set())
            followers.discard(follower)
            if not followers:
                self._waiting.pop(run_id, None)

    async def close(self) -> None:
        """Stop. Followers are not answered any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _tick_on(self) -> None:
        least, most = TICK_SECONDS
        interval = least
        try:
            while self._waiting:
                self._arrived.clear()
                try:
                    found = await self._tick()
                except DatabaseError as error:
                    logger.warning("cannot read logs that are followed: %s", error)
                    interval = most
                    await asyncio.sleep(interval)
                    continue
                interval = least if found else min(interval * 1.5, most)
                await asyncio.sleep(least)
                await _first(self._arrived, interval - least)
        except Exception as error:
            logger.exception("logs cannot be followed any more")
            for followers in self._waiting.values():
                for each in followers:
                    if not each.events.done():
                        each.events.set_exception(error)
        finally:
            self._task = None

    async def _tick(self) -> bool:
        """Ask once for all followed runs, and answer followers. Return False if nothing is new."""
        self.ticks += 1
        wanted = {
            run_id: min(each.position for each in followers)
            for run_id, followers in self._waiting.items()
        }
        ranges, found = list(wanted.items()), False
        for at in range(0, len(ranges), MOST_RUNS):
            logs = await self._store.read_events(ranges[at : at + MOST_RUNS])
            for run_id, events in logs.items():
                if events:
                    found = True
                    self._answer(run_id, wanted[run_id], events)
        return found

    def _answer(self, run_id: UUID, first: int, events: list[Event]) -> None:
        for each in self._waiting.get(run_id, ()):
            new = events[each.position - first :] if each.position >= first else []
            if new and not each.events.done():
                each.events.set_result(new)


async def _first(arrived: asyncio.Event, seconds: float) -> None:
    """Wait until a follower arrives, at most so long."""
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await arrived.wait()
    except TimeoutError:
        pass
