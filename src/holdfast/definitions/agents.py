"""`app.mcp()`: the part of an app that offers its workflows to agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self

from holdfast.errors import ConfigurationError


class AgentServer(Protocol):
    """Offers workflows as tools of the Model Context Protocol: an ASGI app, and more."""

    async def __aenter__(self) -> Self:
        """Connect to the database."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Finish the calls under way, and disconnect."""
        ...

    async def __call__(self, scope: Any, receive: Any, send: Any, /) -> None:
        """Answer a request by streamable HTTP."""
        ...

    async def run(self) -> bool:
        """Answer a client over stdin and stdout. Return True if a signal ended it."""
        ...


class Offering:
    """What an app offers to agents."""

    def mcp(
        self,
        database: str | None = None,
        *,
        auth: Callable[[Any], object] | None = None,
        workflows: Collection[str] | None = None,
        schema: str = "holdfast",
        hosts: Sequence[str] | None = None,
    ) -> AgentServer:
        """Make a server that offers the app's workflows to agents, each as a tool with its types.

        ```python
        tools = app.mcp(auth=who, hosts=[])
        web.mount("/mcp", tools)  # any program that takes ASGI apps
        ```

        A tool starts a run, waits a moment for its end, and returns the output; `get_result` asks
        later, and `send_signal` sends what a run waits for. `workflows` are the names of those that
        are offered, by default all. The database is found as by `Client`.

        `auth` is a function that is given a request and returns its `Principal`, or None, as for
        `holdfast.server.Server`; it may be asynchronous. Without it, requests by HTTP are refused:
        `run` needs none. `hosts` are the names that are answered to, by default those of this
        machine; with `[]`, the program that it is mounted in checks the host.

        Raises ConfigurationError for workflows that cannot be tools, and without holdfast[mcp].
        """
        if find_spec("mcp") is None:
            raise ConfigurationError("app.mcp() needs the package mcp: pip install 'holdfast[mcp]'")
        # A room above this one, and of no use to apps that serve no agents.
        make: Callable[..., AgentServer] = import_module("holdfast.mcp.server").McpServer
        more = {} if hosts is None else {"hosts": hosts}
        return make(self, database, auth=auth, workflows=workflows, schema=schema, **more)
