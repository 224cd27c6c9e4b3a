"""Turn: a run on one worker, from a claim to a suspension or the end.

It does no I/O: each input says what has happened, and returns the effects to carry out.

The code sees an event before the event is durable. Effects wait for durability: a step is started
or cancelled only when the part of the log that led to it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import (
    CHILD_CANCEL,
    COMMANDS,
    SIGNAL_SENT,
    STEP_COMPLETED,
    TERMINAL,
    VALUE_RECORDED,
    YIELDED,
)
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call, Restored, completed_step, failed_step
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.log.virtual_log import is_taken_away
from holdfast.runtime.turn.beside import Beside
from holdfast.runtime.turn.checking import Check, verify_end
from holdfast.runtime.turn.comparing import before_commands, compare
from holdfast.runtime.turn.divergence import waits_for_nothing
from holdfast.runtime.turn.effects import Effects, State
from holdfast.runtime.turn.moments import fire_timers, first_due, next_due, record_timer
from holdfast.runtime.turn.outcome import leftovers
from holdfast.runtime.turn.replayer import Replayer
from holdfast.runtime.turn.run_retry import ending
from holdfast.runtime.turn.shipping import cut, may_follow_others, touched, unrecorded
from holdfast.types import ANY_END, ErrorInfo, Event, Finish, Notice, Suspend, TurnCommit

__all__ = ["Call", "Effects", "RunInfo", "State", "Turn"]

# Members of enums are slow to look up on Python 3.11; these are compared after every input.
_RUNNING, _SUSPENDING = State.RUNNING, State.SUSPENDING
_ENDING, _ENDED = State.ENDING, State.ENDED
_LACKING = (
    "the log lacks what this worker has seen of it, as after a restore or a failover to "
    "a replica that lags: the run is replayed, and steps that the log lacks run again"
)
# In a row; then commits may be appended after entries of others, until one finds none before it.
_CONFLICTS = 3
_TO_OTHERS: Final = frozenset({CHILD_CANCEL, SIGNAL_SENT})
_type: Final = attrgetter("type")


class Turn:
    """A run's turn. Each input method returns the effects to carry out.

    At most one commit is in flight; `committed`, `conflict` or `invalid` is called with its answer.
    """

    __slots__ = (
        *("_cancel", "_commit", "_end", "_error", "_next_due", "_notices", "_problems", "_start"),
        *("_beside", "_clock", "_conflicts", "_replayer", "_replies", "_singly", "_strict"),
        *("_unstorable", "_visible_at", "info", "lease_no", "state"),
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
        careful: bool = True,
        check: Check = "no",
    ) -> None:
        """Replay `log`.

        With `strict` the code must make exactly the calls of the log. With `careful` it must not
        start a call that may be recorded under another name. With a `check` clocks and random
        numbers in the code are reported, and the run is replayed once more before its end.
        """
        self.info, self.lease_no = info, lease_no
        self._clock, self._strict = clock, strict
        # Effects of the current input
        self._start: tuple[Call, ...] = ()
        self._cancel: tuple[str, ...] = ()
        self._commit: TurnCommit | None = None
        self._problems: tuple[str, ...] = ()
        self._notices: tuple[Notice, ...] = ()
        # State across inputs
        lost = len(log) > 1 and is_taken_away(log, lease_no)
        self.state = State.LOST if lost else _RUNNING
        self._next_due: int | None = None
        self._visible_at: int | None = None
        self._end: Finish | None = None
        self._error: DeterminismError | PayloadError | None = None
        self._replies: tuple[Notice, ...] = ()  # to be sent once the commit is durable
        self._beside: Beside | None = None  # made when the first transaction has recorded a result
        self._conflicts = 0
        self._singly = False  # commit one by one, to find the event that the database refuses
        self._unstorable: PayloadError | None = None  # the error if the run's end cannot be stored
        self._replayer = Replayer(workflow, info, () if lost else log, clock, check, careful)
        if lost:
            self.abandon()

    @property
    def durable_length(self) -> int:
        """The number of durable events of the run that this turn knows of."""
        return self._replayer.log.durable_length

    def ends_with(self, event: Event) -> bool:
        """Return True if this is the last durable event that the suspended turn knows of."""
        return self._replayer.log.last == hash(event)

    @property
    def wakes_itself_at(self) -> int | None:
        """When a timer or a retry of the suspended code is due.

        A run may be due before: at what other code has recorded, and this code has not called.
        """
        replayer = self._replayer
        return first_due(replayer.instance.timers, replayer.executions)

    @property
    def executing(self) -> dict[str, Call]:
        """The steps that the driver has been told to start, by key."""
        return self._replayer.executions.executing

    @property
    def instance(self) -> Instance:
        """The run's code in execution."""
        return self._replayer.instance

    # Inputs

    def begin(self) -> Effects:
        """Start at the end of the log."""
        replayer = self._replayer
        log = replayer.log
        if log.python is not None and not replayer.closed and replayer.broken is None:
            found, replayer.broken = compare(log, replayer.instance, strict=self._strict)
            self._warn(found)
        return self._pump()

    def step_completed(
        self, key: str, result: str, started_at: int, restored: Restored | None = None
    ) -> Effects:
        """Record and deliver a step's result: JSON text, and that `restored` if it is known."""
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if call is None or replayer.closed:
            return self._effects()
        event = completed_step(call, result, started_at, self._clock())
        replayer.complete(key, event, restored or result)
        return self._pump()

    def step_recorded(
        self, key: str, index: int | None, event: Event, restored: Restored | None = None
    ) -> Effects:
        """Continue after a step whose own transaction has recorded its result.

        It has added it to the log; without an `index` it has left it elsewhere, and the log lacks
        it yet. The turn compares what it was called with, as in a replay, unless the attempt that
        has ended made it itself: then it is `restored`.
        """
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if index is None:
            if call is None or replayer.closed:
                return self._effects()
            replayer.offer(event)
            return self._pump()
        beside = self._beside = self._beside or Beside(replayer)
        if restored is None or call is None or not beside.complete(index, call, event, restored):
            beside.add(index, event)
        return self._pump()

    @property
    def lacks_entries(self) -> bool:
        """True if others wrote entries before that of a transaction, which only the log tells."""
        return self._beside is not None and self._beside.lacks_entries

    def step_failed(
        self, key: str, error: ErrorInfo, started_at: int, retry_at: int | None, timed_out: bool
    ) -> Effects:
        """Record and deliver a failed attempt. With `retry_at` the step is tried again then."""
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if call is None or replayer.closed:
            return self._effects()
        now = self._clock()
        replayer.offer(failed_step(call, error, started_at, retry_at, timed_out, now))
        return self._pump()

    def committed(self, ahead: Sequence[Event] = ()) -> Effects:
        """Continue with a durable commit. `ahead` are entries of others that are before it."""
        replayer = self._replayer
        if ahead:
            replayer.commit_done(ahead)
        else:  # else the next commit, too, would be refused first
            self._conflicts = 0
            replayer.log.commit_done(ahead)
        if self._singly:
            self._singly = bool(replayer.log.fresh)
        if self._replies:
            self._notices, self._replies = self._replies, ()
        if replayer.closed:
            return self._effects()
        if self.state is _ENDING:
            if ahead:
                updates = replayer.instance.ledger(Updates)
                self._notices += tuple(updates.replies(self.info.run_id, (), ends=True))
            if found := leftovers(replayer.instance):
                self._warn(found)
            self._stop(_ENDED)
        elif self.state is _SUSPENDING:
            self.state = State.SUSPENDED
            replayer.log.forget()
        else:
            return self._pump()
        return self._effects()

    def conflict(self, tail: Sequence[Event]) -> Effects:
        """Continue after a commit that was not written: `tail` has taken its place in the log."""
        self._continue()
        self._conflicts += 1
        if not tail:  # what is under way was begun because of entries that may be lost
            self._warn([_LACKING])
            self._beside = None
            self._cancel += tuple(self._replayer.executions.stop())
        if self._has_lost(tail):
            return self._effects()
        self._replayer.refused(tail)
        return self._pump()

    def invalid(self, message: str) -> Effects:
        """Continue after a commit that was not written: the database refuses a value in it.

        The events are then committed one by one. If the value is the result of a step, the step
        fails; if it is the end of the run, the run fails; with any other value the run is stuck.
        """
        self._continue()
        replayer, flight = self._replayer, self._replayer.log.flight
        if replayer.closed:
            return self._effects()
        if sum(event.type != VALUE_RECORDED for event in flight) > 1:
            self._singly = True
            replayer.take_back()
        elif flight[0].type == STEP_COMPLETED:
            replayer.fail_step(flight[0], message)
        elif flight[0].type in TERMINAL and self._unstorable is None:
            self._unstorable = PayloadError(f"the run's end cannot be stored: {message}")
            replayer.take_back()
        else:
            self._error = PayloadError(f"{flight[0].type} cannot be stored: {message}")
            self._stop(State.STUCK)
        return self._pump()

    def resume(self, lease_no: int, tail: Sequence[Event]) -> Effects:
        """Continue after a suspension: the run was claimed again; `tail` is what others wrote."""
        self.lease_no = lease_no
        self._continue()
        if self._has_lost(tail):
            return self._effects()
        self._replayer.deliver(tail)
        return self._pump()

    def take_unread(self, tail: Sequence[Event], first: int) -> Effects:
        """Deliver entries that others wrote, read from index `first` on.

        They are ignored if they do not follow the log of this turn, or if a commit is in flight:
        the next conflict brings them again. If there are none where a transaction was told that its
        record is, the log has lost them.
        """
        replayer = self._replayer
        if self.lacks_entries and not tail and first == self.durable_length:
            return self.conflict(tail)
        unseen = replayer.unseen(tail, first) if self.state is _RUNNING else ()
        if not unseen or self._has_lost(unseen):
            return self._effects()
        replayer.deliver(unseen)
        return self._pump()

    def rebuild(self, log: Sequence[Event]) -> Effects:
        """Continue a turn in NEEDS_LOG with the whole log, from index 0."""
        if not log:  # the run is gone
            self._stop(State.LOST)
        elif not self._has_lost(log):
            self._continue()
            self._replayer.replace(log)
            return self._pump()
        return self._effects()

    def wake(self) -> Effects:
        """Do what has become due."""
        return self._pump()

    def interrupt(self) -> Effects:
        """Suspend the run until now: its steps were stopped, and begin again in its next turn.

        Nothing is done while a commit is in flight.
        """
        if self.state is _RUNNING and not self._replayer.log.committing:
            self._replayer.log.record(YIELDED, None, None)
            self._yield(self._clock(), ())
        return self._effects()

    def unrecorded(self, lease_no: int) -> TurnCommit | None:
        """Return a commit of ends of attempts that the log may not have, None if there are none.

        Safe from another thread.
        """
        replayer, log = self._replayer, self._replayer.log
        instance = None if replayer.closed else replayer.instance
        ends = log.signed(unrecorded(replayer.unrecorded, instance, self._clock))
        if not ends:
            return None
        place, at = log.durable_length, log.last_at
        return TurnCommit(self.info.run_id, lease_no, place, ends, after_others=True, last_at=at)

    def abandon(self) -> None:
        """Close the run's code; the turn does nothing after that. Idempotent."""
        self._next_due = None
        if self._replayer.closed:
            return
        self._replayer.close()
        if self._replayer.instance.loop.problems:
            self._gather_problems()

    # Effects

    def _effects(self) -> Effects:
        """Return the gathered effects, and begin with none for the next input."""
        commit, start = self._commit, self._start
        self._commit, self._start = None, ()
        effects = Effects(
            self.state,
            self._next_due,
            commit,
            start,
            self._cancel,
            self._notices,
            self._problems,
            self._visible_at,
            self._end,
            self._error,
        )
        self._cancel = self._notices = self._problems = ()
        return effects

    def _warn(self, problems: Iterable[str]) -> None:
        self._problems += tuple(problems)

    def _gather_problems(self) -> None:
        found = self._replayer.instance.loop.problems
        self._warn(found)
        found.clear()

    def _continue(self) -> None:
        """Return to RUNNING after a refused commit, a suspension, or the reading of the log."""
        if not self._replayer.closed:
            self.state, self._visible_at, self._end, self._replies = State.RUNNING, None, None, ()

    def _stop(self, state: State) -> None:
        """Stop: cancel the steps and close the code."""
        self.state, executions = state, self._replayer.executions
        if executions.executing:
            self._cancel += tuple(executions.stop())
        self.abandon()

    # Pumping

    def _pump(self) -> Effects:
        """Fire the due timers, then act. In this order, only the log decides every race."""
        replayer = self._replayer
        self._next_due = None
        if replayer.closed:
            return self._effects()
        if replayer.needs_log:
            self.state = State.NEEDS_LOG
        if self._beside is not None and self._beside.entries:
            self._beside.take()
        instance = replayer.instance
        if self.state is _RUNNING:
            if instance.timers.live:
                fire_timers(replayer, self._clock)
            if replayer.broken is None:
                try:
                    self._act()
                except DeterminismError as error:
                    replayer.broken = error
        if replayer.broken is not None:
            self._give_up(replayer.broken)
        if instance.loop.problems:
            self._gather_problems()
        if self.state is not _RUNNING or self._cancel or self._problems or self._notices:
            return self._effects()
        commit, start = self._commit, self._start
        self._commit, self._start = None, ()
        return Effects(_RUNNING, self._next_due, commit, start)

    def _act(self) -> None:
        replayer = self._replayer
        instance, log = replayer.instance, replayer.log
        ended = instance.loop.ended
        doubtful = ended or replayer.is_doubtful()
        if doubtful and not log.committing:
            if ended:
                replayer.check_end()
            else:
                replayer.refuse(before_commands(instance, log.fresh))
        steps, executions = instance.steps, replayer.executions
        if steps.given_up:
            self._cancel += tuple(executions.cancel(steps, log.certain))
        if log.fresh and (len(log.fresh) > 1 or self._singly or self._conflicts or steps.given_up):
            self._ship_apart()
        if ended:
            self._finish()
            return
        if instance.paused_events is not None:
            self._stand_still()
            return
        if steps.unbegun:
            replayer.record_begun()
        # The first call is looked at here: after most inputs it has to wait for the commit.
        if issued := steps.issued:
            certain, first = log.certain, issued[0]
            if first.mark <= certain or first.retry_at is not None:
                self._start = tuple(replayer.start_issued(certain, doubtful=doubtful))
        if executions.pausing or instance.timers.live:
            self._await_moments()
        elif not log.committing:
            if not (executions.executing or steps.pending):
                self._suspend()
            elif log.fresh:
                self._ship(None)

    def _await_moments(self) -> None:
        """Begin attempts whose pause is over; suspend, or be woken at the next moment."""
        replayer = self._replayer
        log, executions = replayer.log, replayer.executions
        steps, timers, now = replayer.instance.steps, replayer.instance.timers, self._clock()
        if calls := executions.start_again(steps, log.certain, now):
            if replayer.is_doubtful():
                replayer.check_calls(calls)
            self._start += tuple(calls)
        for timer in timers.due_for_recording(now):
            record_timer(replayer.log, timer)
        if not log.committing:
            stepping = executions.executing or (
                steps.pending and not executions.all_pause(steps, now)
            )
            if not (stepping or (timers.live and timers.fires_soon(now))):
                self._suspend()
            elif log.fresh:
                self._ship(None)
        if self.state is _RUNNING:
            self._next_due = next_due(timers, executions, log.certain, now)

    # Committing

    def _ship_apart(self) -> None:
        """Commit first what must not share a commit with a suspension or with other events."""
        replayer, late = self._replayer, self._conflicts >= _CONFLICTS
        log, executions = replayer.log, replayer.executions
        if log.committing:
            return
        count = cut(replayer.instance, log, executions, singly=self._singly, after_others=late)
        if count is not None:
            self._ship(None, count)

    def _ship(self, then: Suspend | Finish | None, count: int | None = None) -> None:
        """Commit the fresh events, or the first `count` of them."""
        replayer, info = self._replayer, self.info
        log, instance = replayer.log, replayer.instance
        after_others = self._conflicts >= _CONFLICTS and may_follow_others(instance, then)
        events = log.commit_sent(count, after_others=after_others)
        commands: Commands | None = instance.ledgers.get(Commands)
        place, at, lease_no = log.durable_length, log.last_at, self.lease_no
        if commands is None and (
            not isinstance(then, Finish)
            or (info.parent_run_id is None and then.status != "continued")
        ):
            self._commit = TurnCommit(
                info.run_id, lease_no, place, events, then, False, (), False, after_others, at
            )
        else:
            has_commands = not COMMANDS.isdisjoint(map(_type, events))
            touches: tuple[UUID, ...] = ()
            if info.parent_run_id is not None or not _TO_OTHERS.isdisjoint(map(_type, events)):
                touches = touched(info, events, then)
            ends = isinstance(then, Finish) and commands is not None and commands.has_children
            self._commit = TurnCommit(
                info.run_id,
                lease_no,
                place,
                events,
                then,
                has_commands,
                touches,
                ends,
                after_others,
                at,
            )
        if Updates in instance.ledgers:
            updates, ends = instance.ledger(Updates), isinstance(then, Finish)
            self._replies = tuple(updates.replies(info.run_id, events, ends=ends))

    def _suspend(self) -> None:
        """Give the lease back with this commit: the turn does nothing until it is answered."""
        replayer, instance = self._replayer, self._replayer.instance
        timers, executions = instance.timers, replayer.executions
        replayer.check_waiting()
        awaiting, wake_at = instance.awaiting, None
        if timers.live or executions.pausing:
            wake_at = first_due(timers, executions)
        if wake_at is None and not awaiting and instance.paused_events is None:
            if not replayer.log.fresh:
                raise waits_for_nothing(instance.loop)
            self._ship(None)
            return
        for timer in timers.unrecorded() if timers.live else ():
            record_timer(replayer.log, timer)
        unmade_at = instance.history.unmade_at(self._clock())
        if unmade_at is not None:
            wake_at = unmade_at if wake_at is None else min(wake_at, unmade_at)
        self._yield(wake_at, awaiting)

    def _yield(self, visible_at: int | None, awaiting: tuple[str, ...]) -> None:
        if not self._replayer.log.fresh:
            self._replayer.log.record(YIELDED, None, None)
        self.state, self._visible_at = State.SUSPENDING, visible_at
        self._ship(Suspend(visible_at, awaiting))

    def _stand_still(self) -> None:
        """Keep a paused run still: start nothing, and suspend when its running steps have ended."""
        replayer = self._replayer
        if replayer.log.committing:
            return
        if not replayer.executions.executing:
            self._suspend()
        elif replayer.log.fresh:
            self._ship(None)

    def _finish(self) -> None:
        """End the run or keep it open, when no commit is in flight."""
        replayer = self._replayer
        if replayer.log.committing:
            return
        if replayer.checks:
            verify_end(replayer.instance.workflow, self.info, replayer.instance, replayer.log)
        found = ending(replayer.instance, self._unstorable)
        if found is None:
            self._stay_open()
            return
        replayer.log.record(found.kind, None, found.text)
        self.state, self._end = _ENDING, found.end
        self._ship(found.end)

    def _stay_open(self) -> None:
        """Suspend a run that stays open although its code has ended."""
        log, executions = self._replayer.log, self._replayer.executions
        if executions.executing and log.fresh:
            # First make the end of the code certain: then no code awaits the steps.
            self._ship(None)
            return
        self._cancel += tuple(executions.stop())
        self._yield(None, (ANY_END,))

    # Giving up

    def _has_lost(self, events: Sequence[Event]) -> bool:
        """Return True if the turn has stopped; stop it if these events take the run away."""
        if not self._replayer.closed and is_taken_away(events, self.lease_no):
            self._stop(State.LOST)
        return self._replayer.closed

    def _give_up(self, error: DeterminismError) -> None:
        """Record the ends of steps, so that no later try repeats them; then be STUCK."""
        replayer = self._replayer
        if replayer.log.committing:
            return
        replayer.forget_commands()
        if replayer.log.fresh:
            self._ship(None, 1 if self._singly else None)
            return
        self._error = error
        self._stop(State.STUCK)
