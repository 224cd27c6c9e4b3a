"""Wait for something that a caller asked to wait for, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar
from uuid import UUID

from starlette.requests import Request

from holdfast.errors import ResultTimeout, RunNotFound
from holdfast.server.access import refused
from holdfast.server.operations import Call
from holdfast.server.problems import Problem

T = TypeVar("T")

_LOOK_SECONDS: Final = 1.0  # between looks at the caller's token


def place(call: Call[Any, Any]) -> AbstractContextManager[None]:
    """Return the place of a wait among the streams, to be taken before anything is changed.

    Raises Problem 429 or 503 if all are taken: a caller who is told so has changed nothing.
    """
    return call.site.streams.stream(call.principal)


async def within(call: Call[Any, Any], work: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """Return what comes of some work; None if the time is up first, or the server closes.

    If the caller leaves, the work is cancelled. While it waits, the request does not count among
    those under way: enter a `place` first. It lasts no longer than a stream. Raises Problem 401 for
    a caller whose token is closed meanwhile.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(left(call.request))
    closing = asyncio.create_task(call.site.closing.wait())
    try:
        call.slot.leave()
        await _first_of(call, {task, gone, closing}, min(seconds, call.site.stream_seconds))
        if task.done():
            return task.result()
        if gone.done() and not closing.done():
            raise Problem(400, "left", "the caller left")
        return None
    finally:
        for each in (task, gone, closing):
            each.cancel()
        await asyncio.gather(task, gone, closing, return_exceptions=True)


async def _first_of(
    call: Call[Any, Any], tasks: Collection[asyncio.Task[Any]], seconds: float
) -> None:
    """Wait until one of the tasks is done, or the time is up. Raises Problem 401."""
    done = set[asyncio.Task[Any]]()
    while not done and seconds > 0:
        done, _ = await asyncio.wait(
            tasks, timeout=min(seconds, _LOOK_SECONDS), return_when=asyncio.FIRST_COMPLETED
        )
        seconds -= _LOOK_SECONDS
        if not call.site.access.still(call.principal):
            raise refused("the token was closed during the wait")


async def wait_for_end(call: Call[Any, Any], run_id: UUID, seconds: float) -> None:
    """Wait until a run has ended, or the time is up. Of a run in the archive, return at once."""
    try:
        await within(call, call.site.ends.wait(run_id, None), seconds)
    except (ResultTimeout, RunNotFound):
        return


async def left(request: Request) -> None:
    """Return when the caller has closed the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
