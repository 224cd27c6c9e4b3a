"""Describe the API as OpenAPI 3.1, from the same types that requests are checked with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast._version import __version__
from holdfast.errors import HoldfastError
from holdfast.server.operations import Operation
from holdfast.server.problems import kind_of
from holdfast.server.reading import MAX_KEY

_REF: Final = "#/components/schemas/{name}"
_NAMED: Final = re.compile(r"\{(\w+)\}")

# Refusals that every operation may answer with, by status.
COMMON: Final[Mapping[int, str]] = {
    400: "A parameter, the path or the JSON cannot be read",
    401: "The request does not say who asks, or not rightly",
    403: "The caller may not do this",
    413: "The body is too large",
    414: "The query is too long",
    415: "The body is not application/json",
    421: "The server does not answer to this host",
    422: "A value does not fit, or cannot be stored",
    429: "Too many streams or waits of the caller are open",
    500: "The server failed",
    503: "The database cannot be used now, or the server is busy: try again",
}

_NAMES: Final[dict[str, dict[str, object]]] = {
    "run": {"type": "string", "format": "uuid"},
    "": {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,128}$"},
}

_PROBLEM: Final[dict[str, object]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "pattern": "^urn:holdfast:problem:"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}


@lru_cache(maxsize=4)
def describe(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """Return the description of operations."""
    wanted = [each for operation in operations for each in operation.answers]
    wanted += [each.body for each in operations if each.body not in (None, bytes)]
    queries = [each.query for each in operations]
    schemas, components = msgspec.json.schema_components(
        [*wanted, *queries], ref_template=_REF, schema_hook=_any
    )
    schema_of = dict(zip(map(repr, [*wanted, *queries]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for place, path in enumerate(operation.paths):
            found = _operation(operation, path, schema_of, components)
            found["operationId"] = operation.name + ("_of_workflow" if place else "")
            paths.setdefault(path, {})[operation.method.lower()] = found
    components["Problem"] = _PROBLEM
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    operation: Operation, path: str, schema_of: Mapping[str, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    summary, _, rest = inspect.cleandoc(operation.handler.__doc__ or "").partition("\n")
    parameters = [_path_parameter(name) for name in _NAMED.findall(path)]
    parameters += _query_parameters(schema_of[repr(operation.query)], components)
    if operation.keyed:
        schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": schema})
    found: dict[str, Any] = {
        "summary": summary,
        "tags": [_tag(operation)],
        "x-level": operation.level,
        "parameters": parameters,
        "responses": _responses(operation, schema_of),
    }
    if rest.strip():
        found["description"] = " ".join(rest.split())
    if operation.inputs:
        found["x-filter-by-input"] = "input.NAME[.NAME…]=VALUE: the input contains it"
    if operation.level == "open":
        found["security"] = []
    if operation.body is bytes:
        found["requestBody"] = {"required": False, "content": {"*/*": {}}}
    elif operation.body is not None:
        found["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": schema_of[repr(operation.body)]}},
        }
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    schema = _NAMES.get(name, _NAMES[""])
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(
    reference: Mapping[str, Any], components: Mapping[str, Any]
) -> list[dict[str, Any]]:
    schema = components[reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "schema": each}
        | ({"required": True} if name in required else {})
        for name, each in schema.get("properties", {}).items()
    ]


def _responses(operation: Operation, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    answers = [schema_of[repr(each)] for each in operation.answers]
    schema = answers[0] if len(answers) == 1 else {"anyOf": answers}
    if operation.is_stream:
        schema = _event(schema)
    content = {operation.media_type: {"schema": schema}}
    found: dict[str, Any] = {
        str(status): {"description": "Done", "content": content} for status in operation.statuses
    }
    for status, text in sorted({**COMMON, **_texts(operation.problems)}.items()):
        problem = {"schema": {"$ref": _REF.format(name="Problem")}}
        found[str(status)] = {"description": text, "content": {"application/problem+json": problem}}
    return found


def _texts(problems: Iterable[type[HoldfastError]]) -> dict[int, str]:
    texts: dict[int, list[str]] = {}
    for each in problems:
        kind = kind_of(each)
        assert kind is not None, f"{each} has no row in problems.KINDS"
        texts.setdefault(kind.status, []).append(kind.title)
    return {status: "; ".join(each) for status, each in texts.items()}


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one event of a stream, whose data is JSON."""
    text = {"type": "string"}
    shown = {**text, "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "properties": {"id": text, "event": text, "data": shown}}


def _any(kind: type) -> dict[str, Any]:
    """Return the schema of a field that may be anything."""
    if kind is object:
        return {"description": "any JSON"}
    raise NotImplementedError


def _tag(operation: Operation) -> str:
    return getattr(operation.handler, "__module__", "").rpartition(".")[2]
