"""Operations that read what the code of runs has logged."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Final

from msgspec import Meta
from starlette.responses import Response

from holdfast.client.run_logs import LogOptions
from holdfast.client.runs import follow_lines_of
from holdfast.errors import InvalidInput, PayloadError
from holdfast.server.api.fields import Offset
from holdfast.server.api.following import FollowQuery, StreamEnd, send_as_read
from holdfast.server.operations import Call, ForAgents, Operation, Query
from holdfast.server.sse import Bye
from holdfast.types import LogLevel, LogLine, LogLinePage

CallKey = Annotated[str, Meta(max_length=1024)]


class LogLineQuery(Query, frozen=True):
    """Which lines: at most `limit` after the offset `after`, of `level` and higher, of one `call`.

    The call is the name of a step or an activity, or the key of one call of it; empty, the code of
    the workflow.
    """

    after: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    level: LogLevel = "debug"
    call: CallKey | None = None


class FollowLinesQuery(FollowQuery, frozen=True):
    """Which lines: those after `after`, of `level` and higher, of one `call`.

    A Last-Event-ID header stands above `after`.
    """

    level: LogLevel = "debug"
    call: CallKey | None = None


async def read_log_lines(call: Call[LogLineQuery, None]) -> LogLinePage:
    """Return what the code of a run has logged, a page at a time, the oldest line first."""
    options = _options(call.query, call.query.after)
    limit = call.query.limit
    return await call.site.reader.runs.read_log_lines(call.run_id, limit=limit, **options)


async def follow_log_lines(call: Call[FollowLinesQuery, None]) -> Response:
    """Follow what the code of a run logs: a server-sent event `line` for each line, as they come.

    The `id` is the line's offset: with `after` or Last-Event-ID the lines after it are sent. When
    the run has ended, `end` comes; a stream that must end before sends `bye`.
    """

    def lines(after: int) -> AsyncGenerator[LogLine | None]:
        return follow_lines_of(call.site.reader.runs, call.run_id, _options(call.query, after))

    return await send_as_read(call, lines, call.query.after)


def _options(query: LogLineQuery | FollowLinesQuery, after: int) -> LogOptions:
    options: LogOptions = {"after": after, "level": query.level}
    if query.call is not None:
        options["call"] = query.call
    return options


def _cut(page: LogLinePage) -> str | None:
    """Return what a page of a tool leaves out."""
    return None if page.ended else f"There may be more: give after={page.next}."


OPERATIONS: Final = (
    Operation(
        "GET /v1/runs/{run}/logs",
        "read",
        read_log_lines,
        problems=(InvalidInput, PayloadError),
        nested=True,
        tool=ForAgents(
            about="Read the lines that the code of a run has logged, if its worker keeps them.",
            note=_cut,
        ),
    ),
    Operation(
        "GET /v1/runs/{run}/logs/follow",
        "read",
        follow_log_lines,
        answers=(LogLine, StreamEnd, Bye),
        media_type="text/event-stream",
        problems=(InvalidInput, PayloadError),
        nested=True,
    ),
)
