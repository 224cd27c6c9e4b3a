"""What a commit has: how many entries, whether it may follow unseen ones, which runs it touches.

`Actor` asks this for a commit that is not an ordinary one. `Turn` asks what the log may not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final
from uuid import UUID

from holdfast.events import (
    CHILD_CANCEL,
    SIGNAL_SENT,
    STEPS,
    VALUE_RECORDED,
    read_target,
    without_mark,
    write_value,
)
from holdfast.runtime.code.begun import call_begun
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Executions
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import RAISED, Values, handlers_that_raised, is_raised
from holdfast.runtime.log.virtual_log import VirtualLog
from holdfast.runtime.turn.outcome import raised
from holdfast.types import Event, Finish, Suspend

_type: Final = attrgetter("type")


def cut(
    instance: Instance, log: VirtualLog, executions: Executions, *, singly: bool, after_others: bool
) -> int | None:
    """Return how many fresh entries are committed before all others, None if none must be.

    They are what must not share a commit with a suspension or with the other entries, such as what
    makes the cancel of a transaction certain: what follows waits for its end. If code has raised
    and its end is in a later commit, the first entry says so.
    """
    executing = executions.executing
    marks = [
        mark
        for key, mark in instance.steps.given_up.items()
        if key in executing and executing[key].step.connects is not None
    ]
    count = log.bearable(singly=singly, mark=min(marks, default=None))
    if not (marks or singly or after_others or count < len(log.fresh)):
        return None
    for key in _raised(instance, log.fresh[count:]):
        instance.ledger(Values).record_once(key)
        log.fresh.sort(key=lambda event: not is_raised(event))
    return count


def _raised(instance: Instance, later: Iterable[Event]) -> Iterator[str]:
    """Yield a key if the run's own code has raised, and one for each such handler in `later`."""
    if raised(instance) is not None:
        yield RAISED
    yield from handlers_that_raised(later)


def may_follow_others(instance: Instance, then: Suspend | Finish | None) -> bool:
    """Return True if a commit may follow entries of others that the run has not seen."""
    if then is None:
        return True
    if not isinstance(then, Finish) or then.status == "continued":
        return False
    updates = instance.find(Updates)  # what others wrote may be a call that is to be refused
    return updates is None or not updates.refuses


def touched(
    info: RunInfo, events: Iterable[Event], then: Suspend | Finish | None
) -> tuple[UUID, ...]:
    """Return the other runs that a commit may write to: those of its commands, and the parent."""
    found = dict.fromkeys(_targets(events))
    if info.parent_run_id is not None and isinstance(then, Finish) and then.status != "continued":
        found[info.parent_run_id] = None
    return tuple(found)


def _targets(events: Iterable[Event]) -> Iterable[UUID]:
    """Yield the ids of the runs that commands are about."""
    for event in events:
        if event.type in (CHILD_CANCEL, SIGNAL_SENT):
            target = read_target(event.details or "{}")
            run_id = target.run_id or target.child_run_id
            if run_id is not None:
                yield run_id


def unrecorded(
    waiting: Sequence[Event], instance: Instance | None, clock: Callable[[], int]
) -> list[Event]:
    """Return the ends of attempts among the `waiting` entries, which the log may not have.

    With them is what the code recorded about itself, such as a result that does not fit. If the
    code of an `instance` has raised, entries before them say so, as the log will not have its end.
    """
    ends = [
        without_mark(event)
        for event in waiting
        if event.type in STEPS or (event.type == VALUE_RECORDED and call_begun(event) is None)
    ]
    if STEPS.isdisjoint(map(_type, ends)):
        return []
    if instance is not None:
        keys = [*_raised(instance, waiting)]
        at = clock()
        ends[:0] = [Event(VALUE_RECORDED, key, write_value("true"), at) for key in keys]
    return ends
