"""Signing on again when the database has forgotten what the code declared."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.worker.services.service import Service, ServiceContext

logger = logging.getLogger("holdfast.worker")

_NEVER: Final = 2**63


class Forgotten(Service):
    """Sign on again after a restore, or a failover to a replica that lags.

    Such a database may be older than the start of this worker, and lack flows, queues, limits and
    rules of its code. It is known by the last sign-on of the app, which is gone, or was earlier.
    A worker that was only called silent writes nothing: newer code may have declared other things.
    """

    _seconds = 30.0

    def __init__(
        self,
        context: ServiceContext,
        app: str,
        workflows: Collection[str],
        sign_on: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(context)
        self._app, self._workflows, self._sign_on = app, frozenset(workflows), sign_on
        self._seen_at = 0  # the last sign-on of the app, by any worker
        if context.agenda is not None:
            context.agenda.watch("sign on", self.wake)

    async def run_once(self) -> None:
        """Look at the last sign-on of the app."""
        for each in await self._store.list_apps():
            is_known = each.signed_on_at >= self._seen_at and self._workflows <= {*each.workflows}
            if each.app == self._app and is_known:
                self._seen_at = each.signed_on_at
                return
        logger.warning(
            "app %s: the database lacks its last sign-on, as after a restore or a failover to a "
            "replica that lags: what the code declares is written again",
            self._app,
        )
        self._seen_at = _NEVER  # all of it again, if it does not come to its end
        try:
            await self._sign_on()
        except ConfigurationError as error:
            logger.error("app %s cannot sign on again, restart its workers: %s", self._app, error)
        self._seen_at = 0
