"""Replayer: feeds a run's code its log and the results of its steps, and makes its commits.

After a conflict it feeds everything again, with the entries of others in their places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from holdfast.codec import describe
from holdfast.definitions.entities import Entity
from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import (
    CHILD_CANCEL,
    COMMANDS,
    SIGNAL_SENT,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    STEPS,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    UPDATE_COMPLETED,
    VALUE_RECORDED,
    can_wait,
    read_target,
    with_role,
    without_mark,
    write_step_failed,
    write_timer,
    write_value,
)
from holdfast.runtime.code.begun import call_begun, write_begun
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.history import DECISIONS
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call, Executions, Restored
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import RAISED, Values, handlers_that_raised, is_raised
from holdfast.runtime.log.virtual_log import VirtualLog, in_delivery_order
from holdfast.runtime.loop.tasks import WorkflowTimer
from holdfast.runtime.turn.checking import Check, check_end, replay_to_end, watch
from holdfast.runtime.turn.comparing import (
    after_replay,
    before_calls,
    before_end,
    before_wait,
    difference,
    without_repeated,
)
from holdfast.runtime.turn.divergence import Reason
from holdfast.runtime.turn.outcome import raised
from holdfast.types import Event, Finish, Suspend, TurnCommit

# Facts: the code is not fed them, so they may also come after other events.
_FACTS: Final = with_role("command", "withdrawal", "fact")
# The last entry of a commit that ends or suspends the run.
_LAST: Final = with_role("suspension", "end")
_UNFED: Final = _FACTS | _LAST
_call: Final = re.compile(r'"name":"([^"]*)","args":(\d+),')


class Replayer:
    """Keeps a run's instance and its virtual log in step.

    The instance has been fed the whole virtual log, one event a drain. `checks` is True if the end
    of the code is to be verified. `broken` is the error for
    something that a replay could not repeat: after it the code is fed nothing. While `needs_log` is
    True there is no code: it needs the whole log to be built again.
    """

    __slots__ = (
        "_careful",
        "_check",
        "_clock",
        "_deadlines",
        "_info",
        "_live_from",
        "_undelivered",
        "_workflow",
        "broken",
        "checks",
        "closed",
        "executions",
        "instance",
        "log",
        "needs_log",
        "unexplained",
    )

    instance: Instance

    def __init__(
        self,
        workflow: Workflow[Any, object],
        info: RunInfo,
        log: Sequence[Event],
        clock: Callable[[], int],
        check: Check = "no",
        careful: bool = True,
    ) -> None:
        self._workflow, self._info, self._check, self._careful = workflow, info, check, careful
        self.checks = check != "no"
        self._clock, self.log = clock, VirtualLog(log, clock)
        self.executions = Executions()
        self.broken: DeterminismError | None = None
        self.needs_log = self.closed = False
        self._undelivered: list[Event] = []  # events to feed after the log that it waits for
        self._live_from: int | None = 0  # how many entries the last instance had seen
        self._deadlines: dict[str, int] = {}  # and the deadlines of its timers that still hold
        self._replay(log, self._deadlines, None)

    @property
    def receptive(self) -> bool:
        """True if the code may be fed."""
        return not (self.closed or self.needs_log or self.broken or self.instance.loop.ended)

    def deliver(self, tail: Sequence[Event]) -> None:
        """Feed durable entries of others."""
        log = self.log
        first = log.durable_length
        log.extend(tail)
        self._feed(in_delivery_order(tail, first), first)

    def deliver_beside(self, event: Event) -> None:
        """Feed the durable entry of a step's own transaction, which is next in the log."""
        log = self.log
        if log.fresh:  # the code has seen those before it
            log.put_after(log.fresh, [event])
            self._feed([event], log.length - 1)
        else:
            self.deliver([event])

    def complete_beside(self, index: int, call: Call, event: Event, result: Restored) -> bool:
        """Feed the result of a step that its own transaction has just recorded at an index.

        Return False, and do nothing, unless it is next, and the code has seen all before it and
        waits for it: then nothing needs to be compared or learnt.
        """
        log, instance = self.log, self.instance
        history = instance.history
        if (
            index != log.durable_length
            or log.committing
            or log.fresh
            or instance.steps.pending.get(call.key) is not call
            or instance.paused_events is not None
            or history.delivered is not None
            or self.unexplained
            or not self.receptive
        ):
            return False
        log.extend((event,))
        history.position = log.durable_length
        try:
            instance.complete(call, result, event.at)
        except DeterminismError as error:
            self.broken = error
        return True

    def commit_done(self, ahead: Sequence[Event]) -> None:
        """Make what was in flight durable, and feed the entries that others wrote `ahead` of it."""
        log = self.log
        position = log.length
        log.commit_done(ahead)
        if not (self.closed or self.broken):
            self._feed(ahead, position)

    def _feed(self, events: Sequence[Event], position: int) -> None:
        """Feed durable events to code that has been fed the first `position` entries."""
        instance = self.instance
        instance.history.position, instance.history.length = position, position + len(events)
        try:
            instance.foresee(events)
            for event in events:
                instance.feed(event)
            self.unexplained = instance.history.is_behind
        except DeterminismError as error:
            self.broken = error

    def complete(self, key: str, event: Event, result: str | Restored) -> None:
        """Feed a step's result if the code still waits for it; else only record the event."""
        instance = self.instance
        call = instance.steps.pending.get(key)
        # `needs_log` and `closed` leave no call pending.
        if call is None or self.broken is not None or instance.loop.ended:
            self._keep(event)
            return
        if instance.paused_events is not None:
            self.append(event)
            return
        log = self.log
        log.fresh.append(event)
        instance.history.position = log.durable_length + len(log.flight) + len(log.fresh)
        try:
            instance.complete(call, result, event.at)
        except DeterminismError as error:
            self.broken = error

    def offer(self, event: Event) -> None:
        """Feed the end of an attempt if the code still waits for it; else only record it."""
        call = self.instance.steps.pending.get(event.key or "")
        if call is None or not self.receptive:
            self._keep(event)
        elif event.type == STEP_RETRY:
            self._record_retry(event, call)
        else:
            self.append(event)

    def append(self, event: Event) -> None:
        """Record an event, which is not durable yet, and feed it."""
        log, instance = self.log, self.instance
        instance.history.position = log.length
        log.fresh.append(event)
        try:
            instance.feed(event)
        except DeterminismError as error:
            self.broken = error

    def fire_timers(self) -> None:
        """Fire the timers that are due, one after the other; none if the run is paused."""
        instance = self.instance
        timers = instance.timers
        while timers.live and self.receptive:
            now = self._clock()
            timer = timers.due(now)  # also while paused: it sets the deadlines of new timers
            if timer is None or instance.paused_events is not None:
                return
            text = write_timer(timer.key, timer.fire_at or now, timer.delay)
            self.append(Event(TIMER_FIRED, timer.key, text, now))

    def record_timer(self, timer: WorkflowTimer) -> None:
        """Add the deadline of a timer to the log."""
        timer.recorded = True
        text = write_timer(timer.key, timer.fire_at or 0, timer.delay)
        self.log.record(TIMER_SCHEDULED, timer.key, text)

    def record_begun(self) -> None:
        """Add to the log that transactions begin whose record follows their commit."""
        steps = self.instance.steps
        calls = [call for call in steps.unbegun if steps.pending.get(call.key) is call]
        steps.unbegun.clear()
        if calls and self.is_doubtful():
            self.check_calls(calls)
        failures = self.instance.history.failures
        told = () if failures is None else failures.told
        for call in reversed(calls):  # the log puts each directly after what the code was fed
            call.begun = True
            place = call.step.place or ""
            key, text = write_begun(call.key, call.name, call.fingerprint, place, told)
            self.log.record(VALUE_RECORDED, key, text)

    def forget_commands(self) -> None:
        """Drop the commands of a stuck run's code, and what was to begin: other code differs.

        The handler of an update gives its commands before its answer, which is dropped with them.
        """
        log, dropped = self.log, COMMANDS
        is_entity = isinstance(self._workflow, Entity)  # its state is kept with the answer
        if not is_entity and any(event.type in COMMANDS for event in log.fresh):
            dropped = COMMANDS | {UPDATE_COMPLETED}
        log.fresh = [
            event for event in log.fresh if event.type not in dropped and call_begun(event) is None
        ]

    # Changed code

    def is_doubtful(self) -> bool:  # a property would be slower, and each input asks
        """Return True if the code may have changed, so that what it does is looked at."""
        if self.unexplained:
            return True
        caught: Caught | None = self.instance.ledgers.get(Caught)
        return caught is not None and caught.misraised is not None

    def refuse(self, reason: Reason | None) -> None:
        """Raise DeterminismError for code that may not continue, and drop the facts that it added.

        Do nothing without a reason, or if the run may continue in spite of it.
        """
        if reason is None or not self._careful:
            return
        log, self.broken = self.log, difference(self.instance, reason)
        log.fresh = [event for event in log.fresh if event.type in STEPS]
        raise self.broken

    def check_calls(self, calls: list[Call]) -> None:
        """Raise DeterminismError if a step may be in the log under another name."""
        try:
            self.refuse(before_calls(self.instance, calls))
        except DeterminismError:
            self.executions.forget(calls)
            raise

    def check_end(self) -> None:
        """Raise DeterminismError if the code has ended where older code had not.

        A cancel ends a run in any case. New commands are then dropped if they may be in the log.
        """
        instance = self.instance
        history = instance.history
        if self.unexplained or history.replayed or history.left_out:
            self.refuse(before_end(instance))
        if self.unexplained and self._careful:
            self.log.fresh = without_repeated(instance, self.log.fresh)

    def check_waiting(self) -> None:
        """Raise DeterminismError if the code waits for what older code has cancelled.

        Or if it may know a recorded signal under another name.
        """
        commands: Commands | None = self.instance.ledgers.get(Commands)
        if self.unexplained or (commands is not None and commands.taken_back):
            self.refuse(before_wait(self.instance, unexplained=self.unexplained))

    # Commits

    def commit(
        self, lease_no: int, then: Suspend | Finish | None, count: int | None, after_others: bool
    ) -> TurnCommit:
        """Return a commit of the fresh events, or of the first `count` of them.

        With `after_others` it may be appended after entries of others, if nothing is lost by that.
        """
        log = self.log
        if after_others:
            updates = self.instance.find(Updates)
            after_others = may_follow_others(then)
            if isinstance(then, Finish) and updates is not None and updates.refuses:
                after_others = False  # what others wrote may be a call that is to be refused
        events = log.commit_sent(count, after_others=after_others)
        info = self._info
        commands: Commands | None = self.instance.ledgers.get(Commands)
        if (
            commands is None
            and info.parent_run_id is None
            and (then is None or not (isinstance(then, Finish) and then.status == "continued"))
        ):
            place, at = log.durable_length, log.last_at
            return TurnCommit(
                info.run_id, lease_no, place, events, then, False, (), False, after_others, at
            )
        return _part(info, lease_no, log, events, then, commands, after_others)

    # When the run is due

    def next_due(self, now: int) -> int | None:
        """Return when a timer or a retry that may start is next due; not before `now`."""
        timers, executions = self.instance.timers, self.executions
        deadline = timers.next_at() if timers.live else None
        retry = executions.next_retry(self.log.certain) if executions.pausing else None
        moments = [at for at in (deadline, retry) if at is not None]
        return max(now, min(moments)) if moments else None

    def wake_at(self) -> int | None:
        """Return when a suspended run is due: at its first timer, or its next retry."""
        timers, executions = self.instance.timers, self.executions
        deadline = timers.first_deadline() if timers.live else None
        retry = executions.next_retry() if executions.pausing else None
        return min((at for at in (deadline, retry) if at is not None), default=None)

    # After a commit that was refused

    def refused(self, tail: Sequence[Event]) -> None:
        """Continue with `tail`, which others wrote where the refused commit was to be.

        If the tail can wait, it is fed after what the code has seen. Otherwise the code is replayed
        with the tail first. An empty tail says that the log is not the one that the code was fed:
        it is read again, and ends of steps that followed from the other log are dropped.
        """
        log = self.log
        undurable = log.refused()
        known = {event.key for event in tail if event.type == STEP_COMPLETED}
        if known and any(_has_failed(event, known) for event in undurable):
            # A transaction was committed after all: its failure never was, nor what followed.
            self._keep_live_from()
            log.extend(tail)
            ends = [without_mark(event) for event in undurable if event.type in STEPS]
            self._begin_again([event for event in ends if not _has_failed(event, known)])
            return
        if tail and self.broken is None and all(event.type in _UNFED for event in undurable):
            # The code has seen only durable entries: the tail is simply next.
            decided = {event.key for event in tail if event.type in DECISIONS}
            for event in undurable:
                if event.type in _FACTS and event.key not in decided:
                    log.fresh.append(event)
            self.deliver(tail)
            self._mark_retries(undurable)
            return
        if tail and self.broken is None and all(map(can_wait, tail)):
            log.put_after([event for event in undurable if event.type not in _LAST], tail)
            self._feed(tail, log.length - len(tail))
            return
        if tail:
            self._keep_live_from()
            log.extend(tail)
            ends = [without_mark(event) for event in undurable if event.type in STEPS]
        else:
            log.forget()
            self._live_from, self._deadlines, ends = None, {}, []
            self.executions.uncertain_ends.clear()
        self._begin_again(ends)

    def record_raised(self, count: int) -> None:
        """Record before all else, once, what has raised and ends in a later commit.

        A commit of the first `count` entries comes before that.
        """
        for key in self._raised(self.log.fresh[count:]):
            self.instance.ledger(Values).record_once(key)
            self.log.fresh.sort(key=lambda event: not is_raised(event))

    def _raised(self, later: Iterable[Event]) -> Iterator[str]:
        """Yield a key for the run's own code, and for each handler that `later` says has raised."""
        if raised(self.instance) is not None:
            yield RAISED
        yield from handlers_that_raised(later)

    def take_back(self) -> None:
        """Make the events of a refused commit fresh again, without its end or suspension."""
        self.log.fresh = [event for event in self.log.refused() if event.type not in _LAST]

    def fail_step(self, completed: Event, message: str) -> None:
        """Let a step fail: its result, alone in flight, was refused by the database."""
        log = self.log
        failed = _unstorable(without_mark(completed), message)
        kept = [without_mark(event) for event in log.refused()[1:] if event.type in STEPS]
        self._keep_live_from()
        self._begin_again([failed, *kept])

    def replace(self, log: Sequence[Event]) -> None:
        """Continue with the whole log, which was needed."""
        self.needs_log = False
        self.log.replace(log)
        self._rebuild()

    def unrecorded(self, lease_no: int) -> TurnCommit | None:
        """Return a commit of ends of attempts that the log may not have, None if there are none.

        With them is what the code recorded about itself, such as a result that does not fit.
        If code has raised, entries before them say so: what says how it ended is not in the log.
        """
        log = self.log
        waiting = [
            *log.flight,
            *log.fresh,
            *self._undelivered,
            *self.executions.uncertain_ends.values(),
        ]
        ends = [
            without_mark(event)
            for event in waiting
            if event.type in STEPS or (event.type == VALUE_RECORDED and call_begun(event) is None)
        ]
        if not any(event.type in STEPS for event in ends):
            return None
        if not self.closed:
            keys = [*self._raised(waiting)]
            at = self._clock()
            ends[:0] = [Event(VALUE_RECORDED, key, write_value("true"), at) for key in keys]
        return _part(self._info, lease_no, log, log.signed(ends), None, None, True)

    def verify(self) -> None:
        """Replay the log of code that has ended, in a check.

        Raises DeterminismError if it does not end again and make the same calls, and in a check
        that refuses if it has not awaited a step.
        """
        log = self.log
        check_end(self.instance)
        if log.durable is not None:
            whole = in_delivery_order([*log.durable, *log.fresh])
            unused = self.instance.history.unused()
            replay_to_end(self._workflow, self._info, whole, unused)

    def close(self) -> None:
        """Close the code for good. Idempotent."""
        self.closed = True
        self.instance.close()

    def _keep_live_from(self) -> None:
        """Remember how many entries the code has seen, and which of its timers still hold."""
        log = self.log
        self._live_from, self._deadlines = (
            log.durable_length,
            self.instance.timers.deadlines(log.certain),
        )

    def _begin_again(self, undelivered: list[Event]) -> None:
        """Replay the log, and feed after it the ends of attempts that are not durable."""
        self._undelivered = [*undelivered, *self.executions.uncertain_ends.values()]
        self.executions.uncertain_ends.clear()
        self.log.rely()
        self._rebuild()

    def _rebuild(self) -> None:
        """Close the code, build it again from the log, and feed what is not durable after that."""
        self.instance.close()
        self.broken = None  # the replay decides this again
        durable = self.log.durable
        if durable is None:
            self.needs_log = True
            return
        self.executions.forget_pauses()
        undelivered, self._undelivered = self._undelivered, []
        self._replay(durable, self._deadlines, self._live_from)
        for event in undelivered:
            self.offer(event)

    def _replay(
        self, log: Sequence[Event], deadlines: dict[str, int], live_from: int | None
    ) -> None:
        is_new = len(log) <= 1  # no more than its first event
        if not is_new:
            log = in_delivery_order(log)
        self.unexplained = False  # True: the log had calls that the code had not made
        instance = self.instance = Instance(self._workflow, self._info, self.log.record)
        instance.timers.kept = deadlines
        instance.history.length = len(log)
        if self.checks:
            watch(instance, refuse=self._check == "refuse")
        feed, history = instance.feed, instance.history
        try:
            if is_new:
                history.live_from = live_from or 0
                for event in log:
                    feed(event)
                return
            instance.foresee(log)
            history.live_from = history.replayed if live_from is None else live_from
            for event in log:
                feed(event)
            self.unexplained = history.is_behind
            if Updates in instance.ledgers:
                self.refuse(after_replay(instance))
        except DeterminismError as error:
            self.broken = error
            self.log.fresh.clear()

    def _keep(self, event: Event) -> None:
        if self.needs_log:
            self._undelivered.append(event)
        elif self.broken is not None:
            self.log.fresh.append(event)  # the work was done: the next try must not repeat it
        else:
            self.executions.uncertain_ends[event.key or ""] = event

    def _record_retry(self, event: Event, call: Call) -> None:
        """Record that an attempt failed; the next one waits until this is durable."""
        self.log.fresh.append(event)
        self.instance.steps.learn(event)
        self.executions.pause(call, self.log.length)

    def _mark_retries(self, events: Sequence[Event]) -> None:
        for event in events:
            call = self.instance.steps.pending.get(event.key or "")
            if event.type == STEP_RETRY and call is not None:
                self.executions.pause(call, self.log.length)


