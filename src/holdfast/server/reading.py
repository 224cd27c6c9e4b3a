"""Read requests: the query, the path and the body, each checked against its type and its bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, cast
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.codec import check_depth, why_not_json
from holdfast.errors import ConfigurationError
from holdfast.server.access import header_texts
from holdfast.server.operations import Operation, Query
from holdfast.server.problems import Problem
from holdfast.values.names import check_reference

MAX_QUERY: Final = 8 * 1024  # bytes
MAX_KEY: Final = 255  # characters of an Idempotency-Key
MAX_INPUT_NAMES: Final = 8

_INPUT: Final = "input."
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def bad_parameter(name: str, why: str) -> Problem:
    """Return the answer to a parameter that cannot be read."""
    return Problem(400, "bad-parameter", f"{name}: {why}", members={"parameter": name})


def unknown_parameter(name: str, known: Iterable[str]) -> Problem:
    """Return the answer to a parameter that does not exist: without it, all would be meant."""
    return bad_parameter(name, f"it is unknown; there are {', '.join(known) or 'none'}")


def read_query(request: Request, operation: Operation) -> tuple[Any, dict[str, object] | None]:
    """Return the query of an operation, and the object that its filters by input make."""
    text = cast("bytes", request.scope.get("query_string", b""))
    if len(text) > MAX_QUERY:
        raise Problem(414, "query-too-long", f"a query has {MAX_QUERY:,} bytes at most")
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, strict_parsing=bool(text), errors="strict"
        )
    except (ValueError, UnicodeDecodeError):
        raise Problem(400, "bad-query", "the query is not name=value pairs in UTF-8") from None
    inputs = [pair for pair in pairs if operation.inputs and pair[0].startswith(_INPUT)]
    fields = _fields(operation.query)
    given: dict[str, object] = {}
    for name, value in pairs:
        if operation.inputs and name.startswith(_INPUT):
            continue
        if name not in fields:
            raise unknown_parameter(name, [*fields, *(["input.PATH"] if operation.inputs else [])])
        if "\0" in value:
            raise bad_parameter(name, "it has a NUL character")
        if fields[name]:
            cast("list[str]", given.setdefault(name, [])).append(value)
        elif name in given:
            raise bad_parameter(name, "it is given twice")
        else:
            given[name] = value
    try:
        query = msgspec.convert(given, operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, "bad-parameter") from None
    return query, read_inputs(inputs) if inputs else None


@cache
def _fields(query: type[Query]) -> dict[str, bool]:
    """Return the names of parameters, and whether each may be repeated."""
    return {each.encode_name: "tuple" in str(each.type) for each in msgspec.structs.fields(query)}


@cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


def read_inputs(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return the object that `input.<path>=value` parameters make together.

    A value is JSON where it can be read as such, else text. Raises Problem 400 for paths that
    contradict each other.
    """
    found: dict[str, object] = {}
    for name, text in pairs:
        *outer, last = path = name.removeprefix(_INPUT).split(".")
        if not all(path) or len(path) > MAX_INPUT_NAMES:
            raise bad_parameter(name, f"write input. and 1 to {MAX_INPUT_NAMES} names")
        place = found
        for part in outer:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise bad_parameter(name, "it contradicts another filter by input")
            place = cast("dict[str, object]", inner)
        if last in place:
            raise bad_parameter(name, "it contradicts another filter by input")
        place[last] = _value(text)
    return found


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def read_path(path: Mapping[str, str], by_key: str = "GET /v1/workflows/NAME/runs?key=KEY") -> UUID:
    """Check what stands in a path, and return the run that it names.

    Raises Problem 400: for a text that is not an id, `by_key` says how runs are found.
    """
    for name, value in path.items():
        if name == "run":
            continue
        try:
            check_reference(name, value)
        except ConfigurationError as error:
            raise Problem(400, "bad-name", str(error)) from None
    if "run" not in path:
        return UUID(int=0)
    if not _UUID.fullmatch(path["run"]):
        text = f"{path['run']!r} is not a run's id: an id is a UUID; by key, runs are found with "
        raise Problem(400, "bad-run-id", f"{text}{by_key}")
    return UUID(path["run"])


def read_key(request: Request, operation: Operation) -> str | None:
    """Return the Idempotency-Key, None if there is none. Raises Problem 400."""
    given = header_texts(request, "Idempotency-Key") if operation.keyed else []
    if not given:
        return None
    if len(given) > 1 or not 1 <= len(given[0]) <= MAX_KEY:
        raise Problem(400, "bad-key", f"an Idempotency-Key has 1 to {MAX_KEY} characters")
    return given[0]


async def read_body(request: Request, operation: Operation, largest: int) -> Any:
    """Return the body as the operation's type, None for one that it does not have.

    Raises Problem, and InvalidInput for one that is nested too deeply.
    """
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "content-encoding", "send the body as it is, not compressed")
    data = await _receive(request, largest)
    if operation.body is None:
        if data:
            raise Problem(400, "unexpected-body", "this operation does not take a body")
        return None
    if not data and not operation.body_required:
        return None if operation.body is Any else msgspec.convert({}, operation.body)
    if operation.body is bytes:
        return data
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "content-type", "send the body as Content-Type: application/json")
    check_depth(data)
    try:
        return _decoder(operation.body)(data)
    except msgspec.ValidationError as error:
        raise _invalid(error, "invalid-body", 422) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Problem(
            400, "malformed-json", f"the body is not JSON: {why_not_json(data, error)}"
        ) from None


async def _receive(request: Request, largest: int) -> bytes:
    """Receive a body of at most `largest` bytes. Raises Problem 413."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > largest:
        raise _too_large(largest)
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > largest:
                raise _too_large(largest)
    except ClientDisconnect:
        raise Problem(400, "incomplete", "the body is not complete") from None
    return bytes(data)


def _too_large(largest: int) -> Problem:
    return Problem(413, "too-large", f"a body has {largest:,} bytes at most")


def _invalid(error: msgspec.ValidationError, slug: str, status: int = 400) -> Problem:
    """Return the answer to a value of a wrong type; the text names its place."""
    text, _, place = str(error).partition(" - at `")
    place = place.rstrip("`")
    members: dict[str, object] = {"errors": [{"detail": text, "place": place or "$"}]}
    return Problem(status, slug, f"{place}: {text}" if place else text, members=members)
