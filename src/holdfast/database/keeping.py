"""Keep the embedded server alive while something works on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.database.resolve import Database
from holdfast.errors import HoldfastError
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.worker")

_LOOK_SECONDS = 1.0


@asynccontextmanager
async def kept_running(database: Database) -> AsyncGenerator[None]:
    """Restart the embedded server when it dies, for the length of the block.

    Any other server is left alone.
    """
    if database.server is None:
        yield
        return
    watcher = asyncio.create_task(_watch(database), name="holdfast embedded watch")
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _watch(database: Database) -> None:
    assert database.server is not None
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if database.server.postmaster_pid is not None:
            continue
        logger.warning("the embedded database has died; it is started again")
        try:
            await asyncio.to_thread(database.ensure_running)
        except HoldfastError as error:
            logger.error("the embedded database does not come back: %s", error)
