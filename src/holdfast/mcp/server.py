"""An app's workflows for agents: an ASGI app, and over stdin and stdout. See `app.mcp()`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Self

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.mcp.serving import make_server, serve
from holdfast.mcp.workflows import AppTools
from holdfast.server.access import Access, Asked, AskedAccess, refused
from holdfast.server.guard import LOOPBACK, Guard
from holdfast.server.problems import Problem, problem_of
from holdfast.store.port import Store
from holdfast.values.texts import several


class McpServer:
    """Offers the workflows of an app as tools; see `App.mcp`.

    As an ASGI app it speaks streamable HTTP, and keeps nothing between two requests: any number of
    processes may answer one agent. It connects at the first call, or in an `async with`.
    """

    def __init__(
        self,
        app: App,
        database: str | None = None,
        *,
        auth: Asked | Access | None = None,
        workflows: Collection[str] | None = None,
        schema: str = "holdfast",
        store: Store | None = None,
        hosts: Sequence[str] = LOOPBACK,
    ) -> None:
        """Say where the runs are, who may call, and which workflows they see."""
        self._client = Client(database, schema=schema, app=app, store=store)
        self._access = AskedAccess(auth) if callable(auth) else auth
        self._tools = AppTools(app, self._client, workflows)
        self._guarded = Guard(self._answer, several("hosts", hosts, str))
        self._closing = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    async def __aenter__(self) -> Self:
        await self._client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        serving, self._serving, self._manager = self._serving, None, None
        if serving is not None:
            self._closing.set()
            await serving
        await self._client.close()

    async def run(self) -> bool:
        """Answer a client over stdin and stdout. Return True if a signal ended it."""
        try:
            return await serve(self._tools)
        finally:
            await self._client.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            await self._guarded(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.__aexit__()
            await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._check(Request(scope))
        except Exception as error:
            await problem_of(error).response()(scope, receive, send)
            return
        manager = self._manager or self._begin()
        await (await asyncio.shield(manager)).handle_request(scope, receive, send)

    async def _check(self, request: Request) -> None:
        """Refuse a caller who may not start runs. Raises Problem."""
        if self._access is None:
            raise refused("this server does not know who may call: give app.mcp an `auth`")
        principal = await self._access.principal(request)
        if not principal.may("write"):
            raise Problem(403, "forbidden", "it needs the level write")
        if not (principal.payloads and all(map(principal.sees, self._tools.full_names))):
            raise Problem(403, "forbidden", "these tools show more than the caller may see")

    def _begin(self) -> asyncio.Future[StreamableHTTPSessionManager]:
        """Return the manager of requests, which lives in a task of its own."""
        manager = self._manager = asyncio.get_running_loop().create_future()
        self._closing.clear()
        self._serving = asyncio.create_task(self._serve(manager), name="holdfast mcp")
        return manager

    async def _serve(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        manager = StreamableHTTPSessionManager(
            make_server(self._tools), json_response=True, stateless=True
        )
        async with manager.run():
            ready.set_result(manager)
            await self._closing.wait()
