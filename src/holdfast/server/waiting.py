"""Wait for something that a caller asked to wait for, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from uuid import UUID

from starlette.requests import Request

from holdfast.errors import ResultTimeout, RunNotFound
from holdfast.server.operations import Call
from holdfast.server.problems import Problem

T = TypeVar("T")


def place(call: Call[Any, Any]) -> AbstractContextManager[None]:
    """Return the place of a wait among the streams, to be taken before anything is changed.

    Raises Problem 429 or 503 if all are taken: a caller who is told so has changed nothing.
    """
    return call.site.streams.stream(call.principal)


async def within(call: Call[Any, Any], work: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """Return what comes of some work; None if the time is up first, or the server closes.

    If the caller leaves, the work is cancelled. While it waits, the request does not count among
    those under way: enter a `place` first. It lasts no longer than a stream.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(left(call.request))
    closing = asyncio.create_task(call.site.closing.wait())
    try:
        call.slot.leave()
        await asyncio.wait(
            {task, gone, closing},
            timeout=min(seconds, call.site.stream_seconds),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if task.done():
            return task.result()
        if gone.done() and not closing.done():
            raise Problem(400, "left", "the caller left")
        return None
    finally:
        for each in (task, gone, closing):
            each.cancel()
        await asyncio.gather(task, gone, closing, return_exceptions=True)


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
