"""Close what is open although the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def to_the_end(work: Awaitable[object], end_grace: Callable[[], None] = lambda: None) -> None:
    """Do something to its end, and raise then the cancellation that came meanwhile.

    A scope of anyio cancels what is in it at each `await`, again and again. `end_grace` is called
    when a cancellation comes. Only the end of the event loop, which cancels all tasks, cuts the
    work off.
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
