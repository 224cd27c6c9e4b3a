"""The operation about statistics: how many runs ended lately, how, and how long they took."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from holdfast.client.naming import Names
from holdfast.errors import AmbiguousWorkflow, UnknownWorkflow
from holdfast.insight.load import Load, read_load
from holdfast.insight.stats import DAYS_KEPT, Stats, read_workflow_stats
from holdfast.server.api.fields import Name
from holdfast.server.api.filters import moment_of
from holdfast.server.operations import Call, Operation, Query
from holdfast.server.reading import bad_parameter


class StatsQuery(Query, frozen=True):
    """The time from this moment until now, or so long ago; one workflow, or all.

    The workflow's name has its app if several apps have one of its name.
    """

    since: Annotated[str, Meta(max_length=50)] = "1h"
    workflow: Name | None = None


async def read_stats(call: Call[StatsQuery, None]) -> Stats:
    """Return how many runs of each workflow ended lately, how, and how long they took.

    The numbers are approximate: the last two seconds of a worker that was killed are missing.
    """
    seconds = await _seconds(call)
    names = await _names(call) or None
    return await read_workflow_stats(call.site.store.reads, since_seconds=seconds, names=names)


async def _names(call: Call[StatsQuery, None]) -> tuple[str, ...]:
    """Return the full names that the workflow's name means, as it does where runs are listed."""
    named = call.query.workflow
    return await Names(call.site.store, call.site.app).matching([] if named is None else [named])


async def _seconds(call: Call[StatsQuery, None]) -> float:
    """Return how long ago the time begins."""
    since = await moment_of(call, "since", call.query.since)
    seconds = (await call.site.store.now() - since) / 1e6
    if not 0 < seconds <= DAYS_KEPT * 86_400:
        raise bad_parameter("since", f"it is in the past, at most {DAYS_KEPT} days")
    return seconds


async def read_load_now(call: Call[StatsQuery, None]) -> Load:
    """Return how many tasks waited for workers lately, by queue, and how many workers had.

    A worker looks once a minute. Of each queue 10,000 tasks are counted for each workflow, flow or
    activity.
    """
    seconds = await _seconds(call)
    name = next(iter(await _names(call)), None)
    return await read_load(call.site.store.reads, since_seconds=seconds, name=name)


_UNKNOWN: Final = (UnknownWorkflow, AmbiguousWorkflow)

OPERATIONS: Final = (
    Operation("GET /v1/stats", "read", read_stats, problems=_UNKNOWN),
    Operation("GET /v1/load", "read", read_load_now, problems=_UNKNOWN),
)
