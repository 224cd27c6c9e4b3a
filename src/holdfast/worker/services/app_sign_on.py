"""Sign an app on: record its names, and what its code declares of them."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from holdfast.definitions.app import App
from holdfast.definitions.catalogue import catalogue_of, declared_options
from holdfast.definitions.workflows import declared_rules
from holdfast.errors import ConfigurationError
from holdfast.store.port import Store
from holdfast.types import AppInfo
from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.worker")

_DECLARES_EVERY: Final = 30.0  # seconds


class AppSignOn(Service):
    """Sign an app on when its worker starts.

    What the code declares of names (rules, options, docs, limits) is written at the start. If
    the app has builds, that of the current one counts while it has workers: so it is written again
    and again, as the current build may be another one since.
    """

    def __init__(
        self, context: ServiceContext, app: App, origin: str | None, around: Store | None = None
    ) -> None:
        super().__init__(context)
        self._around = around
        self._name = app.name
        workflows = tuple(sorted({name for name, _ in app.workflows}))
        self._info = AppInfo(app=app.name, workflows=workflows, origin=origin)
        self._rules = declared_rules(app.registry)
        self._options = declared_options(app.registry)
        self._catalogue = catalogue_of(app.registry)
        self._limits = app.limits
        self._build, self._pinned = app.build, app.pinned()
        self._has_builds, self._declares_at = False, 0.0

    async def sign_on(self) -> None:
        """Sign on, and declare all.

        Raises ConfigurationError if the database has an app of this name from another origin.
        """
        other = await self._store.sign_on_app(self._info)
        if other is not None:
            if not await self._is_other_build():
                if await asyncio.to_thread(os.path.exists, other):
                    raise ConfigurationError(self._clash(other))
                logger.warning("app %s has moved here from %s", self._name, other)
            await self._store.sign_on_app(self._info, replaces=other)
        if self._build is not None:
            await self._store.declare_build(self._name, self._build, self._pinned)
        elif self._pinned:
            logger.warning(
                "app %s has no build, so its pinned workflows (%s) are not pinned to this code; "
                "name the code with App(%r, build=…)",
                self._name,
                ", ".join(self._pinned),
                self._name,
            )
        await self._declare()

    async def run_once(self) -> None:
        """Declare again what counts now."""
        if self._has_builds and asyncio.get_running_loop().time() >= self._declares_at:
            await self._declare()

    async def _declare(self) -> None:
        """Write what the code declares, except of names that the current build has declared."""
        kept = await self._store.kept_declarations(self._name, self._build)
        self._has_builds = kept is not None
        self._declares_at = asyncio.get_running_loop().time() + _DECLARES_EVERY
        names = frozenset(kept or ())
        store = self._store
        rules = [each for each in self._rules if each.name not in names]
        await store.declare_start_rules(rules)
        if self._around is not None:  # they are in force once all shards have them
            await self._around.declare_start_rules(rules)
        await store.declare_options([each for each in self._options if each.name not in names])
        await store.declare_catalogue([each for each in self._catalogue if each.name not in names])
        if not names:
            await store.declare_limits(self._name, self._limits)

    async def _is_other_build(self) -> bool:
        """Return True if the last worker of the app had a build, and this one has another one."""
        if self._build is None:
            return False
        [app] = [each for each in await self._store.list_apps() if each.app == self._name]
        return any(  # a build signs on after its app
            each.build != self._build and (each.signed_on_at or 0) >= app.signed_on_at
            for each in await self._store.list_builds(self._name)
        )

    def _clash(self, other: str) -> str:
        return (
            f"another app named {self._name!r} uses this database, from {other}; this one is "
            f"{self._info.origin}, and both would run each other's runs. Give one of them another "
            "name, App('…'), or a database of its own with --database or $HOLDFAST_HOME. If they "
            "are two states of one app, give each a build of its own, App(…, build='…')"
        )
