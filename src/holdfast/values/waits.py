"""Wait for what another task does, but not for ever: on asyncio, which all needs."""

from __future__ import annotations

import asyncio

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
