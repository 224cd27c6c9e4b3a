"""A run's part of a commit, with what the store must know of it beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.events import CHILD_CANCEL, COMMANDS, SIGNAL_SENT, read_target
from holdfast.runtime.code.calls import RunInfo
from holdfast.runtime.code.dealings import Dealings
from holdfast.types import Event, Finish, Suspend, TurnCommit


def make_part(
    info: RunInfo,
    lease_no: int,
    expected: int,
    events: Sequence[Event],
    then: Suspend | Finish | None,
    dealings: Dealings | None,
    behind: bool,
) -> TurnCommit:
    """Make a commit of events that stand from an expected index on, or `behind` what is there."""
    parent = info.parent_run_id
    status = then.status if isinstance(then, Finish) else None
    if parent is None and dealings is None and status != "continued":
        return TurnCommit(info.run_id, lease_no, expected, events, then, after_others=behind)
    touches = dict.fromkeys(_targets(events))
    if parent is not None and status not in (None, "continued"):
        touches[parent] = None
    return TurnCommit(
        info.run_id,
        lease_no,
        expected,
        events,
        then,
        has_commands=any(event.type in COMMANDS for event in events),
        touches=tuple(touches),
        has_children=status is not None and dealings is not None and dealings.orders.has_children,
        after_others=behind,
    )


def _targets(events: Iterable[Event]) -> Iterable[UUID]:
    """Name the runs that orders are about."""
    for event in events:
        if event.type in (CHILD_CANCEL, SIGNAL_SENT):
            target = read_target(event.details or "{}")
            run_id = target.run_id or target.child_run_id
            if run_id is not None:
                yield run_id
