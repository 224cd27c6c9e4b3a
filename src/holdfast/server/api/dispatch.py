"""Answer requests: of which operation, who asks, within which bounds, with what answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, nullcontext
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import AmbiguousWorkflow, RunNotFound, UnknownWorkflow
from holdfast.server.access import ANYONE, Principal
from holdfast.server.api.filters import OfWorkflow
from holdfast.server.api.table import operations
from holdfast.server.operations import Call, Operation, Reply, carry_out
from holdfast.server.problems import Problem, problem_of
from holdfast.server.reading import read_body, read_key, read_path, read_query
from holdfast.server.site import Site
from holdfast.store.port.reads import ReadFrom, noting_reads
from holdfast.tracing.requests import within_request
from holdfast.values.names import split_name

LAG_HEADER: Final = "Holdfast-Lag-Seconds"
AWAY_HEADER: Final = "Holdfast-Shards-Away"
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_NOTHING_NOTED: Final = ReadFrom()
_encode: Final = msgspec.json.Encoder().encode


class Api:
    """The ASGI app of all paths below /v1."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._paths = Paths(operations(read_only=site.read_only))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        async with AsyncExitStack() as used:  # until the answer is sent: it may be a stream
            try:
                response = await self._answer(request, used)
            except Exception as error:
                response = problem_of(error).response()
            await response(scope, receive, send)

    async def _answer(self, request: Request, used: AsyncExitStack) -> Response:
        site = self._site
        found = self._paths.find(route_path(request.scope))
        is_open = found is not None and all(each.level == "open" for each in found[0].values())
        principal = ANYONE if is_open else await site.access.principal(request)
        operation, path = self._choose(request, found)
        began = time.perf_counter()
        try:
            return await self._carry_out(request, principal, operation, path, used)
        finally:
            route = f"{operation.method} {operation.path}"
            site.metrics.http_seconds.observe((route,), time.perf_counter() - began)

    async def _carry_out(
        self,
        request: Request,
        principal: Principal,
        operation: Operation,
        path: dict[str, str],
        used: AsyncExitStack,
    ) -> Response:
        site = self._site
        if operation.level != "open" and not principal.may(operation.level):
            raise Problem(403, "forbidden", f"it needs the level {operation.level}")
        async with site.requests.slot() as slot:
            query, inputs = read_query(request, operation)
            run_id, key = read_path(path), read_key(request, operation)
            body = await read_body(request, operation, site.max_body)
            seen = site
            if not (site.is_open and principal.sees_all):
                seen = await used.enter_async_context(site.seen_by(principal))
            call = Call(seen, principal, request, path, query, body, key, run_id, inputs, slot=slot)
            if "run" in path and "name" in path:
                await _check_workflow(call)
            trace, state = map(request.headers.get, _TRACE_HEADERS)
            tracing = nullcontext() if trace is None else within_request(trace, state)
            noting = noting_reads() if site.notes_reads else nullcontext(_NOTHING_NOTED)
            with tracing, noting as notes:
                try:
                    answer = await carry_out(operation, call)
                except (AmbiguousWorkflow, UnknownWorkflow) as error:
                    raise _with_parameter(error, query) from error
        response = _response(answer, operation)
        if notes.source == "replica":
            lag = notes.lag_seconds
            response.headers[LAG_HEADER] = "unknown" if lag is None else f"{lag:.3f}"
        if notes.away:
            response.headers[AWAY_HEADER] = ",".join(map(str, sorted(notes.away)))
        return response

    @staticmethod
    def _choose(
        request: Request, found: tuple[dict[str, Operation], dict[str, str]] | None
    ) -> tuple[Operation, dict[str, str]]:
        if found is None:
            raise Problem(404, "not-found", "the API has no such path; see /v1/openapi.json")
        methods, path = found
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            text = f"{request.method} is not a method of this path: {allowed}"
            raise Problem(405, "method-not-allowed", text, headers={"Allow": allowed})
        return methods[method], path


async def _check_workflow(call: Call[object, object]) -> None:
    """Refuse a run that is another workflow's. Raises RunNotFound."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    if split_name(call.path["name"])[1] != run.name:
        raise RunNotFound(call.run_id)


def _with_parameter(error: Exception, query: object) -> Problem:
    """Return the answer to a name of a path that needs its app: a path has no `APP/NAME`."""
    problem = problem_of(error)
    if isinstance(query, OfWorkflow) and query.app is None:
        problem.detail += "; in a request the app is a parameter: ?app=APP"
    return problem


def _response(answer: object, operation: Operation) -> Response:
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, Reply):
        body = _encode(answer.content)
        return Response(body, answer.status, headers=answer.headers, media_type="application/json")
    return Response(_encode(answer), operation.statuses[0], media_type="application/json")


class Paths:
    """The operations by path and method. A part in braces stands for any text without a slash."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._fixed: dict[str, Paths] = {}
        self._named: tuple[str, Paths] | None = None
        self.methods: dict[str, Operation] = {}
        for operation in operations:
            for path in operation.paths:
                self._add(path, operation)

    def find(self, path: str) -> tuple[dict[str, Operation], dict[str, str]] | None:
        """Return the operations of a path by method, and what stands in its named parts."""
        node, named = self, dict[str, str]()
        for part in path.split("/")[1:]:
            inner = node._fixed.get(part)
            if inner is None:
                if node._named is None or not part:
                    return None
                name, inner = node._named
                named[name] = part
            node = inner
        return (node.methods, named) if node.methods else None

    def _add(self, path: str, operation: Operation) -> None:
        node = self
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                name = part.strip("{}")
                if node._named is None:
                    node._named = name, Paths()
                assert node._named[0] == name, f"{path}: another path says {node._named[0]}"
                node = node._named[1]
            else:
                node = node._fixed.setdefault(part, Paths())
        assert operation.method not in node.methods, f"{operation.method} {path} is there twice"
        node.methods[operation.method] = operation


def route_path(scope: Scope) -> str:
    """Return the path of a request, without the prefix below which the server is mounted."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    within = bool(prefix) and (path == prefix or path.startswith(f"{prefix}/"))
    return path[len(prefix) :] if within else path
