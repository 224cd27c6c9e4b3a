"""Who acts in the contract's tests: callers that start and read, workers moved by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from clocks import Clock

from holdfast.events import COMMANDS
from holdfast.store.port import STARTS_TOPIC, WORK_TOPIC, Store, end_payload
from holdfast.store.redis import RedisHintedStore
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    ClaimedTask,
    Claims,
    Committed,
    Event,
    Finish,
    Heartbeat,
    Lease,
    NewRun,
    NewSignal,
    Notice,
    Refusal,
    Release,
    RunRecord,
    Suspend,
    TurnCommit,
    WorkerInfo,
)

SECOND = 1_000_000
ORDER = ("order@1",)


def start_notice(store: Store, queue: str = "default") -> Notice:
    """Return what tells of a start: with Redis it is a hint."""
    return Notice(STARTS_TOPIC if isinstance(store, RedisHintedStore) else WORK_TOPIC, queue)


def step(key: str = "charge", *, result: object = 1, at: int = 0) -> Event:
    """Return the end of a step, as a worker would record it."""
    details = {"name": key, "args": 0, "result": result, "started_at": at}
    return Event("StepCompleted", key, json.dumps(details), at)


def new_run(**fields: Any) -> NewRun:
    """Return a run of the workflow `order` to start."""
    return NewRun(**{"run_id": uuid4(), "name": "order", **fields})


async def start(store: Store, **fields: Any) -> UUID:
    """Start a run and return its id."""
    run = new_run(**fields)
    [started], _ = await store.start_runs([run])
    assert started.created
    return run.run_id


async def get(store: Store, run_id: UUID) -> RunRecord:
    """Return a run that must exist."""
    return (await store.get_runs([run_id]))[run_id]


async def log(store: Store, run_id: UUID, since: int = 0) -> list[Event]:
    """Return a run's events."""
    return (await store.read_events([(run_id, since)]))[run_id]


async def log_types(store: Store, run_id: UUID) -> list[str]:
    """Return the types of a run's events."""
    return [event.type for event in await log(store, run_id)]


async def signal(
    store: Store,
    run_id: UUID,
    name: str = "packed",
    *,
    payload: str = "null",
    signal_id: str | None = None,
) -> tuple[str, list[Notice]]:
    """Send one signal; return what became of it, and the wake-ups."""
    delivered = await store.signal_runs([NewSignal(run_id, name, payload, signal_id)])
    [outcome] = delivered.outcomes
    return outcome, delivered.notices


def details(event: Event) -> Any:
    """Return an event's details, decoded."""
    return json.loads(event.details or "null")


def told(topic: str, run_id: UUID, output: str | None = "null") -> Notice:
    """Return what a topic hears of a run that completed; None for an output too large to tell."""
    return Notice(topic, end_payload(run_id, "completed", output))


