"""The tasks of flows' steps: from a claimed task, through its attempt, to the report of its end.

The database decides if a failed attempt is followed by another, and which steps follow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.codec import check_open, encode
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.definitions.flows import AnyFlowStep
from holdfast.definitions.middleware import Layer
from holdfast.definitions.workflows import AnyFlow
from holdfast.errors import PayloadLocked
from holdfast.types import ClaimedTask, Lease, Release, StepTaskEnd, StepTaskOutcome
from holdfast.values.names import changed_kind
from holdfast.worker.attempts import Execution, Launcher
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_failed_flow_step
from holdfast.worker.fitting import UNFIT
from holdfast.worker.reporting import OpenAttempts, StepReporter

logger = logging.getLogger("holdfast.run")

_AGAIN_SECONDS: Final = 5.0
_UNFIT_SECONDS: Final = 30.0  # before a task that does not fit is claimed again
_WAIT_SECONDS: Final = 2.0  # a task that waits longer for a thread is given back


class StepTaskExecution(Execution[FlowStepContext]):
    """One attempt at a task of a step."""

    __slots__ = ("_refused", "task")

    silent = False  # it has no heartbeat of its own

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

    @property
    def lease(self) -> Lease:
        """The task's lease."""
        return Lease(self.task.run_id, self.task.key, self.task.lease_no, 0)


HasFitted: TypeAlias = Callable[[AnyFlow, AnyFlowStep, ClaimedTask], Awaitable[bool]]


class StepTasks:
    """Execute claimed tasks of steps, and keep their leases until their ends are recorded.

    `reporter` is made with the function that takes tasks which are handed over. `has_fitted` says
    if what does not fit a step may have fitted other code. `release` gives one lease back. `room`
    counts the tasks held here.
    """

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
        self._flows = {(each.full_name, each.version): (each, each.steps) for each in flows}
        self._layers, self._clock, self._launcher = layers, clock, launcher
        self._look: asyncio.TimerHandle | None = None  # at tasks that wait for a thread
        self._reporter, self._release = reporter(self.accept), release
        self._has_fitted = has_fitted
        self._open = OpenAttempts[StepTaskExecution]("step", room)
        self.leases, self.lose = self._open.leases, self._open.lose
        self.knows, self.end_grace = self._open.knows, self._open.end_grace
        self.flush, self.stop = self._reporter.flush, self._reporter.stop

    @property
    def executing(self) -> bool:
        """True if a step runs."""
        return self._open.executing

    @property
    def busy(self) -> bool:
        """True if a step runs, or its end is being reported."""
        return self._open.busy or not self._reporter.idle

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Execute claimed tasks."""
        for task in tasks:
            if self._open.draining:
                self._release(Release(task.run_id, task.key, task.lease_no))
            else:
                self._start(task)

    def _start(self, task: ClaimedTask) -> None:
        self._open.stop_stale(task)
        slug = task.key.partition(":")[0]
        found, handler = self._flows.get((task.name, task.version)), f"{task.name}@{task.version}"
        if found is None:
            self._leave(task, changed_kind("flow", handler))
            return
        step = found[1].get(slug)
        if step is None:
            self._leave(task, f"the code of flow {handler} has no step {slug}")
            return
        try:
            check_open((task.payload,))
        except PayloadLocked as error:
            self._leave(task, str(error))
            return

        execution = StepTaskExecution(step, task, self._clock.now(), self._ended, self._refuse)
        self._open.begin(execution)
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
                self._open.drop(execution)
                self._release(Release(task.run_id, task.key, task.lease_no))
        if self._launcher.book.late(0):
            self._look_later()

    def _refuse(self, execution: StepTaskExecution, error: BaseException) -> None:
        execution.future = asyncio.ensure_future(self._hold_or_fail(execution, error))

    async def _hold_or_fail(self, execution: StepTaskExecution, error: BaseException) -> None:
        """Hold a task whose values may have fitted other code: a roll-back heals it. Else fail."""
        task = execution.task
        flow, steps = self._flows[(task.name, task.version)]
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
        self._open.drop(execution)
        message = f"what it is given does not fit this code: {error}; {UNFIT}"
        self._leave(task, message, _UNFIT_SECONDS)

    def _leave(self, task: ClaimedTask, message: str, pause: float | None = None) -> None:
        """Give back a task that this code does not know, or does not fit: other code may run it."""
        logger.error("step %s of run %s cannot be begun: %s", task.key, task.run_id, message)
        again = self._clock.now() + int((pause or _AGAIN_SECONDS) * 1e6)
        self._release(Release(task.run_id, task.key, task.lease_no, again, message))

    def _ended(self, execution: StepTaskExecution) -> None:
        if self._open.end(execution):
            end = execution.end
            self._open.report(self._reporter, end, partial(self._reported, end, execution))

    def _reported(
        self, end: StepTaskEnd, execution: StepTaskExecution, outcome: StepTaskOutcome
    ) -> None:
        if execution.error is not None:
            log_failed_flow_step(execution.task, execution.error, outcome)
        if outcome == "lost":
            logger.warning(
                "step %s of run %s ended too late: its lease was lost, or its run has ended",
                end.key,
                end.run_id,
            )

    def request_cancel(self, run_id: UUID, key: str) -> None:
        """Stop a step: its task no longer exists, so its result is not wanted."""
        execution = self._open.find(run_id, key)
        if execution is not None:
            self._open.drop(execution)

    async def drain(self, grace_seconds: float) -> list[Release]:
        """Let running steps end within the grace period; return the releases of the rest."""
        leases = await self._open.drain(grace_seconds)
        return [Release(lease.run_id, lease.key, lease.lease_no) for lease in leases]
