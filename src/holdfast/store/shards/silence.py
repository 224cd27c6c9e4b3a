"""Notices that a database accepts calls and answers none: nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from holdfast.errors import DatabaseUnavailable, HoldfastError

T = TypeVar("T")

_SUSPECT_SECONDS: Final = 1.0  # after these a call has the database asked if it answers at all
_ANSWER_SECONDS: Final = 3.0  # to a question over a new connection
_SILENT: Final = f"it has not answered for {_SUSPECT_SECONDS + _ANSWER_SECONDS:g} s"


class Silence:
    """Ends the calls to a database that is silent, and lets it be asked until it answers again.

    A call that is slow, while its database answers others, takes what time it takes.
    """

    def __init__(self, answers: Callable[[], Awaitable[None]]) -> None:
        """`answers` asks the database over a connection of its own."""
        self._answers = answers
        self._is_silent = False
        self._waiting: set[asyncio.Timeout] = set()
        self._asking: asyncio.Task[None] | None = None

    async def bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call. Raises DatabaseUnavailable if the database is silent, at once if it was."""
        if self._is_silent:
            raise DatabaseUnavailable(_SILENT)
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()
        suspicion = loop.call_later(_SUSPECT_SECONDS, self._suspect, limit)
        try:
            async with limit:
                return await call()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DatabaseUnavailable(_SILENT, unanswered=True) from None
        finally:
            suspicion.cancel()
            self._waiting.discard(limit)

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _suspect(self, limit: asyncio.Timeout) -> None:
        self._waiting.add(limit)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Ask until it answers and nobody waits for it; end those who wait while it does not."""
        while self._is_silent or self._waiting:
            self._is_silent = not await self._has_answered()
            if self._is_silent:
                for limit in self._waiting:
                    limit.reschedule(asyncio.get_running_loop().time())
                self._waiting.clear()
            await asyncio.sleep(_SUSPECT_SECONDS)

    async def _has_answered(self) -> bool:
        """Return True if it answers, if only with an error: the calls get that one themselves."""
        with suppress(HoldfastError):
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._answers()
            except TimeoutError:
                return False
        return True
