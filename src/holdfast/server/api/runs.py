"""Operations that start, list and read runs."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast.client.naming import unknown_name
from holdfast.codec import encode
from holdfast.definitions.starts import StartOptions
from holdfast.errors import (
    AmbiguousWorkflow,
    RunActive,
    RunExists,
    RunNotFound,
    StartThrottled,
    UnknownWorkflow,
)
from holdfast.insight.shapes import LARGEST_SHOWN, RunHead, RunShape, run_head, run_shape
from holdfast.server.api.fields import Attributes, Key, Length, Moment, Name, Seconds, Tags
from holdfast.server.api.filters import (
    OfWorkflow,
    RunConditions,
    RunQuery,
    WorkflowRunQuery,
    filters_of,
)
from holdfast.server.operations import Body, Call, ForAgents, Operation, Query, Reply
from holdfast.server.problems import Problem
from holdfast.server.waiting import place, wait_for_end
from holdfast.types import IfEnded, RunCounts, Status
from holdfast.values.names import split_name


class StartQuery(OfWorkflow, frozen=True):
    """With `wait`, answer with the run when it has ended, or the time is up."""

    wait: Seconds | None = None


class WaitQuery(Query, frozen=True):
    """With `wait`, answer when the run has ended, or the time is up."""

    wait: Seconds | None = None


class StartBody(Body, frozen=True):
    """The input of a run, and options of its start."""

    input: Any = None
    key: Key | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=4)] | None = None
    delay: Length | None = None
    start_at: Moment | None = None
    timeout: Length | None = None
    retention: Length | None = None
    tags: Tags | None = None
    attributes: Attributes | None = None
    if_ended: IfEnded | None = None
    headers: (
        Annotated[
            dict[
                Annotated[str, Meta(min_length=1, max_length=500)],
                Annotated[str, Meta(max_length=1_024)],
            ],
            Meta(max_length=16),
        ]
        | None
    ) = None


class Started(msgspec.Struct, frozen=True):
    """What became of a start: `created` is False if the key had a run already.

    There is a `warning` if no worker has ever had the workflow: its name may be misspelled.
    """

    run_id: UUID
    created: bool
    status: Status
    warning: str | None = None


class CountQuery(RunConditions, frozen=True, kw_only=True):
    """Which runs to count, and by what."""

    by: Name


class RunList(msgspec.Struct, frozen=True):
    """A page of runs.

    `cursor` continues after it, null at the end. With `searched_until`, only runs created since
    then were looked at: the page may be short, even empty, and more may follow.
    """

    runs: list[RunHead]
    cursor: str | None
    searched_until: datetime | None = None


async def start_run(call: Call[StartQuery, StartBody]) -> Reply:
    """Start a run of a workflow, or find the one that was started with the same key."""
    options = start_options(call)
    name = call.full_name
    value = await typed_input(call, name, options)
    wait = call.query.wait
    with nullcontext() if wait is None else place(call):
        handle = await call.site.client.start(name, input=value, **options)
        run_id, status = handle.run_id, 200 if handle.already_existed else 201
        root = quote(str(call.request.scope.get("root_path", "")))
        headers = {"Location": f"{root}/v1/runs/{run_id}"}
        if wait is not None:
            await wait_for_end(call, run_id, wait)
            return Reply(await shown(call, run_id), status, headers)
    started = Started(
        run_id,
        not handle.already_existed,
        handle.status_at_start or "running",
        await _warning(call, name),
    )
    return Reply(started, status, headers)


async def list_runs(call: Call[RunQuery, None]) -> RunList:
    """List runs, newest first."""
    return await _list(call)


async def list_runs_of_workflow(call: Call[WorkflowRunQuery, None]) -> RunList:
    """List the runs of a workflow, newest first."""
    return await _list(call)


async def _list(call: Call[RunQuery | WorkflowRunQuery, None]) -> RunList:
    page = await call.site.reader.runs.list(**await filters_of(call))
    runs = [run_head(each.record) for each in page.runs]
    return RunList(runs, page.cursor, page.searched_until)


async def count_runs(call: Call[CountQuery, None]) -> RunCounts:
    """Count runs by workflow, state, queue, tag or an attribute, most first.

    The newest 10,000 that match are counted. With `searched_until`, there may be more.
    """
    return await call.site.reader.runs.count(call.query.by, **await filters_of(call))


async def get_run(call: Call[WaitQuery, None]) -> RunShape:
    """Return a run as it is now; with `wait` once it has ended, or the time is up."""
    if call.query.wait:
        with place(call):
            await wait_for_end(call, call.run_id, call.query.wait)
    return await shown(call, call.run_id)


async def shown(call: Call[Any, Any], run_id: UUID) -> RunShape:
    """Return a run for an answer: large payloads as their size. Raises RunNotFound."""
    return run_shape((await call.site.reader.runs.get(run_id)).record, LARGEST_SHOWN)


def start_options(call: Call[StartQuery, StartBody]) -> StartOptions:
    """Return the client's options of a start. The Idempotency-Key is the key."""
    body, options = call.body, StartOptions()
    key = one_id(call, body.key, "key")
    given = {"key": key, **{name: getattr(body, name) for name in body.__struct_fields__[2:]}}
    for name, value in given.items():
        if value is not None:
            options[name] = value  # type: ignore[literal-required]
    return options


