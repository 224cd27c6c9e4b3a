"""What one operation of the API is, a row of a table, and how it is carried out and logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)
from uuid import UUID

import msgspec
from starlette.requests import Request

from holdfast.errors import HoldfastError, RunNotFound
from holdfast.server.access import Level, Principal
from holdfast.server.guard import Slot
from holdfast.server.problems import problem_of
from holdfast.values.loggers import get_logger
from holdfast.values.names import full_name

if TYPE_CHECKING:
    from holdfast.server.site import Site

Q_co = TypeVar("Q_co", covariant=True)
B_co = TypeVar("B_co", covariant=True)

NO_RUN: Final = UUID(int=0)

Needs: TypeAlias = Level | Literal["open"]
"""The level that an operation needs; one that is open needs no caller who says who asks."""

NAMING_FIELDS: Final = ("do", "scope", "name", "kind", "topic", "workflow", "key", "step")
"""Fields of a query, a body or a form that name what is changed."""

_MAX_NAME: Final = 200  # characters of a name in the log

logger = get_logger("holdfast.server")


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the parameters of queries: unknown ones are refused."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of bodies: unknown members are refused."""


class Nothing(Query, frozen=True):
    """The query of an operation that has no parameters."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q_co, B_co]):
    """One request for an operation, read and checked.

    `run_id` is the run of the path, `slot` the place of the request among those under way, and
    `idempotency_key` the header of this name. `inputs` is the object that filters by input make,
    for operations that take them.
    """

    site: Site
    principal: Principal
    request: Request
    path: Mapping[str, str]
    query: Q_co
    body: B_co
    idempotency_key: str | None = None
    run_id: UUID = NO_RUN
    slot: Slot = field(kw_only=True)
    inputs: dict[str, object] | None = None

    @property
    def full_name(self) -> str:
        """The name of the path, with the app that a query of `OfWorkflow` names."""
        query: Any = self.query
        app: str | None = query.app
        return self.path["name"] if app is None else full_name(app, self.path["name"])


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status of its own, or with headers."""

    content: object
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler: TypeAlias = Callable[[Call[Any, Any]], Awaitable[object]]
"""Answers a call: with a value of the operation's answer, a Reply, or a response of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForAgents:
    """How an agent sees an operation, as a tool of `holdfast mcp`.

    Without a `name` it has that of the operation. `defaults` stand in the place of the operation's
    own, which are for programs; `hidden` fields cannot be given. `note` says what an answer leaves
    out, and how to get it.
    """

    about: str
    name: str = ""
    destructive: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)
    hidden: frozenset[str] = frozenset()
    note: Callable[[Any], str | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table: `holdfast.server.api.table` has all of them.

    The route is a method and a path. In it, `{run}` is a run's id, which may be that of none, and
    `{name}` the name of what the path is about. The handler's annotations say the rest: of a
    `Call[Q, B]`, `query` is Q and `body` is B, None if there is no body, bytes for one that is not
    read before the handler; what it returns is in `answers`. Only a handler that returns a Reply or
    a response has its `answers` in the row. `statuses` are those of success. With `nested`, the
    operation has a second path, below that of the run's workflow. `keyed` operations take an
    Idempotency-Key. With `inputs` the query may have filters by input. `tool` makes it a tool for
    agents, too.
    """

    route: str
    level: Needs
    handler: Handler
    _: KW_ONLY
    body_required: bool = True
    answers: tuple[Any, ...] = ()
    statuses: tuple[int, ...] = (200,)
    media_type: str = "application/json"
    problems: tuple[type[HoldfastError], ...] = ()
    nested: bool = False
    keyed: bool = False
    inputs: bool = False
    tool: ForAgents | None = None
    method: str = field(init=False)
    path: str = field(init=False)
    query: type[Query] = field(init=False)
    body: Any = field(init=False)

    def __post_init__(self) -> None:
        method, path = self.route.split()
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "path", path)
        if "{run}" in path:
            object.__setattr__(self, "problems", (RunNotFound, *self.problems))
        hints = get_type_hints(self.handler)
        query, body = get_args(hints["call"])
        object.__setattr__(self, "query", query)
        object.__setattr__(self, "body", None if body is NoneType else body)
        if not self.answers:
            object.__setattr__(self, "answers", (hints["return"],))

    @property
    def name(self) -> str:
        """The operation's name: that of its handler."""
        return getattr(self.handler, "__name__", "")

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the one below the run's workflow."""
        if not self.nested:
            return (self.path,)
        return (self.path, self.path.replace("/v1/", "/v1/workflows/{name}/", 1))

    @property
    def is_stream(self) -> bool:
        """True if it answers with events as they happen."""
        return self.media_type == "text/event-stream"


async def carry_out(operation: Operation, call: Call[Any, Any]) -> object:
    """Return what the operation answers. A change is written to the log, also one that failed."""
    try:
        answer = await operation.handler(call)
    except Exception as error:
        _log_change(operation, call, problem_of(error).slug)
        raise
    made = answer.content if isinstance(answer, Reply) else answer
    run_id = getattr(made, "run_id", None)
    _log_change(operation, call, "done" if run_id is None else f"done, run {run_id}")
    return answer


def named(texts: Iterable[object]) -> str:
    """Return texts for a line of the log, each after a space; what cannot be printed is escaped."""
    return "".join(f" {printable(each)}" for each in texts if isinstance(each, str) and each)


def names_in(given: object) -> list[object]:
    """Return what the fields of a query or a body say about what is changed."""
    return [getattr(given, name, None) for name in NAMING_FIELDS]


def printable(text: str) -> str:
    """Return a text that is one line, and cannot control a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    shown = text if len(text) <= _MAX_NAME else text[:_MAX_NAME] + "…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )


def _log_change(operation: Operation, call: Call[Any, Any], outcome: str) -> None:
    """Write a change to the log, once the answer is sent: the caller need not wait for that."""
    if operation.method != "GET":
        path = [value for name, value in call.path.items() if name != "token"]
        what = named([*path, *names_in(call.query), *names_in(call.body)])
        by = printable(call.principal.name)
        line = "%s%s by %s: %s", operation.name, what, by, outcome
        asyncio.get_running_loop().call_soon(logger.info, *line)
