"""What the code says of workflows: the schema of their input, and their first paragraph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from holdfast.definitions.app import App
from holdfast.errors import UnknownWorkflow


class Entry(msgspec.Struct, frozen=True):
    """A workflow or a flow: the JSON schema of its input, None if it has none, and its docs."""

    schema: dict[str, object] | None
    about: str = ""


class Catalogue(Protocol):
    """Knows workflows by their full names."""

    async def find(self, name: str) -> Entry | None:
        """Return what is known of a workflow or a flow."""
        ...


class AppCatalogue:
    """Knows what an app in this process has, and nothing without one."""

    def __init__(self, app: App | None) -> None:
        self._app = app

    async def find(self, name: str) -> Entry | None:
        """Return what is known of a workflow or a flow."""
        app, _, plain = name.rpartition("/")
        if self._app is None or app not in ("", self._app.name):
            return None
        return entry_of(self._app, plain)


def entries_of(app: App) -> Mapping[str, Entry]:
    """Return the entries of all workflows and flows of an app, by their full names."""
    names = sorted({name for name, _ in (*app.workflows, *app.flows)})
    found = {name: entry_of(app, name) for name in names}
    return {f"{app.name}/{name}": each for name, each in found.items() if each is not None}


def entry_of(app: App, name: str) -> Entry | None:
    """Return the entry of the newest version of a workflow or a flow, None if there is none."""
    try:
        startable = app.startable(name)
    except UnknownWorkflow:
        return None
    fn = getattr(startable, "fn", None)
    about = (getattr(fn, "__doc__", None) or "").strip().partition("\n\n")[0]
    try:
        return Entry(msgspec.json.schema(startable.input_annotation), " ".join(about.split()))
    except (TypeError, RuntimeError):  # a type that has no schema
        return Entry(None, " ".join(about.split()))
