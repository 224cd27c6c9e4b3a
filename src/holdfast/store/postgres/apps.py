"""Apps: record them, and look names up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store.postgres.calls import Call, all_rows, each_row, only_value
from holdfast.store.postgres.database import Part, columns
from holdfast.store.postgres.rows import reader
from holdfast.types import AppInfo, CatalogueEntry, DeclaredOptions

_read_app = reader(AppInfo, "workflows")


class PostgresApps(Part):
    list_apps = each_row(lambda row: _read_app(row, workflows=tuple(row["workflows"])))
    apps_with: Call[list[str]] = only_value()
    read_catalogue = all_rows(
        lambda found: {row["name"]: CatalogueEntry(*row.values()) for row in found}
    )

    async def sign_on_app(self, app: AppInfo, *, replaces: str | None = None) -> str | None:
        row = await self._database.row(
            "sign_on_app", app.app, app.workflows, (), app.origin, replaces
        )
        other: str | None = row["other"]
        return other

    async def declare_options(self, options: Sequence[DeclaredOptions]) -> None:
        columns = zip(*map(msgspec.structs.astuple, options), strict=True)
        await self._database.row("declare_options", *(map(list, columns) if options else [[]] * 6))

    async def declare_catalogue(self, entries: Sequence[CatalogueEntry]) -> None:
        await self._database.row(
            "declare_catalogue", *columns(entries, "name", "version", "input_schema", "about")
        )
