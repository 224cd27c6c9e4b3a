"""Removing workers that have died, so that other workers take over what they held."""

from __future__ import annotations

from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.maintenance")


class Reaper(Service):
    """Remove workers that have sent no heartbeat for `silent_seconds`."""

    duty = "workers"

    def __init__(self, context: ServiceContext, *, silent_seconds: float) -> None:
        super().__init__(context)
        self._silent_seconds = silent_seconds

    async def run_once(self) -> None:
        """Remove the workers that are silent for too long."""
        dead, notices = await self._store.reap_workers(
            observer=self._worker_id, silent_seconds=self._silent_seconds
        )
        if dead:
            logger.warning(
                "%d worker(s) fell silent, other workers take over their work: %s",
                len(dead),
                ", ".join(dead),
            )
        self._notify(notices)
