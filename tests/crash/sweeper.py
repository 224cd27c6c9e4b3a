"""A process that archives and deletes what is due, and kills itself between two calls."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

from holdfast.objects import Objects, open_objects
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore


class Switch:
    """Counts the points before and after calls, and kills the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at, self.points = kill_at, 0

    def over(self, target: object, *names: str) -> Any:
        """Return an object whose calls, or these of them, pass a point before and after."""
        return _Watched(self, target, names)

    def pass_point(self) -> None:
        """Die here, or go past."""
        self.points += 1
        if self.points == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    def __init__(self, switch: Switch, target: object, names: Collection[str]) -> None:
        self._switch, self._target, self._names = switch, target, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not asyncio.iscoroutinefunction(found) or (self._names and name not in self._names):
            return found
        return self._watched(found)

    def _watched(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def watched(*args: object, **options: object) -> object:
            self._switch.pass_point()
            answer = await call(*args, **options)
            self._switch.pass_point()
            return answer

        return watched


async def sweep(url: str, place: str, kill_at: int) -> int:
    """Archive and delete what is due; die at a point, 0 for none. Return the number of points."""
    store, switch = PostgresStore(url, connections=2), Switch(kill_at)
    await store.open()
    archive = None
    if place:
        archive = Archive(place, cast("Objects", switch.over(open_objects(place))))
    try:
        async for _ in sweep_batches(cast("Store", switch.over(store)), archive):
            pass
    finally:
        await store.close()
    return switch.points
