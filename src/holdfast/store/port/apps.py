"""The part of the port for apps, the namespaces of workflows and activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import AppInfo, CatalogueEntry, DeclaredOptions


class AppStore(Protocol):
    """Records apps, and looks names up."""

    @readable
    async def sign_on_app(self, app: AppInfo, *, replaces: str | None = None) -> str | None:
        """Record that an app has a worker in this database, and which names it has.

        Return the origin of another app of this name if there is one: then nothing was written,
        unless `replaces` is that origin.
        """
        ...

    @readable
    async def apps_with(self, workflow: str) -> list[str]:
        """Return the apps that have ever signed on with a workflow of this name."""
        ...

    @readable
    async def list_apps(self) -> list[AppInfo]:
        """Return the apps that have ever signed on, by name."""
        ...

    @readable
    async def declare_options(self, options: Sequence[DeclaredOptions]) -> None:
        """Record what counts for starts that leave it out.

        What a program of a higher version has declared stays.
        """
        ...

    @readable
    async def declare_catalogue(self, entries: Sequence[CatalogueEntry]) -> None:
        """Record what an app's code says. What code of a higher version has said stays."""
        ...

    @readable
    async def read_catalogue(self, names: Sequence[str]) -> dict[str, CatalogueEntry]:
        """Return what code has said of workflows and flows, by full name, as far as is known."""
        ...
