"""Answer requests for pages: who may see them, what they are made of, and how errors look."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast._version import __version__
from holdfast.insight.wording import behind
from holdfast.server.access import Principal
from holdfast.server.guard import SAFE, check_same_origin
from holdfast.server.operations import NAMING_FIELDS, named, printable
from holdfast.server.pages.live import Streams
from holdfast.server.pages.rendering import ASSETS, BY_HASHED_NAME, render
from holdfast.server.pages.sessions import COOKIE, Tokens, cookie_path, set_cookie, who
from holdfast.server.pages.table import TABLE
from holdfast.server.pages.view import Download, Fragment, Page, Redirect, Row, View, read_form
from holdfast.server.problems import Problem, problem_of
from holdfast.server.site import Site
from holdfast.store.port.reads import ReadFrom, noting_reads
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.server")

PLACES: Final = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/approvals", "Approvals"),
    ("/workflows", "Workflows"),
    ("/schedules", "Schedules"),
    ("/queues", "Queues"),
    ("/messages", "Messages"),
    ("/workers", "Workers"),
    ("/doctor", "Doctor"),
)
_SHARED: Final = ("/messages", "/doctor")  # places that are about what all apps share


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of the pages, and of the files that they load."""
    pages = _Pages(site)
    found: list[BaseRoute] = [
        Route("/assets/{name}", _asset, methods=["GET"]),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
    ]
    for row in TABLE:
        found.append(Route(row.path, pages.endpoint(row), methods=[row.method], name=row.path))
    return found


def nowhere(site: Site) -> ASGIApp:
    """Return what answers requests for addresses that lead to nothing: a browser gets a page."""
    pages = _Pages(site)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        problem = Problem(404, "not-found", "the address leads to no page", title="No such page")
        request = Request(scope, receive)
        reads_pages = "text/html" in request.headers.get("accept", "")
        response = problem.response()
        if reads_pages:
            response = pages.refuse(request, await pages.reader(request), problem)
        await response(scope, receive, send)

    return answer


