"""Carry out a call of a tool: arguments in, JSON or a sentence out, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request

from holdfast.mcp.tools import KEY, PAYLOAD, TOOLS, Tool
from holdfast.server.access import Principal
from holdfast.server.changes import carry_out
from holdfast.server.checking import examine_site
from holdfast.server.operations import Call, Operation, Reply
from holdfast.server.problems import Problem, problem_of
from holdfast.server.reading import MAX_KEY, read_path
from holdfast.server.site import Site

LARGEST: Final = 256 * 1024
"""Bytes of an answer. A larger one is refused with what to ask for instead."""


class Answer(NamedTuple):
    """What a tool answers: a text, perhaps a note about it, and whether it is an error."""

    text: str
    note: str | None = None
    failed: bool = False


class Toolbox:
    """The tools on one database, those that change something only if that is allowed."""

    def __init__(self, site: Site, *, may_write: bool) -> None:
        self._site = site
        self._principal = Principal("mcp", "write" if may_write else "read")

    @property
    def tools(self) -> list[Tool]:
        """The tools that may be called."""
        return [each for each in TOOLS if self._may(each)]

    async def call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        """Carry out a call."""
        try:
            return await self._call(name, arguments)
        except Exception as error:
            return Answer(problem_of(error).detail, failed=True)

    def _may(self, tool: Tool) -> bool:
        return self._principal.may("write" if tool.writes else "read")

    async def _call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        tool = next((each for each in TOOLS if each.name == name), None)
        if tool is None:
            known = ", ".join(each.name for each in self.tools)
            raise Problem(404, "unknown-tool", f"there is no tool {name!r}; there are {known}")
        if not self._may(tool):
            text = f"{name} changes something: start `holdfast mcp` with --allow write"
            raise Problem(403, "forbidden", text)
        _check_names(tool, arguments)
        await self._site.open()
        found = await self._carry_out(tool, {**tool.shown.defaults, **arguments})
        content = found.content if isinstance(found, Reply) else found
        data = msgspec.json.encode(content)
        if len(data) > LARGEST:
            raise Problem(
                413,
                "too-large",
                f"the answer has {len(data):,} bytes, {LARGEST:,} at most are given: ask for less, "
                "with a smaller limit or clip, or have a person read it with `holdfast runs log`",
            )
        return Answer(data.decode(), tool.shown.note(content))

    async def _carry_out(self, tool: Tool, given: Mapping[str, object]) -> object:
        operation = tool.operation
        if operation is None:
            return await examine_site(self._site)
        path = {name: _text(shown, given.get(shown)) for shown, name in tool.path.items()}
        run_id = read_path(path)
        query = _part(tool, operation.query, given)
        body = _body(tool, operation, given)
        key = _key(given)
        request = Request({"type": "http", "headers": []})
        async with self._site.requests.slot() as slot:
            call = Call(
                self._site, self._principal, request, path, query, body, key, run_id, slot=slot
            )
            return await carry_out(operation, call)


def _check_names(tool: Tool, arguments: Mapping[str, object]) -> None:
    """Refuse arguments that a tool does not have. Raises Problem."""
    known: dict[str, object] = tool.schema()["properties"]
    for name in arguments:
        if name not in known:
            names = ", ".join(known) or "none"
            raise _bad(f"{tool.name} has no argument {name!r}; there are {names}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad(f"{name}: give it, as text")
    return value


def _key(given: Mapping[str, object]) -> str | None:
    if KEY not in given:
        return None
    key = _text(KEY, given[KEY])
    if not 1 <= len(key) <= MAX_KEY:
        raise _bad(f"{KEY}: it has 1 to {MAX_KEY} characters")
    return key


def _body(tool: Tool, operation: Operation, given: Mapping[str, object]) -> Any:
    if operation.body is Any:
        return given.get(PAYLOAD)
    return None if operation.body is None else _part(tool, operation.body, given)


def _part(tool: Tool, kind: Any, given: Mapping[str, object]) -> Any:
    """Return the query or the body that the arguments make. Raises Problem."""
    values = {name: given[name] for name in tool.fields(kind) if name in given}
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _bad(f"the arguments do not fit: {error}") from None


def _bad(text: str) -> Problem:
    return Problem(400, "bad-argument", text)