def one_id(call: Call[Any, Any], given: str | None, field: str) -> str | None:
    """Return the id of a call: that of the body or the Idempotency-Key. Raises Problem 400."""
    if call.idempotency_key is None:
        return given
    if given is not None and given != call.idempotency_key:
        raise Problem(400, "two-keys", f"the Idempotency-Key and {field} are not the same")
    return call.idempotency_key


async def typed_input(call: Call[Any, StartBody], name: str, options: StartOptions) -> object:
    """Return the input as the type that the server's app declares for it, else as it is.

    If only the schema of the type is known, as with `holdfast dev` and to callers who see less,
    the input is checked against it, and the run is of its version, the newest one; the schema of
    an older version is not known. Raises InvalidInput, and PayloadError for what cannot be stored.
    """
    site, app, (of, own) = call.site, call.site.app, split_name(name)
    if app is None or of not in ("", app.name):
        entry = await site.catalogue.find(name) if site.checks_inputs else None
        if entry is not None and call.body.version in (None, entry.version):
            entry.check(name, call.body.input)
            options["version"] = entry.version
        return call.body.input
    known = app.startable(own, call.body.version)
    return known.decode_input(encode(call.body.input))


def _cut_run(found: RunShape) -> str | None:
    """Return what a run of a tool leaves out."""
    if found.input_bytes is msgspec.UNSET and found.output_bytes is msgspec.UNSET:
        return None
    return (
        "A payload is left out, its size is given: "
        f"`holdfast runs show {found.run_id} --json` has it whole."
    )


async def _warning(call: Call[Any, StartBody], name: str) -> str | None:
    """Return a warning if no worker has ever had the workflow of a full name: its run waits."""
    site = call.site
    if "/" not in name or name in site.known_names:
        return None
    if await site.catalogue.find(name) is None and await site.store.get_flow(name) is None:
        problem = await unknown_name(name, site.store)
        if problem is not None:
            return f"{problem}: the run waits until one has"
    site.known_names.add(name)
    return None


OPERATIONS: Final = (
    Operation(
        "POST /v1/workflows/{name}/runs",
        "write",
        start_run,
        body_required=False,
        answers=(Started, RunShape),
        statuses=(201, 200),
        problems=(UnknownWorkflow, AmbiguousWorkflow, RunExists, RunActive, StartThrottled),
        keyed=True,
        tool=ForAgents(
            name="start",
            about="Start a run of a workflow. list_workflows has the schema of the input.",
            hidden=frozenset({"wait"}),
        ),
    ),
    Operation(
        "GET /v1/workflows/{name}/runs",
        "read",
        list_runs_of_workflow,
        problems=(UnknownWorkflow, AmbiguousWorkflow, RunNotFound),
        inputs=True,
    ),
    Operation(
        "GET /v1/runs",
        "read",
        list_runs,
        problems=(UnknownWorkflow, AmbiguousWorkflow, RunNotFound),
        inputs=True,
        tool=ForAgents(
            about="List runs, newest first, without payloads. `cursor` of an answer continues "
            "after it. The run of a workflow and a key is found by `workflow` and `key`.",
            defaults={"limit": 20},
        ),
    ),
    Operation(
        "GET /v1/runs/count",
        "read",
        count_runs,
        problems=(UnknownWorkflow, AmbiguousWorkflow, RunNotFound),
        inputs=True,
        tool=ForAgents(
            about="Count runs by workflow, state, queue, tag or an attribute's name, most first."
        ),
    ),
    Operation(
        "GET /v1/runs/{run}",
        "read",
        get_run,
        nested=True,
        tool=ForAgents(
            about="Return a run as it is now, with its payloads.",
            hidden=frozenset({"wait"}),
            note=_cut_run,
        ),
    ),
)
