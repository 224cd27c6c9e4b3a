"""Turn: a run on one worker, from a claim to a suspension or the end.

It does no I/O: each input says what has happened, and returns the effects to carry out.

    driver ── input ──▶ Turn ── what has happened ──▶ Replayer: feeds the code
                          └──── and then ───────────▶ Actor: what the run does ──▶ effects

The code sees an event before the event is durable. Effects wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import STEP_COMPLETED, TERMINAL, VALUE_RECORDED, YIELDED
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call, Restored, completed_step, failed_step
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.log.virtual_log import is_taken_away
from holdfast.runtime.turn.acting import Actor
from holdfast.runtime.turn.beside import Beside
from holdfast.runtime.turn.checking import Check
from holdfast.runtime.turn.comparing import compare
from holdfast.runtime.turn.effects import Effects, State
from holdfast.runtime.turn.moments import first_due
from holdfast.runtime.turn.outcome import leftovers
from holdfast.runtime.turn.replayer import Replayer
from holdfast.runtime.turn.shipping import unrecorded
from holdfast.types import ErrorInfo, Event, TurnCommit

__all__ = ["Call", "Effects", "RunInfo", "State", "Turn"]

# Members of enums are slow to look up on Python 3.11; these are compared after every input.
_RUNNING, _SUSPENDING = State.RUNNING, State.SUSPENDING
_ENDING, _ENDED = State.ENDING, State.ENDED
_LACKING: Final = (
    "the log lacks what this worker has seen of it, as after a restore or a failover to "
    "a replica that lags: the run is replayed, and steps that the log lacks run again"
)


class Turn:
    """A run's turn. Each input method returns the effects to carry out.

    At most one commit is in flight; `committed`, `conflict` or `invalid` is called with its answer.
    """

    __slots__ = ("_actor", "_clock", "_replayer", "_strict", "info", "lease_no")

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
        lost = len(log) > 1 and is_taken_away(log, lease_no)
        replayer = Replayer(workflow, info, () if lost else log, clock, check, careful)
        self._replayer = replayer
        self._actor = Actor(info, lease_no, replayer, clock, State.LOST if lost else _RUNNING)
        if lost:
            self._actor.close()

    @property
    def state(self) -> State:
        """The state after the last input."""
        return self._actor.state

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
            self._actor.warn(found)
        return self._actor.pump()

    def step_completed(
        self, key: str, result: str, started_at: int, restored: Restored | None = None
    ) -> Effects:
        """Record and deliver a step's result: JSON text, and `restored` if its value is known."""
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if call is None or replayer.closed:
            return self._actor.effects()
        event = completed_step(call, result, started_at, self._clock())
        instance, log = replayer.instance, replayer.log
        waiting = instance.steps.pending.get(key)
        if (
            waiting is None
            or replayer.broken is not None
            or instance.paused_events is not None
            or instance.loop.ended
        ):
            replayer.offer(event)
            return self._actor.pump()
        log.fresh.append(event)  # as `Replayer.append`, with the result given straight to the call
        instance.history.position = log.durable_length + len(log.flight) + len(log.fresh)
        try:
            instance.complete(waiting, restored or result, event.at)
        except DeterminismError as error:
            replayer.broken = error
        return self._actor.pump()

    def step_recorded(
        self, key: str, index: int | None, event: Event, restored: Restored | None = None
    ) -> Effects:
        """Continue after a step whose own transaction has recorded its result.

        The transaction has added it to the log at `index`. Without an index it has left it in
        another place, and the log does not have it yet. The turn compares the arguments, as in a
        replay, unless the attempt that has ended made the result itself: then it is `restored`.
        """
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if index is None:
            if call is None or replayer.closed:
                return self._actor.effects()
            replayer.offer(event)
            return self._actor.pump()
        actor = self._actor
        beside = actor.beside = actor.beside or Beside(replayer)
        if restored is None or call is None or not beside.complete(index, call, event, restored):
            beside.add(index, event)
        return self._actor.pump()

    @property
    def lacks_entries(self) -> bool:
        """True if others wrote entries before that of a transaction, which only the log tells."""
        beside = self._actor.beside
        return beside is not None and beside.lacks_entries

    def step_failed(
        self, key: str, error: ErrorInfo, started_at: int, retry_at: int | None, timed_out: bool
    ) -> Effects:
        """Record and deliver a failed attempt. With `retry_at` the step is tried again then."""
        replayer = self._replayer
        call = replayer.executions.executing.pop(key, None)
        if call is None or replayer.closed:
            return self._actor.effects()
        now = self._clock()
        replayer.offer(failed_step(call, error, started_at, retry_at, timed_out, now))
        return self._actor.pump()

    def committed(self, ahead: Sequence[Event] = ()) -> Effects:
        """Continue with a durable commit. `ahead` are entries of others that are before it."""
        replayer, actor = self._replayer, self._actor
        if ahead:  # the conflicts still count: the next commit, too, would be refused first
            replayer.commit_done(ahead)
        else:
            actor.conflicts = 0
            replayer.log.commit_done(ahead)
        if actor.singly:
            actor.singly = bool(replayer.log.fresh)
        if actor.replies:
            actor.notices, actor.replies = actor.replies, ()
        if replayer.closed:
            return actor.effects()
        if actor.state is _ENDING:
            if ahead:
                updates = replayer.instance.ledger(Updates)
                actor.notices += tuple(updates.replies(self.info.run_id, (), ends=True))
            if found := leftovers(replayer.instance):
                actor.warn(found)
            actor.stop(_ENDED)
        elif actor.state is _SUSPENDING:
            actor.state = State.SUSPENDED
            replayer.log.forget()
        else:
            return actor.pump()
        return actor.effects()

    def conflict(self, tail: Sequence[Event]) -> Effects:
        """Continue after a commit that was not written: `tail` has taken its place in the log."""
        actor = self._actor
        self._continue()
        actor.conflicts += 1
        if not tail:  # what is under way was begun because of entries that may be lost
            actor.warn([_LACKING])
            actor.beside = None
            actor.cancel += tuple(self._replayer.executions.stop())
        if self._has_lost(tail):
            return actor.effects()
        self._replayer.refused(tail)
        return actor.pump()

    def invalid(self, message: str) -> Effects:
        """Continue after a commit that was not written: the database refuses a value in it.

        The events are then committed one by one. If the value is the result of a step, the step
        fails; if it is the end of the run, the run fails; with any other value the run is stuck.
        """
        self._continue()
        replayer, actor, flight = self._replayer, self._actor, self._replayer.log.flight
        if replayer.closed:
            return actor.effects()
        if sum(event.type != VALUE_RECORDED for event in flight) > 1:
            actor.singly = True
            replayer.take_back()
        elif flight[0].type == STEP_COMPLETED:
            replayer.fail_step(flight[0], message)
        elif flight[0].type in TERMINAL and actor.unstorable is None:
            actor.unstorable = PayloadError(f"the run's end cannot be stored: {message}")
            replayer.take_back()
        else:
            actor.error = PayloadError(f"{flight[0].type} cannot be stored: {message}")
            actor.stop(State.STUCK)
        return actor.pump()

    def resume(self, lease_no: int, tail: Sequence[Event]) -> Effects:
        """Continue after a suspension: the run was claimed again; `tail` is what others wrote."""
        self.lease_no = self._actor.lease_no = lease_no
        self._continue()
        if self._has_lost(tail):
            return self._actor.effects()
        self._replayer.deliver(tail)
        return self._actor.pump()

    def take_unread(self, tail: Sequence[Event], first: int) -> Effects:
        """Deliver entries that others wrote, read from index `first` on.

        They are ignored if they do not follow the log of this turn, or if a commit is in flight:
        the next conflict brings them again. If there are none, although a transaction was told that
        its record is there, the log has lost them.
        """
        replayer = self._replayer
        if self.lacks_entries and not tail and first == self.durable_length:
            return self.conflict(tail)
        unseen = replayer.unseen(tail, first) if self._actor.state is _RUNNING else ()
        if not unseen or self._has_lost(unseen):
            return self._actor.effects()
        replayer.deliver(unseen)
        return self._actor.pump()

    def rebuild(self, log: Sequence[Event]) -> Effects:
        """Continue a turn in NEEDS_LOG with the whole log, from index 0."""
        if not log:  # the run is gone
            self._actor.stop(State.LOST)
        elif not self._has_lost(log):
            self._continue()
            self._replayer.replace(log)
            return self._actor.pump()
        return self._actor.effects()

    def wake(self) -> Effects:
        """Do what has become due."""
        return self._actor.pump()

    def interrupt(self) -> Effects:
        """Suspend the run until now: its steps were stopped, and begin again in its next turn.

        Nothing is done while a commit is in flight.
        """
        actor, log = self._actor, self._replayer.log
        if actor.state is _RUNNING and not log.committing:
            log.record(YIELDED, None, None)
            actor.suspend(self._clock(), ())
        return actor.effects()

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
        self._actor.close()

    def _continue(self) -> None:
        """Return to RUNNING after a refused commit, a suspension, or the reading of the log."""
        if not self._replayer.closed:
            actor = self._actor
            actor.state, actor.visible_at, actor.end, actor.replies = _RUNNING, None, None, ()

    def _has_lost(self, events: Sequence[Event]) -> bool:
        """Return True if the turn has stopped; stop it if these events take the run away."""
        if not self._replayer.closed and is_taken_away(events, self.lease_no):
            self._actor.stop(State.LOST)
        return self._replayer.closed