@dataclass
class ManualWorker:
    """A worker that claims and commits when the test says so."""

    store: Store
    worker_id: str
    last_token: UUID | None = None  # of the last commit of several runs

    async def claim(
        self,
        limit: int = 100,
        *,
        queues: Sequence[str] = ("default",),
        handlers: Sequence[str] = ORDER,
        lease_seconds: float = 30.0,
        **options: Any,
    ) -> Claims:
        """Claim what is due."""
        return await self.store.claim_tasks(
            self.worker_id, queues, handlers, limit, lease_seconds=lease_seconds, **options
        )

    async def claims(self, **options: Any) -> list[UUID]:
        """Claim what is due; return the runs' ids in the order of the claim."""
        return [task.run_id for task in (await self.claim(**options)).tasks]

    async def take(self, **options: Any) -> ClaimedTask:
        """Claim the one task that is due."""
        [task] = (await self.claim(**options)).tasks
        return task

    async def first(self, **options: Any) -> ClaimedTask:
        """Claim only the first task that is due."""
        [task] = (await self.claim(1, **options)).tasks
        return task

    async def commit(
        self,
        task: ClaimedTask,
        *events: Event,
        then: Suspend | Finish | None = None,
        expected: int | None = None,
        token: UUID | None = None,
        touches: tuple[UUID, ...] = (),
        has_children: bool = False,
    ) -> Committed:
        """Commit a turn, by default right behind the claim's log."""
        turn = TurnCommit(
            run_id=task.run_id,
            lease_no=task.lease_no,
            expected=task.log_length if expected is None else expected,
            events=events or (step(),),
            then=then,
            has_commands=any(event.type in COMMANDS for event in events),
            touches=touches if task.parent_run_id is None else (*touches, task.parent_run_id),
            has_children=has_children,
        )
        return await self.store.commit(self.worker_id, token or uuid4(), [turn])

    async def commit_together(
        self,
        *parts: tuple[ClaimedTask, Sequence[Event], Suspend | Finish | None],
        token: UUID | None = None,
    ) -> Committed:
        """Commit the next turns of several runs in one call."""
        self.last_token = token or uuid4()
        logs = await self.store.read_events([(task.run_id, 0) for task, _, _ in parts])
        turns = [
            TurnCommit(
                run_id=task.run_id,
                lease_no=task.lease_no,
                expected=len(logs[task.run_id]) if token is None else task.log_length,
                events=events,
                then=then,
                has_commands=any(event.type in COMMANDS for event in events),
                touches=() if task.parent_run_id is None else (task.parent_run_id,),
            )
            for task, events, then in parts
        ]
        return await self.store.commit(self.worker_id, self.last_token, turns)

    async def refusal(self, task: ClaimedTask, *events: Event, **options: Any) -> Refusal:
        """Commit a turn that must be refused."""
        return (await self.commit(task, *events, **options)).refused[task.run_id]

    async def suspend(
        self,
        task: ClaimedTask,
        *,
        until: int | None = None,
        awaiting: tuple[str, ...] = (),
        expected: int | None = None,
    ) -> None:
        """Commit a suspend that must succeed."""
        event = Event("WorkflowTaskYielded", None, None, 0)
        await self._succeed(task, event, then=Suspend(until, awaiting), expected=expected)

    async def finish(self, task: ClaimedTask, output: str = "null", **options: Any) -> Committed:
        """Commit a completion that must succeed."""
        event = Event("WorkflowCompleted", None, None, 0)
        then = Finish("completed", output=output)
        return await self._succeed(task, event, then=then, **options)

    async def finish_with(self, task: ClaimedTask, *orders: Event) -> Committed:
        """Commit orders and a completion that must succeed."""
        event = Event("WorkflowCompleted", None, None, 0)
        then = Finish("completed", output="null")
        return await self._succeed(task, *orders, event, then=then, has_children=True)

    async def command(
        self,
        task: ClaimedTask,
        *orders: Event,
        awaiting: tuple[str, ...] | None = None,
        **more: Any,
    ) -> Committed:
        """Commit orders that must succeed, and suspend if the run awaits something."""
        then = None if awaiting is None else Suspend(awaiting=awaiting)
        return await self._succeed(task, *orders, then=then, **more)

    async def _succeed(self, task: ClaimedTask, *events: Event, **options: Any) -> Committed:
        """Commit a turn that must succeed.

        As a worker does, commit again what met the lock of another transaction for 50 ms.
        """
        token = uuid4()
        while True:
            answer = await self.commit(task, *events, **{"token": token, **options})
            if all(refusal.reason != "busy" for refusal in answer.refused.values()):
                break
        assert not answer.refused, answer.refused
        return answer

    async def end(self, task: ClaimedTask, **fields: Any) -> ActivitiesEnded:
        """End an attempt of an activity."""
        ended = ActivityEnd(
            **{"run_id": task.run_id, "key": task.key, "lease_no": task.lease_no, **fields}
        )
        return await self.store.end_activities(self.worker_id, [ended])

    async def release(self, task: ClaimedTask, **fields: Any) -> list[Notice]:
        """Give a task back."""
        release = Release(task.run_id, task.key, task.lease_no, **fields)
        return await self.store.release_tasks(self.worker_id, [release])

    def info(self, **fields: Any) -> WorkerInfo:
        """Describe this worker."""
        described = WorkerInfo(
            worker_id=self.worker_id,
            hostname="host",
            pid=1,
            queues=("default",),
            handlers=ORDER,
            concurrency=10,
            holdfast_version="0",
        )
        return WorkerInfo(
            **{**{f: getattr(described, f) for f in described.__struct_fields__}, **fields}
        )

    async def beat(self, *leases: Lease, lease_seconds: float = 30.0, **fields: Any) -> Heartbeat:
        """Send a heartbeat."""
        return await self.store.heartbeat(self.info(**fields), leases, lease_seconds=lease_seconds)


async def lose(clock: Clock, worker: ManualWorker) -> ClaimedTask:
    """Claim the one task, and let its lease run out."""
    task = await worker.take(lease_seconds=10)
    await clock.advance(10)
    return task


def lease_of(task: ClaimedTask, known: int | None = None) -> Lease:
    """Return the lease that a claim gave."""
    return Lease(task.run_id, task.key, task.lease_no, task.log_length if known is None else known)
