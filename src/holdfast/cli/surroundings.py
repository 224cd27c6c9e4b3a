"""What a run depends on besides its own log: who works, what it waits for, what is paused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.cli.spans import Span
from holdfast.client.approvals import OpenApproval
from holdfast.client.chains import find_retry
from holdfast.ids import former_retry_run_id, retry_run_id
from holdfast.types import OpenActivity, Pause, RunRecord, Scope, WorkerInfo

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link

MOST_CHILDREN = 1_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What `explain` knows of the world at one moment; `now` is engine time.

    `children` are the newest runs of the children that the run's log names as open, by the id
    with which each was started. `retried_as` is the run that goes on where this one failed,
    `origin` the run of which this one, being stuck, is a fork.
    """

    now: int
    workers: Sequence[WorkerInfo] = ()
    activities: Sequence[OpenActivity] = ()
    children: Mapping[UUID, RunRecord] = field(default_factory=dict[UUID, RunRecord])
    approvals: Sequence[OpenApproval] = ()
    pauses: Sequence[Pause] = ()
    retried_as: RunRecord | None = None
    origin: RunRecord | None = None

    def pause_of(self, scope: Scope, name: str) -> Pause | None:
        """Return the pause of a queue or a workflow."""
        return next(
            (each for each in self.pauses if (each.scope, each.name) == (scope, name)), None
        )


async def look_around(link: Link, run: RunRecord, spans: Sequence[Span]) -> Surroundings:
    """Ask for what may keep a run from going on; of one that has ended, its retry."""
    now = await link.store.now()
    if run.status != "running":
        return Surroundings(now, retried_as=await find_retry(link.store, run.run_id))
    waited_for = {span.kind for span in spans if span.outcome == "open"}
    return Surroundings(
        now=now,
        workers=await link.store.list_workers(),
        activities=await link.store.list_activities(run.run_id, limit=MOST_CHILDREN)
        if "activity" in waited_for
        else (),
        children=await _open_children(link, spans) if "child" in waited_for else {},
        approvals=await link.client.approvals(run.run_id, MOST_CHILDREN)
        if "approval" in waited_for
        else (),
        pauses=await link.store.list_pauses(),
        origin=await _origin(link, run, spans) if run.state == "stuck" else None,
    )


async def _origin(link: Link, run: RunRecord, spans: Sequence[Span]) -> RunRecord | None:
    """Return the run that this one is a fork of; None for its retry, which changes nothing."""
    origins = [UUID(span.origin_run_id) for span in spans if span.kind == "fork"]
    if not origins or run.run_id in (retry_run_id(origins[-1]), former_retry_run_id(origins[-1])):
        return None
    return (await link.store.get_runs([origins[-1]])).get(origins[-1])


async def _open_children(link: Link, spans: Sequence[Span]) -> Mapping[UUID, RunRecord]:
    started = [
        UUID(span.child_run_id) for span in spans if span.kind == "child" and span.outcome == "open"
    ]
    newest = await link.store.newest_runs(started[:MOST_CHILDREN])
    runs = await link.store.get_runs(list(set(newest.values())))
    return {first: runs[last] for first, last in newest.items() if last in runs}
