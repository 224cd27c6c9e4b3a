"""Operations that read what happened in a run: its log, its steps, its timeline."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from holdfast.codec import raw
from holdfast.insight.flow_progress import StepProgress, progress_of, raised
from holdfast.insight.shapes import (
    LARGEST_SHOWN,
    EventShape,
    StepShape,
    TimelineShape,
    clipped_shape,
    failure_shapes,
    line_shape,
)
from holdfast.insight.spans import Span, Timeline, error_text
from holdfast.server.api.fields import Limit
from holdfast.server.log_pages import read_log_page
from holdfast.server.operations import Call, ForAgents, Operation, Query
from holdfast.server.run_logs import RunLog, logs_of
from holdfast.types import RunRecord
from holdfast.values.composing import shaped
from holdfast.values.moments import maybe_datetime, to_datetime

T = TypeVar("T")

_NOTHING: Final = msgspec.Raw()
_CALLS: Final = (
    *("step", "activity", "child", "entity", "approval", "webhook", "timer", "update"),
)


class EventQuery(Query, frozen=True):
    """Which entries: at most `limit` after the idx `after`, details up to `clip` bytes."""

    after: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    limit: Limit = 100
    clip: Annotated[int, Meta(ge=0, le=1024 * 1024)] = LARGEST_SHOWN


class StepQuery(Query, frozen=True):
    """Which steps: at most `limit` after the place `after`."""

    after: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    limit: Limit = 100


class TimelineQuery(StepQuery, frozen=True):
    """Which spans; if a long timeline is `folded`, similar spans are shown as one."""

    folded: bool = True


class EventList(msgspec.Struct, frozen=True):
    """Entries of a log; `next` is the `after` that continues, null at the log's present end."""

    events: list[EventShape]
    next: int | None


class StepList(msgspec.Struct, frozen=True):
    """The steps of a run, in the order in which they began; of a flow in that of its shape.

    `next` is the `after` that continues, null if there is no more.
    """

    steps: list[StepShape]
    next: int | None


class TimelinePage(TimelineShape, frozen=True, kw_only=True):
    """A part of a timeline; `next` is the `after` that continues, null if there is no more."""

    next: int | None


async def list_events(call: Call[EventQuery, None]) -> EventList:
    """Return a run's log, a page at a time; a page ends sooner after 4 MiB of details."""
    query = call.query
    page = await read_log_page(call.site, call.run_id, query.after + 1, query.limit, query.clip)
    return EventList(
        [clipped_shape(entry, query.clip) for entry in page.entries],
        None if page.next is None else page.next - 1,
    )


async def list_steps(call: Call[StepQuery, None]) -> StepList:
    """Return a run's steps and calls, a page at a time: how each ended, its failed attempts."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    if run.kind == "flow":
        shown, more = _page(call.query, await _flow_steps(call, run))
        return StepList([_flow_step(each) for each in shown], more)
    log = await logs_of(call.site).read(call.run_id)
    spans, more = _page(call.query, [span for span in log.spans if span.kind in _CALLS])
    results = _results(log, {span.key or span.label for span in spans})
    return StepList([_step(span, results) for span in spans], more)


async def get_timeline(call: Call[TimelineQuery, None]) -> TimelinePage:
    """Return what happened in a run as spans of time, a page at a time."""
    log = await logs_of(call.site).read(call.run_id)
    run, now = log.run, await call.site.store.now()
    lines, more = _page(call.query, log.lines if call.query.folded else log.spans)
    shown = Timeline(run.run_id, run.created_at, run.completed_at, now, ())
    return shaped(TimelinePage, shown, spans=[line_shape(each) for each in lines], next=more)


def _page(query: StepQuery, found: Sequence[T]) -> tuple[Sequence[T], int | None]:
    """Return what a query asks for, and the place of its last if there is more."""
    first = query.after + 1
    last = first + query.limit
    return found[first:last], last - 1 if last < len(found) else None


async def _flow_steps(call: Call[StepQuery, None], run: RunRecord) -> list[StepProgress]:
    store = call.site.store
    states = (await store.flow_steps([run.run_id])).get(run.run_id, [])
    tasks = await store.open_step_tasks(run.run_id)
    return list(progress_of(states, tasks, ended=run.status != "running"))


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
        ended_at=maybe_datetime(span.ended_at),
        result=results.get(key),
        error=span.note if failed and span.note else None,
        failures=failure_shapes(span.failures),
        child_run_id=span.child_run_id or None,
    )


class _Result(msgspec.Struct):
    result: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING


def _results(log: RunLog, keys: Container[str]) -> dict[str, msgspec.Raw]:
    """Return the results of calls that have completed, by key, without those that are cut."""
    found: dict[str, msgspec.Raw] = {}
    for idx, event in enumerate(log.events):
        if event.key is None or event.key not in keys or not event.type.endswith("Completed"):
            continue
        if idx in log.cut or not event.details:
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


def _cut_log(found: EventList) -> str | None:
    """Return what a page of a tool leaves out."""
    cut = [each.idx for each in found.events if each.details_bytes is not msgspec.UNSET]
    notes: list[str] = []
    if cut:
        notes.append(
            f"The details of {len(cut)} entries are left out: details_bytes is their size. For the "
            f"first give after={cut[0] - 1}, limit=1 and a clip of that size."
        )
    if found.next is not None:
        notes.append(f"The log continues: give after={found.next}.")
    return " ".join(notes) or None


OPERATIONS: Final = (
    Operation(
        "GET /v1/runs/{run}/events",
        "read",
        list_events,
        tool=ForAgents(
            name="read_log",
            about="Return a run's log, a page at a time. Details of more than `clip` bytes are "
            "left out.",
            defaults={"limit": 50, "clip": 2_048},
            note=_cut_log,
        ),
    ),
    Operation("GET /v1/runs/{run}/steps", "read", list_steps, nested=True),
    Operation("GET /v1/runs/{run}/timeline", "read", get_timeline),
)
