"""Operations about what workers serve: workflows, queues, workers, and what happens now."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.errors import AmbiguousWorkflow, UnknownWorkflow
from holdfast.insight.serving import Served, is_silent, read_served
from holdfast.insight.shapes import LARGEST_SHOWN, EventShape, clipped_shape
from holdfast.server.api.fields import Changed, Reason
from holdfast.server.api.filters import OfWorkflow, moment_of
from holdfast.server.catalogue import Entry, find_entries
from holdfast.server.operations import Call, ForAgents, Nothing, Operation, Query
from holdfast.types import Status
from holdfast.values.composing import shaped

_COUNTED: Final = 10_000  # a count of more is shown as this many and more
_MOST_EVENTS: Final = 1_000


class ServedList(msgspec.Struct, frozen=True):
    """Workflows, or queues, that a live worker, a pause or a waiting task names."""

    served: list[Served]


class WorkflowDetail(Served, frozen=True, kw_only=True):
    """A workflow: who serves it, whether it is paused, and its runs by status.

    A count of more than 10,000 is 10,001. `input_schema` is the JSON schema of its input in the
    newest version that has had a worker, null if that is not known; `about` is what its docs say.
    """

    counts: dict[Status, int]
    input_schema: dict[str, Any] | None
    about: str


class WorkflowList(msgspec.Struct, frozen=True):
    """Workflows with their runs by status."""

    workflows: list[WorkflowDetail]


class WorkerShape(msgspec.Struct, frozen=True, kw_only=True):
    """A worker; a `silent` one was not heard of for so long that it counts as dead.

    `hints` is true if Redis tells it of new work now, false if that is away, null without Redis.
    `shard` is null if there is one database.
    """

    worker_id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    concurrency: int
    holdfast_version: str
    started_at: datetime
    heard_at: datetime
    silent: bool
    hints: bool | None = None
    shard: int | None = None


class WorkerList(msgspec.Struct, frozen=True):
    """The workers that are signed on."""

    workers: list[WorkerShape]


class SinceQuery(Query, frozen=True):
    """What happened since then: a moment, or how long ago."""

    since: Annotated[str, Meta(max_length=50)] = "30s"


class RecentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of some run's log."""

    run_id: str
    event: EventShape


class RecentList(msgspec.Struct, frozen=True):
    """What happened in all runs, oldest first: at most 1,000 entries."""

    events: list[RecentEvent]


async def list_workflows(call: Call[Nothing, None]) -> WorkflowList:
    """List the workflows that workers serve or runs wait for, with their runs by status."""
    found = await read_served(call.site.store, "workflow")
    names = [each.name for each in found]
    counts = await call.site.store.reads.count_runs(names, _COUNTED + 1)
    entries = await find_entries(call.site.catalogue, call.site.store, names)
    return WorkflowList(
        [_detail(each, counts.get(each.name, {}), entries.get(each.name)) for each in found]
    )


async def get_workflow(call: Call[OfWorkflow, None]) -> WorkflowDetail:
    """Return a workflow: its versions, workers and pause, and its runs by status."""
    name = call.full_name
    found = await read_served(call.site.store, "workflow")
    served = [each for each in found if name in (each.name, each.name.rpartition("/")[2])]
    if len(served) > 1:
        apps = [each.name.rpartition("/")[0] for each in served]
        raise AmbiguousWorkflow(name, apps)
    full = served[0].name if served else await _known(call, name)
    counts = (await call.site.store.reads.count_runs([full], _COUNTED + 1)).get(full, {})
    entry = (await find_entries(call.site.catalogue, call.site.store, [full])).get(full)
    found_one = served[0] if served else Served(full, 0, (), False, None, None, 0)
    return _detail(found_one, counts, entry)


async def list_queues(call: Call[Nothing, None]) -> ServedList:
    """List the queues that workers serve, that are paused, or that tasks wait in."""
    return ServedList(await read_served(call.site.store, "queue"))


async def list_workers(call: Call[Nothing, None]) -> WorkerList:
    """List the workers that are signed on."""
    now = await call.site.store.now()
    workers = await call.site.store.list_workers()
    return WorkerList([shaped(WorkerShape, each, silent=is_silent(each, now)) for each in workers])


async def list_recent_events(call: Call[SinceQuery, None]) -> RecentList:
    """Return what happened in all runs lately."""
    since = await moment_of(call, "since", call.query.since)
    found = await call.site.store.recent_log(since=since, limit=_MOST_EVENTS, clip=LARGEST_SHOWN)
    return RecentList(
        [
            RecentEvent(run_id=str(run_id), event=clipped_shape(each, LARGEST_SHOWN))
            for run_id, each in found
        ]
    )


async def pause_queue(call: Call[Nothing, Reason]) -> Changed:
    """Keep workers from starting anything in a queue."""
    return Changed(await call.site.client.queues.pause(call.path["name"], call.body.reason))


async def resume_queue(call: Call[Nothing, None]) -> Changed:
    """Let workers serve a queue again."""
    return Changed(await call.site.client.queues.resume(call.path["name"]))


async def pause_workflow(call: Call[OfWorkflow, Reason]) -> Changed:
    """Keep workers from continuing runs of a workflow, of any version."""
    name = call.full_name
    return Changed(await call.site.client.workflows.pause(name, call.body.reason))


async def resume_workflow(call: Call[OfWorkflow, None]) -> Changed:
    """Let the runs of a workflow continue."""
    return Changed(await call.site.client.workflows.resume(call.full_name))


async def _known(call: Call[OfWorkflow, None], name: str) -> str:
    """Return the full name of a workflow that no worker serves now. Raises UnknownWorkflow."""
    for app in await call.site.store.list_apps():
        for own in app.workflows:
            if name in (own, f"{app.app}/{own}"):
                return f"{app.app}/{own}"
    raise UnknownWorkflow(f"no worker with a workflow {name!r} has ever signed on")


def _detail(served: Served, counts: dict[Status, int], entry: Entry | None) -> WorkflowDetail:
    schema, about = (None, "") if entry is None else (entry.schema, entry.about)
    return shaped(WorkflowDetail, served, counts=counts, input_schema=schema, about=about)


OPERATIONS: Final = (
    Operation(
        "GET /v1/workflows",
        "read",
        list_workflows,
        tool=ForAgents(
            about="List the workflows with their runs by status, and the JSON schema of each one's "
            "input."
        ),
    ),
    Operation(
        "GET /v1/workflows/{name}",
        "read",
        get_workflow,
        problems=(UnknownWorkflow, AmbiguousWorkflow),
    ),
    Operation("GET /v1/queues", "read", list_queues),
    Operation("GET /v1/workers", "read", list_workers),
    Operation("GET /v1/events", "read", list_recent_events),
    Operation("POST /v1/queues/{name}/pause", "admin", pause_queue, body_required=False),
    Operation("POST /v1/queues/{name}/resume", "admin", resume_queue),
    Operation(
        "POST /v1/workflows/{name}/pause",
        "admin",
        pause_workflow,
        body_required=False,
        problems=(UnknownWorkflow, AmbiguousWorkflow),
    ),
    Operation(
        "POST /v1/workflows/{name}/resume",
        "admin",
        resume_workflow,
        problems=(UnknownWorkflow, AmbiguousWorkflow),
    ),
)
