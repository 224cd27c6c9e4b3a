"""Warning of tasks that wait for a worker although no live worker serves them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.maintenance")


class Unserved(Service):
    """Warn once of each queue and handler whose tasks no live worker serves.

    `handlers` are those of the worker's own app. Other apps may share the database, and their
    workers need not run now: for names that this app does not have, a debug line is written.
    """

    _seconds = 30.0
    _first_seconds = 2.0  # workers that are started together serve what is theirs by then

    def __init__(self, context: ServiceContext, handlers: Iterable[str]) -> None:
        super().__init__(context)
        self._names = {_name_of(handler) for handler in handlers}
        self._warned: set[tuple[str, str]] = set()

    async def run_once(self) -> None:
        """Warn of names that are not served now, unless they were warned of last time.

        The reaper judges who is silent: this worker may not have been heard itself.
        """
        found = await self._store.unserved(silent_seconds=None)
        waiting = {(queue, handler): tasks for queue, handler, tasks in found}
        for (queue, handler), tasks in waiting.items():
            if (queue, handler) not in self._warned:
                logger.log(
                    logging.WARNING if _name_of(handler) in self._names else logging.DEBUG,
                    "no worker runs %s of queue %s: %d task(s) wait. Start a worker that has it, "
                    "or end the runs that wait for it",
                    handler.removesuffix("@0"),  # an activity has no version
                    queue,
                    tasks,
                )
        self._warned = set(waiting)


def _name_of(handler: str) -> str:
    """Return the name in `name@version`."""
    return handler.partition("@")[0]
