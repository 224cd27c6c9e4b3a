"""The reference of the REST API, made from its description.

`python -m tests.docs.rest_reference` writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.server.api.openapi import describe
from holdfast.server.api.table import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"

_HEAD = """\
# The REST API

This page is made from the operations of the server; a test compares them. `/v1/openapi.json` of a
server has the same as OpenAPI 3.1, with every type. [Run the server](../howto/server.md) says how
to reach it.

- Each request has an `Authorization` header. An operation needs the level read, write or admin;
  each level includes those before it. One of the level open needs no header.
- `{run}` is the id of a run, a UUID, as the answer to its start has it; unlike on the command line,
  it cannot be `workflow/key`. `GET /v1/workflows/{name}/runs?key=KEY` lists the runs of a key, the
  newest first. An operation below `/v1/workflows/{name}/runs/{run}` is that below `/v1/runs/{run}`,
  and answers 404 if the run is one of another workflow.
- Bodies are JSON. Moments are RFC 3339, lengths of time are seconds or text such as `90s`.
- `Idempotency-Key` makes a call one that may be repeated: it is the key of a start, and the id of
  a signal, an update, a decision, a fork or a backfill.
- A workflow, a flow or a schedule whose name several apps have needs `?app=`.
- What is refused is answered with `application/problem+json`: `type` is
  `urn:holdfast:problem:` and a word that stays the same, `detail` a sentence. Every operation may
  answer 400, 401, 403, 413, 414, 415, 421, 422, 429, 500 or 503.
"""


def render() -> str:
    """Write the page."""
    description = describe(OPERATIONS)
    parts = [_HEAD]
    for tag, rows in _by_tag(description["paths"]).items():
        parts.append(f"\n## {tag.replace('_', ' ').capitalize()}\n")
        parts += [_operation(*row) for row in rows]
    return "".join(parts)


def _by_tag(paths: Mapping[str, Any]) -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            found.setdefault(operation["tags"][0], []).append((method, path, operation))
    return found


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    text = " ".join([operation["summary"], operation.get("description", "")]).strip()
    lines = [f"\n### {method.upper()} {path}\n\n{text}\n\n- level: {operation['x-level']}\n"]
    lines += [f"- {each}\n" for each in _facts(operation)]
    return "".join(lines)


def _facts(operation: dict[str, Any]) -> Iterator[str]:
    query = [f"`{each['name']}`" for each in operation["parameters"] if each["in"] == "query"]
    if "x-filter-by-input" in operation:
        query.append("`input.NAME`")
    if query:
        yield "query: " + ", ".join(query)
    if any(each["in"] == "header" for each in operation["parameters"]):
        yield "may have an `Idempotency-Key`"
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        as_json = content.get("application/json")
        yield f"body: {_name(as_json['schema']) if as_json else 'any'}"
    for status, answer in operation["responses"].items():
        kinds = [_name(each["schema"]) for each in answer["content"].values()]
        if status < "300":
            yield f"{status}: {', '.join(kinds)}"
        elif status in ("404", "409", "410"):
            yield f"{status}: {answer['description']}"


def _name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_name(each) for each in schema["anyOf"])
    if "data" in schema.get("properties", {}):
        return "a stream of " + _name(schema["properties"]["data"]["contentSchema"])
    return "any JSON"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
