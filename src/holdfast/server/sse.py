"""Server-sent events: how they are written, and the response that sends them.

A stream ends when the caller leaves, when its time is up, when the caller may no longer read, or
when the server stops. Then its last event is `bye`, and the caller asks again for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing, closing
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.server.operations import Call
from holdfast.server.problems import Problem, problem_of
from holdfast.server.waiting import left

RETRY: Final = b"retry: 1000\n\n"
COMMENT: Final = b": \n\n"
COMMENT_SECONDS: Final = 15.0
HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

_encode: Final = msgspec.json.Encoder().encode


def frame(event: str, data: object, id: str | None = None) -> bytes:
    """Return an event. Its data is JSON, whose line breaks become lines of their own."""
    text = _encode(data).replace(b"\r", b"").replace(b"\n", b"\ndata: ")
    number = b"" if id is None else b"id: %b\n" % id.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (number, event.encode(), text)


class Bye(msgspec.Struct, frozen=True):
    """Why a stream ends before all has happened: ask again for the rest."""

    reason: str


BYE: Final = frame("bye", Bye("the server ends the stream: ask again for the rest"))


class Stream:
    """What one stream is sent, and when it must end. Made by an operation for its call."""

    def __init__(self, call: Call[Any, Any]) -> None:
        """Count the stream. Raises Problem 429 or 503 if there are too many."""
        self._site, self._principal = call.site, call.principal
        self._held = ExitStack()
        self._held.enter_context(call.site.streams.stream(call.principal))
        call.slot.leave()
        self._ends_at = asyncio.get_running_loop().time() + call.site.stream_seconds

    @property
    def is_over(self) -> bool:
        """True if the stream must end now."""
        late = asyncio.get_running_loop().time() >= self._ends_at
        return late or self._site.closing.is_set() or not self.is_allowed

    async def wait(self, *awaited: asyncio.Future[Any]) -> bool:
        """Wait until one of these is done; False if the stream needs a comment, or must end."""
        closing = asyncio.create_task(self._site.closing.wait())
        rest = self._ends_at - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                {closing, *awaited},
                timeout=max(0.0, min(rest, COMMENT_SECONDS)),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            closing.cancel()
        return any(each.done() for each in awaited)

    def response(self, frames: AsyncGenerator[bytes]) -> EventStream:
        """Return the response that sends these events."""
        return EventStream(frames, self)

    def close(self) -> None:
        """Do not count the stream any more: it is not sent."""
        self._held.close()

    @property
    def is_allowed(self) -> bool:
        """True while the caller may read."""
        return self._site.access.still(self._principal)


class EventStream(Response):
    """Sends events until there are none, or the caller leaves."""

    def __init__(self, frames: AsyncGenerator[bytes], stream: Stream) -> None:
        super().__init__(headers=dict(HEADERS))
        del self.headers["content-length"]
        self._frames, self._stream = frames, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        with closing(self._stream):
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            writing = asyncio.create_task(self._write(send))
            leaving = asyncio.create_task(left(Request(scope, receive)))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled(writing, leaving)
            if not writing.cancelled() and (error := writing.exception()) is not None:
                raise error

    async def _write(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            await send({"type": "http.response.body", "body": RETRY, "more_body": True})
            try:
                async for part in frames:
                    if not self._stream.is_allowed:  # asked before each event: it may be revoked
                        await send({"type": "http.response.body", "body": BYE, "more_body": True})
                        break
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except (HoldfastError, Problem) as error:  # the next request is told why
                if problem_of(error).status == 500:
                    raise
                await send({"type": "http.response.body", "body": BYE, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
