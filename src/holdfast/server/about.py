"""What the server says about itself: the description of its API, its health, its metrics."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import DatabaseError
from holdfast.server.api.openapi import describe
from holdfast.server.api.table import operations
from holdfast.server.problems import Problem, problem_of
from holdfast.server.site import Site
from holdfast.telemetry.text import CONTENT_TYPE, render

DESCRIPTION_PATH: Final = "/v1/openapi.json"
_BELIEVED_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes; all but that of the metrics are open to all, and say nothing of runs."""

    async def openapi(request: Request) -> Response:
        described = describe(operations(read_only=site.read_only))
        servers = [{"url": request.scope.get("root_path", "") or "/"}]
        body = msgspec.json.encode({**described, "servers": servers})
        return Response(body, media_type="application/json")

    async def metrics(request: Request) -> Response:
        principal = await site.access.principal(request)  # each level includes read
        if principal.only:
            raise Problem(404, "not-found", "the metrics are of all apps")
        store = hints = None
        with suppress(DatabaseError):  # what the server counted itself is shown all the same
            await site.open()
            store, hints = site.store, site.hint_use()
        families = await site.metrics.families(store, hints, site.streams.count)
        text = await asyncio.to_thread(render, families)  # not to hold up other requests
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    return [
        Route(DESCRIPTION_PATH, openapi),
        Route("/live", live),
        Route("/ready", Readiness(site).ready),
        Route("/metrics", metrics),
    ]


async def live(request: Request) -> Response:
    """Answer that the process lives. It does not ask the database."""
    return JSONResponse({"live": True})


class Readiness:
    """Tells whether the database can be used; believes an answer for a second."""

    def __init__(self, site: Site) -> None:
        self._site, self._lock = site, asyncio.Lock()
        self._until = 0.0
        self._problem: Problem | None = None

    async def ready(self, request: Request) -> Response:
        """Answer 200 if the database and its schema can be used, else 503 with the reason."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._problem = await self._ask()
                self._until = time.monotonic() + _BELIEVED_SECONDS
        if self._site.closing.is_set():
            return Problem(503, "closing", "the server is stopping").response()
        return JSONResponse({"ready": True}) if self._problem is None else self._problem.response()

    async def _ask(self) -> Problem | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._site.open()
                await self._site.store.now()
        except TimeoutError:
            return Problem(503, "database", "the database does not answer")
        except Exception as error:
            return problem_of(error)
        return None
