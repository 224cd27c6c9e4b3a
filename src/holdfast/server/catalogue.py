"""What the code says of workflows: the schema of their input, and their first paragraph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from holdfast.definitions.app import App
from holdfast.definitions.startable import AnyStartable
from holdfast.errors import InvalidInput, UnknownWorkflow
from holdfast.server.schemas import misfit


class Entry(msgspec.Struct, frozen=True):
    """A workflow or a flow: the JSON schema of its input, None if it has none, and its docs.

    `version` is the one that this is about, and `optional` is True if it may start without input.
    """

    schema: dict[str, object] | None
    about: str = ""
    version: int = 0
    optional: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse an input that cannot be of the type. Raises InvalidInput with the field's path."""
        if self.schema is None or (value is None and self.optional):
            return
        if (wrong := misfit(self.schema, value)) is not None:
            raise InvalidInput(f"input of {name}: {wrong}")


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
    schema: dict[str, object] | None = None
    with suppress(TypeError, RuntimeError):  # of a type that has no schema
        schema = msgspec.json.schema(startable.input_annotation)
    return Entry(schema, " ".join(about.split()), startable.version, _is_optional(startable))


def _is_optional(startable: AnyStartable) -> bool:
    try:
        startable.decode_input("null")
    except InvalidInput:
        return False
    return True
