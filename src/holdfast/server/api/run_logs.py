"""Operations that read what the code of runs has logged."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from holdfast.client.run_logs import LogOptions
from holdfast.errors import InvalidInput, PayloadError, RunNotFound
from holdfast.server.api.fields import Offset
from holdfast.server.operations import Call, ForAgents, Operation, Query
from holdfast.types import LogLevel, LogLinePage


class LogLineQuery(Query, frozen=True):
    """Which lines: at most `limit` after the offset `after`, of `level` and higher, of one `call`.

    The call is the key of a step or an activity; empty, the code of the workflow.
    """

    after: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    level: LogLevel = "debug"
    call: Annotated[str, Meta(max_length=1024)] | None = None


async def read_log_lines(call: Call[LogLineQuery, None]) -> LogLinePage:
    """Return what the code of a run has logged, a page at a time, the oldest line first."""
    query = call.query
    options: LogOptions = {"after": query.after, "level": query.level}
    if query.call is not None:
        options["call"] = query.call
    return await call.site.reader.runs.read_log_lines(call.run_id, limit=query.limit, **options)


def _cut(page: LogLinePage) -> str | None:
    """Return what a page of a tool leaves out."""
    return None if page.ended else f"There may be more: give after={page.next}."


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/logs",
        level="read",
        handler=read_log_lines,
        query=LogLineQuery,
        answers=(LogLinePage,),
        problems=(RunNotFound, InvalidInput, PayloadError),
        nested=True,
        tool=ForAgents(
            about="Read the lines that the code of a run has logged, if its worker keeps them.",
            note=_cut,
        ),
    ),
)
