"""Server-sent events of what is read as it is written, which a caller can resume by its offset."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response

from holdfast.errors import RunNotFound
from holdfast.server.api.fields import Offset
from holdfast.server.operations import Call, Query
from holdfast.server.problems import Problem
from holdfast.server.sse import BYE, COMMENT, Bye, Stream, cancelled, frame
from holdfast.types import LogLine, Restarted, StreamItem

ENDED: Final = "end"  # the id of the last event: what comes after it is nothing

_OFFSET: Final = re.compile(r"[0-9]{1,15}")

Read: TypeAlias = StreamItem[Any] | LogLine | Restarted | None
"""What a follower reads; None if more has to be waited for."""


class FollowQuery(Query, frozen=True):
    """Which values the caller has: those up to `after`. A Last-Event-ID header says the same."""

    after: Offset | None = None


class StreamEnd(msgspec.Struct, frozen=True):
    """The stream, or the run's log, has ended; `after` is the last offset that was sent."""

    after: int


async def send_as_read(
    call: Call[Any, Any], follow: Callable[[int], AsyncGenerator[Read]], after: int | None
) -> Response:
    """Return the events of what is read after an offset: that of Last-Event-ID, else `after`.

    A reader that has had the last event gets an empty answer, so that it does not come again.
    """
    seen = call.request.headers.get("last-event-id")
    if seen == ENDED:
        return Response(status_code=204)
    if seen is not None and not _OFFSET.fullmatch(seen):
        raise Problem(400, "bad-event-id", f"Last-Event-ID {seen!r} is not one of this stream")
    begin = (after or 0) if seen is None else int(seen)
    items = follow(begin)
    first = await anext(items, ENDED)  # refuses what cannot be read
    try:
        stream = Stream(call)
    except BaseException:
        await items.aclose()
        raise
    return stream.response(_frames(stream, items, first, begin))


async def _frames(
    stream: Stream, items: AsyncGenerator[Read], each: Read | str, after: int
) -> AsyncGenerator[bytes]:
    """Yield what was read and what comes, part by part, however slowly the caller reads."""
    async with aclosing(items):
        while True:
            if isinstance(each, StreamItem | LogLine):
                after = each.offset
                yield frame("line" if isinstance(each, LogLine) else "item", each, str(after))
            elif isinstance(each, Restarted):
                yield frame("restarted", each)
            elif each is not None:
                yield frame("end", StreamEnd(after), ENDED)
                return
            more = asyncio.ensure_future(anext(items, ENDED))
            try:
                while not stream.is_over and not more.done():
                    if not await stream.wait(more):
                        yield COMMENT
                if stream.is_over:
                    yield BYE
                    return
                each = more.result()
            except RunNotFound:
                yield frame("bye", Bye("the run was deleted"))
                return
            finally:
                await cancelled(more)
