"""The store itself: each method is one transition or question, under one lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast.store.memory import (
    activities,
    approvals,
    apps,
    claims,
    commits,
    control,
    forks,
    guests,
    presence,
    questions,
    starts,
)
from holdfast.store.memory.clock import Clock, VirtualClock, to_micros
from holdfast.store.memory.tables import NEVER, Tables
from holdfast.store.memory.topics import Listener, Topics
from holdfast.store.port import WORK_TOPIC
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


class MemoryStore:
    """A `Store` in this process's memory.

    Time is virtual unless a `clock` is given: it stands still until `advance` or `advance_to`
    moves it, which wakes the workers that listen. To let an idle system's time pass, advance to
    `next_due_at`.

    Any thread may call it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = VirtualClock() if clock is None else clock
        self._tables = Tables()
        self._topics = Topics()
        self._lock = threading.RLock()

    # Time

    def time(self) -> int:
        """Return engine time, as `now` does, without waiting for it."""
        return self._clock()

    def advance(self, seconds: float) -> None:
        """Move virtual time on, and tell workers."""
        self.advance_to(self._clock() + to_micros(seconds))

    def advance_to(self, at: int) -> None:
        """Move virtual time on to a moment, and tell workers."""
        if not isinstance(self._clock, VirtualClock):
            raise TypeError("this store runs on a clock of its own: move that one")
        with self._lock:
            self._clock.advance_to(at)
            queues = sorted({task.queue for task in self._tables.tasks.values()})
            self._topics.send(Notice(WORK_TOPIC, queue) for queue in queues)

    def next_due_at(self) -> int | None:
        """Return the next moment at which a task or a deadline comes due, None for never."""
        with self._lock:
            now = self._clock()
            tables = self._tables
            free = (t for t in tables.tasks.values() if t.worker is None)
            moments = [task.visible_at for task in free if not tables.is_paused(task)]
            moments += [at for at, _ in tables.deadlines()]
            moments += [at for at, _, _ in tables.activity_deadlines()]
        next_at = min((at for at in moments if at > now), default=NEVER)
        return None if next_at >= NEVER else next_at

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[tuple[Tables, int], None]:
        """Hold the tables at one moment. Others run first, as they would with a real database."""
        await asyncio.sleep(0)
        with self._lock:
            yield self._tables, self._clock()

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Stop calling listeners; what is stored stays readable."""
        with self._lock:
            self._topics.clear()

    async def now(self) -> int:
        """Return engine time."""
        return self.time()

    # Transitions

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `Store.start_runs`."""
        async with self._transaction() as (tables, now):
            return starts.start_runs(tables, now, runs)

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
        async with self._transaction() as (tables, now):
            claim = claims.Claim(
                worker_id=worker_id,
                queues=frozenset(queues),
                handlers=frozenset(handlers),
                limit=limit,
                lease=to_micros(lease_seconds),
                ahead=to_micros(ahead_seconds),
                sticky=to_micros(sticky_seconds),
                rivals=presence.rivals_of(tables, now, worker_id),
                spared=presence.spared_by(tables, now, worker_id, to_micros(lease_seconds)),
                max_attempts=max_attempts,
            )
            return claims.claim_tasks(tables, now, claim)

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        """Read logs; see `Store.read_events`."""
        async with self._transaction() as (tables, _):
            return {run_id: tables.read(run_id, since) for run_id, since in ranges}

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append, then suspend or finish; see `Store.commit`."""
        async with self._transaction() as (tables, now):
            return commits.commit(tables, now, worker_id, token, turns)

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        """Give tasks back; see `Store.release_tasks`."""
        async with self._transaction() as (tables, now):
            return claims.release_tasks(tables, now, worker_id, releases)

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
    ) -> Heartbeat:
        """Renew leases; see `Store.heartbeat`."""
        lease, interval = to_micros(lease_seconds), to_micros(interval_seconds)
        async with self._transaction() as (tables, now):
            return claims.heartbeat(tables, now, info, leases, lease, interval)

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Send signals; see `Store.signal_runs`."""
        async with self._transaction() as (tables, now):
            return guests.signal_runs(tables, now, signals)

    async def cancel_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Ask runs to stop; see `Store.cancel_runs`."""
        async with self._transaction() as (tables, now):
            return guests.cancel_runs(tables, now, run_ids, reason)

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None
    ) -> Delivered:
        """End runs at once; see `Store.terminate_runs`."""
        async with self._transaction() as (tables, now):
            return guests.terminate_runs(tables, now, run_ids, reason)

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Record how attempts of activities ended; see `Store.end_activities`."""
        async with self._transaction() as (tables, now):
            return activities.end_activities(tables, now, worker_id, ends)

    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        """Fail activities past their time; see `Store.time_out_activities`."""
        async with self._transaction() as (tables, now):
            return activities.time_out_activities(tables, now, limit)

    async def pause_runs(self, run_ids: Sequence[UUID], *, reason: str | None = None) -> Delivered:
        """Claim nothing of these runs; see `Store.pause_runs`."""
        async with self._transaction() as (tables, now):
            return control.pause_runs(tables, now, run_ids, reason)

    async def resume_runs(self, run_ids: Sequence[UUID]) -> Delivered:
        """Let paused runs go on; see `Store.resume_runs`."""
        async with self._transaction() as (tables, now):
            return control.resume_runs(tables, now, run_ids)

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Claim nothing of a queue or a workflow, or again; see `Store.set_pause`."""
        async with self._transaction() as (tables, now):
            return control.set_pause(tables, now, scope, name, paused, reason)

    async def decide_approval(self, decision: Decision) -> Decided:
        """Decide an approval; see `Store.decide_approval`."""
        async with self._transaction() as (tables, now):
            return approvals.decide_approval(tables, now, decision)

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log; see `Store.fork_run`."""
        async with self._transaction() as (tables, now):
            return forks.fork_run(tables, now, fork)

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        """End runs past their deadline; see `Store.time_out_runs`."""
        async with self._transaction() as (tables, now):
            return guests.time_out_runs(tables, now, limit)

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = 8.0,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        """Forget workers that are gone; see `Store.reap_workers`."""
        silent = to_micros(silent_seconds)
        async with self._transaction() as (tables, now):
            return presence.reap_workers(tables, now, observer, silent, worker_ids)

    async def remove_worker(self, worker_id: str) -> None:
        """Sign a worker off."""
        async with self._transaction() as (tables, _):
            tables.workers.pop(worker_id, None)

    async def sign_on_app(
        self, app: AppInfo, activities: Sequence[str], *, replaces: str | None = None
    ) -> SignedOn:
        """Note that an app has a worker here; see `Store.sign_on_app`."""
        async with self._transaction() as (tables, now):
            return apps.sign_on_app(tables, now, app, replaces)

    async def adopt_tasks(
        self, app: str, handlers: Sequence[str], queues: Sequence[str], *, limit: int = 1000
    ) -> int:
        """Find nothing: what is here is not older than this program."""
        return 0

    async def adopt_ended(self, app: str, workflows: Sequence[str], *, limit: int = 1000) -> int:
        """Find nothing, like `adopt_tasks`."""
        return 0

    # Questions

    async def apps_with(self, workflow: str) -> list[str]:
        """Return the apps that have ever signed on with a workflow of this name."""
        async with self._transaction() as (tables, _):
            return apps.apps_with(tables, workflow)

    async def list_apps(self) -> list[AppInfo]:
        """Return the apps that have ever signed on, by name."""
        async with self._transaction() as (tables, _):
            return apps.list_apps(tables)

    async def former_names(self) -> frozenset[str]:
        """Return nothing: what is here is not older than this program."""
        return frozenset()

    async def get_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Return the runs that exist."""
        async with self._transaction() as (tables, now):
            return questions.get_runs(tables, now, run_ids)

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs; see `Store.list_runs`."""
        async with self._transaction() as (tables, now):
            return questions.list_runs(tables, now, where)

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        """Return the ids of runs between two, in order."""
        async with self._transaction() as (tables, _):
            return questions.runs_between(tables, first, last, limit)

    async def find_run(self, name: str, key: str) -> UUID | None:
        """Return the id of the run that was started with this key."""
        async with self._transaction() as (tables, _):
            return questions.find_run(tables, name, key)

    async def recent_events(self, *, since: int, limit: int = 1000) -> list[LoggedEvent]:
        """Say what happened across all runs since a moment, oldest first."""
        async with self._transaction() as (tables, _):
            return questions.recent_events(tables, since, limit)

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        """Return the newest value of each name that the runs have set."""
        async with self._transaction() as (tables, _):
            return questions.get_values(tables, run_ids)

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        """Return open approvals, the oldest first."""
        async with self._transaction() as (tables, _):
            return approvals.list_approvals(tables, run_id, limit)

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        """Return a run's activities that have not ended, by key."""
        async with self._transaction() as (tables, _):
            return activities.list_activities(tables, run_id, limit)

    async def list_pauses(self) -> list[Pause]:
        """Return the queues and workflows that are paused."""
        async with self._transaction() as (tables, _):
            return control.list_pauses(tables)

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        """Return how an update was answered; see `Store.find_reply`."""
        async with self._transaction() as (tables, _):
            return questions.find_reply(tables, run_id, update_id)

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Follow runs that continued as new; see `Store.newest_runs`."""
        async with self._transaction() as (tables, _):
            return questions.newest_runs(tables, run_ids)

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers signed on, by id."""
        async with self._transaction() as (tables, _):
            return [info for _, info in sorted(tables.workers.items())]

    async def unserved(self) -> list[tuple[str, str, int]]:
        """Count tasks that no live worker claims; see `Store.unserved`."""
        async with self._transaction() as (tables, _):
            return questions.unserved(tables)

    # Notification

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic with runs; see `Store.wait_for_end`."""
        async with self._transaction() as (tables, now):
            return questions.wait_for_end(tables, now, topic, run_ids)

    async def forget_waits(self, topic: str) -> None:
        """Drop every registration of a topic."""
        async with self._transaction() as (tables, _):
            questions.forget_waits(tables, topic)

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups to the listeners there are."""
        async with self._transaction():
            self._topics.send(notices)

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call back with each payload sent to a topic; returns how to stop."""
        listener = Listener(topic, callback, asyncio.get_running_loop())
        with self._lock:
            self._topics.add(listener)

        async def stop() -> None:
            with self._lock:
                self._topics.remove(listener)

        return stop
