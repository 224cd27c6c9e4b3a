"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

from msgspec import UNSET

from holdfast.client.activities import Activities
from holdfast.client.alerts import Alerts
from holdfast.client.approvals import Approvals
from holdfast.client.archive import Archives
from holdfast.client.builds import Builds
from holdfast.client.entities import Entities
from holdfast.client.flows import Flows
from holdfast.client.limits import Limits
from holdfast.client.naming import Named, RunRef
from holdfast.client.retention import Retention
from holdfast.client.single_messages import SingleMessages
from holdfast.client.webhooks import OpenWebhook, Webhooks
from holdfast.client.workers import Workers
from holdfast.client.workflows import Workflows
from holdfast.compiling import CompiledFlow
from holdfast.definitions.app import App
from holdfast.definitions.limits import AnyLimit
from holdfast.insight.approvals import OpenApproval
from holdfast.sync.base import SyncGroup
from holdfast.types import (
    AlertInfo,
    BuildInfo,
    FlowInfo,
    FlowShape,
    FoundMessage,
    HeldKey,
    LimitInfo,
    MovedRuns,
    Pause,
    RouteChange,
    SweeperState,
    SweepShare,
    Swept,
    WorkerInfo,
)
from holdfast.values.durations import Duration

if TYPE_CHECKING:
    from holdfast.retention import ArchivedRun, ArchiveEntry

E = TypeVar("E")


class SyncActivities(SyncGroup[Activities], of=Activities):
    """The activities of all runs: what completes outside of a worker is completed here."""

    def complete(self, token: str, result: object = None) -> None:
        """Complete an activity, by the token of its attempt."""
        return self._call(self._target.complete, token, result)

    def fail(self, token: str, error: str | Exception, *, retryable: bool = True) -> bool:
        """Fail an attempt of an activity, by its token. Return True if it will be tried again."""
        return self._call(self._target.fail, token, error, retryable=retryable)


class SyncApprovals(SyncGroup[Approvals], of=Approvals):
    """The approvals of all runs."""

    def list(self, run: RunRef | None = None, limit: int = 100) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first."""
        return self._call(self._target.list, run, limit)

    def decide(
        self,
        run: RunRef,
        key: str,
        approved: bool,
        *,
        by: str | None = None,
        feedback: str | None = None,
        values: Mapping[str, object] | None = None,
        decision_id: str | None = None,
    ) -> bool:
        """Approve or refuse what a run asks for; `list` gives the keys of open approvals."""
        return self._call(
            self._target.decide,
            run,
            key,
            approved,
            by=by,
            feedback=feedback,
            values=values,
            decision_id=decision_id,
        )


class SyncAlerts(SyncGroup[Alerts], of=Alerts):
    """The alerts that the code of apps declares."""

    def list(self) -> builtins.list[AlertInfo]:
        """Return all alerts, by app and name, as they were seen when a worker looked last."""
        return self._call(self._target.list)


class SyncArchives(SyncGroup[Archives], of=Archives):
    """The archive of a database: of the client's app, of $HOLDFAST_ARCHIVE, or the one in
    use.
    """

    def url(self) -> str | None:
        """Return where runs are archived, None for nowhere."""
        return self._call(self._target.url)

    def list(self, workflow: str | None = None) -> Generator[ArchiveEntry]:
        """Iterate over archived runs, those that were archived last first; those of a workflow."""
        return self._portal.iterate(self._target.list(workflow))

    def get(self, run: RunRef) -> ArchivedRun:
        """Return an archived run: its row, its log, and the lines that it was written as."""
        return self._call(self._target.get, run)

    def restore(self, run: RunRef, retention: Duration | None = None) -> UUID:
        """Make an archived run an ended run of the database again, and return its id."""
        return self._call(self._target.restore, run, retention)

    def forget(self) -> str | None:
        """Let runs be deleted without being archived; return where they were archived."""
        return self._call(self._target.forget)


class SyncBuilds(SyncGroup[Builds], of=Builds):
    """The builds of apps: the code that runs of pinned workflows stay with."""

    def list(self, *, app: str | None = None) -> builtins.list[BuildInfo]:
        """Return the builds of all apps or of one, the newest first."""
        return self._call(self._target.list, app=app)

    def promote(self, build: str, *, app: str | None = None, force: bool = False) -> bool:
        """Let new runs get a build. Return False if they got it already."""
        return self._call(self._target.promote, build, app=app, force=force)

    def ramp(self, build: str, percent: float | str, *, app: str | None = None) -> bool:
        """Let a share of new runs get a build: 0 to 100, or `"10%"`. Return False if unchanged."""
        return self._call(self._target.ramp, build, percent, app=app)

    def roll_back(self, *, app: str | None = None) -> RouteChange:
        """End the ramp if there is one, otherwise let new runs get the build that they got
        before.
        """
        return self._call(self._target.roll_back, app=app)

    def move(self, runs: Sequence[RunRef], build: str | None) -> MovedRuns:
        """Move runs to another build of their app; with None they are not pinned any more."""
        return self._call(self._target.move, runs, build)

    def move_all(self, from_build: str, build: str | None, *, app: str | None = None) -> MovedRuns:
        """Move all open runs of a build to another one, or to none; see `move`."""
        return self._call(self._target.move_all, from_build, build, app=app)


class SyncEntities(SyncGroup[Entities], of=Entities):
    """Entities by their class and their key; `client.entity` calls their methods."""

    def get(self, cls: type[E], key: str) -> E:
        """Return a copy of an entity as its last change has left it, without waking it."""
        return cast("E", self._call(self._target.get, cls, key))

    def delete(
        self,
        cls: type[object],
        key: str,
        reason: str | None = None,
        *,
        timeout: Duration | None = None,
    ) -> bool:
        """Delete an entity, and wait for its end; return False if there is none."""
        return self._call(self._target.delete, cls, key, reason, timeout=timeout)


class SyncFlows(SyncGroup[Flows], of=Flows):
    """The flows of all apps: each by its definition, or by its name (`app/name`)."""

    def list(self) -> builtins.list[FlowInfo]:
        """Return every version of every flow that the database has, by name and version."""
        return self._call(self._target.list)

    def get(self, flow: Named | str, version: int | None = None) -> FlowShape:
        """Return the shape that the database has of a flow, by default of its newest version."""
        return self._call(self._target.get, flow, version)

    def compile(self, app: App, *, replace: bool = False) -> builtins.list[CompiledFlow]:
        """Give the database the shapes of an app's flows; return what was found of each."""
        return self._call(self._target.compile, app, replace=replace)

    def check(self, app: App) -> builtins.list[CompiledFlow]:
        """Return how the flows of an app differ from those of the database; change nothing."""
        return self._call(self._target.check, app)

    def delete(self, flow: Named | str, *, terminate: bool = False, force: bool = False) -> int:
        """Delete all versions of a flow with all their runs; return how many runs that were."""
        return self._call(self._target.delete, flow, terminate=terminate, force=force)


