"""Health of the server: whether it lives, and whether it can do its work."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.server.problems import Problem, problem_of
from holdfast.server.site import Site

_BELIEVED_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of health; they are open to all."""
    readiness = Readiness(site)
    return [Route("/live", live), Route("/ready", readiness.ready)]


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
