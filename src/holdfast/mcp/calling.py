"""Carry out a call of a tool: arguments in, JSON or a sentence out, never an exception."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from holdfast.mcp.tools import KEY, PAYLOAD, TOOLS, Described, Tool
from holdfast.server.access import Level, Principal
from holdfast.server.checking import examine_site
from holdfast.server.operations import Call, Operation, Reply, carry_out
from holdfast.server.problems import Problem, problem_of
from holdfast.server.reading import MAX_KEY, read_path
from holdfast.server.site import Site

T = TypeVar("T")
AnyTool = TypeVar("AnyTool", Tool, Described)

LARGEST: Final = 256 * 1024
"""Bytes of an answer. A larger one is refused with what to ask for instead."""


class Answer(NamedTuple):
    """What a tool answers: a text, perhaps a note about it and its value, or that it failed."""

    text: str
    note: str | None = None
    failed: bool = False
    structured: dict[str, Any] | None = None


class Toolbox:
    """The tools on one database, those that change something only if that is allowed."""

    name = "holdfast"

    def __init__(
        self, site: Site, *, may_write: bool, only: Sequence[str] = (), payloads: bool = True
    ) -> None:
        """`only` and `payloads` say what agents see, as of a `Principal`."""
        self._site = site
        level: Level = "write" if may_write else "read"
        self._principal = Principal("mcp", level, tuple(only), payloads)

    @property
    def tools(self) -> list[Described]:
        """The tools that may be called."""
        return [each.described() for each in TOOLS if self._may(each)]

    async def call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        """Carry out a call."""
        try:
            return await self._call(name, arguments)
        except Exception as error:
            return Answer(problem_of(error).detail, failed=True)

    def _may(self, tool: Tool) -> bool:
        return self._principal.may("write" if tool.writes else "read")

    async def _call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        tool = find_tool(name, TOOLS, self.tools)
        if not self._may(tool):
            text = f"{name} changes something: start `holdfast mcp` with --allow write"
            raise Problem(403, "forbidden", text)
        check_names(name, tool.schema(), arguments)
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
        async with self._site.seen_by(self._principal) as site:
            return await self._ask(site, tool, given)

    async def _ask(self, site: Site, tool: Tool, given: Mapping[str, object]) -> object:
        operation = tool.operation
        if operation is None:
            return await examine_site(site)
        path = {name: text_of(shown, given.get(shown)) for shown, name in tool.path.items()}
        run_id = read_path(path, by_key="list_runs: give `workflow` and `key`")
        query = _part(tool, operation.query, given)
        body = _body(tool, operation, given)
        key = key_of(given)
        request = Request({"type": "http", "headers": []})
        async with site.requests.slot() as slot:
            call = Call(site, self._principal, request, path, query, body, key, run_id, slot=slot)
            return await carry_out(operation, call)


def find_tool(name: str, tools: Iterable[AnyTool], shown: Iterable[Described]) -> AnyTool:
    """Return the tool of a name. Raises Problem, which names those that are `shown`."""
    found = next((each for each in tools if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in shown)
        raise Problem(404, "unknown-tool", f"there is no tool {name!r}; there are {known}")
    return found


def check_names(tool: str, schema: Mapping[str, Any], arguments: Mapping[str, object]) -> None:
    """Refuse arguments that a tool does not have. Raises Problem."""
    known: dict[str, object] = schema["properties"]
    for name in arguments:
        if name not in known:
            names = ", ".join(known) or "none"
            raise bad(f"{tool} has no argument {name!r}; there are {names}")


def text_of(name: str, value: object) -> str:
    """Return an argument that is a text. Raises Problem for any other."""
    if not isinstance(value, str):
        raise bad(f"{name}: give it, as text")
    return value


def key_of(given: Mapping[str, object]) -> str | None:
    """Return the idempotency key of a call, None without one. Raises Problem."""
    if KEY not in given:
        return None
    key = text_of(KEY, given[KEY])
    if not 1 <= len(key) <= MAX_KEY:
        raise bad(f"{KEY}: it has 1 to {MAX_KEY} characters")
    return key


def _body(tool: Tool, operation: Operation, given: Mapping[str, object]) -> Any:
    if operation.body is Any:
        return given.get(PAYLOAD)
    return None if operation.body is None else _part(tool, operation.body, given)


def _part(tool: Tool, kind: Any, given: Mapping[str, object]) -> Any:
    """Return the query or the body that the arguments make. Raises Problem."""
    return fitted({name: given[name] for name in tool.fields(kind) if name in given}, kind)


def fitted(arguments: Mapping[str, object], kind: type[T]) -> T:
    """Return arguments as a value of a type. Raises Problem if they do not fit."""
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise bad(f"the arguments do not fit: {error}") from None


def bad(text: str) -> Problem:
    """Return the answer to arguments that cannot be."""
    return Problem(400, "bad-argument", text)
