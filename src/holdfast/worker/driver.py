"""Driving one leased run: what happens goes into its turn, what the turn wants is done.

The turn decides and touches nothing; the driver touches the world and decides nothing. Every
input ends in `_follow`, which does what the turn has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.runtime.turn.parts import make_part
from holdfast.runtime.turn.turn import Call, Effects, State, Turn
from holdfast.types import Ahead, ErrorInfo, Event, Notice, Refusal, TurnCommit
from holdfast.worker.clock import Cancellable, Clock
from holdfast.worker.committer import Committer
from holdfast.worker.failure_log import log_failed_run, log_failed_step
from holdfast.worker.steps import StepExecution, StepRunner

logger = logging.getLogger("holdfast.run")

_CANCEL_GRACE = 5.0  # seconds that a cancelled async step may take before the next effect


class Host(Protocol):
    """What a driver needs of the worker that it runs on."""

    clock: Clock
    committer: Committer
    runner: StepRunner
    draining: bool
    notify: Callable[[Sequence[Notice]], None]

    def suspended(self, driver: RunDriver, visible_at: int | None) -> None:
        """Take back a driver whose run waits without a lease, until then or for an event."""

    def ended(self, driver: RunDriver) -> None:
        """Take back a driver whose run has ended or is another's."""

    def given_up(self, driver: RunDriver) -> None:
        """Take back a driver whose lease another thread has given back."""

    def stuck(self, driver: RunDriver, reason: str) -> None:
        """Give a run back that cannot go on with this code."""

    def need_log(self, driver: RunDriver) -> None:
        """Read the run's whole log and give it to `rebuild`."""

    def rested(self, driver: RunDriver) -> None:
        """Take back a driver that has nothing under way, while the worker drains."""


