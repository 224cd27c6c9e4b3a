"""Attempts from the claim to the recorded end: those of activities, and those of flows' steps.

A worker holds an attempt, and keeps the lease of its task, until the database has answered to the
report of its end. Ends are reported in batches. A report needs no token: if a call whose answer was
lost is repeated, the answer is that the attempt is `lost`, and the worker forgets the attempt in
either case.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar
from uuid import UUID

from holdfast.codec import describe, encode
from holdfast.definitions.recorded import AttemptContext
from holdfast.errors import LockTimeout, PayloadError
from holdfast.store.port import Store
from holdfast.types import (
    ActivityEnd,
    ActivityOutcome,
    ClaimedTask,
    Lease,
    Notice,
    Release,
    StepTaskEnd,
    StepTaskOutcome,
    count_bearable,
)
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Execution
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, Lending

logger = get_logger("holdfast.committer")
run_logger = get_logger("holdfast.run")

C = TypeVar("C", bound=AttemptContext)
E = TypeVar("E", ActivityEnd, StepTaskEnd)
Outcome = TypeVar("Outcome", ActivityOutcome, StepTaskOutcome)

TaskId: TypeAlias = "tuple[UUID, str]"  # a run, and the task's key


class TaskExecution(Execution[C]):
    """One attempt at a claimed task."""

    __slots__ = ("task",)

    task: ClaimedTask

    @property
    def lease(self) -> Lease:
        """The task's lease, with heartbeat details that the database does not have yet."""
        return Lease(self.task.run_id, self.task.key, self.task.lease_no, 0)

    @property
    def silent(self) -> bool:
        """True if the attempt has sent no heartbeat for too long. Safe from any thread."""
        return False


A = TypeVar("A", bound=TaskExecution[Any])


