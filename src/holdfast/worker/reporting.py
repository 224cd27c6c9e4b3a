"""Report in batches how attempts ended: those of activities, and those of flows' steps.

A report needs no token: if a call whose answer was lost is repeated, the answer is that the attempt
is `lost`, and the worker forgets the attempt in either case.

Elements of maps are reported in separate calls: such calls of many workers do not wait for each
other. A call may return tasks that became ready by it, leased to this worker: so the next step of a
flow begins without a claim. If the answer is lost, these tasks wait until their leases expire.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from holdfast.codec import describe, encode
from holdfast.errors import LockTimeout, PayloadError
from holdfast.store.port import Store
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import (
    ActivityEnd,
    ActivityOutcome,
    ClaimedTask,
    Notice,
    StepTaskEnd,
    StepTaskOutcome,
    StepTasksEnded,
    Taker,
    count_bearable,
)
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, Lending, repeated

logger = logging.getLogger("holdfast.committer")

_MANY: Final = 40  # so many ends are worth two calls, if the answers bring work
_LOCK_MILLIS: Final = 500  # workers that end steps of one run wait for each other at its rows
_FEW: Final = 10  # a place is kept for each so many ends, to notice if they bring work

E = TypeVar("E", ActivityEnd, StepTaskEnd)
Outcome = TypeVar("Outcome", ActivityOutcome, StepTaskOutcome)

_StepEntry: TypeAlias = tuple[StepTaskEnd, Callable[[StepTaskOutcome], None]]


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
