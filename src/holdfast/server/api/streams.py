"""Operations that read the streams of runs: as pages, and as they are written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.client.handle import follow_items
from holdfast.client.streams import Attempts
from holdfast.errors import InvalidInput, InvalidName, PayloadError, RunNotFound
from holdfast.server.api.fields import Offset
from holdfast.server.operations import Call, ForAgents, Nothing, Operation, Query
from holdfast.server.problems import Problem
from holdfast.server.sse import BYE, COMMENT, Bye, Stream, cancelled, frame
from holdfast.types import Restarted, StreamInfo, StreamItem, StreamPage
from holdfast.values.names import check_stream_name

ENDED: Final = "end"  # the id of the last event: what comes after it is nothing

_OFFSET: Final = re.compile(r"[0-9]{1,15}")

Read: TypeAlias = StreamItem[Any] | Restarted | None


class StreamQuery(Query, frozen=True):
    """Which values: at most `limit` after the offset `after`, of attempts that count or of all."""

    after: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    attempts: Attempts = "counted"


class FollowQuery(Query, frozen=True):
    """Which values the caller has: those up to `after`. A Last-Event-ID header says the same."""

    after: Offset | None = None


class StreamList(msgspec.Struct, frozen=True):
    """The streams of a run, by name."""

    streams: list[StreamInfo]


class StreamEnd(msgspec.Struct, frozen=True):
    """The stream has ended; `after` is the offset of the last value that was sent."""

    after: int


async def list_streams(call: Call[Nothing, None]) -> StreamList:
    """List the streams of a run."""
    return StreamList(await call.site.reader.handle(call.run_id).streams())


async def read_stream(call: Call[StreamQuery, None]) -> StreamPage[Any]:
    """Return what a stream of a run has now, a page at a time."""
    query, name = call.query, call.path["stream"]
    handle = call.site.reader.handle(call.run_id)
    return await handle.read_stream(
        name, after=query.after, limit=query.limit, attempts=query.attempts
    )


async def follow_stream(call: Call[FollowQuery, None]) -> Response:
    """Follow a stream of a run: a server-sent event `item` for each value, as they are written.

    The `id` is the value's offset: with `after` or Last-Event-ID the stream begins after it.
    `restarted` says that what came of a step or an activity after the offset `after` does not count
    any more. When nothing can follow, `end` comes; a stream that must end before sends `bye`.
    """
    seen = call.request.headers.get("last-event-id")
    if seen == ENDED:
        return Response(status_code=204)
    if seen is not None and not _OFFSET.fullmatch(seen):
        raise Problem(400, "bad-event-id", f"Last-Event-ID {seen!r} is not one of this stream")
    after = (call.query.after or 0) if seen is None else int(seen)
    name = check_stream_name(call.path["stream"])
    items = follow_items(call.site.reader.handle(call.run_id), name, after)
    first = await anext(items, ENDED)  # refuses what cannot be read
    try:
        stream = Stream(call)
    except BaseException:
        await items.aclose()
        raise
    return stream.response(_frames(stream, items, first, after))


async def _frames(
    stream: Stream, items: AsyncGenerator[Read], each: Read | str, after: int
) -> AsyncGenerator[bytes]:
    """Yield what was read and what comes, part by part, however slowly the caller reads."""
    async with aclosing(items):
        while True:
            if isinstance(each, StreamItem):
                after = each.offset
                yield frame("item", each, str(after))
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


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/streams",
        level="read",
        handler=list_streams,
        answers=(StreamList,),
        problems=(RunNotFound,),
        nested=True,
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run}/streams/{stream}",
        level="read",
        handler=read_stream,
        query=StreamQuery,
        answers=(StreamPage,),
        problems=(RunNotFound, InvalidName, InvalidInput, PayloadError),
        nested=True,
        tool=ForAgents(
            about="Read what a run has written to a stream, such as the tokens of a model."
        ),
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run}/streams/{stream}/follow",
        level="read",
        handler=follow_stream,
        query=FollowQuery,
        answers=(StreamItem, Restarted, StreamEnd, Bye),
        media_type="text/event-stream",
        problems=(RunNotFound, InvalidName, InvalidInput, PayloadError),
        nested=True,
    ),
)
