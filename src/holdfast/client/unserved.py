"""Warning a caller who waits for a run that no live worker would take."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from holdfast.errors import HoldfastError
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.client")

PATIENCE_SECONDS: Final = 5.0  # nothing is asked before a wait lasts so long
_INTERVAL_SECONDS: Final = 30.0
_AT_ONCE: Final = 100  # runs whose names are read


class Unserved:
    """Say once of each queue and workflow that the runs in question wait for a worker.

    It asks in a task of its own: nobody's result comes later for it, or fails with it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._look_at = 0.0  # loop time
        self._task: asyncio.Task[None] | None = None
        self._warned: set[tuple[str, str]] = set()

    def look(self, run_ids: Collection[UUID], now: float) -> None:
        """Look at runs that callers have waited for for a while. Asks seldom, and not for none."""
        if run_ids and now >= self._look_at and (self._task is None or self._task.done()):
            self._look_at = now + _INTERVAL_SECONDS
            self._task = asyncio.create_task(self._ask(list(run_ids)[:_AT_ONCE]))

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask(self, run_ids: Sequence[UUID]) -> None:
        try:
            waiting = {(queue, handler) for queue, handler, _ in await self._store.unserved()}
            found = await self._store.get_runs(run_ids) if waiting - self._warned else {}
        except HoldfastError as error:
            logger.debug("cannot look for workers: %s", error)
            return
        for run in found.values():
            place = (run.queue, run.handler)
            if place in waiting and place not in self._warned:
                self._warned.add(place)
                logger.warning(
                    "run %s waits: no live worker runs %s of queue %s. Start a worker that has it: "
                    "holdfast worker MODULE:APP",
                    run.run_id,
                    place[1],
                    run.queue,
                )
