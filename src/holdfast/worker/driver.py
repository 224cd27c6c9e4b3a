"""Driving one leased run: what happens goes into its turn, what the turn wants is done.

The turn decides and touches nothing; the driver touches the world and decides nothing. Every
input ends in `_follow`, which carries out what the turn returns.

A driver is active until it is closed, or until the watchdog's thread gives its run up because user
code holds the event loop. Every input of a driver that is not active is ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol
from uuid import UUID

from holdfast.codec import check_open, summarize
from holdfast.errors import PayloadLocked
from holdfast.runtime.turn.turn import Call, Effects, State, Turn
from holdfast.types import Ahead, ErrorInfo, Event, Finish, Notice, Refusal, TurnCommit
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import StepExecution, StepRunner
from holdfast.worker.cancelling import Cancelling
from holdfast.worker.clock import Cancellable, Clock
from holdfast.worker.failure_log import log_end, log_failed_step, log_unheld_step
from holdfast.worker.observing import Observing
from holdfast.worker.recording import Committer

logger = get_logger("holdfast.run")

# Held while a driver changes its state or is about to start steps: between the watchdog's look at
# what executes and its decision the event loop must do neither. User code never runs under it.
_state_lock = threading.Lock()


class DriverState(Enum):
    """Whether a driver still acts for its run."""

    ACTIVE = "active"
    GIVEN_UP = "given up"  # by the watchdog's thread, which gives the lease back
    CLOSED = "closed"


# Members of enums are slow to look up on Python 3.11; these are compared after every input.
_ACTIVE: Final = DriverState.ACTIVE
_GIVEN_UP: Final = DriverState.GIVEN_UP
_RUNNING, _SUSPENDING = State.RUNNING, State.SUSPENDING
_ENDING, _ENDED = State.ENDING, State.ENDED


class Host(Protocol):
    """What a driver needs of the worker that it runs on."""

    clock: Clock
    committer: Committer
    runner: StepRunner
    draining: bool
    observing: Observing
    notify: Callable[[Sequence[Notice]], None]

    def suspended(self, driver: RunDriver, visible_at: int | None) -> None:
        """Take back a driver whose run waits without a lease, until then or for an event."""

    def end_recorded(self, driver: RunDriver) -> None:
        """Hear that the end of a run, which its code has reached, is durable."""

    def need_tail(self, driver: RunDriver) -> None:
        """Read what others wrote after the turn's log, and give it to `read_tail`."""

    def ended(self, driver: RunDriver) -> None:
        """Take back a driver whose run has ended, or whose lease is lost or given back."""

    def stuck(self, driver: RunDriver, reason: str, *, quotes: bool = True) -> None:
        """Give back a run that cannot continue with this code."""

    def need_log(self, driver: RunDriver) -> None:
        """Read the run's whole log and give it to `rebuild`."""

    def idle(self, driver: RunDriver) -> None:
        """Take back a driver that has nothing under way, while the worker drains."""


