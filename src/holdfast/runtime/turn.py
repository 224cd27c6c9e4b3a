"""Turn: one stretch of a run on one worker. No I/O: what happens goes in, what to do comes out.

The instance has been fed the whole virtual log, one event a drain. Delivery precedes
durability, effects follow it: a step starts, or is cancelled, once the part of the log that led
to it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.errors import DeterminismError
from holdfast.runtime import details
from holdfast.runtime.calls import Call, RunInfo
from holdfast.runtime.clockwork import Clockwork
from holdfast.runtime.details import (
    GUESTS,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    TERMINAL,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    VALUE_SET,
    WORKER_LOST,
    YIELDED,
)
from holdfast.runtime.instance import Instance
from holdfast.runtime.outcome import leftovers, outcome
from holdfast.runtime.tasks import WorkflowTimer
from holdfast.runtime.virtual_log import PYTHON, VirtualLog
from holdfast.types import EndStatus, ErrorInfo, Event, Finish, Suspend, TurnCommit
from holdfast.workflows import Workflow

__all__ = ["Call", "RunInfo", "Turn"]

IN_PLACE: Final = 1_000_000  # a pause before a retry up to this long is waited for here

# Made by effects: kept through a conflict. All else is derived from the log, and derived anew.
_KEPT: Final = frozenset({STEP_COMPLETED, STEP_FAILED, STEP_RETRY})
# Facts, which the code has not been fed: they stand as well behind another event.
_FACTS: Final = frozenset({TIMER_SCHEDULED, STEP_RETRY, VALUE_SET})
_UNFED: Final = _FACTS | TERMINAL | {YIELDED}


class Turn:
    """A run's turn: after every input the driver takes the outputs.

    Outputs: `to_start` and `to_cancel` are steps, `outbox` is at most one commit, to be answered
    with `committed` or `conflict`; `next_due` is when to call `wake`; `problems` are warnings.
    State: `suspended` until `visible_at` (None: by an event only), `ended`, `lost` to another
    worker, `stuck` with code that cannot go on, or in need of the whole log (`needs_log`).
    """

    __slots__ = (
        "_backoffs",
        "_broken",
        "_clock",
        "_clockwork",
        "_ending",
        "_held",
        "_instance",
        "_log",
        "_over",
        "_strict",
        "_undelivered",
        "_workflow",
        "ended",
        "executing",
        "info",
        "lease_no",
        "lost",
        "needs_log",
        "next_due",
        "outbox",
        "problems",
        "stuck",
        "suspended",
        "to_cancel",
        "to_start",
        "visible_at",
    )

    def __init__(
        self,
        workflow: Workflow[Any, object],
        info: RunInfo,
        lease_no: int,
        log: Sequence[Event],
        clock: Callable[[], int],
        *,
        strict: bool = False,
    ) -> None:
        """Replay `log`. With `strict` the code must make exactly the calls that the log has."""
        self._workflow, self.info, self.lease_no = workflow, info, lease_no
        self._clock, self._strict = clock, strict
        self.to_start: list[Call] = []
        self.to_cancel: list[str] = []
        self.outbox: TurnCommit | None = None
        self.next_due: int | None = None
        self.visible_at: int | None = None
        self.problems: list[str] = []
        self.suspended = self.lost = self.needs_log = False
        self.ended: EndStatus | None = None
        self.stuck: DeterminismError | None = None
        self.executing: dict[str, Call] = {}
        self._log = VirtualLog(log)
        self._held: dict[str, Event] = {}  # ends of steps given up, which is not yet certain
        self._backoffs: dict[str, Call] = {}
        self._undelivered: list[Event] = []  # what a rebuild is to be fed behind the log
        self._broken: DeterminismError | None = None
        self._ending: EndStatus | None = None
        self._over = False
        self._build([], {}, 0)
        if self._fence(log):
            return
        try:
            self._build(log, {}, _last_own(log) + 1)
            self._check_python()
        except DeterminismError as error:
            self._broken = error
            self._log.fresh.clear()

    @property
    def durable_length(self) -> int:
        """How many of the run's events are durable, as far as this turn knows."""
        return self._log.durable_length

    @property
    def instance(self) -> Instance:
        """The run's code in execution."""
        return self._instance

    # Inputs

    def begin(self) -> None:
        """Go on from where the log leaves off."""
        if self._strict and self._broken is None and not self._over:
            self._check_all_used()
        self._pump()

    def step_completed(self, key: str, result: str, started_at: int) -> None:
        """Take a step's result, as JSON text."""
        call = self.executing.pop(key, None)
        if call is None or self._over:
            return
        at = self._clock()
        text = details.step_completed(call.name, call.fingerprint, call.attempt, result, started_at)
        event = Event(STEP_COMPLETED, key, text, at)
        waiting = self._instance.pending.get(key)
        if waiting is None or not self._receptive:
            self._keep(event)
        else:
            log, instance = self._log, self._instance
            instance.loop.position = log.length
            log.fresh.append(event)
            try:
                instance.complete(waiting, result, at)
            except DeterminismError as error:
                self._broken = error
        self._pump()

    def step_failed(
        self, key: str, error: ErrorInfo, started_at: int, retry_at: int | None, timed_out: bool
    ) -> None:
        """Take a failed attempt. With `retry_at` the step is tried again then."""
        call = self.executing.pop(key, None)
        if call is None or self._over:
            return
        name, args, attempt = call.name, call.fingerprint, call.attempt
        if retry_at is None:
            text = details.step_failed(name, args, attempt, error, started_at, timed_out)
            event = Event(STEP_FAILED, key, text, self._clock())
        else:
            text = details.step_retry(name, args, attempt, error, retry_at)
            event = Event(STEP_RETRY, key, text, self._clock())
        self._offer(event)
        self._pump()

    def committed(self) -> None:
        """The commit is durable."""
        log = self._log
        log.land()
        if self._over:
            return
        if self._ending is not None:
            self.ended = self._ending
            self.problems += leftovers(self._instance)
            self._stop_steps()
            self.abandon()
        elif self.suspended:
            log.forget()
        else:
            self._pump()

    def conflict(self, tail: Sequence[Event]) -> None:
        """Nothing of the commit was written: `tail` stands in its place."""
        log = self._log
        undurable = log.refused()
        self.suspended, self.visible_at, self._ending = False, None, None
        if self._over or self._fence(tail):
            return
        known = log.durable_length
        log.extend(tail)
        if self._broken is None and all(event.type in _UNFED for event in undurable):
            # The code has seen only what is durable: what it sees next is the tail.
            for event in undurable:
                if event.type in _FACTS:
                    self._note_again(event)
            self._deliver(tail)
        else:
            self._undelivered = [event for event in undurable if event.type in _KEPT]
            self._undelivered += self._held.values()
            self._held.clear()
            self._rebuild(known)
        self._pump()

    def resume(self, lease_no: int, tail: Sequence[Event]) -> None:
        """Go on after a suspension: the run was claimed again, with what others wrote."""
        self.lease_no, self.suspended, self.visible_at = lease_no, False, None
        if self._over or self._fence(tail):
            return
        self._log.extend(tail)
        self._deliver(tail)
        self._pump()

    def news(self, tail: Sequence[Event], first: int) -> None:
        """Take what others wrote, read from index `first` on.

        Where it does not join on to what is known, or a commit is in flight, it is left to the
        next conflict, which brings it again.
        """
        log = self._log
        skip = log.durable_length - first
        unready = log.committing or log.fresh or self.suspended or not self._receptive
        if unready or not 0 <= skip < len(tail):
            return
        unseen = tail[skip:]
        if self._fence(unseen):
            return
        log.extend(unseen)
        self._deliver(unseen)
        self._pump()

    def rebuild(self, log: Sequence[Event]) -> None:
        """Take the whole log, from index 0, that `needs_log` asked for."""
        self.needs_log = False
        if self._over or self._fence(log):
            return
        known = self._log.durable_length
        self._log.replace(log)
        self._rebuild(known)
        self._pump()

    def wake(self) -> None:
        """Look what has become due."""
        self._pump()

    def abandon(self) -> None:
        """Close the run's code, and do nothing any more. Idempotent."""
        self._over = True
        self.next_due = None
        self._instance.close()
        self._gather_problems()

    # Feeding

    @property
    def _receptive(self) -> bool:
        """Whether the code may be fed."""
        return not (
            self._over or self.needs_log or self._broken is not None or self._instance.finished
        )

    def _build(self, log: Sequence[Event], deadlines: dict[str, int], live_from: int) -> None:
        instance = Instance(self._workflow, self.info, log, self._note)
        instance.live_from = live_from
        self._instance = instance
        self._clockwork = Clockwork(instance.loop, deadlines)
        feed = instance.feed
        for event in log:
            feed(event)

    def _rebuild(self, known: int) -> None:
        """Close the code and replay it, with what its steps have brought behind the log."""
        log = self._log
        self._instance.close()
        if log.durable is None:
            self.needs_log = True
            return
        deadlines = self._clockwork.deadlines(known)
        self._broken = None
        self._backoffs.clear()
        undelivered, self._undelivered = self._undelivered, []
        try:
            self._build(log.durable, deadlines, known)
        except DeterminismError as error:
            self._broken = error
            log.fresh.clear()
        for event in undelivered:
            self._offer(event)

    def _deliver(self, tail: Sequence[Event]) -> None:
        """Feed what others have made durable."""
        instance = self._instance
        instance.loop.position = self._log.durable_length - len(tail)
        try:
            for event in tail:
                instance.learn(event)
            for event in tail:
                instance.feed(event)
        except DeterminismError as error:
            self._broken = error

    def _offer(self, event: Event) -> None:
        """Feed what an effect has brought, if the code still waits for it; else keep it."""
        key = event.key or ""
        call = self._instance.pending.get(key)
        if call is None or not self._receptive:
            self._keep(event)
        elif event.type == STEP_RETRY:
            self._note_again(event)
        else:
            self._append(event)

    def _keep(self, event: Event) -> None:
        if self.needs_log:
            self._undelivered.append(event)
        elif self._broken is not None:
            self._log.fresh.append(event)  # the work was done: the next try must not repeat it
        else:
            self._held[event.key or ""] = event

    def _append(self, event: Event) -> None:
        log, instance = self._log, self._instance
        instance.loop.position = log.length
        log.fresh.append(event)
        try:
            instance.feed(event)
        except DeterminismError as error:
            self._broken = error

    def _note(self, kind: str, key: str, text: str) -> None:
        self._log.fresh.append(Event(kind, key, text, self._clock()))

    def _note_again(self, event: Event) -> None:
        """Add a fact. A step waits until the fact that its attempt failed is durable."""
        self._log.fresh.append(event)
        call = self._instance.pending.get(event.key or "")
        if event.type == STEP_RETRY and call is not None:
            self._instance.learn(event)
            call.mark = self._log.length
            self._backoffs[call.key] = call

    # Pumping

    def _pump(self) -> None:
        """Fire what is due, then act: in this order log order alone decides every race."""
        self.next_due = None
        try:
            if not self.suspended and self._ending is None and self._receptive:
                self._fire_timers()
            if not self.suspended and self._ending is None and not self._over:
                self._act()
        except DeterminismError as error:
            self._broken = error
        if self._broken is not None and not self._over:
            self._give_up(self._broken)
        self._gather_problems()

    def _fire_timers(self) -> None:
        instance, clockwork = self._instance, self._clockwork
        if not instance.loop.timers:
            clockwork.reset()
            return
        while self._receptive and (timer := clockwork.due(now := self._clock())) is not None:
            text = details.timer_fired(timer.key, timer.fire_at or now)
            self._append(Event(TIMER_FIRED, timer.key, text, now))

    def _act(self) -> None:
        instance, log = self._instance, self._log
        if self._broken is not None or self.needs_log:
            return
        if instance.finished:
            self._finish()
            return
        if instance.cancelled:
            self._cancel_steps()
        if instance.issued or self._backoffs:
            self._start_steps()
        waiting = bool(self._backoffs or instance.loop.timers)
        now = self._clock() if waiting else 0
        for timer in self._clockwork.grown(now):
            self._record(timer)
        if not log.committing:
            if not self.executing and self._only_long_pauses(now):
                self._suspend()
            elif log.fresh:
                self._ship(None)
        if waiting and not self.suspended:
            self.next_due = self._next_due(now)

    def _cancel_steps(self) -> None:
        """Cancel the steps that the code gave up, where that is certain."""
        cancelled, durable = self._instance.cancelled, self._log.durable_length
        for key, mark in list(cancelled.items()):
            if mark <= durable:
                del cancelled[key]
                self._held.pop(key, None)
                if self.executing.pop(key, None) is not None:
                    self.to_cancel.append(key)

    def _start_steps(self) -> None:
        """Start the steps whose marks are durable; those that were executing go on."""
        instance, durable = self._instance, self._log.durable_length
        issued, pending, executing = instance.issued, instance.pending, self.executing
        while issued and (issued[0].mark <= durable or issued[0].retry_at is not None):
            call = issued.popleft()
            if pending.get(call.key) is not call or call.key in executing:
                continue
            if call.retry_at is None:
                executing[call.key] = call
                self.to_start.append(call)
            else:
                self._backoffs[call.key] = call
        if self._backoffs:
            self._start_retries(self._clock())

    def _start_retries(self, now: int) -> None:
        instance, durable = self._instance, self._log.durable_length
        for key, call in list(self._backoffs.items()):
            if instance.pending.get(key) is not call:
                del self._backoffs[key]
            elif call.mark <= durable and (call.retry_at or 0) <= now:
                del self._backoffs[key]
                call.retry_at = None
                self.executing[key] = call
                self.to_start.append(call)

    def _only_long_pauses(self, now: int) -> bool:
        pending = self._instance.pending
        if len(pending) > len(self._backoffs):
            return False
        return all((call.retry_at or 0) > now + IN_PLACE for call in pending.values())

    def _next_due(self, now: int) -> int | None:
        moments = [
            max(now, call.retry_at or 0)
            for call in self._backoffs.values()
            if call.mark <= self._log.durable_length
        ]
        if (timer := self._clockwork.next_at()) is not None:
            moments.append(timer)
        return min(moments, default=None)

    # Committing

    def _record(self, timer: WorkflowTimer) -> None:
        timer.recorded = True
        text = details.timer_scheduled(timer.key, timer.fire_at or 0, timer.delay)
        self._note(TIMER_SCHEDULED, timer.key, text)

    def _ship(self, then: Suspend | Finish | None) -> None:
        log = self._log
        expected = log.durable_length
        self.outbox = TurnCommit(self.info.run_id, self.lease_no, expected, log.launch(), then)

    def _suspend(self) -> None:
        """Give the lease back with this commit: nothing moves until it is answered."""
        awaiting = self._instance.mailbox.awaited
        moments = [call.retry_at or 0 for call in self._backoffs.values()]
        if (deadline := self._clockwork.first_deadline()) is not None:
            moments.append(deadline)
        fresh = self._log.fresh
        if not moments and not awaiting:
            if fresh:
                self._ship(None)
                return
            raise DeterminismError(
                "the workflow waits for nothing durable: no step, timer or signal could ever "
                "wake it (does it wait for a thread, a socket, or a lock that nobody releases?)"
            )
        for timer in self._clockwork.unrecorded():
            self._record(timer)
        if not fresh:
            fresh.append(Event(YIELDED, None, None, self._clock()))
        self.suspended, self.visible_at = True, min(moments, default=None)
        self._ship(Suspend(self.visible_at, awaiting))

    def _finish(self) -> None:
        """End the run, once what is in flight has landed."""
        if self._log.committing:
            return
        kind, end = outcome(self._instance)
        self._log.fresh.append(Event(kind, None, None, self._clock()))
        self._ending = end.status
        self._ship(end)

    # Letting go

    def _fence(self, events: Sequence[Event]) -> bool:
        """Let the run go where it has ended or this lease was lost. Says whether it did."""
        for event in events:
            if event.type in TERMINAL or (
                event.type == WORKER_LOST and self._is_own_loss(event.details or "{}")
            ):
                self.lost = True
                self._stop_steps()
                self.abandon()
                return True
        return False

    def _is_own_loss(self, text: str) -> bool:
        loss = details.read_worker_lost(text)
        return loss.task_key == "" and loss.lease_no >= self.lease_no

    def _give_up(self, error: DeterminismError) -> None:
        """Record what steps have brought, so that no try repeats them; then be stuck."""
        log = self._log
        if log.committing:
            return
        if log.fresh:
            self._ship(None)
            return
        self.stuck = error
        self._stop_steps()
        self.abandon()

    def _stop_steps(self) -> None:
        self.to_cancel += self.executing
        self.executing.clear()

    def _check_python(self) -> None:
        made = self._log.python
        if made is None or made == PYTHON:
            return
        text = f"the run was begun on Python {made}, and this is Python {PYTHON}"
        if self._strict:
            raise DeterminismError(text)
        self.problems.append(text)

    def _check_all_used(self) -> None:
        loop = self._instance.loop
        if unused := sorted([*loop.parked, *loop.recorded_timers]):
            self._broken = DeterminismError(
                f"the log has calls that the code does not make at this point: {', '.join(unused)}"
            )

    def _gather_problems(self) -> None:
        found = self._instance.loop.problems
        if found:
            self.problems += found
            found.clear()


def _last_own(log: Sequence[Event]) -> int:
    """Return the index of the last event that a worker's turn has written, -1 for none."""
    for place in range(len(log) - 1, -1, -1):
        if log[place].type not in GUESTS:
            return place
    return -1
