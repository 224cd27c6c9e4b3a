"""What the code of an app says of its workflows and flows: schemas of inputs, docs, options."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.workflows import Registry, newest_definitions
from holdfast.types import CatalogueEntry, DeclaredOptions
from holdfast.values.retention import kept_seconds

LARGEST_SCHEMA: Final = 64 * 1024  # bytes
LONGEST_TEXT: Final = 2_000  # characters


def catalogue_of(registry: Registry) -> list[CatalogueEntry]:
    """Return what is said of each workflow and flow, in its highest version."""
    return [entry_of(each) for each in newest_definitions(registry)]


def declared_options(registry: Registry) -> list[DeclaredOptions]:
    """Return what starts of each workflow and flow may leave out, of the highest version."""
    return [
        DeclaredOptions(
            each.full_name,
            each.version,
            kept_seconds(None, each.retention_seconds),
            each.queue,
            each.priority,
            each.timeout_seconds,
        )
        for each in newest_definitions(registry)
    ]


def entry_of(definition: AnyStartable) -> CatalogueEntry:
    """Return what the code says of a workflow or a flow. `about` is its docs' first paragraph."""
    docs = getattr(getattr(definition, "fn", None), "__doc__", None) or ""
    about = " ".join(docs.strip().partition("\n\n")[0].split())[:LONGEST_TEXT]
    about = about.replace("\0", "").encode(errors="replace").decode()
    schema = _schema(definition.input_annotation)
    return CatalogueEntry(definition.full_name, definition.version, schema, about)


def schema_of(annotation: object) -> dict[str, object] | None:
    """Return the JSON schema of a type; None if it has none, or one that is very large."""
    text = _schema(annotation)
    return None if text is None else msgspec.json.decode(text, type=dict[str, object])


def _schema(annotation: object) -> str | None:
    """Return the JSON schema of a type as text; None if it has none, or one that is very large."""
    of_pydantic = getattr(annotation, "model_json_schema", None)
    try:
        schema = msgspec.json.schema(annotation) if of_pydantic is None else of_pydantic()
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RuntimeError):
        return None
    return text.decode() if len(text) <= LARGEST_SCHEMA else None
