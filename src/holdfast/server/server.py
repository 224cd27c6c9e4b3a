"""The server as one ASGI app, which runs alone or is mounted in another app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Self

from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from holdfast.database.resolve import Database
from holdfast.definitions.app import App
from holdfast.errors import HoldfastError
from holdfast.server import about, pages
from holdfast.server.access import Access, Asked, AskedAccess
from holdfast.server.api.dispatch import Api, route_path
from holdfast.server.catalogue import Catalogue
from holdfast.server.guard import (
    LOOPBACK,
    MAX_BODY,
    MAX_STREAMS,
    MAX_STREAMS_EACH,
    Guard,
    StreamGate,
    public_hosts,
)
from holdfast.server.problems import Problem, problem_of
from holdfast.server.site import Site
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger
from holdfast.values.texts import several

logger = get_logger("holdfast.server")

MOUNTED_STREAM_SECONDS: Final = 20.0

PARTS: Final = (about, pages)
"""What it serves besides the API: each adds routes, and says itself who may see them."""


class Server:
    """An ASGI app with the API, and what people and monitors look at.

    It connects when its lifespan or an `async with` begins. The lifespan of an app that is mounted
    is not run, so that one connects at the first request. `auth` is a function that is given a
    request and returns its `Principal`, or None; it may be asynchronous. Without `hosts`, only the
    names of this machine and that of $HOLDFAST_PUBLIC_URL are answered to; the host of a mounted
    server is the business of the program that it is mounted in: `hosts=[]` lets every host pass.

    ```python
    ui = Server(app=app, auth=who, hosts=[])
    fastapi_app.mount("/ops/holdfast", ui)
    ```
    """

    def __init__(
        self,
        database: str | Database | None = None,
        *,
        auth: Asked | Access,
        app: App | None = None,
        catalogue: Catalogue | None = None,
        schema: str = "holdfast",
        store: Store | None = None,
        hosts: Sequence[str] = LOOPBACK,
        read_only: bool = False,
        max_body: int = MAX_BODY,
        max_streams: int = MAX_STREAMS,
        max_streams_each: int = MAX_STREAMS_EACH,
        stream_seconds: float = MOUNTED_STREAM_SECONDS,
    ) -> None:
        """Say where the runs are, and who may do what. `database` is found as by `Client`.

        At most `max_streams` streams and waits are open at once, `max_streams_each` of one caller.

        Forms that start runs are made from the types of `app`, or from a `catalogue`.
        """
        hosts = several("hosts", hosts, str)  # of an empty text, all hosts would pass
        access = AskedAccess(auth) if callable(auth) else auth
        self.site = Site(
            database,
            access=access,
            schema=schema,
            app=app,
            catalogue=catalogue,
            store=store,
            read_only=read_only,
            max_body=max_body,
            stream_seconds=stream_seconds,
            streams=StreamGate(max_streams, max_streams_each),
        )
        self._api = Api(self.site)
        routes = [route for part in PARTS for route in part.routes(self.site)]
        self._router = Router(routes, redirect_slashes=False, default=pages.nowhere(self.site))
        self._guarded = Guard(self._dispatch, [*hosts, *public_hosts()] if hosts else ())

    async def __aenter__(self) -> Self:
        await self.site.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.site.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; open and close with the program's lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._until_stopped(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _until_stopped(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one that the end of the server cuts off is told to come again."""
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._guarded(scope, receive, noting)
        except asyncio.CancelledError:
            if has_begun or not self.site.closing.is_set():
                raise
            problem = Problem(503, "stopping", "the server stops: send the request again")
            await problem.response()(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if path.startswith("/v1/") and path != about.DESCRIPTION_PATH:
            await self._api(scope, receive, send)
            return
        # With the program that it is mounted in, a route would raise what that is to answer.
        own = {name: value for name, value in scope.items() if name != "app"}
        try:
            await self._router(own, receive, send)
        except Exception as error:
            await problem_of(error).response()(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open and close with the host. A database that is away does not keep it from starting.

        It connects without being asked: so it works on when the schema is migrated.
        """
        await receive()
        opening = asyncio.create_task(self._open(), name="holdfast server connects")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        opening.cancel()
        await asyncio.wait([opening])
        await self.site.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        try:
            await self.site.open()
        except HoldfastError as error:
            logger.warning("the server connects when it is asked: %s", error)
