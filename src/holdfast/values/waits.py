"""Waits of asyncio: for an event, with a limit, and for work that no cancellation may cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import ConfigurationError


def require_asyncio() -> None:
    """Raise ConfigurationError if the caller is a coroutine of Trio, or of no event loop at all."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "holdfast needs asyncio, and this does not run on an event loop of asyncio: with "
            "anyio, say backend='asyncio'; in tests of anyio, let the fixture anyio_backend return "
            "'asyncio'"
        ) from None


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, for at most `seconds`. Return True if it was set by then."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def to_the_end(work: Awaitable[object], end_grace: Callable[[], None] = lambda: None) -> None:
    """Wait until work has ended, also if the caller is cancelled; then raise the cancellation.

    `end_grace` is called at each cancellation: a scope of anyio cancels what is in it at each
    `await`, again and again. Only the end of the event loop, which cancels all tasks, ends the
    work early.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            end_grace()
    if cancelled is not None:
        raise cancelled from None if task.cancelled() else task.exception()
    task.result()


async def in_own_thread(end: Callable[[], None]) -> None:
    """Call a function that blocks in a thread of its own, and wait until it has returned.

    Users' code may hold all threads of the event loop, by `asyncio.to_thread`.
    """
    threads = ThreadPoolExecutor(1, thread_name_prefix="holdfast stop")
    try:
        await asyncio.get_running_loop().run_in_executor(threads, end)
    finally:
        threads.shutdown(wait=False)
