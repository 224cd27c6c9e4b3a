"""A run that is driven by hand, for tests of the workers that execute its activities."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import msgspec

from holdfast import App
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import (
    ActivityEnd,
    ErrorInfo,
    Event,
    Heartbeat,
    Lease,
    NewRun,
    Refusal,
    TurnCommit,
    WorkerInfo,
)
from holdfast.worker import Worker, WorkerOptions

PATIENCE_SECONDS = 120.0
ENDS = ("ActivityCompleted", "ActivityFailed")


async def eventually(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Return once something holds; fail where it does not in time.

    It looks less and less often: to ask `why` each millisecond takes a whole processor.
    """
    pause = 0.001
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (answer if isinstance(answer := holds(), bool) else await answer):
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)


class Desk:
    """A run of the workflow `desk` that orders activities and reads what came of them."""

    def __init__(self, store: Store, app: str) -> None:
        self.store, self.app, self.run_id = store, app, uuid4()
        self._lease_no = 0

    async def open(self) -> Desk:
        """Start the run, and hold its turn for good."""
        await self.store.start_runs([NewRun(run_id=self.run_id, name="desk", queue="desk")])
        claims = await self.store.claim_tasks(
            f"desk-{self.run_id}", ["desk"], ["desk@1"], 1, lease_seconds=1e6
        )
        [task] = claims.tasks
        self._lease_no = task.lease_no
        return self

    async def order(self, key: str, *args: object, **options: Any) -> None:
        """Schedule the activity of this name, or of the name `activity`."""
        attempts = options.pop("attempts", 1)
        retry = {"attempts": attempts, "backoff": "fixed", "base": 0.001, "max": 1.0}
        details = {
            "activity_name": f"{self.app}/{options.pop('activity', key)}",
            "args": 0,
            "input": args,
            "queue": "default",
            "retry": {**retry, "factor": 2.0, "jitter": 0.0},
            "start_to_close": None,
            "schedule_to_close": None,
            "heartbeat_timeout": None,
            **options,
        }
        await self._commit(Event("ActivityScheduled", key, json.dumps(details), 0))

    async def cancel(self, key: str) -> None:
        """Ask for an activity to stop."""
        await self._commit(Event("ActivityCancelRequested", key, None, 0))

    async def _commit(self, event: Event) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (refusal := await self._try_to_commit(event)) is not None:
                # An end that an activity's worker wrote meanwhile; a lost lease is not mended.
                assert refusal.reason in ("conflict", "busy"), refusal

    async def _try_to_commit(self, event: Event) -> Refusal | None:
        """Append an event where the log ends; return why the store refused it, if it did."""
        length = len(await self.log())
        part = TurnCommit(self.run_id, self._lease_no, length, [event], has_commands=True)
        committed = await self.store.commit(f"desk-{self.run_id}", uuid4(), [part])
        await self.store.notify(committed.notices)
        return committed.refused.get(self.run_id)

    async def log(self) -> list[Event]:
        """Return the run's events."""
        return (await self.store.read_events([(self.run_id, 0)]))[self.run_id]

    async def types(self, key: str) -> list[str]:
        """Return the types of the events that concern an activity, WorkerLost included."""
        return [event.type for event in await self.log() if key in (event.key, _lost(event))]

    async def end(self, key: str) -> dict[str, Any]:
        """Wait for an activity's end; return its details, with its `type`."""
        ends: list[Event] = []

        async def ended() -> bool:
            ends[:] = [e for e in await self.log() if e.key == key and e.type in ENDS]
            return bool(ends)

        await eventually(ended)
        [end] = ends
        return {"type": end.type, **json.loads(end.details or "{}")}

    async def result(self, key: str) -> Any:
        """Wait for an activity's result."""
        end = await self.end(key)
        assert end["type"] == "ActivityCompleted", end
        return end["result"]

    async def failure(self, key: str) -> tuple[ErrorInfo, bool]:
        """Wait for an activity's failure; return its error, and whether it timed out."""
        end = await self.end(key)
        assert end["type"] == "ActivityFailed", end
        return msgspec.convert(end["error"], ErrorInfo), end["timed_out"]

    async def complete(self, token: str, result: str) -> list[str]:
        """Complete an attempt from outside; return what became of it."""
        run_id, lease_no, key = token.split(":", 2)
        end = ActivityEnd(run_id=UUID(run_id), key=key, lease_no=int(lease_no), result=result)
        ended = await self.store.end_activities(None, [end])
        return list(ended.outcomes)


def _lost(event: Event) -> str | None:
    """Return whose worker was lost."""
    if event.type != "WorkerLost":
        return None
    key: str | None = json.loads(event.details or "{}").get("task_key")
    return key


@asynccontextmanager
async def working(
    app: App, store: Store, *, grace: float = 0, **options: Any
) -> AsyncGenerator[Worker]:
    """Run a worker while the block lasts; it has no heartbeat of its own."""
    options = {"poll_seconds": 0.02, "maintenance_seconds": 1e6, **options}
    worker = Worker(app, store, WorkerOptions(**options))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace)


class CountedBeats(MemoryStore):
    """Lets a thread wait for heartbeats that began after it asked."""

    def __init__(self) -> None:
        super().__init__()
        self._beats = threading.Semaphore(0)

    async def heartbeat(
        self, info: WorkerInfo, leases: Sequence[Lease], **options: float
    ) -> Heartbeat:
        answer = await super().heartbeat(info, leases, **options)
        self._beats.release()
        return answer

    def await_renewal(self) -> None:
        while self._beats.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before
            assert self._beats.acquire(timeout=60)


class Nobody:
    """Holds no lease."""

    def leases(self) -> list[Lease]:
        return []

    def knows(self, *_: object) -> bool:
        return False

    def renewed(self, leases: Sequence[Lease]) -> None: ...
    def lose(self, *_: object) -> None: ...
    def unread(self, *_: object) -> None: ...
    def request_cancel(self, *_: object) -> None: ...


def info() -> WorkerInfo:
    return WorkerInfo(
        worker_id="ann",
        hostname="here",
        pid=1,
        queues=("default",),
        handlers=("desk@1",),
        concurrency=1,
        holdfast_version="0",
    )
