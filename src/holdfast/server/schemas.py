"""Check a value against the JSON schema of a type, where the type itself is in another process.

It knows the words of schemas that msgspec writes. What it does not know it lets pass: the worker
decodes each input into its type, and is the one that decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

Schema: TypeAlias = Mapping[str, object]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_OF_VALUES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def misfit(schema: Schema, value: object) -> str | None:
    """Return why a value does not fit a schema, with the path to the place; None if it may fit.

    >>> misfit({"type": "array", "items": {"type": "string"}}, ["a", 7])
    'Expected string, got integer - at `$[1]`'
    """
    definitions = cast("Mapping[str, Schema]", schema.get("$defs", {}))
    return _Check(definitions).find(schema, value, "$")


class _Check:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def find(self, schema: Schema, value: object, path: str) -> str | None:
        """Return the first misfit of a value at a path."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = self._definitions.get(reference.rpartition("/")[2], {})
        several = schema.get("anyOf")
        if isinstance(several, list):
            return self._of_several(cast("list[Schema]", several), value, path)
        if "format" in schema or "contentEncoding" in schema:
            return None  # dates, numbers as text and others, which have several forms
        if wrong := _wrong_type(schema.get("type"), value):
            return f"Expected {wrong}, got {_OF_VALUES.get(type(value), '?')} - at `{path}`"
        choices = schema.get("enum")
        if isinstance(choices, list) and value not in choices:
            return f"Invalid enum value {value!r} - at `{path}`"
        if isinstance(value, dict):
            return self._in_object(schema, cast("dict[str, object]", value), path)
        if isinstance(value, list):
            return self._in_array(schema, cast("list[object]", value), path)
        return None

    def _of_several(self, schemas: Sequence[Schema], value: object, path: str) -> str | None:
        found = [self.find(each, value, path) for each in schemas]
        if None in found:
            return None
        deepest = [each for each in found if each is not None and f"`{path}`" not in each]
        if len(deepest) == 1:  # of one alternative at least the type is right
            return deepest[0]
        return f"Expected one of {len(schemas)} types - at `{path}`"

    def _in_object(self, schema: Schema, value: Mapping[str, object], path: str) -> str | None:
        for name in cast("Sequence[str]", schema.get("required", ())):
            if name not in value:
                return f"Object missing required field `{name}`" + _at(path)
        properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
        rest = schema.get("additionalProperties")
        for name, each in value.items():
            inner = properties.get(name, rest)
            if inner is False:
                return f"Object contains unknown field `{name}`" + _at(path)
            if isinstance(inner, dict):
                place = f"{path}.{name}" if name in properties else f"{path}[...]"
                if (wrong := self.find(cast("Schema", inner), each, place)) is not None:
                    return wrong
        return None

    def _in_array(self, schema: Schema, value: Sequence[object], path: str) -> str | None:
        least, most = schema.get("minItems"), schema.get("maxItems")
        if isinstance(least, int) and len(value) < least:
            return f"Expected array of length >= {least}" + _at(path)
        if isinstance(most, int) and len(value) > most:
            return f"Expected array of length <= {most}" + _at(path)
        first = cast("Sequence[Schema]", schema.get("prefixItems", ()))
        rest = schema.get("items")
        for place, each in enumerate(value):
            inner = first[place] if place < len(first) else rest
            if isinstance(inner, dict):
                wrong = self.find(cast("Schema", inner), each, f"{path}[{place}]")
                if wrong is not None:
                    return wrong
        return None


def _wrong_type(wanted: object, value: object) -> str | None:
    """Return the type that is wanted, None if the value is of it."""
    names = cast("list[object]", wanted) if isinstance(wanted, list) else [wanted]
    known = [_TYPES[each] for each in names if isinstance(each, str) and each in _TYPES]
    if not known or len(known) < len(names):
        return None
    if isinstance(value, bool):
        fits = any(bool in each for each in known)
    else:
        fits = any(isinstance(value, each) for each in known)
    return None if fits else " | ".join(map(str, names))


def _at(path: str) -> str:
    return "" if path == "$" else f" - at `{path}`"