class SyncLimits(SyncGroup[Limits], of=Limits):
    """The limits of queues, workflows and activities, in all workers together."""

    def set(
        self,
        limit: AnyLimit,
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
    ) -> bool:
        """Set a limit on a queue, a workflow or an activity. Return False if nothing changed."""
        return self._call(
            self._target.set, limit, queue=queue, workflow=workflow, activity=activity
        )

    def remove(
        self,
        limit: type[AnyLimit],
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
        key: str | None = None,
        units: bool = False,
    ) -> bool:
        """Remove a limit, which is known by its class and its key. Return False if there is
        none.
        """
        return self._call(
            self._target.remove,
            limit,
            queue=queue,
            workflow=workflow,
            activity=activity,
            key=key,
            units=units,
        )

    def list(self) -> list[LimitInfo]:
        """Return all limits, and how they are used."""
        return self._call(self._target.list)


class SyncSingleMessages(SyncGroup[SingleMessages], of=SingleMessages):
    """One message of a queue, by the id that its send returned: look at it, cancel it,
    change it.
    """

    def get(self, queue: str, message_id: int) -> FoundMessage:
        """Return a message that waits or is in flight, with the errors of its receives."""
        return self._call(self._target.get, queue, message_id)

    def cancel(self, queue: str, message_id: int) -> bool:
        """Delete a message that waits. Return False if the queue does not have it."""
        return self._call(self._target.cancel, queue, message_id)

    def change(
        self,
        queue: str,
        message_id: int,
        *,
        payload: object = UNSET,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> bool:
        """Change what is given of a message that waits. Return False if the queue does not have
        it.
        """
        return self._call(
            self._target.change,
            queue,
            message_id,
            payload=payload,
            delay=delay,
            at=at,
            priority=priority,
        )


class SyncRetention(SyncGroup[Retention], of=Retention):
    """The sweeper: workers delete ended runs in the background, and programs may do so at
    once.
    """

    def state(self) -> SweeperState:
        """Return who sweeps, when a pass last ended, and how many runs are due."""
        return self._call(self._target.state)

    def preview(self, limit: int = 100000) -> builtins.list[SweepShare]:
        """Return what a sweep would delete and what it would keep, by workflow; change nothing."""
        return self._call(self._target.preview, limit)

    def sweep(self) -> int:
        """Delete the ended runs whose retention is over, and return how many these were."""
        return self._call(self._target.sweep)

    def batches(self) -> Generator[Swept]:
        """Sweep, and yield what came of each batch; raises what `sweep` raises."""
        return self._portal.iterate(self._target.batches())


class SyncWebhooks(SyncGroup[Webhooks], of=Webhooks):
    """The webhooks of all runs: what `ctx.webhook` opens."""

    def list(self, run: RunRef) -> builtins.list[OpenWebhook]:
        """Return the webhooks of a run that wait for their POST, in the order of their opening."""
        return self._call(self._target.list, run)

    def receive(
        self,
        url: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> bool:
        """Give a run what was posted to its URL. `holdfast server` does this; so can yours."""
        return self._call(self._target.receive, url, body, headers=headers, secrets=secrets)


class SyncWorkers(SyncGroup[Workers], of=Workers):
    """The workers of all apps."""

    def list(self) -> builtins.list[WorkerInfo]:
        """Return the workers that are signed on."""
        return self._call(self._target.list)


class SyncWorkflows(SyncGroup[Workflows], of=Workflows):
    """The workflows of all apps: each by its function, or by its name (`app/name`)."""

    def pause(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker continue the runs of a workflow, of any version."""
        return self._call(self._target.pause, workflow, reason)

    def resume(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow continue. Return False if it was not paused."""
        return self._call(self._target.resume, workflow)

    def held_keys(self, workflow: Named | str, limit: int = 100) -> list[HeldKey]:
        """Return what singletons, debounces and throttles of a workflow hold now, by key."""
        return self._call(self._target.held_keys, workflow, limit)

    def pauses(self) -> list[Pause]:
        """Return the workflows that are paused, each with the moment and the reason."""
        return self._call(self._target.pauses)
