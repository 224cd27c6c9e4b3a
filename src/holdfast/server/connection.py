"""The HTTP of one connection: h11, and answers that leave in one piece.

uvicorn writes the head of an answer and its body one after the other, and its event loop sends
each at once: two system calls and two packets for each answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_HELD: Final = 64 * 1024  # bytes: more of them are sent at once, so that a sender is slowed


class JoinedWrites:
    """A transport that holds what is written until `flush`, or the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Hold data, or send it with what is held if that is much."""
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Send what is held. Nothing is sent on a connection that is closed."""
        if not self._held:
            return
        data = b"".join(self._held)
        self._held.clear()
        self._size = 0
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """Sends the head and the body of an answer together."""

    _writes: JoinedWrites

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        self._writes = JoinedWrites(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._writes))

    def on_response_complete(self) -> None:
        """Send the answer, and continue with the next request."""
        self._writes.flush()
        super().on_response_complete()
