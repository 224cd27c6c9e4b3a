"""The metrics of the server, and what it knows of all runs, for monitors."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import DatabaseError
from holdfast.server.problems import Problem
from holdfast.server.site import Site
from holdfast.telemetry.text import CONTENT_TYPE, render


def routes(site: Site) -> list[BaseRoute]:
    """Return the route of the metrics: it needs the level read."""

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

    return [Route("/metrics", metrics)]
