"""Replayer: feeds a run's code its log and the results of its steps.

After a conflict it feeds everything again, with the entries of others in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.definitions.entities import Entity
from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError
from holdfast.events import STEP_RETRY, STEPS, VALUE_RECORDED, without_mark
from holdfast.runtime.code.begun import write_begun
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call, Executions
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.log.virtual_log import VirtualLog, in_delivery_order
from holdfast.runtime.turn.checking import Check, watch
from holdfast.runtime.turn.comparing import (
    after_replay,
    before_calls,
    before_end,
    difference,
    without_repeated,
)
from holdfast.runtime.turn.divergence import Reason
from holdfast.runtime.turn.refusals import ends, keep, unstorable, without_commands, without_last
from holdfast.types import Event


class Replayer:
    """Keeps a run's instance and its virtual log in step.

    The instance has been fed the whole virtual log, one event a drain. `broken` is the error for
    something that a replay could not repeat: after it the code is fed nothing. `unexplained` is
    True while the log has calls that the code has not made. While `needs_log` is True there is no
    code: it needs the whole log to be built again. `checks` is True if the end of the code is to be
    verified.
    """

    __slots__ = (
        *("_careful", "_check", "_deadlines", "_info", "_live_from", "_undelivered", "_workflow"),
        *("broken", "checks", "closed", "executions", "instance", "log"),
        *("needs_log", "unexplained"),
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
        self.log, self.executions = VirtualLog(log, clock, info.tells), Executions()
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

    def unseen(self, tail: Sequence[Event], first: int) -> Sequence[Event]:
        """Return which of the entries, read from index `first` on, follow the log of this run.

        None do while a commit is in flight, or is to be sent: they are read again after it.
        """
        log = self.log
        skip = log.durable_length - first
        if log.committing or log.fresh or not self.receptive or not 0 <= skip < len(tail):
            return ()
        if skip and log.last_at not in (0, tail[skip - 1].at):
            return ()
        return tail[skip:]

    def deliver_beside(self, event: Event) -> None:
        """Feed the durable entry of a step's own transaction, which is next in the log."""
        log = self.log
        if log.fresh:  # the code has seen those before it
            log.put_after(log.fresh, [event])
            self._feed([event], log.length - 1)
        else:
            self.deliver([event])

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

    def record_begun(self) -> None:
        """Record that transactions begin, if the log gets their results only after their commit."""
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
        """Drop the commands of a stuck run's code, and what was to begin: other code differs."""
        is_entity = isinstance(self._workflow, Entity)  # its state is kept with the answer
        self.log.fresh = without_commands(self.log.fresh, keeps_answers=is_entity)

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

    # After a commit that was refused

    def refused(self, tail: Sequence[Event]) -> None:
        """Continue with `tail`, which others wrote where the refused commit was to be.

        If the tail can wait, it is fed after what the code has seen. Otherwise the code is replayed
        with the tail first. An empty tail says that the log is not the one that the code was fed:
        it is read again, and ends of steps that followed from the other log are dropped.
        """
        log = self.log
        refused = log.refused()
        if not tail:
            log.forget()
            self._live_from, self._deadlines = None, {}
            self.executions.uncertain_ends.clear()
            self._begin_again([])
            return
        way, entries = keep(refused, tail, is_broken=self.broken is not None)
        if way == "next":
            log.fresh += entries
            self.deliver(tail)
            self._mark_retries(refused)
        elif way == "after":
            log.put_after(entries, tail)
            self._feed(tail, log.length - len(tail))
        else:
            self._keep_live_from()
            log.extend(tail)
            self._begin_again(entries)

    def take_back(self) -> None:
        """Make the events of a refused commit fresh again, without its end or suspension."""
        self.log.fresh = without_last(self.log.refused())

    def fail_step(self, completed: Event, message: str) -> None:
        """Let a step fail: its result, alone in flight, was refused by the database."""
        failed = unstorable(without_mark(completed), message)
        kept = ends(self.log.refused()[1:])
        self._keep_live_from()
        self._begin_again([failed, *kept])

    def replace(self, log: Sequence[Event]) -> None:
        """Continue with the whole log, which was needed."""
        self.needs_log = False
        self.log.replace(log)
        self._rebuild()

    @property
    def unrecorded(self) -> list[Event]:
        """The entries that the log may not have."""
        ends = self.executions.uncertain_ends
        return [*self.log.flight, *self.log.fresh, *self._undelivered, *ends.values()]

    def close(self) -> None:
        """Close the code for good. Idempotent."""
        self.closed = True
        self.instance.close()

    def _keep_live_from(self) -> None:
        """Remember how many entries the code has seen, and the deadlines that still hold."""
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
        self.unexplained = False
        instance = self.instance = Instance(self._workflow, self._info, self.log.record)
        if deadlines:
            instance.timers.kept = deadlines
        instance.history.length = len(log)
        if self.checks:
            watch(instance, refuse=self._check == "refuse")
        feed, history = instance.feed, instance.history
        try:
            if is_new:
                if live_from:
                    history.live_from = live_from
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
