"""Report in batches how attempts at tasks of flows' steps ended.

Elements of maps are reported in separate calls: such calls of many workers do not wait for each
other. A call may return tasks that became ready by it, leased to this worker: so the next step of a
flow begins without a claim. If the answer is lost, these tasks wait until their leases expire.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from holdfast.store.port import Store
from holdfast.store.port.locks import BriefLocks
from holdfast.types import ClaimedTask, Notice, StepTaskEnd, StepTaskOutcome, StepTasksEnded, Taker
from holdfast.worker.clock import Clock
from holdfast.worker.recording import Batcher, Lending, repeated
from holdfast.worker.reporting import EndReporter, weigh

_MANY: Final = 40  # so many ends are worth two calls, if the answers bring work
_LOCK_MILLIS: Final = 500  # workers that end steps of one run wait for each other at its rows
_FEW: Final = 10  # a place is kept for each so many ends, to notice if they bring work

_End: TypeAlias = tuple[StepTaskEnd, Callable[[StepTaskOutcome], None]]


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

    def _make_batchers(self) -> Sequence[Batcher[_End]]:
        # Two calls for one map would wait for each other at its counter.
        return [
            Batcher(self._report, weight=weigh, halves=self._halves),
            Batcher(self._report, weight=weigh, most_calls=1),
        ]

    def _halves(self, ends: list[_End]) -> bool:
        """Return True if this process would wait for one call with all of them.

        It waits if the answer brings the next steps. If these ends are those of runs, the next
        tasks come from a claim at the same time, and a second call would only cost the database.
        """
        return self._brings_work and len(ends) >= _MANY

    def _batcher_of(self, end: StepTaskEnd) -> Batcher[_End]:
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
