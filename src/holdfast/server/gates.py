"""Bounds on what the server does at the same time: requests and streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Self

from holdfast.server.access import Principal
from holdfast.server.problems import Problem

MAX_BODY: Final = 1024 * 1024  # bytes, unless the server is told otherwise
MAX_REQUESTS: Final = 256
MAX_STREAMS: Final = 500
MAX_STREAMS_EACH: Final = 250  # of one principal
PATIENCE_SECONDS: Final = 1.0


class Slot:
    """The place of one request among those under way; it can be given up before the answer."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate, self._held = gate, False

    async def __aenter__(self) -> Self:
        await self._gate.enter()
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place to others: from here on the request only waits. Idempotent."""
        if self._held:
            self._held = False
            self._gate.leave()


class RequestGate:
    """Lets so many requests in; one more waits a second."""

    def __init__(self, most: int = MAX_REQUESTS) -> None:
        self._free = asyncio.Semaphore(most)

    def slot(self) -> Slot:
        """Return a place, to be entered with `async with`. Raises Problem 503 if all are taken."""
        return Slot(self)

    async def enter(self) -> None:
        """Take a place. Raises Problem 503 after a second."""
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Problem(503, "busy", "the server has as many requests as it may") from None

    def leave(self) -> None:
        """Give a place back."""
        self._free.release()


class StreamGate:
    """Lets so many streams be open, and so many of one principal."""

    def __init__(self, most: int = MAX_STREAMS, most_each: int = MAX_STREAMS_EACH) -> None:
        self._most, self._most_each = most, most_each
        self._open: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._open.total()

    @contextmanager
    def stream(self, principal: Principal) -> Generator[None]:
        """Count a stream while the block lasts. Raises Problem 429 or 503 for one too many."""
        if self._open[principal.name] >= self._most_each:
            raise Problem(
                429,
                "too-many-streams",
                f"{self._most_each} streams or waits of yours are open: close one, or start the "
                "server with --max-streams-each",
                headers={"Retry-After": "1"},
            )
        if self.count >= self._most:
            raise Problem(503, "busy", "the server has as many streams as it may: --max-streams")
        self._open[principal.name] += 1
        try:
            yield
        finally:
            self._open[principal.name] -= 1
            if not self._open[principal.name]:
                del self._open[principal.name]
