"""Apps: record them, and look names up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.store.memory.database import Part
from holdfast.types import AppInfo, CatalogueEntry, DeclaredOptions

_Declared = TypeVar("_Declared", CatalogueEntry, DeclaredOptions)


class MemoryApps(Part):
    async def sign_on_app(self, app: AppInfo, *, replaces: str | None = None) -> str | None:
        async with self._transaction() as (tables, now):
            known = tables.apps.get(app.app)
            if known is not None:
                origins = (None, app.origin, replaces)
                if app.origin is not None and known.origin not in origins:
                    return known.origin
                workflows = tuple(sorted({*known.workflows, *app.workflows}))
                app = msgspec.structs.replace(
                    app, workflows=workflows, origin=app.origin or known.origin
                )
                now = max(now, known.signed_on_at)  # it never goes back
            tables.apps[app.app] = msgspec.structs.replace(app, signed_on_at=now)
            return None

    async def apps_with(self, workflow: str) -> list[str]:
        async with self._transaction() as (tables, _):
            return sorted(name for name, app in tables.apps.items() if workflow in app.workflows)

    async def list_apps(self) -> list[AppInfo]:
        async with self._transaction() as (tables, _):
            return [app for _, app in sorted(tables.apps.items())]

    async def declare_options(self, options: Sequence[DeclaredOptions]) -> None:
        async with self._transaction() as (tables, _):
            _keep_newest(tables.declared_options, options)

    async def declare_catalogue(self, entries: Sequence[CatalogueEntry]) -> None:
        async with self._transaction() as (tables, _):
            _keep_newest(tables.catalogue, entries)

    async def read_catalogue(self, names: Sequence[str]) -> dict[str, CatalogueEntry]:
        async with self._transaction() as (tables, _):
            return {name: tables.catalogue[name] for name in names if name in tables.catalogue}


def _keep_newest(known: dict[str, _Declared], declared: Iterable[_Declared]) -> None:
    """Write what code has declared, unless code of a higher version has declared it."""
    for each in declared:
        if each.name not in known or known[each.name].version <= each.version:
            known[each.name] = each