class RunDriver:
    """One leased run on this worker."""

    __slots__ = (
        "_alarm",
        "_due",
        "_dying",
        "_held",
        "_host",
        "_reads_log",
        "closed",
        "given_up",
        "in_flight",
        "lease_no",
        "run_id",
        "running",
        "turn",
    )

    def __init__(self, host: Host, run_id: UUID, lease_no: int, turn: Turn) -> None:
        self._host, self.run_id, self.lease_no, self.turn = host, run_id, lease_no, turn
        self.running: dict[str, StepExecution] = {}
        self.in_flight = False
        self.closed = False
        self.given_up = False  # by another thread, while this one is held
        self._held: list[Call] = []  # steps that wait for cancelled ones to end
        self._dying = 0
        self._reads_log = False
        self._due: int | None = None
        self._alarm: Cancellable | None = None

    # Inputs

    def begin(self) -> None:
        """Go on from where the log leaves off."""
        self._enter(self.turn.begin)

    def resume(self, tail: Sequence[Event]) -> None:
        """Go on with a cached turn and what others wrote meanwhile."""
        self._enter(self.turn.resume, self.lease_no, tail)

    def rebuild(self, log: list[Event]) -> None:
        """Go on from the whole log that the turn asked for."""
        self._reads_log = False
        self._enter(self.turn.rebuild, log)

    def news(self, tail: list[Event], first: int) -> None:
        """Take what others wrote while the run is leased."""
        if not self.in_flight:
            self._enter(self.turn.news, tail, first)

    def _wake(self) -> None:
        self._due = self._alarm = None
        self._enter(self.turn.wake)

    def _reported(self, execution: StepExecution) -> None:
        key, turn = execution.context.key, self.turn
        if self.closed or self.given_up or self.running.get(key) is not execution:
            return
        del self.running[key]
        result, error, started_at = execution.result, execution.error, execution.started_at
        try:
            if result is not None:
                effects = turn.step_completed(key, result, started_at)
            else:
                assert error is not None, "an attempt has a result or an error"
                retry_at = self._host.runner.retry_at(execution)
                self._log_failed(execution, error, retry_at)
                effects = turn.step_failed(key, error, started_at, retry_at, execution.timed_out)
        except Exception as fault:
            self._fault(fault)
            return
        self._follow(effects)

    def _answered(self, refusal: Refusal | Ahead | None) -> None:
        self.in_flight = False
        if self.closed or self.given_up:
            return
        if refusal is None:
            self._enter(self.turn.committed)
        elif isinstance(refusal, Ahead):
            self._enter(self.turn.committed, refusal.tail)
        elif refusal.reason == "conflict":
            self._enter(self.turn.conflict, refusal.tail)
        elif refusal.reason == "lost":
            self._host.ended(self)
        elif refusal.reason == "invalid":
            self._enter(self.turn.invalid, refusal.message)
        else:
            self._host.stuck(self, refusal.message)

    def _enter(self, feed: Callable[..., Effects], *values: object) -> None:
        """Give the turn an input, and do what it wants then."""
        if self.closed or self.given_up:
            return
        try:
            effects = feed(*values)
        except Exception as fault:
            self._fault(fault)
            return
        self._follow(effects)

    def _fault(self, fault: Exception) -> None:
        """Let go of a run that we cannot drive: a fault of ours must not take the worker along."""
        logger.error("run %s cannot be driven", self.run_id, exc_info=fault)
        self._host.stuck(self, f"internal error: {fault!r}")

    # Outputs

    def _follow(self, effects: Effects) -> None:
        if self.given_up:  # while its code held the loop
            self._host.given_up(self)
            return
        if effects.problems:
            self._report_problems(effects.problems)
        if effects.notices:
            self._host.notify(effects.notices)
        self._act(effects)
        if self._host.draining and self.quiet and not self.closed:
            self._host.rested(self)

    def _act(self, effects: Effects) -> None:
        """Do what the turn wants, by where it stands."""
        match effects.state:
            case State.RUNNING | State.SUSPENDING | State.ENDING:
                self._move(effects)
            case State.SUSPENDED:
                self._host.suspended(self, effects.visible_at)
            case State.ENDED:
                end = effects.end
                if end is not None and end.status == "failed" and end.error is not None:
                    log_failed_run(self.run_id, self.turn.info.name, end.error)
                self._host.ended(self)
            case State.LOST:
                self._host.ended(self)
            case State.STUCK:
                self._host.stuck(self, str(effects.error))
            case State.NEEDS_LOG:
                self._need_log()

    def _need_log(self) -> None:
        """Ask once, whatever comes meanwhile: a second log would undo what followed the first."""
        if not self._reads_log:
            self._reads_log = True
            self._host.need_log(self)

    def _move(self, effects: Effects) -> None:
        """Cancel, commit and start, in this order."""
        if effects.cancel:
            self._cancel_steps(effects.cancel)
        if effects.commit is not None:
            self.in_flight = True
            self._host.committer.submit(effects.commit, self._answered)
        if effects.start:
            if self._dying:
                self._held += effects.start
            elif not self._host.draining:
                self._start_steps(effects.start)
        if effects.next_due != self._due:
            self._arm(effects.next_due)

    def _start_steps(self, calls: Sequence[Call]) -> None:
        start, info = self._host.runner.start, self.turn.info
        for call in calls:
            self.running[call.key] = start(call, info, self._reported)

    def _cancel_steps(self, keys: Sequence[str]) -> None:
        """Cancel, and let the next effects wait a while for async steps to clean up."""
        self._held = [call for call in self._held if call.key not in keys]
        dying: list[asyncio.Future[object]] = []
        for key in keys:
            execution = self.running.pop(key, None)
            if execution is not None and (future := execution.cancel()) is not None:
                dying.append(future)
        if dying:
            self._dying += 1
            loop = asyncio.get_running_loop()
            waiting = loop.create_task(asyncio.wait(dying, timeout=_CANCEL_GRACE))
            waiting.add_done_callback(self._cleaned_up)

    def _cleaned_up(self, _: object) -> None:
        self._dying -= 1
        if self._dying == 0 and not (self.closed or self.given_up) and not self._host.draining:
            held, self._held = self._held, []
            self._start_steps(held)

    def _arm(self, due: int | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._due = due
        if due is not None:
            self._alarm = self._host.clock.call_at(due, self._wake)

    def _log_failed(self, execution: StepExecution, error: ErrorInfo, retry_at: int | None) -> None:
        context = execution.context
        seconds = None if retry_at is None else (retry_at - self._host.clock.now()) / 1e6
        log_failed_step(self.run_id, context.workflow, context.key, context.attempt, error, seconds)

    def _report_problems(self, problems: Sequence[str]) -> None:
        for problem in problems:
            logger.warning("run %s (%s): %s", self.run_id, self.turn.info.name, problem)

    # Ending

    @property
    def quiet(self) -> bool:
        """Say whether nothing of the run is under way: no step, no commit."""
        return not self.running and not self.in_flight

    @property
    def executing(self) -> bool:
        """Say whether a step runs, or one waits for those that were cancelled to end."""
        return bool(self.running or self._held)

    @property
    def busy(self) -> bool:
        """Say whether something is under way that goes on by itself."""
        return self.in_flight or self.executing

    def give_up(self, *, resting: bool) -> bool:
        """Do nothing more of this run; with `resting` only if no step is under way.

        For another thread, which gives the lease back. Says whether it is to.
        """
        if self.given_up:
            return False
        self.given_up = True  # first: this thread may look between any two lines
        if resting and self.executing:
            self.given_up = False
        return self.given_up

    @property
    def results(self) -> TurnCommit | None:
        """What steps have brought and the log may not have. Of a run that was given up."""
        turn = self.turn
        events = turn.unrecorded()
        if not events:
            return None
        return make_part(
            turn.info, self.lease_no, turn.durable_length, events, None, None, behind=True
        )

    def close(self, *, keep_turn: bool = False) -> None:
        """Stop driving: steps still running are cancelled and not listened to."""
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for execution in self.running.values():
            execution.cancel()
        self.running.clear()
        if not keep_turn:
            self.turn.abandon()