class OpenAttempts(ABC, Generic[A]):
    """Execute claimed tasks, and keep their leases until their ends are recorded.

    `kind` is "activity" or the like, for log lines. `room` counts the attempts held here, and
    `release` gives one lease back.
    """

    kind: ClassVar[str]
    again_seconds: ClassVar[float]  # before a task that cannot be begun here is claimed again

    def __init__(self, room: Room, release: Callable[[Release], None], clock: Clock) -> None:
        self._room, self._release, self._clock = room, release, clock
        self._running: dict[TaskId, A] = {}
        self._reporting: dict[TaskId, int] = {}  # lease numbers of those that have ended
        room.count(self._running, self._reporting)
        self._draining = self._grace_ended = False
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

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Execute claimed tasks."""
        for task in tasks:
            if self._draining:
                self._release(Release(task.run_id, task.key, task.lease_no))
            else:
                self._stop_stale(task)
                self._start(task)

    @abstractmethod
    def _start(self, task: ClaimedTask) -> None:
        """Begin an attempt at a task."""

    def _leave(
        self, task: ClaimedTask, reason: str, seconds: float | None = None, *, quotes: bool = False
    ) -> None:
        """Give back a task that this program cannot begin: another may have the key or the code."""
        run_logger.error(
            "%s %s of run %s cannot be begun: %s", self.kind, task.key, task.run_id, reason
        )
        again = self._clock.now() + int((self.again_seconds if seconds is None else seconds) * 1e6)
        self._release(Release(task.run_id, task.key, task.lease_no, again, reason, quotes))

    def _begin(self, attempt: A) -> None:
        """Hold an attempt that begins now."""
        task = attempt.task
        self._running[task.run_id, task.key] = attempt

    def _stop_stale(self, task: ClaimedTask) -> None:
        """Stop an attempt at the same task, if one still runs: its lease ran out."""
        stale = self._running.pop((task.run_id, task.key), None)
        if stale is not None:
            stale.cancel()

    def _end(self, attempt: A) -> bool:
        """Stop holding an attempt; return False if it was not held any more."""
        task_id = (attempt.task.run_id, attempt.task.key)
        if self._running.get(task_id) is not attempt:
            return False
        del self._running[task_id]
        return True

    def _report_end(
        self, reporter: EndReporter[E, Outcome], end: E, answer: Callable[[Outcome], None]
    ) -> None:
        """Report an end, and keep its lease until `answer` was called with the outcome."""
        self._reporting[end.run_id, end.key] = end.lease_no
        reporter.submit(end, partial(self._answered, end, answer))

    def _answered(self, end: E, answer: Callable[[Outcome], None], outcome: Outcome) -> None:
        answer(outcome)
        if self._reporting.get((end.run_id, end.key)) == end.lease_no:
            del self._reporting[end.run_id, end.key]
        self._left()

    def _left(self) -> None:
        self._changed.set()
        self._room.freed()

    # Questions and messages from other parts

    def _find(self, run_id: UUID, key: str) -> A | None:
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
            run_logger.warning(
                "%s %s of run %s is stopped: its lease was lost, or its run no longer waits for it",
                self.kind,
                key,
                run_id,
            )
            self._drop(attempt)

    def _drop(self, attempt: A) -> None:
        """Stop an attempt that is held; its end is not reported."""
        if self._end(attempt):
            attempt.cancel()
            self._left()

    # Draining

    async def _stop_all(self, grace_seconds: float) -> list[Lease]:
        """Let attempts end within the grace period; stop the others, and return their leases."""
        self._draining = True
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


class EndReporter(ABC, Generic[E, Outcome]):
    """Send ends in batches, and give each its answer.

    In place of an end that the database refuses, a failure is reported. `what` the ends are of is
    said in the log. Meanwhile `lending` lets others have the places of what has ended.
    """

    what: ClassVar[str]

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        lending: Lending,
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._lending = lending
        self._batchers: Sequence[Batcher[tuple[E, Callable[[Outcome], None]]]]
        self._batchers = self._make_batchers()

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return all(batcher.idle for batcher in self._batchers)

    def submit(self, end: E, answer: Callable[[Outcome], None]) -> None:
        """Report an end; `answer` is called with its outcome."""
        self._batcher_of(end).add((end, answer))

    async def flush(self) -> None:
        """Wait until every end has its answer."""
        while not self.idle:
            for batcher in self._batchers:
                await batcher.flush()

    async def stop(self) -> None:
        """Cancel the calls in flight; an end that was not recorded leads to another attempt."""
        for batcher in self._batchers:
            await batcher.stop()

    @abstractmethod
    async def _send(self, ends: list[E]) -> Sequence[Outcome]:
        """Report ends; return their outcomes."""

    @abstractmethod
    def _failed(self, end: E, error: str) -> E:
        """Return the end as a final failure with an encoded error."""

    def _make_batchers(self) -> Sequence[Batcher[tuple[E, Callable[[Outcome], None]]]]:
        return [Batcher(self._report, bearable=count_bearable_ends)]

    def _batcher_of(self, end: E) -> Batcher[tuple[E, Callable[[Outcome], None]]]:
        return self._batchers[0]

    async def _report(self, entries: list[tuple[E, Callable[[Outcome], None]]]) -> None:
        try:
            outcomes = await self._send([end for end, _ in entries])
        except PayloadError as error:
            await self._report_apart(entries, error)
            return
        except LockTimeout:
            middle = len(entries) // 2
            for part in filter(None, (entries[:middle], entries[middle:])):
                self._batcher_of(part[0][0]).send_apart(part)
            return
        except Exception:
            # It is not known what is recorded now: forget these attempts; their leases expire.
            logger.exception("reporting %d %s failed; they run again", len(entries), self.what)
            for _, answer in entries:
                answer("lost")  # pyright: ignore[reportArgumentType]
            return
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome == "busy":
                self._batchers[0].add_later(entry)
            else:
                entry[1](outcome)

    async def _report_apart(
        self, entries: list[tuple[E, Callable[[Outcome], None]]], error: PayloadError
    ) -> None:
        """Report each end alone; in place of one that the database refuses, report a failure."""
        if len(entries) > 1:
            for entry in entries:
                await self._report([entry])
            return
        end, answer = entries[0]
        failed = self._failed(end, encode(describe(error)))
        if failed == end:
            logger.error("an end of %s of run %s is not taken: %s", self.what, end.run_id, error)
            answer("lost")  # pyright: ignore[reportArgumentType]
        else:
            await self._report([(failed, answer)])


def count_bearable_ends(entries: Sequence[tuple[ActivityEnd | StepTaskEnd, object]]) -> int:
    """Return how many of the first ends one call takes."""
    return count_bearable(_weigh(end) for end, _ in entries)


def _weigh(end: ActivityEnd | StepTaskEnd) -> int:
    """Return the length of the values of an end, as text."""
    texts = (
        (end.result, end.error, end.details)
        if isinstance(end, ActivityEnd)
        else (end.output, end.error)
    )
    return sum(len(text) for text in texts if text is not None)