class RunDriver:
    """One leased run on this worker."""

    __slots__ = (
        "_alarm",
        "_cancelling",
        "_due",
        "_host",
        "_reads_log",
        "_reads_tail",
        "_starting",
        "commit_in_flight",
        "lease_no",
        "run_id",
        "running",
        "state",
        "turn",
    )

    def __init__(self, host: Host, run_id: UUID, lease_no: int, turn: Turn) -> None:
        self._host, self.run_id, self.lease_no, self.turn = host, run_id, lease_no, turn
        self.state = _ACTIVE
        self.running: dict[str, StepExecution] = {}
        self.commit_in_flight = False
        self._starting = False  # steps are about to be in `running`
        self._cancelling: Cancelling | None = None  # until cancelled steps have ended
        self._reads_log = self._reads_tail = False
        self._due: int | None = None
        self._alarm: Cancellable | None = None

    # Inputs

    def begin(self) -> None:
        """Continue from the end of the log."""
        self._enter(self.turn.begin)

    def resume(self, tail: Sequence[Event]) -> None:
        """Continue a cached turn with what others wrote since it was suspended."""
        self._enter(self.turn.resume, self.lease_no, tail)

    def rebuild(self, log: list[Event]) -> None:
        """Continue from the whole log that the turn asked for."""
        self._reads_log = False
        self._read(log, self.turn.rebuild, log)

    def unread(self, tail: list[Event], first: int) -> None:
        """Take what others wrote while the run is leased; `tail` begins at index `first`."""
        if not self.commit_in_flight:
            self._read(tail, self.turn.take_unread, tail, first)

    def read_tail(self, tail: list[Event], first: int) -> None:
        """Take the tail that the turn lacked."""
        self._reads_tail = False
        self.unread(tail, first)

    def _wake(self) -> None:
        self._due = self._alarm = None
        self._enter(self.turn.wake)

    def _reported(self, execution: StepExecution) -> None:
        key, turn = execution.context.key, self.turn
        if self.state is not _ACTIVE or self.running.get(key) is not execution:
            return
        del self.running[key]
        result, error, started_at = execution.result, execution.error, execution.started_at
        try:
            if execution.recorded is not None:
                effects = turn.step_recorded(key, *execution.recorded, execution.restored)
            elif result is not None:
                effects = turn.step_completed(key, result, started_at, execution.restored)
            else:
                assert error is not None, "an attempt has a result or an error"
                retry_at = self._host.runner.retry_at(execution)
                self._log_failed(execution, error, retry_at)
                effects = turn.step_failed(key, error, started_at, retry_at, execution.timed_out)
        except BaseException as fault:
            self._fail(fault)
            return
        self._follow(effects)

    def _answered(self, refusal: Refusal | Ahead | None) -> None:
        self.commit_in_flight = False
        if self.state is not _ACTIVE:
            return
        if refusal is None:
            try:
                effects = self.turn.committed()
            except BaseException as fault:
                self._fail(fault)
            else:
                self._follow(effects)
        elif isinstance(refusal, Ahead):
            self._read(refusal.tail, self.turn.committed, refusal.tail)
        elif refusal.reason == "conflict":
            self._read(refusal.tail, self.turn.conflict, refusal.tail)
        elif refusal.reason == "lost":
            self._host.ended(self)
        elif refusal.reason == "invalid":
            self._enter(self.turn.invalid, refusal.message)
        else:
            self._host.stuck(self, refusal.message)

    def _read(self, tail: Sequence[Event], feed: Callable[..., Effects], *values: object) -> None:
        """Give the turn what others wrote, unless a payload of it cannot be opened here."""
        if self.state is not _ACTIVE:
            return
        try:
            check_open(event.details for event in tail)
        except PayloadLocked as error:
            self._host.stuck(self, str(error), quotes=False)
        else:
            self._enter(feed, *values)

    def _enter(self, feed: Callable[..., Effects], *values: object) -> None:
        """Give the turn an input, then do what it wants."""
        if self.state is not _ACTIVE:
            return
        try:
            effects = feed(*values)
        except BaseException as fault:
            self._fail(fault)
            return
        self._follow(effects)

    def _fail(self, fault: BaseException) -> None:
        """Give back a run that holdfast fails to drive, so that the worker keeps running.

        The fault may be of any kind: `__post_init__` of a type may raise a CancelledError.
        """
        logger.error("run %s cannot be driven", self.run_id, exc_info=fault)
        self._host.stuck(self, f"internal error: {summarize(fault)}")

    # Outputs

    def _follow(self, effects: Effects) -> None:
        if self.state is _GIVEN_UP:  # while its code held the loop
            self._host.ended(self)
            return
        if effects.problems:
            self._report_problems(effects.problems)
        if effects.notices:
            self._host.notify(effects.notices)
        state = effects.state
        if state is _RUNNING or state is _SUSPENDING or state is _ENDING:
            self._move(effects)
        elif state is _ENDED:
            self._end(effects.end)
        else:
            self._stop(effects)
        if self.state is _ACTIVE and self.turn.lacks_entries and not self._reads_tail:
            self._reads_tail = True
            self._host.need_tail(self)
        if self._host.draining and self.quiet and self.state is _ACTIVE:
            self._host.idle(self)

    def _stop(self, effects: Effects) -> None:
        """Do what the turn wants when it has stopped, or waits for its log."""
        match effects.state:
            case State.SUSPENDED:
                self._host.suspended(self, effects.visible_at)
            case State.LOST:
                self._host.ended(self)
            case State.STUCK:
                self._host.stuck(self, str(effects.error))
            case State.NEEDS_LOG:
                self._need_log()
            case State.RUNNING | State.SUSPENDING | State.ENDING | State.ENDED:
                raise AssertionError("the turn continues")

    def _end(self, end: Finish | None) -> None:
        host = self._host
        if end is not None:
            info, at = self.turn.info, host.clock.now()
            took = max(0, at - (info.first_claimed_at or info.started_at))
            host.observing.run_ended(info.name, end.status, at, took)
            log_end(self.run_id, info.name, end)
        host.end_recorded(self)
        host.ended(self)

    def _need_log(self) -> None:
        """Ask for the log once: a second one would undo what was done after the first."""
        if not self._reads_log:
            self._reads_log = True
            self._host.need_log(self)

    def _move(self, effects: Effects) -> None:
        """Cancel, commit and start, in this order."""
        if effects.cancel:
            self._cancel_steps(effects.cancel)
        cancelling, commit = self._cancelling, effects.commit
        if commit is not None and (cancelling is None or not cancelling.keeps(commit)):
            self.commit_in_flight = True
            self._host.committer.submit(commit, self._answered)
        if effects.start:
            if cancelling is not None:
                cancelling.calls += effects.start
            elif not self._host.draining:
                self._start_steps(effects.start)
        if effects.next_due != self._due:
            self._set_alarm(effects.next_due)

    def _start_steps(self, calls: Sequence[Call]) -> None:
        with _state_lock:
            if self.state is not _ACTIVE:
                return
            self._starting = True
        start, info, lease_no = self._host.runner.start, self.turn.instance.info, self.lease_no
        try:
            for call in calls:
                self.running[call.key] = start(call, info, self._reported, lease_no)
        finally:
            self._starting = False

    def _cancel_steps(self, keys: Sequence[str]) -> None:
        """Cancel steps; what comes next waits: see `Cancelling`."""
        cancelling = self._cancelling or Cancelling(self._cleaned_up)
        if cancelling.cancel(self.running, keys):
            self._cancelling = cancelling

    def _cleaned_up(self, waiting: Cancelling) -> None:
        self._cancelling = None
        if self.state is not _ACTIVE:
            return
        if waiting.commit is not None:
            self.commit_in_flight = True
            self._host.committer.submit(waiting.commit, self._answered)
        if not self._host.draining:
            self._start_steps(waiting.calls)
        elif self.quiet:
            self._host.idle(self)

    def _set_alarm(self, due: int | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._due = due
        if due is not None:
            self._alarm = self._host.clock.call_at(due, self._wake)

    def _log_failed(self, execution: StepExecution, error: ErrorInfo, retry_at: int | None) -> None:
        context = execution.context
        if execution.unheld:
            log_unheld_step(self.run_id, context.workflow, context.key, error)
            return
        seconds = None if retry_at is None else (retry_at - self._host.clock.now()) / 1e6
        log_failed_step(self.run_id, context.workflow, context.key, context.attempt, error, seconds)

    def _report_problems(self, problems: Sequence[str]) -> None:
        for problem in problems:
            logger.warning("run %s (%s): %s", self.run_id, self.turn.info.name, problem)

    # Ending

    @property
    def quiet(self) -> bool:
        """Whether nothing of the run is under way: no step, also cancelled, no commit."""
        return not (self.running or self.commit_in_flight or self._cancelling)

    @property
    def executing(self) -> bool:
        """Whether a step runs, or anything waits until cancelled ones have ended."""
        cancelling = self._cancelling
        waits = cancelling is not None and (cancelling.calls or cancelling.commit)
        return bool(self.running or self._starting or waits)

    @property
    def busy(self) -> bool:
        """Whether something is under way that needs no further input to continue."""
        return self.commit_in_flight or self.executing

    def give_up(self, *, only_idle: bool) -> bool:
        """Stop acting for this run; with `only_idle` not if a step is under way.

        Return True if the caller, the watchdog's thread, is now to give the lease back.
        """
        with _state_lock:
            if self.state is not _ACTIVE or (only_idle and self.executing):
                return False
            self.state = DriverState.GIVEN_UP
            return True

    @property
    def results(self) -> TurnCommit | None:
        """The commit of what steps returned and the log may lack. For a run that is given up."""
        return self.turn.unrecorded(self.lease_no)

    def interrupt(self) -> bool:
        """Stop the steps that run, and give the run back with an entry that says so.

        Return False, and do nothing, if no step runs, or if a commit is in flight.
        """
        kept = self._cancelling and self._cancelling.commit
        if self.state is not _ACTIVE or self.commit_in_flight or kept or not self.running:
            return False
        for execution in self.running.values():
            execution.cancel()
        self.running.clear()
        self._enter(self.turn.interrupt)
        return True

    def close(self, *, keep_turn: bool = False) -> None:
        """Stop driving: steps that still run are cancelled, and their results are ignored."""
        with _state_lock:
            self.state = DriverState.CLOSED
        if self._alarm is not None:
            self._alarm.cancel()
        for execution in self.running.values():
            execution.cancel()
        self.running.clear()
        if not keep_turn:
            self.turn.abandon()
