"""How code differs from the log that it was fed.

Code that has not changed makes every call of its log once it has been fed all of it. So if recorded
calls are left over, the code has changed: a call was renamed, moved or removed, or it comes later,
after a new call. Until the code has made them it starts nothing new, which might be the same work
under another name, and it does not end. docs/howto/versions.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from holdfast.codec import summarize
from holdfast.errors import DeterminismError
from holdfast.events import (
    CALL_COMMANDS,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    STEP_FAILED,
    TIMER_FIRED,
    WORKER_LOST,
    read_step,
)
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.history import (
    CALLS,
    FAMILIES,
    STEP,
    TIMER,
    TRANSACTION,
    Recorded,
    read_command,
)
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.mailbox import Message
from holdfast.runtime.code.steps import Call
from holdfast.runtime.code.topics import Subscriptions
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.virtual_log import PYTHON, VirtualLog
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.user_code import (
    line_of_call,
    line_of_error,
    line_of_task,
    line_of_waiting,
)
from holdfast.runtime.turn.outcome import raised
from holdfast.types import Event
from holdfast.values.names import is_same_name

_NAMED_LEFT: Final = 3  # how many calls a message names


class Reason(NamedTuple):
    """Why code may not continue: the `key` of a recorded call, and the `line` of the code.

    `cause` is what a handler has raised.
    """

    text: str
    key: str | None = None
    line: str | None = None
    cause: BaseException | None = None


class Left(NamedTuple):
    """The recorded calls that code has not made, in words, and the key of the first."""

    key: str
    named: str

    def __str__(self) -> str:
        return self.named


class Work(NamedTuple):
    """A call, as the log or the code has it; `args` is the fingerprint of its arguments."""

    key: str
    family: str
    name: str | None
    args: int | None

    def is_like(self, other: Work) -> bool:
        """Return True if both calls do the same work, under whichever key."""
        same = self._is_of_family(other) and is_same_name(self.name or "", other.name or "")
        return same and self.args == other.args

    def _is_of_family(self, other: Work) -> bool:
        steps = (STEP, TRANSACTION)
        return self.family == other.family or (self.family in steps and other.family in steps)

    def __str__(self) -> str:
        called = f"{self.family} {self.name}" if self.name else self.family
        return f"{called} under {self.key!r}"


# What the code may not start


def repeated_by_call(instance: Instance, call: Call) -> Reason | None:
    """Return the reason if a step may repeat recorded work, None if it may start."""
    begun = instance.history.recorded.get(call.key)
    if begun is not None and begun.family == TRANSACTION:
        return _begun_elsewhere(instance, call, begun)
    if call.attempt > 1:  # then the log has its failures
        return None
    return _repeated(instance, Work(call.key, STEP, call.name, call.fingerprint))


def repeated_by_commands(instance: Instance, fresh: Iterable[Event]) -> Reason | None:
    """Return the reason if a new command may repeat recorded work, None if none may."""
    for event in fresh:
        if event.type in CALL_COMMANDS and (found := _repeated(instance, _new(event))) is not None:
            return found
    return None


def missed_signal(instance: Instance) -> Reason | None:
    """Return the reason if the code may use another name for a recorded signal, else None."""
    awaited = instance.mailbox.awaited
    unread = sorted(_unread(instance) - {*awaited})
    if not (awaited and unread) or (left := _listed_left(instance, None)) is None:
        return None
    return Reason(
        f"the code waits for signal {_listed(awaited)} and has not taken signal {_listed(unread)}, "
        f"but the log has {left}, which it has not called: the signal may have another name now",
        left.key,
        line_of_waiting(instance.loop.tasks),
    )


def dropped_update(instance: Instance) -> Reason | None:
    """Return the reason if no handler has taken an update that older code had accepted, else None.

    Code that has not changed has its handler by the entry that says so.
    """
    updates = instance.find(Updates)
    untaken = {} if updates is None else updates.untaken
    for update_id, name in untaken.items():
        return Reason(f"update {name} was accepted, and the code has no handler for it", update_id)
    return None


def misraised_update(instance: Instance) -> Reason | None:
    """Return the reason if a handler has ended where that of older code had not, else None."""
    updates = instance.find(Updates)
    if updates is None or _is_cancelled(instance):
        return None
    if updates.misraised is None:
        return _returned_early(instance, updates)
    update, error = updates.misraised
    text = f"update {update.name} was accepted, and its handler raised {summarize(error)} at a "
    text += "place that older code has passed"
    return Reason(text, update.id, line_of_error(error), error)


def misraised_call(instance: Instance) -> Reason | None:
    """Return the reason if code makes a call because of what older code did not raise, or None."""
    caught = instance.find(Caught)
    call = None if caught is None else caught.misraised
    if call is None or _is_cancelled(instance):
        return None
    key, error, _ = call
    text = f"the code raised {summarize(error)} at a place that older code has passed, and makes "
    text += f"the new call {key!r} because of it"
    return Reason(text, key, line_of_error(error), error)


def _returned_early(instance: Instance, updates: Updates) -> Reason | None:
    """Return the reason if a handler has returned before its recorded calls, else None."""
    for path, update in updates.returned.items():
        for work in left_over(instance):
            if work.key.startswith(f"{path}/") and work.key not in instance.history.copied:
                text = f"update {update.name} was accepted, and its handler has returned although "
                text += f"the log has {work}, which it has not called"
                return Reason(text, work.key)
    return None


def waits_in_vain(commands: Commands, loop: WorkflowLoop) -> Reason | None:
    """Return the reason if the code waits for a call that older code has taken back, else None."""
    if (call := commands.awaited_in_vain()) is None:
        return None
    text = f"the code waits for {call.family} {call.name} under {call.key!r}"
    line = line_of_call(loop, loop.tasks, call.key)
    return Reason(f"{text}, which the log has as cancelled by older code", call.key, line)


def waits_for_nothing(loop: WorkflowLoop) -> DeterminismError:
    """Return the error for code that waits for nothing durable."""
    line = line_of_task(loop.tasks, "")
    return DeterminismError(
        f"the workflow waits for nothing durable{f' at {line}' if line else ''}: no step, timer or "
        "signal could ever wake it (does it wait for a thread, for a lock that nobody releases, or "
        "for an asyncio object that other runs use too?)",
        line=line,
    )


def held_back(instance: Instance) -> Reason | None:
    """Return what keeps code that waits from starting anything new, None if nothing does."""
    if (left := _listed_left(instance, None)) is None:
        return None
    return Reason(
        f"the code waits here although the log has {left}, which it has not called: until it makes "
        "that call, the run starts nothing new and does not end",
        left.key,
        line_of_waiting(instance.loop.tasks),
    )


def ended_early(instance: Instance) -> Reason | None:
    """Return the reason if the code has ended where older code had not, None if the run may end.

    Code that raises ends its run in the same commit, or the log says that it has raised. So if the
    log continues without either, older code did not raise there. A fork may repeat the failure of
    its origin. An attempt does not raise before all calls of which the last one failed.
    """
    history, error = instance.history, raised(instance)
    if error is None and _is_cancelled(instance):
        return _cancelled_early(instance)
    if error is None:
        left = _listed_left(instance, None)
        if left is None:
            return None
        ended = f"the log has {left}, which this code has not called, and the code has ended"
        return Reason(ended, left.key)
    left, failures = _listed_left(instance, None), history.failures
    commands = instance.find(Commands)
    cancelled_calls = set[str]() if commands is None else commands.taken_back
    raised_at = -1 if failures is None else failures.raised_at
    if left is not None:
        where = f"although the log has {left}, which it has not called"
    elif history.left_out and 0 <= raised_at <= history.forked:
        where = f"before it called {min(history.left_out)!r}, of which the last attempt failed"
    elif instance.ledger(Values).has_raised:
        return None
    elif cancelled_calls:
        key = min(cancelled_calls)
        where = f"although the log has a cancel of {key!r}, which it has not cancelled"
    elif history.forked < history.replayed >= raised_at >= 0 and (
        history.proven >= raised_at or history.is_behind
    ):
        where = "at a place that older code has passed"
    elif instance.ledger(Caught).find_untried(error) is not None:
        where = "because of what it raised at a place that older code has passed"
    else:
        return None
    text = f"the code raised {summarize(error)} {where}"
    return Reason(text, left and left.key, line_of_error(error))


def _cancelled_early(instance: Instance) -> Reason | None:
    """Return the reason if a cancel ends code that has raised what older code did not, else None.

    Only if older code had the cancel, too, and continued: a new cancel ends a run in any case.
    """
    history, caught = instance.history, instance.find(Caught)
    error = None if caught is None else caught.cancelled
    if error is None or history.forked >= history.replayed:
        return None
    if history.note_failures().raised_at > history.proven:
        return None
    text = f"the code raised {summarize(error)} at a place that older code has passed, and a "
    text += "cancel has ended what it did because of it"
    return Reason(text, None, line_of_error(error), error)


def _is_cancelled(instance: Instance) -> bool:
    root = instance.root
    return instance.cancel_requested and root is not None and root.cancelled()


def _repeated(instance: Instance, new: Work) -> Reason | None:
    if (left := _listed_left(instance, new)) is None:
        return None
    line = line_of_call(instance.loop, instance.loop.tasks, new.key)
    at = "" if line is None else f" (at {line})"
    return Reason(
        f"the log has {left}, which this code has not called, and {new}{at} is not in the log: it "
        "may be the same work under another name, so it is not started",
        left.key,
        line or line_of_waiting(instance.loop.tasks),  # it may have been made without an await
    )


def _begun_elsewhere(instance: Instance, call: Call, begun: Recorded) -> Reason:
    kept = f"in {begun.place}" if begun.place else "in the database of holdfast"
    found = "a step"
    if call.step.place is not None:
        found = f"a transaction in {call.step.place or 'the database of holdfast'}"
    text = f"{call.key!r} has begun as a transaction {kept}, which may have committed, and is "
    text += f"{found} now, which does not look there"
    return Reason(text, call.key, line_of_call(instance.loop, instance.loop.tasks, call.key))


def _new(event: Event) -> Work:
    key = event.key or ""
    if event.type not in CALLS:
        return Work(key, event.type, None, None)
    command = read_command(event)
    return Work(key, command.family, command.name, command.args)


def _listed_left(instance: Instance, new: Work | None) -> Left | None:
    """List the calls that are left over, None if there are none.

    Copied calls that may come later count only if the `new` call is the same in another place.
    """
    copied = instance.history.copied
    left = (
        work
        for work in left_over(instance)
        if work.key not in copied or (new is not None and work.is_like(new))
    )
    first = list(islice(left, _NAMED_LEFT))
    if not first:
        return None
    others = sum(1 for _ in left)
    named = ", ".join(map(str, first)) + (f" and {others} more" if others else "")
    return Left(first[0].key, named)


def left_over(instance: Instance) -> Iterator[Work]:
    """Yield the recorded calls that the code has not made. Timers have no effect to repeat."""
    history = instance.history
    for key, command in history.recorded.items():
        is_known = command.family == TRANSACTION and (key in history.ends or key in history.retries)
        if command.family != TIMER and not is_known:
            yield Work(key, command.family, command.name, command.args)
    for key, event in history.ends.items():
        if event.type in (STEP_COMPLETED, STEP_FAILED):
            step = read_step(event.details or "")
            yield Work(key, STEP, step.name, step.args)
        elif key not in history.recorded and event.type != TIMER_FIRED:
            yield Work(key, FAMILIES.get(event.type, STEP), None, None)
    for key, retry in history.retries.items():
        if key not in history.ends:
            yield Work(key, STEP, retry.name, retry.args)


def _unread(instance: Instance) -> set[str]:
    """Return the names of signals that no wait has taken, but not of events that the code keeps."""
    subscriptions = instance.find(Subscriptions)
    kept = set[str]() if subscriptions is None else subscriptions.signals
    return {message.name for message in instance.mailbox.unread} - kept


def _listed(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))


def differences(log: VirtualLog, instance: Instance) -> list[str]:
    """Return all differences of code and log in words."""
    found: list[str] = []
    if log.python not in (None, PYTHON):
        found.append(f"the run was begun on Python {log.python}, and this is Python {PYTHON}")
    # A fork has results of calls that come later.
    forked = instance.seed != instance.info.run_id
    if not forked and (unused := instance.history.unused()):
        found.append(
            f"the log has calls that the code does not make, or not yet: {', '.join(unused)}"
        )
    if (dropped := dropped_update(instance)) is not None:
        found.append(dropped.text)
    found += [
        f"update {update_id} was answered, and its handler does more now, which is left out"
        for update_id in instance.history.overrun
    ]
    return found


def renamed_signal(log: Sequence[Event], instance: Instance) -> list[str]:
    """Return a warning if the code does not wait for the signal that came last.

    Only signals that are waited for wake a run: the code may have another name for it now.
    """
    last = next((event for event in reversed(log) if event.type != WORKER_LOST), None)
    awaited = instance.mailbox.awaited
    if last is None or last.type != SIGNAL_RECEIVED or not awaited:
        return []
    name = Message.read(last).name
    if name in awaited or name not in _unread(instance):
        return []
    others = " or ".join(map(repr, awaited))
    return [f"signal {name!r} came last, and the code waits for {others}: was it renamed?"]
