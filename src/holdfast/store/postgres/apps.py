"""Apps: record them, and look names up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store.postgres.database import Part, columns
from holdfast.store.postgres.rows import reader
from holdfast.types import AppInfo, CatalogueEntry, DeclaredOptions

_read_app = reader(AppInfo, "workflows")


class PostgresApps(Part):
    async def sign_on_app(self, app: AppInfo, *, replaces: str | None = None) -> str | None:
        row = await self._database.row(
            "sign_on_app", app.app, app.workflows, (), app.origin, replaces
        )
        other: str | None = row["other"]
        return other

    async def list_apps(self) -> list[AppInfo]:
        return [
            _read_app(row, workflows=tuple(row["workflows"]))
            for row in await self._database.rows("list_apps")
        ]

    async def apps_with(self, workflow: str) -> list[str]:
        return list(await self._database.value("apps_with", workflow))

    async def declare_options(self, options: Sequence[DeclaredOptions]) -> None:
        columns = zip(*map(msgspec.structs.astuple, options), strict=True)
        await self._database.row("declare_options", *(map(list, columns) if options else [[]] * 6))

    async def declare_catalogue(self, entries: Sequence[CatalogueEntry]) -> None:
        await self._database.row(
            "declare_catalogue", *columns(entries, "name", "version", "input_schema", "about")
        )

    async def read_catalogue(self, names: Sequence[str]) -> dict[str, CatalogueEntry]:
        found = await self._database.rows("read_catalogue", names)
        return {row["name"]: CatalogueEntry(*row.values()) for row in found}
