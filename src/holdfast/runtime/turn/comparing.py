"""Comparison of code that may have changed with its log, at each point at which it may differ.

Most functions return the first reason why the code may not do what it is about to do, None if it
may. `divergence` has the reasons one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.codec import describe
from holdfast.errors import DeterminismError
from holdfast.events import CALL_COMMANDS
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.history import CALLS
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.steps import Call
from holdfast.runtime.log.virtual_log import VirtualLog
from holdfast.runtime.turn.divergence import (
    Reason,
    differences,
    dropped_update,
    ended_early,
    misraised_call,
    misraised_update,
    missed_signal,
    renamed_signal,
    repeated_by_call,
    repeated_by_commands,
    waits_in_vain,
)
from holdfast.runtime.turn.outcome import raised
from holdfast.types import Event

_CHANGED: Final = (
    "the code has changed under this run: keep the old name (name=…, aliases=[…]), take the new "
    "path in new runs only (ctx.patched), roll the code back, or allow it (App(careful=False)); "
    "after a roll-back, correct the newer code, or fork the run from before that call"
)
_CHANGED_AND_RAISED: Final = (
    "the code has changed under this run: correct it, roll it back, take the new path in new runs "
    "only (ctx.patched), or let the run fail (App(careful=False))"
)


def compare(
    log: VirtualLog, instance: Instance, *, strict: bool
) -> tuple[list[str], DeterminismError | None]:
    """Compare all of a log with the code that was fed it, when a turn begins.

    Return the differences as warnings; with `strict` there is an error for them, too.
    """
    found, error = differences(log, instance), None
    if strict and found:
        early, unused = ended_early(instance), instance.history.unused()
        text = "; ".join(found if early is None else [early.text, *found])
        reason = early or Reason(text, unused[0] if unused else None)
        error = difference(instance, reason._replace(text=text))
    return found + renamed_signal(log.durable or (), instance), error


def after_replay(instance: Instance) -> Reason | None:
    """Compare what the handlers of recorded updates have done."""
    return dropped_update(instance) or misraised_update(instance)


def before_calls(instance: Instance, calls: Iterable[Call]) -> Reason | None:
    """Compare steps that are to start: the log may have them under other names."""
    if (found := misraised_call(instance)) is not None:
        return found
    return next(filter(None, (repeated_by_call(instance, call) for call in calls)), None)


def before_commands(instance: Instance, fresh: Iterable[Event]) -> Reason | None:
    """Compare fresh commands: the log may have them under other names.

    A handler may have ended before its recorded calls, or the code may clean up after what older
    code did not raise.
    """
    found = misraised_update(instance) or misraised_call(instance)
    return found or repeated_by_commands(instance, fresh)


def before_wait(instance: Instance, *, unexplained: bool) -> Reason | None:
    """Compare what the code waits for: older code may have cancelled it.

    If calls are `unexplained`, the code may know a recorded signal under another name.
    """
    commands = instance.find(Commands)
    if commands is not None and commands.taken_back:
        found = waits_in_vain(commands, instance.loop)
        if found is not None:
            return found
    return missed_signal(instance) if unexplained else None


def before_end(instance: Instance) -> Reason | None:
    """Compare how the code has ended: older code may not have. A cancel ends a run in any case."""
    found = misraised_update(instance) or misraised_call(instance)
    return found or ended_early(instance)


def without_repeated(instance: Instance, fresh: list[Event]) -> list[Event]:
    """Return fresh entries without the new commands of code that has ended, if one repeats work."""
    if repeated_by_commands(instance, fresh) is None:
        return fresh
    new = {event.key for event in fresh if event.type in CALLS}
    return [event for event in fresh if event.type not in CALL_COMMANDS or event.key not in new]


def difference(instance: Instance, reason: Reason) -> DeterminismError:
    """Return the error for a difference of code and log, with what the code has raised."""
    cause = reason.cause or raised(instance)
    advice = _CHANGED
    if cause is not None:
        advice = f"{_CHANGED_AND_RAISED}\n{describe(cause).format().rstrip()}"
    error = DeterminismError(f"{reason.text}; {advice}", line=reason.line, key=reason.key)
    error.__cause__ = cause
    return error
