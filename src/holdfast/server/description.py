"""The description of the API, open to all: it says nothing about any run."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server.api.openapi import describe
from holdfast.server.api.table import operations
from holdfast.server.site import Site

PATH: Final = "/v1/openapi.json"


def routes(site: Site) -> list[BaseRoute]:
    """Return the route of the description."""

    async def openapi(request: Request) -> Response:
        described = describe(operations(read_only=site.read_only))
        servers = [{"url": request.scope.get("root_path", "") or "/"}]
        body = msgspec.json.encode({**described, "servers": servers})
        return Response(body, media_type="application/json")

    return [Route(PATH, openapi)]
