"""Actor: what a run does after each input, when its code is blocked or has ended.

It starts steps, commits entries, suspends the run or ends it. Effects wait for durability: a step
is started or cancelled only when the part of the log that led to it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final
from uuid import UUID

from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import CHILD_CANCEL, COMMANDS, SIGNAL_SENT, YIELDED
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.turn.beside import Beside
from holdfast.runtime.turn.checking import verify_end
from holdfast.runtime.turn.comparing import before_commands, before_wait
from holdfast.runtime.turn.divergence import waits_for_nothing
from holdfast.runtime.turn.effects import Effects, State
from holdfast.runtime.turn.moments import fire_timers, first_due, next_due, record_timer
from holdfast.runtime.turn.replayer import Replayer
from holdfast.runtime.turn.run_retry import ending
from holdfast.runtime.turn.shipping import cut, may_follow_others, touched
from holdfast.types import ANY_END, Finish, Notice, Suspend, TurnCommit

# Members of enums are slow to look up on Python 3.11; these are looked up in every run.
_RUNNING: Final = State.RUNNING
_ENDING: Final = State.ENDING
# After so many in a row, commits may follow entries of others, until one finds none before it.
_CONFLICTS: Final = 3
_TO_OTHERS: Final = frozenset({CHILD_CANCEL, SIGNAL_SENT})
_type: Final = attrgetter("type")


class Actor:
    """Decides what a run does, and gathers the effects since the last input.

    `conflicts` counts the refused commits in a row. `singly` is True while entries are committed
    one by one, to find the one that the database refuses. `unstorable` is the error if the run's
    end cannot be stored. `replies` are sent once the commit is durable. `beside` is made when the
    first transaction has recorded a result.
    """

    __slots__ = (
        *("_clock", "_commit", "_info", "_next_due", "_start"),
        *("beside", "cancel", "conflicts", "end", "error", "lease_no", "notices", "problems"),
        *("replayer", "replies", "singly", "state", "unstorable", "visible_at"),
    )

    def __init__(
        self,
        info: RunInfo,
        lease_no: int,
        replayer: Replayer,
        clock: Callable[[], int],
        state: State,
    ) -> None:
        self._info, self.lease_no, self.replayer, self._clock = info, lease_no, replayer, clock
        self.state = state
        # Effects of the current input
        self._start: tuple[Call, ...] = ()
        self.cancel: tuple[str, ...] = ()
        self._commit: TurnCommit | None = None
        self.problems: tuple[str, ...] = ()
        self.notices: tuple[Notice, ...] = ()
        # State across inputs
        self._next_due: int | None = None
        self.visible_at: int | None = None
        self.end: Finish | None = None
        self.error: DeterminismError | PayloadError | None = None
        self.replies: tuple[Notice, ...] = ()
        self.beside: Beside | None = None
        self.conflicts = 0
        self.singly = False
        self.unstorable: PayloadError | None = None

    # Effects

    def effects(self) -> Effects:
        """Return the effects that were gathered, and forget them."""
        commit, start = self._commit, self._start
        self._commit, self._start = None, ()
        effects = Effects(
            self.state,
            self._next_due,
            commit,
            start,
            self.cancel,
            self.notices,
            self.problems,
            self.visible_at,
            self.end,
            self.error,
        )
        self.cancel = self.notices = self.problems = ()
        return effects

    def warn(self, problems: Iterable[str]) -> None:
        """Add warnings."""
        self.problems += tuple(problems)

    def _gather_problems(self) -> None:
        found = self.replayer.instance.loop.problems
        self.warn(found)
        found.clear()

    def stop(self, state: State) -> None:
        """Stop: cancel the steps and close the code."""
        self.state, executions = state, self.replayer.executions
        if executions.executing:
            self.cancel += tuple(executions.stop())
        self.close()

    def close(self) -> None:
        """Close the run's code. Idempotent."""
        self._next_due = None
        if self.replayer.closed:
            return
        self.replayer.close()
        if self.replayer.instance.loop.problems:
            self._gather_problems()

    # What is done

    def pump(self) -> Effects:
        """Fire the due timers, then act. In this order, only the log decides every race."""
        replayer = self.replayer
        self._next_due = None
        if replayer.closed:
            return self.effects()
        if replayer.needs_log:
            self.state = State.NEEDS_LOG
        if self.beside is not None and self.beside.entries:
            self.beside.take()
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
        if self.state is not _RUNNING or self.cancel or self.problems or self.notices:
            return self.effects()
        commit, start = self._commit, self._start  # nothing else, as after most inputs
        self._commit, self._start = None, ()
        return Effects(_RUNNING, self._next_due, commit, start)

    def _act(self) -> None:
        replayer = self.replayer
        instance, log = replayer.instance, replayer.log
        ended = instance.loop.ended
        doubtful = ended or (
            (replayer.unexplained or Caught in instance.ledgers) and replayer.is_doubtful()
        )
        if doubtful and not log.committing:
            if ended:
                replayer.check_end()
            else:
                replayer.refuse(before_commands(instance, log.fresh))
        steps, executions = instance.steps, replayer.executions
        if steps.given_up:
            self.cancel += tuple(executions.cancel(steps, log.certain))
        if log.fresh and (len(log.fresh) > 1 or self.singly or self.conflicts or steps.given_up):
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
                self._start_issued(certain, doubtful=doubtful)
        if executions.pausing or instance.timers.live:
            self._await_moments()
        elif not log.committing:
            if not (executions.executing or steps.pending):
                self._wait()
            elif log.fresh:
                self._ship(None)

    def _start_issued(self, certain: int, *, doubtful: bool) -> None:
        """Start the steps whose calls are certain, unless the log has them under another name."""
        replayer = self.replayer
        if replayer.log.barred and replayer.log.bars_steps:
            return
        if calls := replayer.executions.start(replayer.instance.steps, certain):
            if doubtful:
                replayer.check_calls(calls)
            self._start = tuple(calls)

    def _await_moments(self) -> None:
        """Begin attempts whose pause is over; suspend, or be woken at the next moment."""
        replayer = self.replayer
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
                self._wait()
            elif log.fresh:
                self._ship(None)
        if self.state is _RUNNING:
            self._next_due = next_due(timers, executions, log.certain, now)

    # Committing

    def _ship_apart(self) -> None:
        """Commit first what must not share a commit with a suspension or with other events."""
        replayer, late = self.replayer, self.conflicts >= _CONFLICTS
        log, executions = replayer.log, replayer.executions
        if log.committing:
            return
        count = cut(replayer.instance, log, executions, singly=self.singly, after_others=late)
        if count is not None:
            self._ship(None, count)

    def _ship(self, then: Suspend | Finish | None, count: int | None = None) -> None:
        """Commit the fresh events, or the first `count` of them."""
        replayer, info = self.replayer, self._info
        log, instance = replayer.log, replayer.instance
        after_others = self.conflicts >= _CONFLICTS and may_follow_others(instance, then)
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
            self.replies = tuple(updates.replies(info.run_id, events, ends=ends))

    def _wait(self) -> None:
        """Suspend the run until something that it waits for is due or comes."""
        replayer, instance = self.replayer, self.replayer.instance
        timers, executions = instance.timers, replayer.executions
        commands: Commands | None = instance.ledgers.get(Commands)
        if replayer.unexplained or (commands is not None and commands.taken_back):
            replayer.refuse(before_wait(instance, unexplained=replayer.unexplained))
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
        if instance.history.recorded or instance.history.retries:
            unmade_at = instance.history.unmade_at(self._clock())
            if unmade_at is not None:
                wake_at = unmade_at if wake_at is None else min(wake_at, unmade_at)
        self.suspend(wake_at, awaiting)

    def suspend(self, visible_at: int | None, awaiting: tuple[str, ...]) -> None:
        """Give the lease back with this commit: nothing is done until it is answered."""
        if not self.replayer.log.fresh:
            self.replayer.log.record(YIELDED, None, None)
        self.state, self.visible_at = State.SUSPENDING, visible_at
        self._ship(Suspend(visible_at, awaiting))

    def _stand_still(self) -> None:
        """Keep a paused run still: start nothing, and suspend when its running steps have ended."""
        replayer = self.replayer
        if replayer.log.committing:
            return
        if not replayer.executions.executing:
            self._wait()
        elif replayer.log.fresh:
            self._ship(None)

    def _finish(self) -> None:
        """End the run or keep it open, when no commit is in flight."""
        replayer = self.replayer
        if replayer.log.committing:
            return
        if replayer.checks:
            verify_end(replayer.instance.workflow, self._info, replayer.instance, replayer.log)
        found = ending(replayer.instance, self.unstorable)
        if found is None:
            self._stay_open()
            return
        replayer.log.record(found.kind, None, found.text)
        self.state, self.end = _ENDING, found.end
        self._ship(found.end)

    def _stay_open(self) -> None:
        """Suspend a run that stays open although its code has ended."""
        log, executions = self.replayer.log, self.replayer.executions
        if executions.executing and log.fresh:
            # First make the end of the code certain: then no code awaits the steps.
            self._ship(None)
            return
        self.cancel += tuple(executions.stop())
        self.suspend(None, (ANY_END,))

    # Giving up

    def _give_up(self, error: DeterminismError) -> None:
        """Record the ends of steps, so that no later try repeats them; then be STUCK."""
        replayer = self.replayer
        if replayer.log.committing:
            return
        replayer.forget_commands()
        if replayer.log.fresh:
            self._ship(None, 1 if self.singly else None)
            return
        self.error = error
        self.stop(State.STUCK)
