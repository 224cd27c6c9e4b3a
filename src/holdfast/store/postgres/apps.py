"""Apps: signing on, taking over what is from before names had apps, and looking names up."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.connections import Database
from holdfast.types import AppInfo, SignedOn


async def sign_on_app(
    database: Database, app: AppInfo, activities: Sequence[str], replaces: str | None
) -> SignedOn:
    """Note that an app has a worker here."""
    row = await database.row(
        "sign_on_app", app.app, app.workflows, activities, app.origin, replaces
    )
    return SignedOn(row["other"], tuple(row["former"] or ()))


async def list_apps(database: Database) -> list[AppInfo]:
    """Return the apps that have ever signed on."""
    return [
        AppInfo(
            app=row["app"],
            workflows=tuple(row["workflows"]),
            origin=row["origin"],
            signed_on_at=row["signed_on_at"],
        )
        for row in await database.rows("list_apps")
    ]