def _has_failed(event: Event, keys: Collection[str | None]) -> bool:
    """Return True for the failed attempt of a call with one of these keys."""
    return event.type in (STEP_FAILED, STEP_RETRY) and event.key in keys


def _unstorable(completed: Event, message: str) -> Event:
    """Return the failure of a step whose result the database refuses to store."""
    # Its result is not parsed: it may be what cannot be read.
    found = _call.search((completed.details or "")[:1000])
    assert found is not None, "a step's end begins with its name and the arguments' fingerprint"
    error = describe(PayloadError(f"the result of {completed.key} cannot be stored: {message}"))
    text = write_step_failed(found[1], int(found[2]), 1, error, completed.at, False)
    return Event(STEP_FAILED, completed.key, text, completed.at)


def _part(
    info: RunInfo,
    lease_no: int,
    log: VirtualLog,
    events: Sequence[Event],
    then: Suspend | Finish | None,
    commands: Commands | None,
    after_others: bool,
) -> TurnCommit:
    """Return a commit of events at the log's durable end, or after entries that are there then."""
    parent = info.parent_run_id
    status = then.status if isinstance(then, Finish) else None
    touches = dict.fromkeys(_targets(events))
    if parent is not None and status not in (None, "continued"):
        touches[parent] = None
    return TurnCommit(
        info.run_id,
        lease_no,
        log.durable_length,
        events,
        then,
        has_commands=any(event.type in COMMANDS for event in events),
        touches=tuple(touches),
        has_children=status is not None and commands is not None and commands.has_children,
        after_others=after_others,
        last_at=log.last_at,
    )


def _targets(events: Iterable[Event]) -> Iterable[UUID]:
    """Yield the ids of the runs that commands are about."""
    for event in events:
        if event.type in (CHILD_CANCEL, SIGNAL_SENT):
            target = read_target(event.details or "{}")
            run_id = target.run_id or target.child_run_id
            if run_id is not None:
                yield run_id


def may_follow_others(then: Suspend | Finish | None) -> bool:
    """Return True if the commit may follow entries of others that the run has not seen."""
    return then is None or (isinstance(then, Finish) and then.status != "continued")
