"""The tasks of flows' steps: from a claimed task, through its attempt, to the report of its end.

The database decides if a failed attempt is followed by another, and which steps follow.

Elements of maps are reported in separate calls: such calls of many workers do not wait for each
other. A call may return tasks that became ready by it, leased to this worker: so the next step of a
flow begins without a claim. If the answer is lost, these tasks wait until their leases expire.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from holdfast.codec import check_open, encode
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.definitions.flows import AnyFlowStep
from holdfast.definitions.middleware import Layer
from holdfast.definitions.workflows import AnyFlow
from holdfast.errors import PayloadLocked
from holdfast.flows import shape_hash
from holdfast.store.port import Store
from holdfast.types import (
    ClaimedTask,
    Notice,
    Release,
    StepTaskEnd,
    StepTaskOutcome,
    StepTasksEnded,
    Taker,
)
from holdfast.values.loggers import get_logger
from holdfast.values.names import changed_kind
from holdfast.worker.attempts import Launcher
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_failed_flow_step
from holdfast.worker.fitting import UNFIT
from holdfast.worker.recording import Batcher, Lending, repeated
from holdfast.worker.reporting import EndReporter, OpenAttempts, TaskExecution, count_bearable_ends

logger = get_logger("holdfast.run")

_UNFIT_SECONDS: Final = 30.0  # before a task that does not fit is claimed again
_WAIT_SECONDS: Final = 2.0  # a task that waits longer for a thread is given back
_MANY: Final = 40  # so many ends are worth two calls, if the answers bring work
_LOCK_MILLIS: Final = 500  # workers that end steps of one run wait for each other at its rows
_FEW: Final = 10  # a place is kept for each so many ends, to notice if they bring work

_StepEntry: TypeAlias = tuple[StepTaskEnd, Callable[[StepTaskOutcome], None]]


class StepTaskExecution(TaskExecution[FlowStepContext]):
    """One attempt at a task of a step."""

    __slots__ = ("_refused",)

    def __init__(
        self,
        step: AnyFlowStep,
        task: ClaimedTask,
        started_at: int,
        report: Callable[[StepTaskExecution], None],
        refused: Callable[[StepTaskExecution, BaseException], None],
    ) -> None:
        super().__init__(
            step, FlowStepContext(task, step), started_at, step.timeout_seconds, report
        )
        self.task, self.lease_no, self.headers = task, task.lease_no, task.headers
        self._refused = refused

    def refuse(self, error: BaseException) -> None:
        """Leave it to `refused` what becomes of a task that does not fit its code."""
        self._refused(self, error)

    @property
    def end(self) -> StepTaskEnd:
        """How the attempt ended, as it is reported to the database."""
        task = self.task
        return StepTaskEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            output=self.result,
            error=None if self.error is None else encode(self.error),
            retryable=self.retryable,
        )


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
            Batcher(self._report, bearable=count_bearable_ends, halves=self._halves),
            Batcher(self._report, bearable=count_bearable_ends, most_calls=1),
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
        what = f"reporting {len(ends)} {self.what}"
        with self._lending(lent):
            ended = await repeated(call, self._clock, what, _LOCK_MILLIS)
        if ended.notices:
            self._notify(ended.notices)
        self._brings_work = bool(ended.tasks)
        if ended.tasks:
            self._take(ended.tasks)
        return ended.outcomes

    def _failed(self, end: StepTaskEnd, error: str) -> StepTaskEnd:
        return replace(end, output=None, error=error, retryable=False)


HasFitted: TypeAlias = Callable[[AnyFlow, AnyFlowStep, ClaimedTask], Awaitable[bool]]


class StepTasks(OpenAttempts[StepTaskExecution]):
    """The tasks of steps of a worker.

    `reporter` is made with the function that takes tasks which are handed over. `has_fitted` says
    if what does not fit a step may have fitted other code.
    """

    kind, again_seconds = "step", 5.0

    def __init__(
        self,
        flows: Iterable[AnyFlow],
        layers: list[Layer],
        clock: Clock,
        launcher: Launcher,
        reporter: Callable[[Callable[[Sequence[ClaimedTask]], None]], StepReporter],
        *,
        has_fitted: HasFitted,
        release: Callable[[Release], None],
        room: Room,
    ) -> None:
        super().__init__(room, release, clock)
        self._skip = room.skip
        self._flows = {
            (each.full_name, each.version): (each, each.steps, shape_hash(each.shape))
            for each in flows
        }
        self._layers, self._launcher = layers, launcher
        self._look: asyncio.TimerHandle | None = None  # at tasks that wait for a thread
        self._reporter, self._has_fitted = reporter(self.accept), has_fitted
        self.flush, self.stop = self._reporter.flush, self._reporter.stop

    @property
    def busy(self) -> bool:
        """True if a step runs, or its end is being reported."""
        return super().busy or not self._reporter.idle

    def _start(self, task: ClaimedTask) -> None:
        slug = task.key.partition(":")[0]
        found, handler = self._flows.get((task.name, task.version)), f"{task.name}@{task.version}"
        if found is None:
            self._leave(task, changed_kind("flow", handler))
            return
        _, steps, hash_of_code = found
        if task.shape_hash not in (None, hash_of_code):
            self._skip(handler, asyncio.get_running_loop().time())
            reason = f"the shape of flow {handler} was replaced: this code has another"
            if not task.shape_hash:
                since = f"SQL has made flow {handler} since this worker started"
                reason = f"{since}: restart it, or run `holdfast flows compile`"
            self._leave(task, reason, 0)  # at once, for others: this worker claims none
            return
        try:
            check_open((task.payload,))
        except PayloadLocked as error:
            self._leave(task, str(error))
            return

        step = steps[slug]
        execution = StepTaskExecution(step, task, self._clock.now(), self._ended, self._refuse)
        self._begin(execution)
        self._launcher.launch(execution, task.payload or "null", self._layers)
        if not step.is_async and self._look is None:
            self._look_later()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_WAIT_SECONDS, self._give_back_late)

    def _give_back_late(self) -> None:
        """Give back what still waits for a thread: if the threads hang, it would wait for ever."""
        self._look = None
        for execution in self._launcher.book.late(_WAIT_SECONDS):
            if isinstance(execution, StepTaskExecution) and not execution.ended:
                task = execution.task
                self._drop(execution)
                self._release(Release(task.run_id, task.key, task.lease_no))
        if self._launcher.book.late(0):
            self._look_later()

    def _refuse(self, execution: StepTaskExecution, error: BaseException) -> None:
        execution.future = asyncio.ensure_future(self._hold_or_fail(execution, error))

    async def _hold_or_fail(self, execution: StepTaskExecution, error: BaseException) -> None:
        """Hold a task whose values may have fitted other code: a roll-back heals it. Else fail."""
        task = execution.task
        flow, steps, _ = self._flows[(task.name, task.version)]
        step = steps[task.key.partition(":")[0]]
        try:
            held = isinstance(error, Exception) and await self._has_fitted(flow, step, task)
        except Exception:  # the database does not answer: it is looked at again
            held = True
        if execution.ended:
            return
        if not held:
            execution.fail(error)
            return
        self._drop(execution)
        message = f"what it is given does not fit this code: {error}; {UNFIT}"
        self._leave(task, message, _UNFIT_SECONDS, quotes=True)

    def _ended(self, execution: StepTaskExecution) -> None:
        if self._end(execution):
            end = execution.end
            self._report_end(self._reporter, end, partial(self._reported, end, execution))

    def _reported(
        self, end: StepTaskEnd, execution: StepTaskExecution, outcome: StepTaskOutcome
    ) -> None:
        if execution.error is not None:
            log_failed_flow_step(execution.task, execution.error, outcome)
        if outcome == "lost":
            logger.warning(
                "step %s of run %s ended too late: its lease was lost, or its run no longer "
                "waited for it",
                end.key,
                end.run_id,
            )

    def request_cancel(self, run_id: UUID, key: str) -> None:
        """Stop a step: its task no longer exists, so its result is not wanted."""
        execution = self._find(run_id, key)
        if execution is not None:
            self._drop(execution)

    async def drain(self, grace_seconds: float) -> list[Release]:
        """Let running steps end within the grace period; return the releases of the rest."""
        leases = await self._stop_all(grace_seconds)
        return [Release(lease.run_id, lease.key, lease.lease_no) for lease in leases]
