"""Report in batches how attempts ended: those of activities here, those of flows' steps elsewhere.

A report needs no token: if a call whose answer was lost is repeated, the answer is that the attempt
is `lost`, and the worker forgets the attempt in either case.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from msgspec.structs import replace

from holdfast.codec import describe, encode
from holdfast.errors import LockTimeout, PayloadError
from holdfast.store.port import Store
from holdfast.store.port.locks import BriefLocks
from holdfast.types import ActivityEnd, ActivityOutcome, Notice, StepTaskEnd, StepTaskOutcome
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, Lending, repeated

logger = logging.getLogger("holdfast.committer")

E = TypeVar("E", ActivityEnd, StepTaskEnd)
Outcome = TypeVar("Outcome", ActivityOutcome, StepTaskOutcome)


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
        return [Batcher(self._report, weight=weigh)]

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


def weigh(entry: tuple[ActivityEnd | StepTaskEnd, object]) -> int:
    """Return the length of the values of an end, as text."""
    end = entry[0]
    texts = (
        (end.result, end.error, end.details)
        if isinstance(end, ActivityEnd)
        else (end.output, end.error)
    )
    return sum(len(text) for text in texts if text is not None)
