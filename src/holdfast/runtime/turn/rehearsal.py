"""Rehearsal: a log replayed by the code at hand as a worker would, without any effect.

Commits are taken for durable and are written nowhere, and steps do not run. So a rehearsal ends
where the run would do something new: what is recorded is all that it can compare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.codec import check_open, summarize
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.details import ActivityCompleted, ActivityScheduled, ChildCompleted, SignalReceived
from holdfast.errors import DeterminismError, InvalidInput, PayloadError
from holdfast.events import (
    ACTIVITY_COMPLETED,
    ACTIVITY_SCHEDULED,
    CHILD_COMPLETED,
    COMPLETED,
    CONTINUED,
    FAILED,
    SIGNAL_RECEIVED,
    TERMINAL,
    read_last_failure,
    write_details,
)
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import ACTIVITY, CHILD
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.mailbox import Message
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.virtual_log import BEGUN, in_delivery_order
from holdfast.runtime.loop.user_code import line_of_definition, line_of_error, line_of_waiting
from holdfast.runtime.turn.checking import replay_to_end
from holdfast.runtime.turn.divergence import held_back
from holdfast.runtime.turn.outcome import raised
from holdfast.runtime.turn.turn import Effects, RunInfo, State, Turn
from holdfast.types import Event, Finish, Value, awaits_update
from holdfast.values.names import split_name

_LEASE: Final = 2**31 - 2  # the log says of no such lease that it was lost
_MOST_INPUTS: Final = 200  # answers and timers, after which code that only waits has shown enough
_read_scheduled = msgspec.json.Decoder(ActivityScheduled).decode
_NULL: Final = msgspec.Raw(b"null")
_ENDED_BY_CODE: Final = frozenset({COMPLETED, FAILED, CONTINUED})

DifferenceKind: TypeAlias = Literal["stuck", "held", "fails"]


class Difference(Value, frozen=True):
    """How code differs from the log of a run.

    A run is `stuck` if the code cannot continue it, and `held` if the code waits although it has
    not made recorded calls, so that it starts nothing new and does not end, if it waits for a
    signal of another name, or if an activity has arguments that do not fit its code. One that
    `fails` does so at once: the code raises in answer to what the log has, and no worker has come
    there yet, or an activity has arguments that never fitted. `index` is the entry of the log, None
    if no entry is concerned, and `line` that of the user's code, as `shop.py:12 in order`.
    """

    kind: DifferenceKind
    reason: str
    index: int | None
    line: str | None


def rehearse(
    workflow: Workflow[Any, object],
    info: RunInfo,
    log: Sequence[Event],
    *,
    strict: bool = False,
    careful: bool = True,
    awaiting: Sequence[str] = (),
    external: Collection[str] = (),
) -> Difference | None:
    """Replay a log with a workflow's code; return how they differ, None if the run continues.

    An ended run must end in the same way. `strict` and `careful` are those of the app, and
    `awaiting` is what the run is known to wait for, as `Suspend` has it. `external` are the keys of
    activities that wait to be completed from outside. Raises PayloadLocked for a log with payloads
    that cannot be opened.
    """
    check_open(event.details for event in log)
    default = line_of_definition(workflow.written)
    if (end := log[-1].type) in _ENDED_BY_CODE:
        if end == CONTINUED and read_last_failure(log[-1].details) is not None:
            end = FAILED  # an attempt that its policy retries, whatever the policy is now
        try:
            replay_to_end(workflow, info, in_delivery_order(log), end=end)
        except DeterminismError as error:
            return _stuck(error, log, len(log), default)
        return None
    open_log = [event for event in log if event.type not in TERMINAL]
    rehearsal = _Rehearsal(workflow, info, open_log, strict, careful)
    try:
        return rehearsal.run(default, awaiting, external)
    finally:
        rehearsal.turn.abandon()


def replay(
    workflow: Workflow[Any, object],
    info: RunInfo,
    log: Sequence[Event],
    before: Callable[[int, Event], None] = lambda place, event: None,
) -> Generator[tuple[Event, Instance]]:
    """Feed a log to the code of its run, and yield each entry with the code after it.

    `before` is called before an entry is fed, with its place in the order of delivery. Raises
    DeterminismError if the code cannot follow the log, PayloadLocked as `rehearse`.
    """
    check_open(event.details for event in log)
    ordered = in_delivery_order(log)
    instance = Instance(workflow, info, lambda kind, key, text: None)
    instance.history.length = instance.history.live_from = len(ordered)
    try:
        instance.foresee(ordered)
        for place, event in enumerate(ordered):
            before(place, event)
            instance.feed(event)
            yield event, instance
    finally:
        instance.close()


class Misfit(NamedTuple):
    """A recorded call of an activity whose arguments do not fit its code, and the code's line."""

    place: int
    key: str
    never_fitted: bool
    error: InvalidInput
    line: str | None

    def differ(self, what: str) -> Difference:
        """Return what that means as long as the activity, which is `what`, has not ended."""
        if self.never_fitted:
            text = f"{what} has not ended, and would fail at its next attempt: {self.error}"
            return Difference("fails", text, self.place, self.line)
        text = (
            f"{what} has not ended, and its arguments do not fit its code, so no attempt begins: "
            f"{self.error}"
        )
        return Difference("held", text, self.place, self.line)


