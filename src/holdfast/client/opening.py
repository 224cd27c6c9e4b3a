"""Open the store that a client talks to."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from holdfast.store.database import Connecting, resolve_database
from holdfast.store.opening import store_of
from holdfast.store.port import Store


async def open_store(
    stack: AsyncExitStack, database: str | None, schema: str, connecting: Connecting
) -> Store:
    """Connect to the database that is meant, and have `stack` let go of it.

    Raises DatabaseError; its subclasses say what is wrong, and what to do about it.
    """
    # Starting the embedded server takes a moment, and waits for whoever starts it already.
    found = await asyncio.to_thread(resolve_database, database, connecting=connecting)
    stack.callback(found.close)
    store = store_of(found, schema)
    await store.open()
    stack.push_async_callback(store.close)
    return store
