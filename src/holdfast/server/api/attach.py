"""The operation that follows a run: its log as a stream, which can be resumed exactly.

The id of an event is its place in the log, so the id that a caller saw last says what it lacks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response

from holdfast.errors import RunNotFound
from holdfast.insight.shapes import LARGEST_SHOWN, EventShape, RunShape, clipped_shape, run_shape
from holdfast.server.log_pages import read_log_part
from holdfast.server.operations import Call, Operation, Query
from holdfast.server.problems import Problem
from holdfast.server.sse import BYE, COMMENT, Bye, Stream, cancelled, frame
from holdfast.types import ClippedEvent

ENDED: Final = "end"  # the id of the last event: what comes after it is nothing

_INDEX: Final = re.compile(r"[0-9]{1,9}")


class AttachQuery(Query, frozen=True):
    """Which events the caller has: those up to `after`. A Last-Event-ID header says the same."""

    after: Annotated[int, Meta(ge=0, le=10**9)] | None = None


async def attach_run(call: Call[AttachQuery, None]) -> Response:
    """Follow a run: a server-sent event for each entry of its log, as they happen.

    The `id` is the entry's idx: with `after` or Last-Event-ID the stream begins after it. When the
    run has ended, `end` has the run; a stream that must end before sends `bye`.
    """
    after = _after(call)
    if after == ENDED:
        return Response(status_code=204)
    assert isinstance(after, int)
    known = await _known(call, after)
    stream = Stream(call)
    return stream.response(_frames(call, stream, after + 1, known))


def _after(call: Call[AttachQuery, None]) -> int | str:
    """Return the index that the caller has seen, -1 for none. Raises Problem 400."""
    seen = call.request.headers.get("last-event-id")
    if seen is None:
        return -1 if call.query.after is None else call.query.after
    if seen == ENDED:
        return ENDED
    if not _INDEX.fullmatch(seen):
        raise Problem(400, "bad-event-id", f"Last-Event-ID {seen!r} is not one of this stream")
    return int(seen)


async def _known(call: Call[Any, Any], after: int) -> list[ClippedEvent]:
    """Return the next entries after an index. Raises RunNotFound, Problem 400 beyond the end."""
    entries = await read_log_part(call.site, call.run_id, max(after, 0))
    if after < 0:
        return entries
    if not entries:
        raise Problem(400, "bad-event-id", f"the log of the run has no entry {after} yet")
    return entries[1:]


async def _frames(
    call: Call[Any, Any], stream: Stream, position: int, known: list[ClippedEvent]
) -> AsyncGenerator[bytes]:
    """Yield the entries of a log, those that are known first, until the run has ended.

    They are held part by part, however long the log is and however slowly the caller reads.
    """
    site, run_id = call.site, call.run_id
    position += len(known)
    while known:
        yield _entry(known.pop(0))
    end: asyncio.Future[Any] = asyncio.ensure_future(site.ends.wait(run_id, None))
    more = asyncio.ensure_future(site.hub.after(run_id, position))
    try:
        while not end.done():
            if stream.is_over:
                yield BYE
                return
            if not await stream.wait(more, end):
                yield COMMENT  # the hub is not asked again: it would look at once
            if more.done():
                for entry in more.result():
                    position += 1
                    yield _entry(entry)
                more = asyncio.ensure_future(site.hub.after(run_id, position))
        try:
            while part := await read_log_part(site, run_id, position):
                for entry in part:
                    if stream.is_over:
                        yield BYE
                        return
                    position += 1
                    yield _entry(entry)
            run = (await site.reader.runs.get(run_id)).record
        except RunNotFound:
            yield frame("bye", Bye("the run was deleted"))
            return
        yield frame("end", run_shape(run, LARGEST_SHOWN), ENDED)
    finally:
        await cancelled(end, more)


def _entry(entry: ClippedEvent) -> bytes:
    return frame(entry.event.type, clipped_shape(entry, LARGEST_SHOWN), str(entry.idx))


OPERATIONS: Final = (
    Operation(
        "GET /v1/runs/{run}/attach",
        "read",
        attach_run,
        answers=(EventShape, RunShape, Bye),
        media_type="text/event-stream",
        nested=True,
    ),
)
