"""The store itself: each method is one call of one SQL function, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from holdfast.database.scripts import DEFAULT_SCHEMA
from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres import (
    activities,
    approvals,
    apps,
    committing,
    control,
    guests,
    leasing,
    questions,
    rows,
)
from holdfast.store.postgres.arrays import start_arguments
from holdfast.store.postgres.connections import Database
from holdfast.store.postgres.leasing import Claim
from holdfast.store.postgres.listening import Listening
from holdfast.store.postgres.watermark import Watermark
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    AppInfo,
    Approval,
    Claims,
    Committed,
    Decided,
    Decision,
    Delivered,
    Event,
    Fork,
    Forking,
    Heartbeat,
    Lease,
    LoggedEvent,
    NewRun,
    NewSignal,
    Notice,
    OpenActivity,
    Pause,
    RecordPage,
    Release,
    RunFilter,
    RunRecord,
    Scope,
    SignedOn,
    StartedRun,
    TurnCommit,
    WorkerInfo,
)


class PostgresStore:
    """A `Store` in a schema of a PostgreSQL database, 14 or newer.

    Up to `connections` connections serve calls, and one more listens once something is listened
    for. Statements are prepared by name if `prepare` says so; None: unless a pooler is seen in
    between. Listening needs a direct connection, or a pooler in session mode: `listen_url`.
    If it `tells`, starts, signals and commits send their notices themselves where they can, and
    return the others. `open` refuses a schema that this release cannot work with unless `check`
    is false.

    It belongs to one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        connections: int = 4,
        prepare: bool | None = None,
        check: bool = True,
        listen_url: str | None = None,
        tells: bool = False,
    ) -> None:
        self._database = Database(
            url, schema=schema, connections=connections, prepare=prepare, check=check, tells=tells
        )
        self._listening = Listening(self._database, url, listen_url)
        self._watermarks: dict[str, dict[tuple[str, ...], Watermark]] = {}  # by worker, handlers

    async def open(self) -> None:
        """Connect; see `Store.open`.

        Raises:
            DatabaseUnavailable, InsufficientRights, InvalidDatabaseURL, ServerTooOld: the
                database cannot be used.
            SchemaMissing, SchemaOutdated, SchemaTooNew: the schema is not this release's.
        """
        await self._database.open()

    async def close(self) -> None:
        """Let go of every connection."""
        await self._listening.close()
        await self._database.close()

    async def now(self) -> int:
        """Return engine time."""
        row = await self._database.row("now_micros")
        return int(row[0])

    # Transitions

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `Store.start_runs`. A refused value refuses the whole call."""
        arguments = start_arguments(runs)
        found = await self._database.rows("start_runs", *arguments, self._database.tell)
        started = [StartedRun(row["run_id"], row["created"], row["status"]) for row in found]
        queues = {
            run.queue: None
            for run, row in zip(runs, found, strict=True)
            if row["created"] and not row["told"]
        }
        return started, [Notice(WORK_TOPIC, queue) for queue in queues]

    async def claim_tasks(
        self,
        worker_id: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        ahead_seconds: float = 0.0,
        sticky_seconds: float = 0.25,
        max_attempts: int = 5,
    ) -> Claims:
        """Lease due tasks; see `Store.claim_tasks`."""
        claim = Claim(
            worker_id=worker_id,
            queues=queues,
            handlers=handlers,
            limit=limit,
            lease=lease_seconds,
            ahead=ahead_seconds,
            sticky=sticky_seconds,
            max_attempts=max_attempts,
        )
        of_worker = self._watermarks.setdefault(worker_id, {})
        watermark = of_worker.setdefault(tuple(handlers), Watermark())
        return await leasing.claim_tasks(self._database, claim, watermark)

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        """Read logs; see `Store.read_events`."""
        return await questions.read_events(self._database, ranges, patience)

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append, then suspend or finish; see `Store.commit`."""
        return await committing.commit(self._database, worker_id, token, turns)

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        """Give tasks back; see `Store.release_tasks`."""
        return await leasing.release_tasks(self._database, worker_id, releases)

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
    ) -> Heartbeat:
        """Renew leases; see `Store.heartbeat`."""
        return await leasing.heartbeat(
            self._database, info, leases, lease_seconds, interval_seconds
        )

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Send signals; see `Store.signal_runs`. A refused value refuses the whole call."""
        return await guests.signal_runs(self._database, signals)

    async def cancel_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Ask runs to stop; see `Store.cancel_runs`."""
        row = await self._database.row("cancel_runs", run_ids, reason)
        return guests.delivered(row)

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None
    ) -> Delivered:
        """End runs at once; see `Store.terminate_runs`."""
        row = await self._database.row("terminate_runs", run_ids, reason)
        return guests.delivered(row)

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Record how attempts of activities ended; see `Store.end_activities`."""
        return await activities.end_activities(self._database, worker_id, ends)

    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        """Fail activities past their time; see `Store.time_out_activities`."""
        return await activities.time_out_activities(self._database, limit)

    async def pause_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Claim nothing of these runs; see `Store.pause_runs`."""
        return await control.pause_runs(self._database, run_ids, reason)

    async def resume_runs(self, run_ids: Sequence[UUID]) -> Delivered:
        """Let paused runs go on; see `Store.resume_runs`."""
        return await control.resume_runs(self._database, run_ids)

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Claim nothing of a queue or a workflow, or again; see `Store.set_pause`."""
        return await control.set_pause(self._database, scope, name, paused, reason)

    async def decide_approval(self, decision: Decision) -> Decided:
        """Decide an approval; see `Store.decide_approval`."""
        return await approvals.decide_approval(self._database, decision)

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log; see `Store.fork_run`."""
        return await control.fork_run(self._database, fork)

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        """End runs past their deadline; see `Store.time_out_runs`."""
        row = await self._database.row("time_out_runs", limit)
        return row["ended"], row["next_due_at"], rows.notices(row["notices"])

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = 8.0,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        """Forget workers that are gone; see `Store.reap_workers`."""
        return await leasing.reap_workers(self._database, observer, silent_seconds, worker_ids)

    async def remove_worker(self, worker_id: str) -> None:
        """Sign a worker off."""
        self._watermarks.pop(worker_id, None)
        await self._database.row("remove_worker", worker_id)

    async def sign_on_app(
        self, app: AppInfo, activities: Sequence[str], *, replaces: str | None = None
    ) -> SignedOn:
        """Note that an app has a worker here; see `Store.sign_on_app`."""
        return await apps.sign_on_app(self._database, app, activities, replaces)

    async def adopt_tasks(
        self, app: str, handlers: Sequence[str], queues: Sequence[str], *, limit: int = 1000
    ) -> int:
        """Take over what waits under handlers without an app."""
        row = await self._database.row("adopt_tasks", app, handlers, queues, limit)
        return int(row[0])

    async def adopt_ended(self, app: str, workflows: Sequence[str], *, limit: int = 1000) -> int:
        """Give ended runs of names without an app this one."""
        row = await self._database.row("adopt_ended", app, workflows, limit)
        return int(row[0])

    # Questions

    async def apps_with(self, workflow: str) -> list[str]:
        """Return the apps that have ever signed on with a workflow of this name."""
        row = await self._database.row("apps_with", workflow)
        return list(row[0])

    async def list_apps(self) -> list[AppInfo]:
        """Return the apps that have ever signed on, by name."""
        return await apps.list_apps(self._database)

    async def former_names(self) -> frozenset[str]:
        """Return the names that runs had before names had apps."""
        row = await self._database.row("former_names")
        return frozenset(row[0])

    async def get_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Return the runs that exist."""
        return await questions.get_runs(self._database, run_ids)

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs; see `Store.list_runs`."""
        return await questions.list_runs(self._database, where)

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        """Return the ids of runs between two, in order."""
        return await questions.runs_between(self._database, first, last, limit)

    async def find_run(self, name: str, key: str) -> UUID | None:
        """Return the id of the run that was started with this key."""
        return await questions.find_run(self._database, name, key)

    async def recent_events(self, *, since: int, limit: int = 1000) -> list[LoggedEvent]:
        """Say what happened across all runs since a moment, oldest first."""
        return await questions.recent_events(self._database, since, limit)

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        """Return the newest value of each name that the runs have set."""
        return await questions.get_values(self._database, run_ids)

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        """Return open approvals, the oldest first."""
        return await approvals.list_approvals(self._database, run_id, limit)

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        """Return a run's activities that have not ended, by key."""
        return await activities.list_activities(self._database, run_id, limit)

    async def list_pauses(self) -> list[Pause]:
        """Return the queues and workflows that are paused."""
        return await control.list_pauses(self._database)

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        """Return how an update was answered; see `Store.find_reply`."""
        return await questions.find_reply(self._database, run_id, update_id)

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Follow runs that continued as new; see `Store.newest_runs`."""
        return await questions.newest_runs(self._database, run_ids)

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers signed on, by id."""
        return await questions.list_workers(self._database)

    async def unserved(self) -> list[tuple[str, str, int]]:
        """Count tasks that no worker claims; see `Store.unserved`."""
        return await questions.unserved(self._database)

    # Notification

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic with runs; see `Store.wait_for_end`."""
        return await questions.wait_for_end(self._database, topic, run_ids)

    async def forget_waits(self, topic: str) -> None:
        """Drop every registration of a topic."""
        await self._database.row("forget_waits", topic)

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups; see `Store.notify`."""
        await self._listening.notify(notices)

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call back with each payload sent to a topic; see `Store.listen`."""
        return await self._listening.listen(topic, callback)
