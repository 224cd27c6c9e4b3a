"""Topics: declaring what the code is subscribed to, and removing what has no meaning any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import NewSubscription
from holdfast.worker.services.service import Service, ServiceContext

logger = logging.getLogger("holdfast.topics")

_INTERVAL_SECONDS: Final = 30.0
_BATCH: Final = 1_000


class CodeSubscriptions(Service):
    """Say again and again what the code of this worker is subscribed to.

    What no worker of the app says any more is paused. A batch of old rows is deleted each time.
    """

    _first_seconds = _INTERVAL_SECONDS  # sign_on has done it

    def __init__(
        self, context: ServiceContext, app: str, subscriptions: Sequence[NewSubscription]
    ) -> None:
        super().__init__(context, interval_seconds=_INTERVAL_SECONDS)
        self._app, self._subscriptions = app, subscriptions

    async def sign_on(self) -> None:
        """Write the subscriptions before the worker claims anything.

        Raises ConfigurationError for one that the database refuses.
        """
        try:
            await self._declare()
        except InvalidInput as error:
            raise ConfigurationError(f"app {self._app}: {error}") from error

    async def run_once(self) -> None:
        """Declare them again, and delete a batch of old rows."""
        await self._declare()
        await self._store.sweep_topics(limit=_BATCH)

    async def _declare(self) -> None:
        declared = await self._store.declare_subscriptions(self._app, self._subscriptions)
        for what, patterns in (
            ("added", declared.added),
            ("resumed, as the code has them again", declared.resumed),
        ):
            if patterns:
                logger.info("app %s: subscriptions %s: %s", self._app, what, ", ".join(patterns))
        if declared.paused:
            logger.warning(
                "app %s: subscriptions that the code no longer has are paused: %s",
                self._app,
                ", ".join(declared.paused),
            )