def misfits(registry: Registry, log: Sequence[Event]) -> Iterator[Misfit]:
    """Yield the recorded calls of activities, also those that ended, that do not fit the code."""
    for place, event in enumerate(log):
        if event.type != ACTIVITY_SCHEDULED:
            continue
        call = _read_scheduled(event.details or "")
        app, name = split_name(call.activity_name)
        activity = registry.activities.get(name) if app == registry.name else None
        if activity is None:
            continue
        try:
            activity.decode_arguments(bytes(call.input).decode())
        except InvalidInput as error:
            line = line_of_definition(activity.fn)
            yield Misfit(place, event.key or "", call.misfit is True, error, line)


class _Rehearsal:
    """One turn, whose commits are answered, and for which time passes while it is held back."""

    def __init__(
        self,
        workflow: Workflow[Any, object],
        info: RunInfo,
        log: Sequence[Event],
        strict: bool,
        careful: bool,
    ) -> None:
        self.log, self.careful, self.lease, self.now = log, careful, _LEASE, log[-1].at
        self.has_moved = False  # True: it was told of more than the log has
        self.turn = Turn(workflow, info, _LEASE, log, self.clock, strict=strict, careful=careful)

    def clock(self) -> int:
        return self.now

    def run(
        self, default: str | None, awaiting: Sequence[str], external: Collection[str]
    ) -> Difference | None:
        """Give the turn its inputs until it would do something new."""
        effects, turn = self.turn.begin(), self.turn
        found = held = first = None
        for _ in range(_MOST_INPUTS):
            if effects.state is State.STUCK:
                if held is not None:
                    break
                if first is not None:  # where it waits now, not where it gets when time has passed
                    held = first._replace(
                        text=f"{first.text}; when its time is over, it gets stuck"
                    )
                    break
                assert effects.error is not None, "a stuck run has a reason"
                return _stuck(effects.error, self.log, turn.instance.history.position, default)
            if effects.state is State.ENDED:
                return None
            if effects.commit is not None:
                if (failure := self._failure(effects.commit.then)) is not None:
                    line = line_of_error(failure) or default
                    text = f"the code raised {summarize(failure)}"
                    seen = turn.instance.history.note_failures().raised_at
                    return Difference("fails", text, max(seen, 1) - 1, line)
                effects = turn.committed()
                continue
            found = held_back(turn.instance) if self.careful else None
            if found is None and self.has_moved:
                return None
            if found is None:
                return self._renamed(awaiting, default) or self._misfit(external)
            self.has_moved = True
            first = first or found
            following = self._pass_time(effects)
            if following is None:
                if held is None and (renamed := self._renamed(awaiting, default)) is not None:
                    return renamed
                held = held or found
                following = self._answer(effects)
            if following is None:
                break
            effects = following
        held = held or found  # code that has woken itself all the time is held back, too
        if held is None:
            return None
        return Difference("held", held.text, _index(self.log, held.key), held.line or default)

    def _renamed(self, awaiting: Sequence[str], default: str | None) -> Difference | None:
        """Return a difference if the code waits for another signal where the run waits for one."""
        instance = self.turn.instance
        unseen = self.log[instance.history.replayed :]
        if self.turn.state is not State.SUSPENDED or not all(map(self._is_kept, unseen)):
            return None
        awaited = instance.mailbox.awaited
        gone = [name for name in awaiting if ":" not in name and name not in awaited]
        new = [name for name in awaited if ":" not in name and name not in awaiting]
        if not (gone and new):
            return None
        reason = (
            f"the run waits for signal {gone[0]!r}, which the code does not await here, and the "
            f"code waits for signal {new[0]!r}: was it renamed, or is the wait for it a new one?"
        )
        line = line_of_waiting(instance.loop.tasks) or default
        return Difference("held", reason, None, line)

    def _misfit(self, external: Collection[str]) -> Difference | None:
        """Return a difference if the arguments of an open activity do not fit its code."""
        instance = self.turn.instance
        commands = instance.find(Commands)
        calls = {} if commands is None else commands.open
        for each in misfits(instance.workflow.registry, self.log):
            if each.key in calls and each.key not in external:
                return each.differ(f"activity {each.key}")
        return None

    def _is_kept(self, event: Event) -> bool:
        """Return True for a message that the code does not take."""
        if event.type != SIGNAL_RECEIVED:
            return False
        instance, message = self.turn.instance, Message.read(event)
        if message.update:
            return not awaits_update(instance.awaiting, message.name)
        return message in instance.mailbox.unread

    def _failure(self, then: object) -> BaseException | None:
        """Return what the code has raised if the run would fail of it, and of nothing else."""
        instance = self.turn.instance
        is_new = not self.has_moved and not instance.ledger(Values).has_raised
        fails = isinstance(then, Finish) and then.status == "failed"
        return raised(instance) if fails and is_new else None

    def _pass_time(self, effects: Effects) -> Effects | None:
        """Let the code's next timer or retry come due; None if only others can wake it."""
        is_suspended = effects.state is State.SUSPENDED
        at = self.turn.wakes_itself_at if is_suspended else effects.next_due
        if at is None:
            return None
        self.now = max(self.now, at)
        return self._resume() if is_suspended else self.turn.wake()

    def _resume(self, *tail: Event) -> Effects:
        self.lease += 1
        return self.turn.resume(self.lease, tail)

    def _answer(self, effects: Effects) -> Effects | None:
        """Give held code an answer of null, to see if it makes its recorded calls after that.

        Return None if it waits for nothing of which the answer can be made up.
        """
        instance = self.turn.instance
        if effects.state is not State.SUSPENDED:
            key = next(iter(self.turn.executing), None)
            return None if key is None else self.turn.step_completed(key, "null", self.now)
        for name in instance.mailbox.awaited:
            text = write_details(SignalReceived(name, _NULL))
            return self._resume(Event(SIGNAL_RECEIVED, None, text, self.now))
        commands = instance.find(Commands)
        for command in () if commands is None else commands.open.values():
            if command.waiters and command.family in (ACTIVITY, CHILD):
                return self._resume(_end_of(command, self.now))
        return None


def _end_of(command: Command, at: int) -> Event:
    """Return the end of an activity or of a child, with null for its result."""
    if command.family == CHILD:
        assert command.run_id is not None, "a child is a run"
        child = ChildCompleted(command.run_id, _NULL)
        return Event(CHILD_COMPLETED, command.key, write_details(child), at)
    activity = ActivityCompleted(command.name, _NULL)
    return Event(ACTIVITY_COMPLETED, command.key, write_details(activity), at)


def _stuck(
    error: DeterminismError | PayloadError, log: Sequence[Event], position: int, default: str | None
) -> Difference:
    key, line = getattr(error, "key", None), getattr(error, "line", None)
    index = _index(log, key)
    if index is None:
        index = max(0, min(position, len(log)) - 1)
    return Difference("stuck", str(error), index, line or default)


def _index(log: Sequence[Event], key: str | None) -> int | None:
    """Return the place of the first entry with this key, or that says that such a call began."""
    keys = () if key is None else (key, f"{BEGUN}{key}")
    places = (place for place, event in enumerate(log) if event.key in keys)
    return next(places, None)
