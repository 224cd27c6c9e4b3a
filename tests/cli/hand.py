"""A worker that does what a test says, on the database of a command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID, uuid4

from holdfast.events import COMMANDS
from holdfast.store.postgres import PostgresStore
from holdfast.types import (
    ANY_END,
    JSON,
    ActivityEnd,
    AppInfo,
    ClaimedTask,
    Event,
    Finish,
    Lease,
    Release,
    Suspend,
    TurnCommit,
    WorkerInfo,
)
from holdfast.values.ids import uuid7
from tests.cli.sample import app

T = TypeVar("T")

NAME = "hand"
Entry = tuple[str, str | None, JSON]


def full(name: str) -> str:
    """Return a name with its app, by default that of the tests."""
    return name if "/" in name else f"{app.name}/{name}"


def activity(
    name: str,
    queue: str = "default",
    base_seconds: float = 0.0,
    start_to_close: float | None = None,
) -> Entry:
    """An order for an activity whose key is its name, tried again after so many seconds."""
    policy: JSON = {"attempts": 3, "backoff": "fixed", "base": base_seconds, "max": 1e6}
    policy |= {"factor": 2.0, "jitter": 0.0}
    details: JSON = {
        "activity_name": full(name),
        "args": 1,
        "input": [],
        "queue": queue,
        "retry": policy,
        "start_to_close": start_to_close,
        "schedule_to_close": None,
        "heartbeat_timeout": None,
    }
    return "ActivityScheduled", name, details


def child(workflow: str, run_id: UUID, key: str | None = None) -> Entry:
    """An order for a child run; its key is its workflow's name unless one is given."""
    details: JSON = {
        "workflow_name": full(workflow),
        "version": 1,
        "args": 1,
        "child_run_id": str(run_id),
        "input": None,
        "queue": "default",
        "priority": 2,
        "key": None,
        "parent_close": "cancel",
        "timeout": None,
        "retention": None,
        "tags": [],
    }
    return "ChildStarted", key or workflow, details


def approval(key: str, title: str, *fields: JSON) -> Entry:
    """A request for an approval."""
    details: JSON = {"title": title, "description": "", "fields": list(fields), "timeout_at": None}
    return "ApprovalRequested", key, details


def _info(queues: Sequence[str], handlers: Sequence[str]) -> WorkerInfo:
    return WorkerInfo(
        worker_id=NAME,
        hostname="here",
        pid=1,
        queues=tuple(queues),
        handlers=tuple(map(full, handlers)),
        concurrency=10,
        holdfast_version="0",
    )


class Hand:
    """Claims what is due, and appends to a run's log what the test wants there."""

    def __init__(self, url: str) -> None:
        self.url = url

    def known(self, name: str = app.name) -> None:
        """Have an app like that of the tests known, as one that had a worker once."""
        names = tuple(sorted({name for name, _ in app.workflows}))

        async def work(store: PostgresStore) -> None:
            await store.sign_on_app(AppInfo(app=name, workflows=names))

        self._with_store(work)

    def sign_on(self, handlers: Sequence[str], queues: Sequence[str] = ("default",)) -> None:
        """Appear among the workers, as one of these handlers and queues."""

        async def work(store: PostgresStore) -> None:
            await store.heartbeat(_info(queues, handlers), [], lease_seconds=60)

        self._with_store(work)

    def turn(self, run: str, *entries: Entry, then: Suspend | Finish | None = None) -> None:
        """Claim a run and commit these events; it then awaits ends, unless told otherwise."""

        async def work(store: PostgresStore) -> None:
            (task,) = [task for task in await self._claim(store) if str(task.run_id) == run]
            now = await store.now()
            events = [Event(type, key, json.dumps(details), now) for type, key, details in entries]
            after = then or Suspend(awaiting=(ANY_END,))
            has_commands = any(type in COMMANDS for type, _, _ in entries)
            turn = TurnCommit(
                task.run_id,
                task.lease_no,
                task.log_length,
                events,
                after,
                has_commands=has_commands,
            )
            committed = await store.commit(NAME, uuid4(), [turn])
            assert not committed.refused, committed.refused

        self._with_store(work)

    def get_stuck(self, run: str, why: str) -> None:
        """Claim a run and give it back as one that cannot continue."""

        async def work(store: PostgresStore) -> None:
            (task,) = [task for task in await self._claim(store) if str(task.run_id) == run]
            await store.release_tasks(
                NAME, [Release(task.run_id, task.key, task.lease_no, stuck=why)]
            )

        self._with_store(work)

    def continue_as_new(self, run: str) -> str:
        """End a run that continues as new, and return the id of the next run."""
        run_id = str(uuid7())
        details: JSON = {"run_id": run_id, "input": None, "version": 1, "signals": []}
        finish = Finish("continued", output=json.dumps({"run_id": run_id}))
        self.turn(run, ("WorkflowContinuedAsNew", None, details), then=finish)
        return run_id

    def fail(self, run: str) -> None:
        """End a run with an error."""
        error: JSON = {"kind": "builtins.ValueError", "message": "broken"}
        finish = Finish("failed", error=json.dumps(error))
        self.turn(run, ("WorkflowFailed", None, error), then=finish)

    def lease_activity(self, name: str, queue: str = "default") -> str:
        """Take an activity, and return its token."""

        async def work(store: PostgresStore) -> str:
            claims = await store.claim_tasks(
                NAME, [queue], [f"{full(name)}@0"], 1, lease_seconds=60
            )
            (task,) = claims.tasks
            return f"{task.run_id}:{task.lease_no}:{task.key}"

        return self._with_store(work)

    def fail_attempt(self, token: str) -> None:
        """End an attempt with an error, as its worker would."""

        async def work(store: PostgresStore) -> None:
            run_id, lease_no, key = token.split(":", 2)
            error = '{"kind":"builtins.ValueError","message":"no luck"}'
            end = ActivityEnd(run_id=UUID(run_id), key=key, lease_no=int(lease_no), error=error)
            await store.end_activities(NAME, [end])

        self._with_store(work)

    def hold(self, token: str, why: str) -> None:
        """Give an activity back as one that cannot be begun."""

        async def work(store: PostgresStore) -> None:
            run_id, lease_no, key = token.split(":", 2)
            later = await store.now() + 30_000_000
            await store.release_tasks(NAME, [Release(UUID(run_id), key, int(lease_no), later, why)])

        self._with_store(work)

    def defer(self, token: str) -> None:
        """Leave an activity to be completed from outside."""

        async def work(store: PostgresStore) -> None:
            run_id, lease_no, key = token.split(":", 2)
            end = ActivityEnd(run_id=UUID(run_id), key=key, lease_no=int(lease_no))
            await store.end_activities(NAME, [end])

        self._with_store(work)

    def say(self, token: str, details: str) -> None:
        """Send a heartbeat of an attempt."""

        async def work(store: PostgresStore) -> None:
            run_id, lease_no, key = token.split(":", 2)
            lease = Lease(UUID(run_id), key, int(lease_no), 0, details)
            await store.heartbeat(_info((), ()), [lease], lease_seconds=60)

        self._with_store(work)

    async def _claim(self, store: PostgresStore) -> list[ClaimedTask]:
        handlers = [full(each) for each in ("double@1", "pack@1", "sleep_long@1")]
        return (await store.claim_tasks(NAME, ["default"], handlers, 100, lease_seconds=60)).tasks

    def _with_store(self, work: Callable[[PostgresStore], Awaitable[T]]) -> T:
        async def connected() -> T:
            store = PostgresStore(self.url)
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(connected())
