"""Signing on again when the database has forgotten what the code declared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.worker")


class Forgotten(Service):
    """Sign on again after a restore, or a failover to a replica that lags.

    Such a database may be older than the start of this worker, and lack flows, queues, limits and
    rules of its code. It is known by the last sign-on of the app, which is gone, or was earlier. If
    a worker of another build has signed on again since, the build of this one is looked for, too.
    A worker that was only called silent writes nothing: newer code may have declared other things.
    """

    _seconds = 30.0

    def __init__(
        self, context: ServiceContext, app: App, sign_on: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(context)
        self._app, self._build, self._sign_on = app.name, app.build, sign_on
        self._workflows = {name for name, _ in app.workflows}
        self._is_unknown = False
        self._seen_at: int | None = 0  # the app's last sign-on by any worker, None if it is lost
        if context.agenda is not None:
            context.agenda.watch("sign on", self.look)

    def look(self) -> None:
        """Look now: the database did not know this worker."""
        self._is_unknown = True
        self.wake()

    async def run_once(self) -> None:
        """Look at the last sign-on of the app."""
        if await self._is_known():
            return
        logger.warning(
            "app %s: the database lacks its last sign-on, as after a restore or a failover to a "
            "replica that lags: what the code declares is written again",
            self._app,
        )
        self._seen_at = None  # all of it again, if it does not come to its end
        try:
            await self._sign_on()
        except ConfigurationError as error:
            logger.error("app %s cannot sign on again, restart its workers: %s", self._app, error)
        self._seen_at = 0

    async def _is_known(self) -> bool:
        known = {each.app: each for each in await self._store.list_apps()}.get(self._app)
        before = self._seen_at
        if known is None or before is None or not self._workflows <= {*known.workflows}:
            return False
        if known.signed_on_at < before:
            return False
        is_other = 0 < before < known.signed_on_at
        if self._is_unknown and is_other and not await self._has_build():
            return False
        self._seen_at, self._is_unknown = known.signed_on_at, False
        return True

    async def _has_build(self) -> bool:
        if self._build is None:
            return True
        builds = await self._store.list_builds(self._app)
        return any(each.build == self._build and each.signed_on_at for each in builds)
