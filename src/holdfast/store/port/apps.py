"""The part of the port for apps, the namespaces of workflows and activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import AppInfo, CatalogueEntry, DeclaredOptions, SignedOn


class AppStore(Protocol):
    """Records apps, renames what is older than they are, and looks names up."""

    @readable
    async def sign_on_app(
        self, app: AppInfo, activities: Sequence[str], *, replaces: str | None = None
    ) -> SignedOn:
        """Record that an app has a worker in this database, and which names it has.

        `replaces` is the origin of an app of the same name that this one replaces.
        """
        ...

    @readable
    async def adopt_tasks(
        self, app: str, handlers: Sequence[str], queues: Sequence[str], *, limit: int = 1000
    ) -> int:
        """Rename waiting tasks whose handlers have no app yet; return how many were renamed."""
        ...

    @readable
    async def adopt_ended(self, app: str, workflows: Sequence[str], *, limit: int = 1000) -> int:
        """Rename ended runs whose names have no app yet; return how many were renamed."""
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

    @readable
    async def former_names(self) -> frozenset[str]:
        """Return the names that runs had before names had apps."""
        ...
