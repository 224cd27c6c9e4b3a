"""Sending wake-ups in the background: gathered while one call is in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.errors import DatabaseError
from holdfast.types import Notice

logger = logging.getLogger("holdfast.notifier")


class Notifier:
    """Send notices at once when idle, together when not. They may get lost: pollers make up."""

    def __init__(self, notify: Callable[[Sequence[Notice]], Awaitable[None]]) -> None:
        self._notify = notify
        self._waiting: dict[Notice, None] = {}  # ordered, without repetitions
        self._call: asyncio.Task[None] | None = None

    def submit(self, notices: Iterable[Notice]) -> None:
        """Send notices soon; returns at once."""
        self._waiting.update(dict.fromkeys(notices))
        if self._call is None and self._waiting:
            self._call = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting:
                notices, self._waiting = list(self._waiting), {}
                try:
                    await self._notify(notices)
                except DatabaseError as error:
                    logger.debug("%d wake-up(s) were not sent: %s", len(notices), error)
        finally:
            self._call = None

    async def stop(self) -> None:
        """Send what waits, then return."""
        while self._call is not None:
            await asyncio.wait([self._call])
