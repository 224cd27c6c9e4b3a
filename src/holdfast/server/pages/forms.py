"""Forms made from JSON schemas: a field for each property, and JSON for what has no field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from holdfast.codec import why_not_json
from holdfast.server.problems import Problem
from holdfast.types import FORMAT_EXAMPLES

Kind: TypeAlias = Literal["text", "number", "boolean", "choice", "json"]
Schema: TypeAlias = Mapping[str, object]

_KINDS: Final[Mapping[str, Kind]] = {
    "string": "text",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a form. `choices` are JSON texts; `text` is what stands there at first.

    One that is `nullable` and required is null if it is left empty.
    """

    name: str
    kind: Kind
    required: bool
    nullable: bool = False
    format: str = ""
    text: str = ""
    choices: tuple[str, ...] = ()
    hint: str = ""


def read_fields(schema: Schema | None) -> list[Field] | None:
    """Return the fields for an input, None if it is to be written as JSON."""
    if schema is None:
        return None
    definitions = cast("Mapping[str, Schema]", schema.get("$defs", {}))
    top = _resolve(schema, definitions)
    properties = top.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    required = cast("list[str]", top.get("required", []))
    found = cast("Mapping[str, Schema]", properties)
    return [_field(name, each, name in required, definitions) for name, each in found.items()]


def example(schema: Schema | None) -> str:
    """Return JSON text to begin with, for an input without fields."""
    if schema is None:
        return "null"
    top = _resolve(schema, cast("Mapping[str, Schema]", schema.get("$defs", {})))
    by_type = {"object": "{}", "array": "[]", "string": '""', "integer": "0", "number": "0"}
    return by_type.get(str(top.get("type")), "null")


def check_filled(names: Iterable[str], form: Mapping[str, str]) -> None:
    """Refuse what was filled in for fields that there are not, or no more. Raises Problem 422."""
    known = {f"f.{each}" for each in names}
    if lost := [each[2:] for each in form if each.startswith("f.") and each not in known]:
        told = f"the form has no field {lost[0]!r} (any more): load the page again"
        raise Problem(422, "invalid-input", told, title="There is no such field")


def read_values(fields: list[Field], form: Mapping[str, str]) -> dict[str, object]:
    """Return what was filled in. Raises Problem 422 for what cannot be read."""
    found: dict[str, object] = {}
    for each in fields:
        text = form.get(f"f.{each.name}", "")
        if each.nullable and not text.strip():
            if each.required:
                found[each.name] = None
        elif each.kind == "text":
            if text or each.required:
                found[each.name] = text
        elif text.strip():
            found[each.name] = read_value(text, each.kind, each.name)
        elif each.required:
            raise Problem(422, "invalid-input", f"{each.name} is required")
    return found


def refill(fields: list[Field] | None, form: Mapping[str, str]) -> list[Field] | None:
    """Return the fields with what was filled in, for a form that is shown again."""
    if fields is None:
        return None
    return [replace(each, text=form.get(f"f.{each.name}", each.text)) for each in fields]


def read_value(text: str, kind: str, name: str) -> object:
    """Return the value of a field that is not text. Raises Problem 422."""
    if kind != "number":
        return decode(text, name)
    try:
        return msgspec.json.decode(text.strip(), type=int | float)
    except (msgspec.DecodeError, UnicodeError):
        told = f"{name} is not a number: write digits, as in 7 or 4.5"
        raise Problem(422, "invalid-input", told, title="That is not a number") from None


def decode(text: str, name: str) -> object:
    """Return the value of a field that holds JSON, None if it is empty. Raises Problem 422."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        why = why_not_json(text.encode(errors="replace"), error)
        told = f"{name} is not JSON: {why}. Texts stand in double quotes."
        raise Problem(422, "invalid-input", told, title="That is not JSON") from None


def _resolve(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return definitions.get(reference.rpartition("/")[2], {})
    return schema


def _field(name: str, schema: Schema, required: bool, definitions: Mapping[str, Schema]) -> Field:
    resolved, nullable = _without_null(_resolve(schema, definitions), definitions)
    kind: Kind = _KINDS.get(str(resolved.get("type")), "json")
    choices = tuple(
        msgspec.json.encode(each).decode()
        for each in cast("list[object]", resolved.get("enum", []))
    )
    default = schema.get("default", resolved.get("default"))
    text = "" if default is None else msgspec.json.encode(default).decode()
    if kind == "text" and isinstance(default, str) and not choices:
        text = default
    kind = "choice" if choices else kind
    found_format = str(resolved.get("format") or "")
    example = FORMAT_EXAMPLES.get(found_format)
    usual = "as JSON" if kind == "json" else f"as in {example}" if example else ""
    return Field(
        name=name,
        kind=kind,
        required=required,
        nullable=nullable and kind != "json",
        format=found_format,
        text=text,
        choices=choices,
        hint=str(resolved.get("description") or "") or usual,
    )


def _without_null(schema: Schema, definitions: Mapping[str, Schema]) -> tuple[Schema, bool]:
    """Return the schema of a value that may be null without that, and if it may be."""
    parts = cast("list[Schema]", schema.get("anyOf", []))
    others = [each for each in parts if each.get("type") != "null"]
    if len(others) != 1 or len(others) == len(parts):
        return schema, False
    return {**_resolve(others[0], definitions), **_labels(schema)}, True


def _labels(schema: Schema) -> Schema:
    return {name: schema[name] for name in ("description", "default") if name in schema}
