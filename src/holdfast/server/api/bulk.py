"""The operation that changes all runs of a filter, and says how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Annotated, Any, Final, Literal, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.client.rescheduling import read_change
from holdfast.errors import AmbiguousWorkflow, UnknownWorkflow
from holdfast.server.access import Level, Principal
from holdfast.server.api.control import RescheduleFields, read_reschedule
from holdfast.server.api.fields import Attributes, Key, Moment, Name, Text
from holdfast.server.api.runs import one_id
from holdfast.server.operations import Body, Call, Nothing, Operation
from holdfast.server.problems import Problem, problem_of
from holdfast.server.sse import COMMENT, Bye, Stream, cancelled, frame
from holdfast.store.port.reads import noting_reads
from holdfast.types import State


class Where(Body, frozen=True):
    """Which runs; what is left out does not restrict. `{}` means all runs."""

    status: Annotated[tuple[State, ...], Meta(min_length=1)] | UnsetType = UNSET
    workflow: Annotated[tuple[Name, ...], Meta(min_length=1)] | UnsetType = UNSET
    queue: Annotated[tuple[Name, ...], Meta(min_length=1)] | UnsetType = UNSET
    tag: Annotated[tuple[Key, ...], Meta(min_length=1, max_length=20)] | UnsetType = UNSET
    attributes: Annotated[Attributes, Meta(min_length=1)] | None = None
    build: Name | None = None
    key: Key | None = None
    parent: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None
    input: dict[str, Any] | None = None


class BulkBody(Body, frozen=True):
    """What to do with the runs of a filter. A `dry_run` counts them and changes nothing."""

    do: Literal["cancel", "terminate", "pause", "resume", "reschedule", "signal", "retry"]
    where: Where
    dry_run: bool
    reason: Text | None = None
    name: Name | None = None
    payload: Any = None
    signal_id: Key | None = None
    change: RescheduleFields | None = None


LEVELS: Final[Mapping[str, Level]] = {
    "retry": "write",
    "cancel": "write",
    "pause": "write",
    "resume": "write",
    "reschedule": "write",
    "signal": "write",
    "terminate": "admin",
}
"""What a caller needs to change many runs so: the same as for one run."""


def check_level(principal: Principal, do: str) -> None:
    """Refuse a change of many runs to who may not make it. Raises Problem 403."""
    if not principal.may(LEVELS[do]):
        raise Problem(403, "forbidden", f"this needs the level {LEVELS[do]}")


class _Left(Exception):
    """Nobody reads the progress any more."""


async def change_runs(call: Call[Nothing, BulkBody]) -> Response:
    """Change all runs of a filter: `progress` after each page of them, then `done`.

    `terminate` needs the level admin, as for one run. It stops after the page at hand when the
    caller leaves; the same call again continues, and changes nothing twice. `problem` says why
    it cannot continue.
    """
    check_level(call.principal, call.body.do)
    if (call.body.do == "signal") != (call.body.name is not None):
        raise Problem(422, "invalid-body", "a signal has a name, the others have none")
    if (call.body.do == "reschedule") != (call.body.change is not None):
        raise Problem(422, "invalid-body", "give `change` with reschedule, and only with it")
    if call.body.change is not None:
        # What cannot work is a problem, not a frame.
        read_change(read_reschedule(call.body.change, call.principal))
    stream = Stream(call)
    try:
        return stream.response(_frames(call, stream))
    except BaseException:
        stream.close()
        raise


async def _frames(call: Call[Nothing, BulkBody], stream: Stream) -> AsyncGenerator[bytes]:
    told: asyncio.Queue[BulkOutcome] = asyncio.Queue()
    has_left = False

    def progress(outcome: BulkOutcome) -> None:
        if has_left:
            raise _Left
        told.put_nowait(outcome)

    with noting_reads() as notes:
        work = asyncio.create_task(_change(call, progress))
    try:
        while not work.done():
            more = asyncio.ensure_future(told.get())
            if not await stream.wait(more, work):
                yield COMMENT
            if more.done():
                yield frame("progress", more.result())
            await cancelled(more)
            if stream.is_over and not work.done():
                yield frame("bye", Bye("the server ends the stream: send the call again"))
                return
        while not told.empty():
            yield frame("progress", told.get_nowait())
        try:
            done = work.result()
            away = tuple(sorted(notes.away))
            counts = msgspec.structs.asdict(done)
            yield frame("done", Progress(**counts, shards_away=away))
        except Exception as error:
            problem = problem_of(error)
            yield frame("problem", Trouble(problem.status, problem.detail))
    finally:
        has_left = True  # the page at hand is completed
        work.add_done_callback(_seen)


def _seen(work: asyncio.Task[BulkOutcome]) -> None:
    if not work.cancelled():
        work.exception()


def _change(call: Call[Nothing, BulkBody], progress: Any) -> Coroutine[Any, Any, BulkOutcome]:
    body, runs = call.body, call.site.client.runs
    where, dry = _filters(body.where), body.dry_run
    if body.do == "signal":
        return runs.signal_all(
            where,
            body.name or "",
            body.payload,
            signal_id=one_id(call, body.signal_id, "signal_id"),
            dry_run=dry,
            progress=progress,
        )
    if body.do == "retry":
        return runs.retry_all(where, dry_run=dry, progress=progress)
    if body.change is not None:
        return runs.reschedule_all(
            where,
            reason=body.reason,
            by=call.principal.name,
            dry_run=dry,
            progress=progress,
            **read_reschedule(body.change, call.principal),
        )
    if body.do == "resume":
        return runs.resume_all(where, by=call.principal.name, dry_run=dry, progress=progress)
    change = {"cancel": runs.cancel_all, "terminate": runs.terminate_all, "pause": runs.pause_all}
    return change[body.do](
        where, reason=body.reason, by=call.principal.name, dry_run=dry, progress=progress
    )


def _filters(where: Where) -> RunFilters:
    filters = {
        "states": where.status,
        "names": where.workflow,
        "queues": where.queue,
        "tags": where.tag,
        "where": where.attributes,
        "build": where.build,
        "key": where.key,
        "parent": where.parent,
        "since": where.since,
        "until": where.until,
        "input_contains": where.input,
    }
    given = {name: value for name, value in filters.items() if value not in (None, UNSET)}
    return cast("RunFilters", given)


class Trouble(msgspec.Struct, frozen=True):
    """Why a change cannot continue, as a problem would say it."""

    status: int
    detail: str


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many runs matched, and how many of them were changed.

    `unchanged` includes `left_to_parents`: a retry leaves out children, unless `where` has their
    `parent`. A dry run leaves out the runs of shards that are away: `shards_away`.
    """

    matched: int
    changed: int
    unchanged: int
    left_to_parents: int = 0
    shards_away: tuple[int, ...] = ()


OPERATIONS: Final = (
    Operation(
        "POST /v1/bulk",
        "write",
        change_runs,
        answers=(Progress, Trouble, Bye),
        media_type="text/event-stream",
        problems=(UnknownWorkflow, AmbiguousWorkflow),
        keyed=True,
    ),
)
