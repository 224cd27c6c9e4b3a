"""Report in batches how attempts at tasks of flows' steps ended.

Elements of maps are reported in separate calls: such calls of many workers do not wait for each
other. A call may return tasks that became ready by it, leased to this worker: so the next step of a
flow begins without a claim. If the answer is lost, these tasks wait until their leases expire.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from holdfast.codec import describe, encode
from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import (
    ClaimedTask,
    Notice,
    StepTaskEnd,
    StepTaskOutcome,
    StepTasksEnded,
    Taker,
)
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, repeated

logger = logging.getLogger("holdfast.committer")

_MANY: Final = (
    80  # so many ends are worth two calls; with fewer, what a call costs at least prevails
)

Answer: TypeAlias = Callable[[StepTaskOutcome], None]
_End: TypeAlias = tuple[StepTaskEnd, Answer]


class StepReporter:
    """Send ends in batches, give each its answer, and accept the tasks that come back.

    `taker` says how many tasks the worker accepts in return for this many ends; `take` gets them.
    """

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        taker: Callable[[int], Taker | None],
        take: Callable[[Sequence[ClaimedTask]], None],
    ) -> None:
        self._store, self._worker_id, self._clock = store, worker_id, clock
        self._notify, self._taker, self._take = notify, taker, take
        self._steps = Batcher[_End](
            self._report,
            weight=lambda entry: _weight(entry[0]),
            halves=lambda entries: len(entries) >= _MANY,
        )
        # Two calls for one map would wait for each other at its counter.
        self._elements = Batcher[_End](
            self._report, weight=lambda entry: _weight(entry[0]), most_calls=1
        )

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return self._steps.idle and self._elements.idle

    def submit(self, end: StepTaskEnd, answer: Answer) -> None:
        """Report an end; `answer` is called with its outcome."""
        is_result_of_element = ":" in end.key and end.error is None
        (self._elements if is_result_of_element else self._steps).add((end, answer))

    async def flush(self) -> None:
        """Wait until every end has its answer."""
        while not self.idle:
            await self._steps.flush()
            await self._elements.flush()

    async def stop(self) -> None:
        """Cancel the calls in flight; an end that was not recorded leads to another attempt."""
        await self._steps.stop()
        await self._elements.stop()

    async def _report(self, entries: list[_End]) -> None:
        try:
            ended = await self._send([end for end, _ in entries])
        except PayloadError as error:
            await self._report_apart(entries, error)
            return
        except Exception:
            # It is not known what is recorded now: forget these tasks; their leases expire.
            logger.exception("reporting %d task(s) of steps failed; they run again", len(entries))
            for _, answer in entries:
                answer("lost")
            return
        if ended.tasks:
            self._take(ended.tasks)
        for entry, outcome in zip(entries, ended.outcomes, strict=True):
            if outcome == "busy":
                self._steps.add_later(entry)
            else:
                entry[1](outcome)

    async def _report_apart(self, entries: list[_End], error: PayloadError) -> None:
        """Report each end alone; in place of one that the database refuses, report a failure."""
        if len(entries) > 1:
            for entry in entries:
                await self._report([entry])
            return
        end, answer = entries[0]
        if end.error is None:
            info = encode(describe(error))
            failed = msgspec.structs.replace(end, output=None, error=info, retryable=False)
            await self._report([(failed, answer)])
        else:
            logger.error("a step of run %s cannot be reported: %s", end.run_id, error)
            answer("lost")

    async def _send(self, ends: list[StepTaskEnd]) -> StepTasksEnded:
        """Report; repeat a call whose answer is lost until there is one."""
        taker, patience = self._taker(len(ends)), itertools.chain((1, 3, 9), itertools.repeat(27))

        def call() -> Awaitable[StepTasksEnded]:
            return self._store.end_step_tasks(self._worker_id, ends, taker, patience=next(patience))

        ended = await repeated(call, self._clock, f"reporting {len(ends)} task(s) of steps")
        self._notify(ended.notices)
        return ended


def _weight(end: StepTaskEnd) -> int:
    return sum(len(text) for text in (end.output, end.error) if text is not None)
