"""Operations that read the streams of runs: as pages, and as they are written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.client.handle import follow_items
from holdfast.client.streams import Attempts
from holdfast.errors import InvalidInput, InvalidName, PayloadError
from holdfast.server.api.fields import Offset
from holdfast.server.api.following import FollowQuery, Read, StreamEnd, send_as_read
from holdfast.server.operations import Call, ForAgents, Nothing, Operation, Query
from holdfast.server.sse import Bye
from holdfast.types import Restarted, StreamInfo, StreamItem, StreamPage
from holdfast.values.names import check_stream_name


class StreamQuery(Query, frozen=True):
    """Which values: at most `limit` after the offset `after`, of attempts that count or of all."""

    after: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    attempts: Attempts = "counted"


class StreamList(msgspec.Struct, frozen=True):
    """The streams of a run, by name."""

    streams: list[StreamInfo]


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
    name = check_stream_name(call.path["stream"])

    def items(after: int) -> AsyncGenerator[Read]:
        return follow_items(call.site.reader.handle(call.run_id), name, after)

    return await send_as_read(call, items, call.query.after)


OPERATIONS: Final = (
    Operation("GET /v1/runs/{run}/streams", "read", list_streams, nested=True),
    Operation(
        "GET /v1/runs/{run}/streams/{stream}",
        "read",
        read_stream,
        answers=(StreamPage,),
        problems=(InvalidName, InvalidInput, PayloadError),
        nested=True,
        tool=ForAgents(
            about="Read what a run has written to a stream, such as the tokens of a model."
        ),
    ),
    Operation(
        "GET /v1/runs/{run}/streams/{stream}/follow",
        "read",
        follow_stream,
        answers=(StreamItem, Restarted, StreamEnd, Bye),
        media_type="text/event-stream",
        problems=(InvalidName, InvalidInput, PayloadError),
        nested=True,
    ),
)
