"""What the code says of workflows: the schema of their input, and their first paragraph.

A server knows it from an app in its process, and else from what workers have said when they
signed on. Where the code is at hand and changes, under `holdfast dev`, also where it stands after
each entry of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from holdfast.definitions.app import App
from holdfast.definitions.catalogue import entry_of
from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.workflows import newest_definitions
from holdfast.errors import InvalidInput, UnknownWorkflow
from holdfast.server.schemas import misfit
from holdfast.store.port import Store
from holdfast.types import CatalogueEntry


class Entry(msgspec.Struct, frozen=True):
    """A workflow or a flow: the JSON schema of its input, None if it has none, and its docs.

    `version` is the one that this is about, and `optional` is True if it may start without input.
    `exact` is True if what the schema refuses is refused by the type too: pydantic's types convert
    values, and what a worker has said may have changed in a worker since.
    """

    schema: dict[str, object] | None
    about: str = ""
    version: int = 0
    optional: bool = False
    exact: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse an input that cannot be of the type. Raises InvalidInput with the field's path."""
        if self.schema is None or not self.exact or (value is None and self.optional):
            return
        if (wrong := misfit(self.schema, value)) is not None:
            raise InvalidInput(f"input of {name}: {wrong}")


class ReplayedEntry(msgspec.Struct, frozen=True):
    """An entry of a log, and the lines at which the code stands after it; none where it ended.

    A line is `shop.py:12 in order`. That is how `holdfast replay --json` writes an entry.
    """

    index: int
    type: str
    key: str | None
    lines: tuple[str, ...]


class Replayed(msgspec.Struct, frozen=True):
    """The log of a run fed to the code at hand; `problem` says why the code cannot follow it.

    `texts` are those of the lines.
    """

    entries: tuple[ReplayedEntry, ...]
    texts: Mapping[str, str]
    problem: str = ""


class Catalogue(Protocol):
    """Knows workflows by their full names."""

    replays: bool
    """True if the code is at hand, so that logs can be fed to it."""

    async def find(self, name: str) -> Entry | None:
        """Return what is known of a workflow or a flow."""
        ...

    async def replay(self, run_id: UUID, length: int) -> Replayed:
        """Feed the log of a run, which has this length, to the code at hand; if it `replays`."""
        ...


class _WithoutReplay:
    """A catalogue whose process does not execute workflows, as a replay would."""

    replays = False

    async def replay(self, run_id: UUID, length: int) -> Replayed:
        """Raise LookupError: there is no code at hand."""
        raise LookupError(run_id)


class AppCatalogue(_WithoutReplay):
    """Knows what an app in this process has, and nothing without one."""

    def __init__(self, app: App | None) -> None:
        self._app = app

    async def find(self, name: str) -> Entry | None:
        """Return what is known of a workflow or a flow."""
        app, _, plain = name.rpartition("/")
        if self._app is None or app not in ("", self._app.name):
            return None
        try:
            return _of_code(self._app.startable(plain))
        except UnknownWorkflow:
            return None


class NarrowCatalogue(_WithoutReplay):
    """Knows what another catalogue does, of the names that a caller may see."""

    def __init__(self, catalogue: Catalogue, app: App | None, sees: Callable[[str], bool]) -> None:
        """`app` is that of names without one."""
        self._catalogue, self._sees = catalogue, sees
        self._app = "" if app is None else app.name

    async def find(self, name: str) -> Entry | None:
        """Return what is known of a workflow or a flow."""
        full = name if "/" in name else f"{self._app}/{name}"
        return await self._catalogue.find(name) if self._sees(full) else None


async def find_entries(first: Catalogue, store: Store, names: Sequence[str]) -> Mapping[str, Entry]:
    """Return what a catalogue knows of workflows, and where it knows nothing, the database."""
    found = {name: entry for name in names if (entry := await first.find(name)) is not None}
    if rest := [name for name in names if name not in found]:
        stored = await store.read_catalogue(rest)
        found |= {name: _read(entry) for name, entry in stored.items()}
    return found


def entries_of(app: App) -> Mapping[str, Entry]:
    """Return the entries of all workflows and flows of an app, by their full names."""
    return {each.full_name: _of_code(each) for each in newest_definitions(app.registry)}


def _of_code(definition: AnyStartable) -> Entry:
    exact = not hasattr(definition.input_annotation, "model_json_schema")
    read = _read(entry_of(definition))
    return Entry(read.schema, read.about, read.version, _is_optional(definition), exact)


def _read(entry: CatalogueEntry) -> Entry:
    text = entry.input_schema
    schema = None if text is None else msgspec.json.decode(text, type=dict[str, object])
    return Entry(schema, entry.about, entry.version)


def _is_optional(definition: AnyStartable) -> bool:
    try:
        definition.decode_input("null")
    except InvalidInput:
        return False
    return True
