"""Writing to the database what the code of an app has: schedules, subscriptions, alerts."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import AlertRule, NewSchedule, NewSubscription, schedules_digest
from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

_INTERVAL_SECONDS: Final = 30.0


class Declaring(Service):
    """Say again and again what the code of this worker has.

    What no worker of the app says any more does not count.
    """

    _seconds = _INTERVAL_SECONDS
    _first_seconds = _INTERVAL_SECONDS  # sign_on has done it
    _logger: ClassVar[logging.Logger]
    _things: ClassVar[str]  # what they are called in the log

    def __init__(self, context: ServiceContext, app: str) -> None:
        super().__init__(context)
        self._app = app

    async def sign_on(self) -> None:
        """Declare all before the worker claims anything.

        Raises ConfigurationError for one that the database refuses.
        """
        try:
            await self._declare(starting=True)
        except InvalidInput as error:
            raise ConfigurationError(f"app {self._app}: {error}") from error

    async def run_once(self) -> None:
        """Declare all again."""
        await self._declare()

    @abstractmethod
    async def _declare(self, *, starting: bool = False) -> None: ...

    def _tell(self, what: str, names: Sequence[str]) -> None:
        if names:
            self._logger.info("app %s: %s %s: %s", self._app, self._things, what, ", ".join(names))

    def _tell_of_pauses(self, paused: Sequence[str], resumed: Sequence[str]) -> None:
        self._tell("resumed, as the code has them again", resumed)
        if paused:
            self._logger.warning(
                "app %s: %s that the code no longer has are paused: %s",
                self._app,
                self._things,
                ", ".join(paused),
            )


class CodeSchedules(Declaring):
    """Make the schedules of an app's code those of the database, unless newer code runs.

    When the newest code no longer has workers, the one before it counts. Raises ConfigurationError
    also for a name of a schedule that was not created by code.
    """

    _logger = get_logger("holdfast.schedules")
    _things = "schedules"

    def __init__(self, context: ServiceContext, app: str, schedules: Iterable[NewSchedule]) -> None:
        super().__init__(context, app)
        self._schedules = tuple(schedules)
        self._digest = schedules_digest(self._schedules)
        self._is_superseded = False

    async def _declare(self, *, starting: bool = False) -> None:
        ensured, notices = await self._store.ensure_schedules(
            self._app, self._digest, self._schedules, restore=starting
        )
        self._notify(notices)
        if ensured.status == "superseded" and not self._is_superseded:
            self._logger.warning(
                "app %s: workers with newer schedules are running; the schedules of this code do "
                "not count while they are",
                self._app,
            )
        self._is_superseded = ensured.status == "superseded"
        self._tell("added", ensured.added)
        self._tell("changed", ensured.changed)
        self._tell_of_pauses(ensured.paused, ensured.resumed)


class CodeSubscriptions(Declaring):
    """Keep the subscriptions of an app's code."""

    _logger = get_logger("holdfast.topics")
    _things = "subscriptions"

    def __init__(
        self, context: ServiceContext, app: str, subscriptions: Sequence[NewSubscription]
    ) -> None:
        super().__init__(context, app)
        self._subscriptions = subscriptions

    async def _declare(self, *, starting: bool = False) -> None:
        declared = await self._store.declare_subscriptions(self._app, self._subscriptions)
        self._tell("added", declared.added)
        self._tell_of_pauses(declared.paused, declared.resumed)


class CodeAlerts(Declaring):
    """Keep the alerts of an app's code, if it has some."""

    _logger = get_logger("holdfast.alerts")
    _things = "alerts"

    def __init__(self, context: ServiceContext, app: str, alerts: Sequence[AlertRule]) -> None:
        super().__init__(context, app)
        self._alerts = alerts

    async def _declare(self, *, starting: bool = False) -> None:
        if self._alerts:
            declared = await self._store.declare_alerts(self._app, self._alerts, starting=starting)
            self._tell("added", declared.added)
            self._tell("changed", declared.changed)
