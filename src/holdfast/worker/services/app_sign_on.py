"""Sign an app on: record its names, and take over runs from before names had apps."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from holdfast.definitions.app import App
from holdfast.definitions.catalogue import catalogue_of
from holdfast.definitions.workflows import declared_rules, newest_definitions
from holdfast.errors import ConfigurationError
from holdfast.types import AppInfo, DeclaredRetention
from holdfast.values.names import split_name
from holdfast.values.retention import kept_seconds
from holdfast.worker.services.service import Service, ServiceContext

logger = logging.getLogger("holdfast.worker")

_BATCH = 1_000


class AppSignOn(Service):
    """Sign an app on when its worker starts.

    If the database has runs from before names had apps, the first app that signs on with their
    workflow takes them over: those that wait for this worker at its start, the rest in small parts.
    """

    def __init__(
        self, context: ServiceContext, app: App, queues: Sequence[str], origin: str | None
    ) -> None:
        super().__init__(context)
        self._queues = queues
        self._name = app.name
        self._activities = tuple(app.activities)
        self._handlers = tuple(split_name(handler)[1] for handler in app.handlers())
        workflows = tuple(sorted({name for name, _ in app.workflows}))
        self._info = AppInfo(app=app.name, workflows=workflows, origin=origin)
        self._rules = declared_rules(app.registry)
        self._retentions = [
            DeclaredRetention(
                each.full_name, each.version, kept_seconds(None, each.retention_seconds)
            )
            for each in newest_definitions(app.registry)
        ]
        self._catalogue = catalogue_of(app.registry)
        self._limits = app.limits
        self._former: frozenset[str] = frozenset()
        self._ended = False  # True if ended runs may have names without an app

    async def sign_on(self) -> None:
        """Sign on, and take over the runs that wait.

        Raises ConfigurationError if the database has an app of this name from another origin.
        """
        answer = await self._store.sign_on_app(self._info, self._activities)
        if answer.other is not None:
            if await asyncio.to_thread(os.path.exists, answer.other):
                raise ConfigurationError(self._clash(answer.other))
            logger.warning("app %s has moved here from %s", self._name, answer.other)
            answer = await self._store.sign_on_app(
                self._info, self._activities, replaces=answer.other
            )
        await self._store.declare_start_rules(self._rules)
        await self._store.declare_retentions(self._retentions)
        await self._store.declare_catalogue(self._catalogue)
        await self._store.declare_limits(self._name, self._limits)
        self._former = frozenset(answer.former)
        self._ended = bool(self._former)
        while await self._adopt_tasks():
            pass

    async def run_once(self) -> None:
        """Take over some more runs from before names had apps, if there are any."""
        if self._former:
            await self._adopt_tasks()
        if self._ended:
            workflows = sorted(self._former.intersection(self._info.workflows))
            count = await self._store.adopt_ended(self._name, workflows, limit=_BATCH)
            self._ended = count > 0

    async def _adopt_tasks(self) -> int:
        handlers = [each for each in self._handlers if each.partition("@")[0] in self._former]
        if not handlers:
            return 0
        count = await self._store.adopt_tasks(self._name, handlers, self._queues, limit=_BATCH)
        if count:
            logger.info(
                "app %s takes over %d task(s) from before names had apps", self._name, count
            )
        return count

    def _clash(self, other: str) -> str:
        return (
            f"another app named {self._name!r} uses this database, from {other}; this one is "
            f"{self._info.origin}, and both would run each other's runs. Give one of them another "
            "name, App('…'), or a database of its own with --database or $HOLDFAST_HOME"
        )
