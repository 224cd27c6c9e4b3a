"""Operations that read what happened in a run: its log, its steps, its timeline."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.errors import RunNotFound
from holdfast.insight.flow_progress import StepProgress, progress_of, raised
from holdfast.insight.shapes import (
    LARGEST_SHOWN,
    EventShape,
    StepShape,
    TimelineShape,
    clipped_shape,
    failure_shapes,
    raw,
    shaped,
    timeline_shape,
)
from holdfast.insight.spans import Span, Timeline, error_text
from holdfast.moments import to_datetime
from holdfast.server.api.fields import Limit
from holdfast.server.log_pages import read_log_page
from holdfast.server.operations import Call, Nothing, Operation, Query
from holdfast.server.run_logs import RunLog, logs_of
from holdfast.types import RunRecord

_NOTHING: Final = msgspec.Raw()
_CALLS: Final = ("step", "activity", "child", "approval", "timer", "update")


class EventQuery(Query, frozen=True):
    """Which entries: at most `limit` after the idx `after`, details up to `clip` bytes."""

    after: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    limit: Limit = 100
    clip: Annotated[int, Meta(ge=0, le=1024 * 1024)] = LARGEST_SHOWN


class TimelineQuery(Query, frozen=True):
    """If a long timeline is `folded`, similar spans are shown as one."""

    folded: bool = True


class EventList(msgspec.Struct, frozen=True):
    """Entries of a log; `next` is the `after` that continues, null at the log's present end."""

    events: list[EventShape]
    next: int | None


class StepList(msgspec.Struct, frozen=True):
    """The steps of a run, in the order in which they began; of a flow in that of its shape."""

    steps: list[StepShape]


async def list_events(call: Call[EventQuery, None]) -> EventList:
    """Return a run's log, a page at a time; a page ends sooner after 4 MiB of details."""
    query = call.query
    page = await read_log_page(call.site, call.run_id, query.after + 1, query.limit, query.clip)
    return EventList(
        [clipped_shape(entry, query.clip) for entry in page.entries],
        None if page.next is None else page.next - 1,
    )


async def list_steps(call: Call[Nothing, None]) -> StepList:
    """Return a run's steps and calls: how each ended, with its failed attempts."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    if run.kind == "flow":
        return StepList(await _flow_steps(call, run))
    log = await logs_of(call.site).read(call.run_id)
    results = _results(log)
    return StepList([_step(span, results) for span in log.spans if span.kind in _CALLS])


async def get_timeline(call: Call[TimelineQuery, None]) -> TimelineShape:
    """Return what happened in a run as spans of time."""
    log = await logs_of(call.site).read(call.run_id)
    run, now = log.run, await call.site.store.now()
    timeline = Timeline(run.run_id, run.created_at, run.completed_at, now, tuple(log.spans))
    return timeline_shape(timeline, folded=call.query.folded)


async def _flow_steps(call: Call[Nothing, None], run: RunRecord) -> list[StepShape]:
    store = call.site.store
    states = (await store.flow_steps([run.run_id])).get(run.run_id, [])
    tasks = await store.open_step_tasks(run.run_id)
    return [_flow_step(each) for each in progress_of(states, tasks, ended=run.status != "running")]


def _flow_step(step: StepProgress) -> StepShape:
    return shaped(
        StepShape,
        step,
        key=step.step,
        outcome=step.state,
        result=_shown(step.output),
        error=error_text(raised(step.error)) or None,
        worker=", ".join(step.workers) or None,
    )


def _step(span: Span, results: dict[str, msgspec.Raw]) -> StepShape:
    failed, key = span.outcome == "failed", span.key or span.label
    return StepShape(
        key=key,
        kind=span.kind,
        outcome=span.outcome,
        attempts=span.attempts,
        started_at=to_datetime(span.began_at),
        ended_at=None if span.ended_at is None else to_datetime(span.ended_at),
        result=results.get(key),
        error=span.note if failed and span.note else None,
        failures=failure_shapes(span.failures),
        child_run_id=span.child_run_id or None,
    )


class _Result(msgspec.Struct):
    result: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING


def _results(log: RunLog) -> dict[str, msgspec.Raw]:
    """Return the results of what has completed, by key, without those that are cut."""
    found: dict[str, msgspec.Raw] = {}
    for idx, event in enumerate(log.events):
        if not event.type.endswith("Completed") or event.key is None or not event.details:
            continue
        if idx in log.cut:
            continue
        try:
            ended = msgspec.json.decode(event.details, type=_Result)
        except msgspec.MsgspecError:
            continue
        result = bytes(ended.result) or bytes(ended.output)
        if 0 < len(result) <= LARGEST_SHOWN:
            found[event.key] = msgspec.Raw(result)
    return found


def _shown(text: str | None) -> msgspec.Raw | None:
    found = raw(text)
    return None if found is None or len(bytes(found)) > LARGEST_SHOWN else found


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/events",
        level="read",
        handler=list_events,
        query=EventQuery,
        answers=(EventList,),
        problems=(RunNotFound,),
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run}/steps",
        level="read",
        handler=list_steps,
        answers=(StepList,),
        problems=(RunNotFound,),
        nested=True,
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run}/timeline",
        level="read",
        handler=get_timeline,
        query=TimelineQuery,
        answers=(TimelineShape,),
        problems=(RunNotFound,),
    ),
)
