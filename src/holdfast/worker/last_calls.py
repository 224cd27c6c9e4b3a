"""Calls to the database that a worker should make but can stop without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.errors import DatabaseError

logger = logging.getLogger("holdfast.worker")

_TRY_SECONDS = 3.0  # for each try
_FAREWELL_SECONDS = 8.0  # for all of them together, once the worker has drained


class LastCalls:
    """Make such calls. A lease that they fail to give back runs out by itself."""

    def __init__(self) -> None:
        self._until = float("inf")  # loop time after which no call is waited for

    def begin_farewell(self) -> None:
        """Limit the time of all later calls together, so that a stop does not take too long."""
        self._until = asyncio.get_running_loop().time() + _FAREWELL_SECONDS

    async def make(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call, and log it if it fails.

        A call that is not answered is made once more, over another connection: the first may be
        dead.
        """
        loop, reason = asyncio.get_running_loop(), ""
        for _ in range(2):
            limit = loop.time() + _TRY_SECONDS
            try:
                async with asyncio.timeout_at(min(limit, self._until)):
                    await call()
                return
            except TimeoutError:
                reason = "the database does not answer"
            except DatabaseError as error:
                reason = str(error)
                break
        logger.warning("left to the leases' end: %s", reason)
