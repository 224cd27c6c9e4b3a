"""Calls that send what has gathered since the one before."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine


class Gathering:
    """Makes one call at a time, some time after the one before at the earliest.

    `send` sends what has gathered; `has_some` says if there is something. A call is nobody's of
    those whose things it sends: it has a context of its own. All is called on one event loop.
    """

    def __init__(
        self,
        seconds: float,
        has_some: Callable[[], bool],
        send: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self._seconds, self._has_some, self._send = seconds, has_some, send
        self._next_at = 0.0  # loop time before which no call is made
        self._timer: asyncio.TimerHandle | None = None
        self._call: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """True if no call is in flight."""
        return self._call is None

    def plan(self) -> None:
        """Make a call as soon as its time has come, if there is something to send."""
        if self._call is None and self._timer is None and self._has_some():
            self._timer = asyncio.get_running_loop().call_at(self._next_at, self.begin)

    def skip_pause(self) -> None:
        """Let the next call be made without waiting for its time; `plan` makes it."""
        self._next_at = 0.0
        self._cancel_timer()

    def begin(self) -> asyncio.Task[None]:
        """Make a call now, unless one is in flight; return the call."""
        self._cancel_timer()
        if self._call is None:
            loop = asyncio.get_running_loop()
            self._next_at = loop.time() + self._seconds
            self._call = loop.create_task(self._flush(), context=contextvars.Context())
        return self._call

    async def stop(self) -> None:
        """Make no further call, and cancel the one in flight."""
        self._cancel_timer()
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call])

    async def _flush(self) -> None:
        try:
            await self._send()
        finally:
            self._call = None
            self.plan()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
