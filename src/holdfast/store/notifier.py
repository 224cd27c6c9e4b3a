"""Sending wake-ups in the background: gathered while one call is in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context

from holdfast.errors import DatabaseError
from holdfast.store.port import HINTED_TOPICS, WORK_TOPIC
from holdfast.types import Notice

logger = logging.getLogger("holdfast.notifier")

_PAUSE_SECONDS = 0.001
_WAKING = (WORK_TOPIC, *HINTED_TOPICS)
_LAST_SECONDS = 2.0


class Notifier:
    """Send notices at once if no call is under way, and otherwise with the next call.

    They may get lost: workers and clients also poll. For each queue one wake-up a millisecond is
    enough: the worker that wakes takes everything that is due.
    """

    def __init__(self, notify: Callable[[Sequence[Notice]], Awaitable[None]]) -> None:
        self._notify = notify
        self._waiting: dict[Notice, None] = {}  # ordered, without repetitions
        self._call: asyncio.Task[None] | None = None
        self._sent: list[Notice] = []
        self._sent_at = 0.0

    @property
    def idle(self) -> bool:
        """Return True if everything that was submitted has been sent."""
        return self._call is None

    def submit(self, notices: Iterable[Notice]) -> None:
        """Send notices soon; returns at once."""
        self._waiting.update(dict.fromkeys(notices))
        if self._call is None and self._waiting:
            # In a context of its own: the limits of the caller's calls are not those of this one.
            loop = asyncio.get_running_loop()
            self._call = loop.create_task(self._send(), context=Context())

    async def _send(self) -> None:
        try:
            while self._waiting:
                notices, self._waiting = list(self._waiting), {}
                await self._space(notices)
                try:
                    await self._notify(notices)
                except DatabaseError as error:
                    logger.debug("%d wake-up(s) were not sent: %s", len(notices), error)
        finally:
            self._call = None

    async def _space(self, notices: list[Notice]) -> None:
        """Wait a moment if the last call woke the same workers: they are awake already."""
        loop = asyncio.get_running_loop()
        pause = self._sent_at + _PAUSE_SECONDS - loop.time()
        if pause > 0 and notices == self._sent and notices[0].topic in _WAKING:
            await asyncio.sleep(pause)
            for notice in notices:
                self._waiting.pop(notice, None)  # it came during the pause, and is sent now
        self._sent, self._sent_at = notices, loop.time()

    async def stop(self) -> None:
        """Send what waits, for at most two seconds; polling finds the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                while self._call is not None:
                    await asyncio.wait([self._call])
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call])
