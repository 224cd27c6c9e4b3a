"""Apps: signing on, and looking names up. Nothing here is from before names had apps."""

from __future__ import annotations

import msgspec

from holdfast.store.memory.tables import Tables
from holdfast.types import AppInfo, SignedOn


def sign_on_app(tables: Tables, now: int, app: AppInfo, replaces: str | None) -> SignedOn:
    """Note that an app has a worker here, with all names that it ever had."""
    known = tables.apps.get(app.app)
    if known is not None:
        origins = (None, app.origin, replaces)
        if app.origin is not None and known.origin not in origins:
            return SignedOn(known.origin)
        workflows = tuple(sorted({*known.workflows, *app.workflows}))
        app = msgspec.structs.replace(app, workflows=workflows, origin=app.origin or known.origin)
    tables.apps[app.app] = msgspec.structs.replace(app, signed_on_at=now)
    return SignedOn(None)


def apps_with(tables: Tables, workflow: str) -> list[str]:
    """Return the apps that have ever signed on with a workflow of this name."""
    return sorted(name for name, app in tables.apps.items() if workflow in app.workflows)


def list_apps(tables: Tables) -> list[AppInfo]:
    """Return the apps that have ever signed on, by name."""
    return [app for _, app in sorted(tables.apps.items())]