async def _asset(request: Request) -> Response:
    asset = BY_HASHED_NAME.get(str(request.path_params["name"]))
    if asset is None:
        raise Problem(404, "not-found", "there is no such file")
    return Response(
        asset.content,
        media_type=asset.media_type,
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._streams = Streams(site)

    def endpoint(self, row: Row) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers the requests of a row."""

        async def answer(request: Request) -> Response:
            principal: Principal | None = None
            try:
                _check_origin(request)
                principal = await who(self._site, request)
                self._check_level(principal, row)
                row.check_query([name for name, _ in request.query_params.multi_items()])
                return await self._answer(request, row, principal)
            except Exception as error:
                problem = problem_of(error)
                if problem.status == 401 and row.method == "GET" and not _is_live(request):
                    return self._to_login(request)
                return self.refuse(request, principal, problem)

        return answer

    def _check_level(self, principal: Principal, row: Row) -> None:
        allowed = principal.may(row.level) and (row.level == "read" or not self._site.read_only)
        if not allowed:
            raise Problem(403, "forbidden", f"this needs the level {row.level}")

    async def _answer(self, request: Request, row: Row, principal: Principal) -> Response:
        if _is_live(request):
            return await self._stream(request, row, principal)
        form: Mapping[str, str] = {} if row.method == "GET" else await read_form(request)
        row.check_form(form)
        async with self._site.requests.slot(), self._site.seen_by(principal) as site:
            view = View(site, principal, request, form)
            try:
                with noting_reads() as notes:
                    made = await row.maker(view)
            except Exception as error:
                _log_change(row, view, problem_of(error).slug)
                raise
            refused = isinstance(made, Page) and made.status >= 400
            _log_change(row, view, "refused" if refused else "done")
            match made:
                case Redirect():
                    return RedirectResponse(view.root + made.path, 303)
                case Download():
                    name = quote(made.name, safe="")
                    place = f"attachment; filename*=UTF-8''{name}"
                    return PlainTextResponse(
                        made.content,
                        headers={"Content-Disposition": place},
                        media_type="application/json",
                    )
                case Fragment():
                    values = {"view": view, "root": view.root, **made.values}
                    return HTMLResponse(render(made.template, values))
                case _:
                    return HTMLResponse(await _html(view, made, notes), made.status)

    async def _stream(self, request: Request, row: Row, principal: Principal) -> Response:
        async with self._site.seen_by(principal) as site:
            view = View(site, principal, request)
            page = await row.maker(view)
        if not isinstance(page, Page) or not page.parts:
            raise Problem(404, "not-found", "this page has no stream")

        async def look() -> Mapping[str, str]:
            async with self._site.seen_by(principal) as site:
                view = View(site, principal, request)
                with noting_reads() as notes:
                    found = await row.maker(view)
                assert isinstance(found, Page)
                return await _parts(view, found, notes)

        root = view.root

        async def messages() -> AsyncGenerator[str]:
            seen = f"{principal.level} {principal.only} {principal.payloads}"
            url = f"{seen} {root} {request.url.path}?{request.url.query}"
            browser = request.cookies.get(COOKIE, "")
            follow = self._streams.follow(url, principal, look, page.seconds, browser)
            async for each in follow:
                yield each

        return StreamingResponse(messages(), media_type="text/event-stream")

    def _to_login(self, request: Request) -> Response:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        path = request.url.path.removeprefix(root) or "/"
        query = f"?{request.url.query}" if request.url.query else ""
        if not isinstance(self._site.access, Tokens):
            return self.refuse(request, None, Problem(401, "unauthorized", "log in first"))
        return RedirectResponse(f"{root}/login?next={quote(path + query, safe='')}", 303)

    async def reader(self, request: Request) -> Principal | None:
        """Return who asks, None for one who is not known."""
        try:
            return await who(self._site, request)
        except Exception:  # of the site's own access too: the answer is a refusal anyway
            return None

    def refuse(self, request: Request, principal: Principal | None, problem: Problem) -> Response:
        """Return a refusal as a page; for a stream, as JSON.

        Those who may read pages get it with the navigation.
        """
        if _is_live(request):
            return problem.response()
        view = View(self._site, principal or Principal("nobody", "read"), request)
        place = "" if principal is None else _place_of(view)
        values = _frame(view, problem.title, place) | {"problem": problem, "back": _run_of(view)}
        values |= {"side": principal is not None, "of_form": request.method == "POST"}
        has_login = problem.status == 401 and isinstance(self._site.access, Tokens)
        values["login"] = f"{view.root}/login" if has_login else None
        html = render("problem.html", values)
        return HTMLResponse(html, problem.status, headers=problem.headers)

    async def login(self, request: Request) -> Response:
        """Trade a token for a cookie: that of the link that was printed, or of the form."""
        tokens, root = self._site.access, str(request.scope.get("root_path", "")).rstrip("/")
        view = View(self._site, Principal("nobody", "read"), request)
        token, wrong = request.query_params.get("key", ""), False
        try:
            if request.method == "POST":
                _check_origin(request)
                token = (await read_form(request)).get("token", "").strip()
            if token and isinstance(tokens, Tokens):
                holder = tokens.of_token(token)
                if holder is not None:
                    to = RedirectResponse(root + _inside(request.query_params.get("next")), 303)
                    set_cookie(request, to, tokens, holder.name)
                    return to
                wrong = True
        except Problem as problem:
            return self.refuse(request, None, problem)
        next_page = _inside(request.query_params.get("next"))
        values = _frame(view, "Log in", "") | {"wrong": wrong, "next": next_page}
        return HTMLResponse(render("login.html", values), 401 if wrong else 200)

    async def logout(self, request: Request) -> Response:
        """End the session of this browser."""
        try:
            _check_origin(request)
        except Problem as problem:
            return self.refuse(request, None, problem)
        root = str(request.scope.get("root_path", "")).rstrip("/")
        response = RedirectResponse(f"{root}/login", 303)
        response.delete_cookie(COOKIE, path=cookie_path(request), httponly=True, samesite="strict")
        return response


def _check_origin(request: Request) -> None:
    if request.method not in SAFE:
        headers = Headers(scope=request.scope)
        check_same_origin(headers, headers.get("host", ""))


def _place_of(view: View) -> str:
    """Return the place of the navigation that an address is under, "" for none."""
    first = view.request.url.path.removeprefix(view.root).split("/")[1:2]
    return next((path for path, _ in PLACES[1:] if [path[1:]] == first), "")


def _run_of(view: View) -> str | None:
    """Return the address of the run that a form is about: a refused one leads back there.

    Browsers are told not to say where they come from.
    """
    run = view.request.path_params.get("run")
    return f"{view.root}/runs/{run}" if run and view.request.method == "POST" else None


def _inside(path: str | None) -> str:
    """Return a path of ours: a link must not lead to another site."""
    path = unquote(path or "/") if path and path.startswith("%2F") else path or "/"
    ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if ours else "/"


def _is_live(request: Request) -> bool:
    return request.method == "GET" and request.query_params.get("live") == "1"


def _frame(view: View, title: str, place: str) -> dict[str, object]:
    """Return what every page's frame needs."""
    return {
        "view": view,
        "root": view.root,
        "title": title,
        "place": place,
        "side": bool(place),
        "places": [each for each in PLACES if not (view.principal.only and each[0] in _SHARED)],
        "assets": {name: f"{view.root}/assets/{each.name}" for name, each in ASSETS.items()},
        "version": __version__,
        "now": 0,
        "stream": "",
        "reads": "",
    }


async def _parts(view: View, page: Page, notes: ReadFrom) -> dict[str, str]:
    now = await view.store.now()
    values = _frame(view, page.title, page.place) | {"now": now} | dict(page.values)
    found = {name: render(template, values) for name, template in page.parts.items()}
    if reads := _read_from(notes):
        found["reads"] = reads
    return found


def _read_from(notes: ReadFrom) -> str:
    """Return where the lists of a page come from, or what they lack; "" if they are as usual."""
    if notes.away:
        return f"lists: without shard {', '.join(map(str, sorted(notes.away)))}, which is away"
    match notes.source:
        case None:
            return ""
        case "replica":
            return f"lists: replica, {behind(notes.lag_seconds)}"
        case "database":
            return "lists: the database; the replica is away"


async def _html(view: View, page: Page, notes: ReadFrom) -> str:
    now = await view.store.now()
    values = _frame(view, page.title, page.place) | {"now": now} | dict(page.values)
    values["reads"] = _read_from(notes)
    if page.parts and "stream" not in page.values:
        query = view.request.url.query
        here = view.request.url.path + (f"?{query}&" if query else "?")
        values["stream"] = f"{here}live=1"
    return render(page.template, values)


def _log_change(row: Row, view: View, outcome: str) -> None:
    if row.method != "GET":
        what = named([view.request.url.path, *map(view.form.get, NAMING_FIELDS)])
        logger.info("%s by %s: %s", what.strip(), printable(view.principal.name), outcome)
