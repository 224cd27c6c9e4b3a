"""Speak the protocol over stdin and stdout, by the package mcp, until stdin ends or a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, Self, cast

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from holdfast._version import __version__
from holdfast.mcp.calling import Answer
from holdfast.mcp.tools import Described

_STDIN: Final = 0
_PIECE: Final = 64 * 1024


class Tools(Protocol):
    """What a server of the protocol offers. `name` is the server's."""

    name: str

    @property
    def tools(self) -> Sequence[Described]:
        """The tools that may be called."""
        ...

    async def call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        """Carry out a call. It never raises."""
        ...


def make_server(tools: Tools) -> Server[Any]:
    """Return a server of the protocol that offers tools."""

    async def list_tools(_: object, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(each) for each in tools.tools])

    async def call_tool(_: object, asked: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await tools.call(asked.name, asked.arguments or {})
        texts = [answer.text] if answer.note is None else [answer.text, answer.note]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=each) for each in texts],
            structured_content=answer.structured,
            is_error=answer.failed,
        )

    return Server(tools.name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(tools: Tools) -> bool:
    """Answer a client. Return True if a signal ended it, False if the client did."""
    server = make_server(tools)
    stdin = _Stdin()
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        interrupted.set()
        stdin.end()

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop)
    try:
        async with stdio_server() as (reads, writes):
            try:
                options = server.create_initialization_options()
                await server.run(cast("Any", _Readable(reads, writes)), writes, options)
            finally:
                stdin.end()  # the package waits for its thread, which reads it
    except* BrokenPipeError:
        pass  # the client does not read what it is answered: it has ended
    return interrupted.is_set()


class _Readable:
    """The messages that can be read. Others are refused: their callers would wait for ever.

    A message with half of an emoji cannot be read, for example: a lone surrogate is not text.
    """

    def __init__(self, reads: Any, writes: Any) -> None:
        self._reads, self._writes = reads, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while isinstance(found := await anext(self._reads), Exception):
            await self._writes.send(SessionMessage(_refusal(found)))
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reads.aclose()


def _refusal(error: Exception) -> types.JSONRPCError:
    """Return the answer to a message that cannot be read, by its id if that can be."""
    call_id, text = None, str(error)
    with suppress(Exception):
        [first, *_] = cast("Any", error).errors()
        text, given = first["msg"], first["input"]
        found = json.loads(given) if isinstance(given, str) else given
        call_id = found["id"] if isinstance(found["id"], int | str) else None
    data = types.ErrorData(code=types.PARSE_ERROR, message=f"the message cannot be read: {text}")
    return types.JSONRPCError(jsonrpc="2.0", id=call_id, error=data)


class _Stdin:
    """Puts a pipe in the place of stdin, and copies what comes into it.

    A thread that reads stdin cannot be interrupted, and the package waits for its own. This one
    need not be waited for: the pipe ends when we say so.
    """

    def __init__(self) -> None:
        self._source = os.dup(_STDIN)
        reads, self._into = os.pipe()
        os.dup2(reads, _STDIN)
        os.close(reads)
        self._lock, self._ended = threading.Lock(), False
        threading.Thread(target=self._copy, name="holdfast-stdin", daemon=True).start()

    def end(self) -> None:
        """End what is read. Idempotent."""
        with self._lock:
            if not self._ended:
                self._ended = True
                os.close(self._into)

    def _copy(self) -> None:
        with suppress(OSError):  # it was ended, or nobody reads any more
            while data := os.read(self._source, _PIECE):
                while data:
                    data = data[os.write(self._into, data) :]
        self.end()


def _shown(tool: Described) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.about,
        input_schema=tool.schema,
        output_schema=tool.output,
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.writes, destructive_hint=tool.destructive, open_world_hint=False
        ),
    )
