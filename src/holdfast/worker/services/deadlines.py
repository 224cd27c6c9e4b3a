"""Ending runs and activities at their deadlines."""

from __future__ import annotations

from typing import Final, Protocol

from holdfast.types import Notice
from holdfast.worker.services.service import Service

_BATCH: Final = 100


class TimeOut(Protocol):
    """A method of the store that ends runs or activities after their deadline."""

    async def __call__(self, *, limit: int) -> tuple[int, int | None, list[Notice]]: ...


class Deadlines(Service):
    """End runs and activities at their deadlines. `due_at` adds a deadline that a claim found."""

    duty = "deadlines"

    async def run_once(self) -> None:
        """End all runs and activities that are past their deadlines."""
        for time_out in (self._store.time_out_runs, self._store.time_out_activities):
            next_due = await self._end_all(time_out)
            if next_due is not None:
                self.due_at(next_due)

    async def _end_all(self, time_out: TimeOut) -> int | None:
        """End everything that is past its deadline; return the next deadline, None without one."""
        while True:
            ended, next_due, notices = await time_out(limit=_BATCH)
            self._notify(notices)
            if ended < _BATCH:
                return next_due
