"""How code differs from the log that it was fed.

When code that has not changed has been fed its whole log, it has made every call of that log. If
recorded calls are left over, the code was changed: a call was renamed, moved or removed, or it
comes later, after a new call. A new call is started unless it may be a left-over call under another
name. docs/howto/versions.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.definitions.mentions import mentions
from holdfast.events import (
    CALL_COMMANDS,
    COMMAND_ENDS,
    FORKED,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    STEP_ENDS,
    STEP_FAILED,
    WORKER_LOST,
    read_step,
)
from holdfast.names import is_same_name, split_name
from holdfast.runtime.code.commands import (
    ACTIVITY,
    CALLS,
    CHILD,
    Commands,
    end_family,
    read_command,
)
from holdfast.runtime.code.history import STEP, TIMER
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.mailbox import Message
from holdfast.runtime.code.steps import Call
from holdfast.runtime.code.topics import Subscriptions
from holdfast.runtime.log.virtual_log import PYTHON, VirtualLog
from holdfast.runtime.loop.user_code import line_of_call
from holdfast.types import Event

CHANGED: Final = (
    "the code has changed under this run: keep the old name (name=…, aliases=[…]), take the new "
    "path in new runs only (ctx.patched), or roll the code back"
)
_RESULTS: Final = COMMAND_ENDS | STEP_ENDS
_LEFT: Final = _RESULTS | CALL_COMMANDS
_NAMED: Final = frozenset({STEP, ACTIVITY, CHILD})  # calls of functions with a name


class Work(NamedTuple):
    """A call, as the log or the code has it; `args` is the fingerprint of its arguments."""

    key: str
    family: str
    name: str | None
    args: int | None

    def __str__(self) -> str:
        return f"{self.family} {self.name}" if self.name else self.family


class Unexplained:
    """The recorded calls that one instance has not made: `positions` in the log, by key.

    `_passed` are those that were removed from the code: it has taken results of the same scope that
    are later in the log. The log up to position `_copied` was copied from another run, without the
    calls that a retry or a fork makes again.
    """

    __slots__ = ("_copied", "_passed", "positions")

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self._passed: set[str] = set()
        self._copied = 0

    def judge(self, instance: Instance, events: Sequence[Event], first: int) -> None:
        """Find the calls that are left over after `events`, from index `first` on, were fed."""
        left = {*instance.history.ends, *_commands(instance)}
        if not left:
            self.positions.clear()
            return
        for position, event in enumerate(events, first):
            key = event.key
            if event.type == FORKED:
                self._copied = position
            elif key in left and event.type in _LEFT:
                self.positions[key or ""] = position
        self._find_passed(events, first, left)

    def _find_passed(self, events: Sequence[Event], first: int, left: set[str]) -> None:
        last: dict[str, int] = {}
        for position, event in enumerate(events, first):
            if event.type in _RESULTS and event.key is not None and event.key not in left:
                last[_scope(event.key)] = position
        for key, position in self.positions.items():
            if last.get(_scope(key), -1) > position:
                self._passed.add(key)

    # What the code may not start

    def repeated_by_call(self, instance: Instance, call: Call) -> str | None:
        """Return the reason if a step may repeat recorded work, None if it may start."""
        if not self.positions or call.attempt > 1:  # then the log has its failures
            return None
        work = Work(call.key, STEP, call.name, call.fingerprint)
        return self._repeated(instance, work, call.mark)

    def repeated_by_commands(self, instance: Instance, fresh: Iterable[Event]) -> str | None:
        """Return the reason if a new command may repeat recorded work, None if none may."""
        for event in fresh if self.positions else ():
            if event.type in CALLS:
                key, command = event.key or "", read_command(event)
                work = Work(key, command.family, command.name, command.args)
                mark = instance.ledger(Commands).made.get(key, instance.history.position)
                if (found := self._repeated(instance, work, mark)) is not None:
                    return found
        return None

    def missed_signal(self, instance: Instance) -> str | None:
        """Return the reason if the code may use another name for a recorded signal, else None."""
        awaited = instance.mailbox.awaited
        unread = sorted(_unread(instance) - {*awaited})
        if not (awaited and unread):
            return None
        for key, position in self.positions.items():
            old = _left(instance, key)
            after = self._copied <= position < _seen(instance)
            if old is not None and key not in self._passed and after:
                return (
                    f"the code waits for signal {_listed(awaited)} and has not taken signal "
                    f"{_listed(unread)}, but the log has {old} under {key!r} after it: the signal "
                    "may have another name now"
                )
        return None

    def _repeated(self, instance: Instance, new: Work, mark: int) -> str | None:
        for key, position in list(self.positions.items()):
            if (old := _left(instance, key)) is None:
                del self.positions[key]  # called since
            elif position < _seen(instance) and self._may_be(instance, new, mark, old, position):
                line = line_of_call(instance.loop, instance.loop.tasks, new.key)
                at = "" if line is None else f" (at {line})"
                return (
                    f"the log has {old} under {key!r}, which this code has not called, and "
                    f"{new} under {new.key!r}{at} is not in the log: it may be the same work under "
                    "another name, so it is not started"
                )
        return None

    def _may_be(self, instance: Instance, new: Work, mark: int, old: Work, position: int) -> bool:
        named = old.name is not None and is_same_name(old.name, new.name or "")
        if named and old.args == new.args:
            return True
        if position < mark and old.key in self._passed:
            return False
        if named and position >= self._copied:  # else it may be a call still to come
            return True
        if old.family not in _NAMED or old.name is None:
            return False
        return split_name(old.name)[1] not in mentions(instance.workflow.fn)


def _commands(instance: Instance) -> Iterator[str]:
    """Yield the keys of commands that are in the log and that the code has not called."""
    recorded = instance.history.recorded
    return (key for key, each in recorded.items() if each.family != TIMER)


def _left(instance: Instance, key: str) -> Work | None:
    """Return the recorded call with this key, None if the code has made it."""
    event, command = instance.history.ends.get(key), instance.history.recorded.get(key)
    if command is not None:
        return Work(key, command.family, command.name, command.args)
    if event is None:
        return None
    if event.type in (STEP_COMPLETED, STEP_FAILED):
        step = read_step(event.details or "")
        return Work(key, STEP, step.name, step.args)
    return Work(key, end_family(event), None, None)


def _unread(instance: Instance) -> set[str]:
    """Return the names of signals that no wait has taken, but not of events that the code keeps."""
    subscriptions = instance.find(Subscriptions)
    kept = set[str]() if subscriptions is None else subscriptions.signals
    return {message.name for message in instance.mailbox.unread} - kept


def _seen(instance: Instance) -> int:
    """Return how many entries the code has seen: those that came during a pause wait."""
    return instance.history.position - len(instance.paused_events or ())


def _listed(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))


def _scope(key: str) -> str:
    return key.rpartition("/")[0]


def differences(log: VirtualLog, instance: Instance) -> tuple[list[str], list[str]]:
    """Return two lists: warnings, and differences that are errors if the code must be strict."""
    warnings: list[str] = []
    others: list[str] = []
    if log.python not in (None, PYTHON):
        warnings.append(f"the run was begun on Python {log.python}, and this is Python {PYTHON}")
    # A fork has results of calls that come later.
    forked = instance.seed != instance.info.run_id
    if not forked and (unused := instance.history.unused()):
        others.append(
            f"the log has calls that the code does not make, or not yet: {', '.join(unused)}"
        )
    return warnings, others


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
