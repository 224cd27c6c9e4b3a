"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from typing import TypeVar, cast

from holdfast.client.activities import Activities
from holdfast.client.alerts import Alerts
from holdfast.client.approvals import Approvals
from holdfast.client.archive import Archives
from holdfast.client.builds import Builds
from holdfast.client.entities import Entities
from holdfast.client.flows import Flows
from holdfast.client.limits import Limits
from holdfast.client.retention import Retention
from holdfast.client.single_messages import SingleMessages
from holdfast.client.webhooks import Webhooks
from holdfast.client.workers import Workers
from holdfast.client.workflows import Workflows
from holdfast.sync.base import SyncGroup, blocking, iterating

E = TypeVar("E")


class SyncActivities(SyncGroup[Activities], of=Activities):
    """The activities of all runs: what completes outside of a worker is completed here."""

    complete = blocking(Activities.complete)
    """Complete an activity, by the token of its attempt."""
    fail = blocking(Activities.fail)
    """Fail an attempt of an activity, by its token. Return True if it will be tried again."""


class SyncApprovals(SyncGroup[Approvals], of=Approvals):
    """The approvals of all runs."""

    list = blocking(Approvals.list)
    """Return the approvals that wait for a decision, of one run or of all, oldest first."""
    decide = blocking(Approvals.decide)
    """Approve or refuse what a run asks for; `list` gives the keys of open approvals."""


class SyncAlerts(SyncGroup[Alerts], of=Alerts):
    """The alerts that the code of apps declares."""

    list = blocking(Alerts.list)
    """Return all alerts, by app and name, as they were seen when a worker looked last."""


class SyncArchives(SyncGroup[Archives], of=Archives):
    """The archive of a database: of the client's app, of $HOLDFAST_ARCHIVE, or the one in
    use.
    """

    url = blocking(Archives.url)
    """Return where runs are archived, None for nowhere."""
    list = iterating(Archives.list)
    """Iterate over archived runs, those that were archived last first; those of a workflow."""
    get = blocking(Archives.get)
    """Return an archived run: its row, its log, and the lines that it was written as."""
    restore = blocking(Archives.restore)
    """Make an archived run an ended run of the database again, and return its id."""
    forget = blocking(Archives.forget)
    """Let runs be deleted without being archived; return where they were archived."""


class SyncBuilds(SyncGroup[Builds], of=Builds):
    """The builds of apps: the code that runs of pinned workflows stay with."""

    list = blocking(Builds.list)
    """Return the builds of all apps or of one, the newest first."""
    promote = blocking(Builds.promote)
    """Let new runs get a build. Return False if they got it already."""
    ramp = blocking(Builds.ramp)
    """Let a share of new runs get a build: 0 to 100, or `"10%"`. Return False if unchanged."""
    roll_back = blocking(Builds.roll_back)
    """End the ramp if there is one, otherwise let new runs get the build that they got before."""
    move = blocking(Builds.move)
    """Move runs to another build of their app; with None they are not pinned any more."""
    move_all = blocking(Builds.move_all)
    """Move all open runs of a build to another one, or to none; see `move`."""


class SyncEntities(SyncGroup[Entities], of=Entities):
    """Entities by their class and their key; `client.entity` calls their methods."""

    def get(self, cls: type[E], key: str) -> E:
        """Return a copy of an entity as its last change has left it, without waking it."""
        return cast("E", self._call(self._target.get, cls, key))

    delete = blocking(Entities.delete)
    """Delete an entity, and wait for its end; return False if there is none."""


class SyncFlows(SyncGroup[Flows], of=Flows):
    """The flows of all apps: each by its definition, or by its name (`app/name`)."""

    list = blocking(Flows.list)
    """Return every version of every flow that the database has, by name and version."""
    get = blocking(Flows.get)
    """Return the shape that the database has of a flow, by default of its newest version."""
    compile = blocking(Flows.compile)
    """Give the database the shapes of an app's flows; return what was found of each."""
    check = blocking(Flows.check)
    """Return how the flows of an app differ from those of the database; change nothing."""
    delete = blocking(Flows.delete)
    """Delete all versions of a flow with all their runs; return how many runs that were."""


class SyncLimits(SyncGroup[Limits], of=Limits):
    """The limits of queues, workflows and activities, in all workers together."""

    set = blocking(Limits.set)
    """Set a limit on a queue, a workflow or an activity. Return False if nothing changed."""
    remove = blocking(Limits.remove)
    """Remove a limit, which is known by its class and its key. Return False if there is none."""
    list = blocking(Limits.list)
    """Return all limits, and how they are used."""


class SyncSingleMessages(SyncGroup[SingleMessages], of=SingleMessages):
    """One message of a queue, by the id that its send returned: look at it, cancel it,
    change it.
    """

    get = blocking(SingleMessages.get)
    """Return a message that waits or is in flight, with the errors of its receives."""
    cancel = blocking(SingleMessages.cancel)
    """Delete a message that waits. Return False if the queue does not have it."""
    change = blocking(SingleMessages.change)
    """Change what is given of a message that waits. Return False if the queue does not have it."""


class SyncRetention(SyncGroup[Retention], of=Retention):
    """The sweeper: workers delete ended runs in the background, and programs may do so at
    once.
    """

    state = blocking(Retention.state)
    """Return who sweeps, when a pass last ended, and how many runs are due."""
    preview = blocking(Retention.preview)
    """Return what a sweep would delete and what it would keep, by workflow; change nothing."""
    sweep = blocking(Retention.sweep)
    """Delete the ended runs whose retention is over, and return how many these were."""
    batches = iterating(Retention.batches)
    """Sweep, and yield what came of each batch; raises what `sweep` raises."""


class SyncWebhooks(SyncGroup[Webhooks], of=Webhooks):
    """The webhooks of all runs: what `ctx.webhook` opens."""

    list = blocking(Webhooks.list)
    """Return the webhooks of a run that wait for their POST, in the order of their opening."""
    receive = blocking(Webhooks.receive)
    """Give a run what was posted to its URL. `holdfast server` does this; so can yours."""


class SyncWorkers(SyncGroup[Workers], of=Workers):
    """The workers of all apps."""

    list = blocking(Workers.list)
    """Return the workers that are signed on."""


class SyncWorkflows(SyncGroup[Workflows], of=Workflows):
    """The workflows of all apps: each by its function, or by its name (`app/name`)."""

    pause = blocking(Workflows.pause)
    """Let no worker continue the runs of a workflow, of any version."""
    resume = blocking(Workflows.resume)
    """Let the runs of a workflow continue. Return False if it was not paused."""
    held_keys = blocking(Workflows.held_keys)
    """Return what singletons, debounces and throttles of a workflow hold now, by key."""
    pauses = blocking(Workflows.pauses)
    """Return the workflows that are paused, each with the moment and the reason."""
