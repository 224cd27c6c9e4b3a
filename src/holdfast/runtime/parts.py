"""A run's part of a commit, with what the store must know of it beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.runtime.calls import RunInfo
from holdfast.runtime.details import CHILD_CANCEL, SIGNAL_SENT
from holdfast.runtime.order_details import read_target
from holdfast.runtime.orders import Orders
from holdfast.types import ORDERS, Event, Finish, Suspend, TurnCommit


def make_part(
    info: RunInfo,
    lease_no: int,
    expected: int,
    events: Sequence[Event],
    then: Suspend | Finish | None,
    orders: Orders,
) -> TurnCommit:
    """Make a commit of events that stand from an expected index on."""
    parent = info.parent_run_id
    if parent is None and not (orders.used or orders.has_children):
        return TurnCommit(info.run_id, lease_no, expected, events, then)
    ends = isinstance(then, Finish)
    touches = dict.fromkeys(_targets(events))
    if isinstance(then, Finish) and then.status != "continued" and parent is not None:
        touches[parent] = None
    return TurnCommit(
        info.run_id,
        lease_no,
        expected,
        events,
        then,
        orders=any(event.type in ORDERS for event in events),
        touches=tuple(touches),
        has_children=ends and orders.has_children,
    )


def _targets(events: Iterable[Event]) -> Iterable[UUID]:
    """Name the runs that orders are about."""
    for event in events:
        if event.type in (CHILD_CANCEL, SIGNAL_SENT):
            target = read_target(event.details or "{}")
            run_id = target.run_id or target.child_run_id
            if run_id is not None:
                yield run_id
