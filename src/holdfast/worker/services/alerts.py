"""Alerts: looking at all that are due, and telling of what changed."""

from __future__ import annotations

from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.alerts")


class Alerts(Service):
    """Look at the alerts of all apps that are due, and publish what changed."""

    duty = "alerts"
    _seconds = 10.0

    def __init__(self, context: ServiceContext, *, silent_seconds: float) -> None:
        super().__init__(context)
        self._silent_seconds = silent_seconds

    async def run_once(self) -> None:
        """Look at those that are due."""
        changes, notices = await self._store.look_at_alerts(silent_seconds=self._silent_seconds)
        self._notify(notices)
        for each in changes:
            name = f"{each.app}/{each.name}"
            if each.error is not None:
                logger.error("alert %s changed and cannot be published: %s", name, each.error)
            elif each.is_deleted:
                logger.info("alert %s is deleted: the code of its app does not have it", name)
            elif each.is_active:
                logger.warning("alert %s: it begins at %g", name, each.value)
            else:
                logger.warning("alert %s: it is over", name)
