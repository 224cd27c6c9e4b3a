"""Find out whether URLs lead to the same database, whatever they look like."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack

from holdfast.database.connection import connected
from holdfast.errors import ConfigurationError


async def refuse_same(urls: Sequence[str]) -> None:
    """Refuse two URLs that lead to one database: a lock that is held there is held in both.

    Raises ConfigurationError, and what `connected` raises.
    """
    key = secrets.randbits(62)
    async with AsyncExitStack() as stack:
        for number, url in enumerate(urls, start=1):
            connection = await stack.enter_async_context(connected(url))
            await stack.enter_async_context(connection.transaction())
            if not await connection.fetchval(f"select pg_try_advisory_xact_lock({key})"):
                raise ConfigurationError(
                    f"database {number} of those that are named is one that was named before it"
                )
