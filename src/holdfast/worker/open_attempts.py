"""The attempts of one kind that a worker holds: those that run, and those whose ends it reports.

The lease of a task is kept until its end is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from holdfast.types import ClaimedTask, Lease
from holdfast.worker.claimer import Room

logger = logging.getLogger("holdfast.run")

TaskId: TypeAlias = "tuple[UUID, str]"  # a run, and the task's key


class OpenAttempt(Protocol):
    """An attempt at a task."""

    @property
    def task(self) -> ClaimedTask:
        """The claimed task."""
        ...

    @property
    def lease(self) -> Lease:
        """The task's lease, with heartbeat details that the database does not have yet."""
        ...

    @property
    def silent(self) -> bool:
        """True if the attempt has sent no heartbeat for too long. Safe from any thread."""
        ...

    def cancel(self) -> object:
        """Ask it to stop, and report nothing."""
        ...


A = TypeVar("A", bound=OpenAttempt)


class OpenAttempts(Generic[A]):
    """Hold attempts from the claim until the database has answered to the report of the end.

    `kind` is "activity" or the like, for log lines. `room` counts the attempts held.
    """

    def __init__(self, kind: str, room: Room) -> None:
        self._kind, self._room = kind, room
        self._running: dict[TaskId, A] = {}
        self._reporting: dict[TaskId, int] = {}  # lease numbers of those that have ended
        room.count(self._running, self._reporting)
        self.draining = self._grace_ended = False
        self._changed = asyncio.Event()  # an attempt has left, or the grace period is over

    @property
    def executing(self) -> bool:
        """True if an attempt runs."""
        return bool(self._running)

    @property
    def busy(self) -> bool:
        """True if an attempt runs, or an end is being reported."""
        return bool(self._running or self._reporting)

    # From the claim to the answer

    def begin(self, attempt: A) -> None:
        """Hold an attempt that begins now."""
        task = attempt.task
        self._running[task.run_id, task.key] = attempt

    def stop_stale(self, task: ClaimedTask) -> None:
        """Stop an attempt at the same task, if one still runs: its lease ran out."""
        stale = self._running.pop((task.run_id, task.key), None)
        if stale is not None:
            stale.cancel()

    def end(self, attempt: A) -> bool:
        """Stop holding an attempt; return False if it was not held any more."""
        task_id = (attempt.task.run_id, attempt.task.key)
        if self._running.get(task_id) is not attempt:
            return False
        del self._running[task_id]
        return True

    def keep_lease(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Keep a lease until the end of its attempt is reported."""
        self._reporting[run_id, key] = lease_no

    def forget_lease(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Forget a lease: the database has answered to the report."""
        if self._reporting.get((run_id, key)) == lease_no:
            del self._reporting[run_id, key]
        self._left()

    def _left(self) -> None:
        self._changed.set()
        self._room.freed()

    # Questions and messages from other parts

    def find(self, run_id: UUID, key: str) -> A | None:
        """Return the attempt at a task that runs here. Safe from any thread."""
        return self._running.get((run_id, key))

    def knows(self, run_id: UUID, key: str) -> bool:
        """Return True if an attempt at a task runs, or its end is reported. For any thread."""
        return (run_id, key) in self._running or (run_id, key) in self._reporting

    def leases(self) -> list[Lease]:
        """Return the leases held now, without those of attempts that are silent for too long.

        Safe from any thread.
        """
        running = list(self._running.values())
        leases = [attempt.lease for attempt in running if not attempt.silent]
        ending = list(self._reporting.items())
        return leases + [Lease(run_id, key, number, 0) for (run_id, key), number in ending]

    def lose(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Stop an attempt whose lease was lost; its end is not reported."""
        attempt = self._running.get((run_id, key))
        if attempt is not None and attempt.task.lease_no == lease_no:
            logger.warning("%s %s of run %s: its lease was lost", self._kind, key, run_id)
            self.drop(attempt)

    def drop(self, attempt: A) -> None:
        """Stop an attempt that is held; its end is not reported."""
        if self.end(attempt):
            attempt.cancel()
            self._left()

    # Draining

    async def drain(self, grace_seconds: float) -> list[Lease]:
        """Let attempts end within the grace period; stop the others, and return their leases."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while self._running and not self._grace_ended:
                    self._changed.clear()
                    await self._changed.wait()
        left = list(self._running.values())
        self._running.clear()
        leases = [attempt.lease for attempt in left]
        for attempt in left:
            attempt.cancel()
        return leases

    def end_grace(self) -> None:
        """End the grace period now."""
        self._grace_ended = True
        self._changed.set()
