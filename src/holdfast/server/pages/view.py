"""What a page is made of, and what its maker may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.requests import Request

from holdfast.client import Client
from holdfast.server.access import Level, Principal
from holdfast.server.problems import Problem
from holdfast.server.reading import bad_parameter, unknown_parameter
from holdfast.server.site import Site
from holdfast.store.port import Store

MAX_FORM: Final = 1024 * 1024  # bytes
REPEATED: Final = frozenset({"state", "workflow", "queue", "tag", "where", "run"})
"""The parameters that may be given several times."""


@dataclass(frozen=True, slots=True)
class View:
    """One request for a page, by one who may see it."""

    site: Site
    principal: Principal
    request: Request
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def client(self) -> Client:
        """The client that makes changes."""
        return self.site.client

    @property
    def reader(self) -> Client:
        """The client that reads."""
        return self.site.reader

    @property
    def store(self) -> Store:
        """The store that insight reads through."""
        return self.site.store

    @property
    def root(self) -> str:
        """Where the server is mounted, for URLs: empty, or `/ops/holdfast`."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    def may(self, level: Level) -> bool:
        """Return True if the reader may do what needs this level."""
        return self.principal.may(level) and (level == "read" or not self.site.read_only)

    def text(self, name: str) -> str | None:
        """Return a field of the form without the space around it, None if nothing is in it."""
        return self.form.get(name, "").strip() or None

    def param(self, name: str, default: str = "") -> str:
        """Return a parameter of the query without what browsers and people put around it."""
        return self.request.query_params.get(name, default).strip()

    def params(self, name: str) -> list[str]:
        """Return a parameter that may be repeated."""
        return [each for each in self.request.query_params.getlist(name) if each]

    @property
    def run_id(self) -> UUID:
        """The run that the path names. Raises Problem 404 for what is not an id."""
        text = str(self.request.path_params["run"])
        try:
            return UUID(text)
        except ValueError:
            raise Problem(404, "run-not-found", f"{text!r} is not the id of a run") from None

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number of the query, within 0 and `most`. Raises Problem 400."""
        text = self.param(name) or str(default)
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > most:
            raise Problem(400, "bad-parameter", f"{name} is a number of 0 to {most:,}")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its template with values, and the parts that stay up to date while it is open.

    `parts` are templates by the id of the element that they fill.
    """

    template: str
    title: str
    values: Mapping[str, object]
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    place: str = ""
    status: int = 200
    seconds: float = 2.0  # between two looks at what may have changed


class Redirect(msgspec.Struct, frozen=True):
    """The answer to a form: where to look at what came of it. `path` is below the mount."""

    path: str


class Download(msgspec.Struct, frozen=True):
    """A payload as a file."""

    name: str
    content: str


class Fragment(msgspec.Struct, frozen=True):
    """A piece of a page that is loaded when it is needed."""

    template: str
    values: Mapping[str, object]


Made: TypeAlias = Page | Redirect | Download | Fragment
Maker: TypeAlias = Callable[[View], Awaitable[Made]]


class Row(msgspec.Struct, frozen=True):
    """A row of the table of pages: who may ask for what.

    `query` and `form` are the parameters and the fields that there are; `f.NAME` is each field of
    an input.
    """

    method: str
    path: str
    level: Level
    maker: Maker
    query: tuple[str, ...] = ()
    form: tuple[str, ...] = ()

    def check_query(self, names: Sequence[str]) -> None:
        """Refuse parameters that do not exist, or are given twice. Raises Problem 400."""
        known = (*self.query, "live") if self.method == "GET" else self.query
        for name in names:
            if name not in known:
                raise unknown_parameter(name, self.query)
            if name not in REPEATED and names.count(name) > 1:
                raise bad_parameter(name, "it is given twice")

    def check_form(self, names: Iterable[str]) -> None:
        """Refuse fields that do not exist. Raises Problem 400."""
        for name in names:
            if name not in self.form and not (name.startswith("f.") and "f.NAME" in self.form):
                raise unknown_parameter(name, self.form)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises Problem 413, 415 or 400."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise Problem(415, "media-type", "a form is application/x-www-form-urlencoded")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise Problem(413, "too-large", f"a form has {MAX_FORM:,} bytes at most")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Problem(400, "bad-form", "the form is not name=value pairs in UTF-8") from None
    return dict(pairs)
