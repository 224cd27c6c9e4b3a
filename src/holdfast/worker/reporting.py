"""Attempts from the claim to the recorded end: those of activities, and those of flows' steps.

A worker holds an attempt, and keeps the lease of its task, until the database has answered to the
report of its end. Ends are reported in batches. A report needs no token: if a call whose answer was
lost is repeated, the answer is that the attempt is `lost`, and the worker forgets the attempt in
either case.

Elements of maps are reported in separate calls: such calls of many workers do not wait for each
other. A call may return tasks that became ready by it, leased to this worker: so the next step of a
flow begins without a claim. If the answer is lost, these tasks wait until their leases expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from msgspec.structs import replace

from holdfast.codec import describe, encode
from holdfast.errors import LockTimeout, PayloadError
from holdfast.store.port import Store
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import (
    ActivityEnd,
    ActivityOutcome,
    ClaimedTask,
    Lease,
    Notice,
    StepTaskEnd,
    StepTaskOutcome,
    StepTasksEnded,
    Taker,
    count_bearable,
)
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, Lending, repeated

logger = logging.getLogger("holdfast.committer")
run_logger = logging.getLogger("holdfast.run")

_MANY: Final = 40  # so many ends are worth two calls, if the answers bring work
_LOCK_MILLIS: Final = 500  # workers that end steps of one run wait for each other at its rows
_FEW: Final = 10  # a place is kept for each so many ends, to notice if they bring work

E = TypeVar("E", ActivityEnd, StepTaskEnd)
Outcome = TypeVar("Outcome", ActivityOutcome, StepTaskOutcome)

_StepEntry: TypeAlias = tuple[StepTaskEnd, Callable[[StepTaskOutcome], None]]
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

    def report(
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
            run_logger.warning("%s %s of run %s: its lease was lost", self._kind, key, run_id)
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
        return [Batcher(self._report, bearable=_count_bearable)]

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


class Reporter(EndReporter[ActivityEnd, ActivityOutcome]):
    """Reports ends of activities."""

    what = "activities"

    async def _send(self, ends: list[ActivityEnd]) -> Sequence[ActivityOutcome]:
        with self._lending(len(ends)), BriefLocks():
            ended = await repeated(
                lambda: self._store.end_activities(self._worker_id, ends),
                self._clock,
                f"reporting {len(ends)} {self.what}",
            )
        if ended.notices:
            self._notify(ended.notices)
        return ended.outcomes

    def _failed(self, end: ActivityEnd, error: str) -> ActivityEnd:
        return replace(end, result=None, error=error, retryable=False, details=None)


class StepReporter(EndReporter[StepTaskEnd, StepTaskOutcome]):
    """Reports ends of tasks of steps, and accepts the tasks that come back.

    `taker` says if the worker accepts so many tasks in return; `take` gets them, in the places of
    the steps that have ended. If the last ends brought no work, only a few places are kept for it,
    and the others are lent.
    """

    what = "task(s) of steps"

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        lending: Lending,
        taker: Callable[[int], Taker | None],
        take: Callable[[Sequence[ClaimedTask]], None],
    ) -> None:
        super().__init__(store, worker_id, clock, notify, lending)
        self._taker, self._take = taker, take
        self._brings_work = False  # the last answer brought tasks

    def _make_batchers(self) -> Sequence[Batcher[_StepEntry]]:
        # Two calls for one map would wait for each other at its counter.
        return [
            Batcher(self._report, bearable=_count_bearable, halves=self._halves),
            Batcher(self._report, bearable=_count_bearable, most_calls=1),
        ]

    def _halves(self, ends: list[_StepEntry]) -> bool:
        """Return True if this process would wait for one call with all of them.

        It waits if the answer brings the next steps. If these ends are those of runs, the next
        tasks come from a claim at the same time, and a second call would only cost the database.
        """
        return self._brings_work and len(ends) >= _MANY

    def _batcher_of(self, end: StepTaskEnd) -> Batcher[_StepEntry]:
        return self._batchers[":" in end.key and end.error is None]

    async def _send(self, ends: list[StepTaskEnd]) -> Sequence[StepTaskOutcome]:
        kept = len(ends) if self._brings_work else -(-len(ends) // _FEW)
        taker, patience = self._taker(kept), itertools.chain((1, 3, 9), itertools.repeat(27))

        def call() -> Awaitable[StepTasksEnded]:
            return self._store.end_step_tasks(self._worker_id, ends, taker, patience=next(patience))

        lent = len(ends) - (0 if taker is None else kept)
        with self._lending(lent), BriefLocks(_LOCK_MILLIS):
            ended = await repeated(call, self._clock, f"reporting {len(ends)} {self.what}")
        if ended.notices:
            self._notify(ended.notices)
        self._brings_work = bool(ended.tasks)
        if ended.tasks:
            self._take(ended.tasks)
        return ended.outcomes

    def _failed(self, end: StepTaskEnd, error: str) -> StepTaskEnd:
        return replace(end, output=None, error=error, retryable=False)


def _count_bearable(entries: Sequence[tuple[ActivityEnd | StepTaskEnd, object]]) -> int:
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
