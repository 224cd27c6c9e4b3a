"""Writing the schedules that the code of an app has to the database."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import NewSchedule, schedules_digest
from holdfast.worker.services.service import Service, ServiceContext

logger = logging.getLogger("holdfast.schedules")

_INTERVAL_SECONDS = 30.0


class CodeSchedules(Service):
    """Make the schedules of an app's code those of the database, unless newer code runs.

    It says again and again that a worker has this code: when the newest code no longer has
    workers, the one before it counts.
    """

    _first_seconds = _INTERVAL_SECONDS  # sign_on has done it

    def __init__(self, context: ServiceContext, app: str, schedules: Iterable[NewSchedule]) -> None:
        super().__init__(context, interval_seconds=_INTERVAL_SECONDS)
        self._app, self._schedules = app, tuple(schedules)
        self._digest = schedules_digest(self._schedules)
        self._is_superseded = False

    async def sign_on(self) -> None:
        """Write the schedules before the worker claims anything.

        Raises ConfigurationError for a name of a schedule that was not created by code.
        """
        try:
            await self._ensure(restore=True)
        except InvalidInput as error:
            raise ConfigurationError(f"app {self._app}: {error}") from error

    async def run_once(self) -> None:
        """Write the schedules if they are not those of the database."""
        await self._ensure()

    async def _ensure(self, *, restore: bool = False) -> None:
        ensured, notices = await self._store.ensure_schedules(
            self._app, self._digest, self._schedules, restore=restore
        )
        self._notify(notices)
        if ensured.status == "superseded" and not self._is_superseded:
            logger.warning(
                "app %s: workers with newer schedules are running; the schedules of this code do "
                "not count while they are",
                self._app,
            )
        self._is_superseded = ensured.status == "superseded"
        for what, names in (
            ("added", ensured.added),
            ("changed", ensured.changed),
            ("resumed, as the code has them again", ensured.resumed),
        ):
            if names:
                logger.info("app %s: schedules %s: %s", self._app, what, ", ".join(names))
        if ensured.paused:
            logger.warning(
                "app %s: schedules that the code no longer has are paused: %s",
                self._app,
                ", ".join(ensured.paused),
            )
