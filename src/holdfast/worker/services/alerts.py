"""Alerts: declaring those of the code, and looking at all that are due."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import AlertRule
from holdfast.worker.services.service import Service, ServiceContext

logger = logging.getLogger("holdfast.alerts")

_DECLARE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 10.0


class CodeAlerts(Service):
    """Say again and again which alerts the code of this worker has, if it has some."""

    _first_seconds = _DECLARE_SECONDS  # sign_on has done it

    def __init__(self, context: ServiceContext, app: str, alerts: Sequence[AlertRule]) -> None:
        super().__init__(context, interval_seconds=_DECLARE_SECONDS)
        self._app, self._alerts = app, alerts

    async def sign_on(self) -> None:
        """Write the alerts before the worker claims anything.

        Raises ConfigurationError for one that the database refuses.
        """
        try:
            await self._declare(starting=True)
        except InvalidInput as error:
            raise ConfigurationError(f"app {self._app}: {error}") from error

    async def run_once(self) -> None:
        """Declare them again."""
        await self._declare()

    async def _declare(self, *, starting: bool = False) -> None:
        if not self._alerts:
            return
        declared = await self._store.declare_alerts(self._app, self._alerts, starting=starting)
        for what, names in (("added", declared.added), ("changed", declared.changed)):
            if names:
                logger.info("app %s: alerts %s: %s", self._app, what, ", ".join(names))


class Alerts(Service):
    """Look at the alerts of all apps that are due, and publish what changed."""

    duty = "alerts"

    def __init__(self, context: ServiceContext, *, silent_seconds: float) -> None:
        super().__init__(context, interval_seconds=_LOOK_SECONDS)
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
