"""Orders: what a run asks of others, as events of its own log, and what came of it.

An order is noted at the call, where the log does not have it yet, and the store carries it out
with the commit that appends it. So it needs no mark, and nothing of it happens on this worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from holdfast.codec import fingerprint
from holdfast.errors import ConfigurationError
from holdfast.events import (
    ACTIVITY_FAILED,
    ACTIVITY_SCHEDULED,
    APPROVAL_REQUESTED,
    CALL_COMMANDS,
    CHILD_FAILED,
    CHILD_STARTED,
    COMMAND_ENDS,
    COMMAND_OF,
    SIGNAL_SENT,
    TIMER_FIRED,
    ChildCancelRequested,
    read_activity_failed,
    read_approval_requested,
    read_recorded_activity,
    read_recorded_child,
    read_signal_sent,
    with_role,
    write_details,
)
from holdfast.names import is_same_name
from holdfast.types import Event, Value

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

Note: TypeAlias = Callable[[str, str, "str | None"], None]

ACTIVITY: Final = "activity"
CHILD: Final = "child"
APPROVAL: Final = "approval"
SIGNAL: Final = "signal"

CALLS: Final = {
    ACTIVITY_SCHEDULED: ACTIVITY,
    CHILD_STARTED: CHILD,
    APPROVAL_REQUESTED: APPROVAL,
    SIGNAL_SENT: SIGNAL,
}
_ENDS: Final = {kind: CALLS[COMMAND_OF[kind]] for kind in COMMAND_ENDS}
_ORDERS: Final = {family: kind for kind, family in CALLS.items()}
_WITHDRAWALS: Final = {CALLS[COMMAND_OF[kind]]: kind for kind in with_role("withdrawal")}
_ROWS: Final = frozenset({ACTIVITY, APPROVAL})  # each is a row with its key until it ends
_MAX_ROW_KEY: Final = 2048  # bytes
_RECORDED: Final = CALL_COMMANDS | COMMAND_ENDS


class Recorded(Value, frozen=True, gc=False):
    """What the log has for a call's key; an end alone does not tell `name` and `args`."""

    family: str
    name: str | None = None
    args: int | None = None
    run_id: UUID | None = None

    def __str__(self) -> str:
        return f"a call of {self.family}" + (f" {self.name}" if self.name else "")


class Order:
    """One thing asked of others. `end` is the event that settles it, `waiters` await it.

    `args` is the fingerprint of its arguments, `earlier` gives what they may have been before
    their types got fields with defaults.
    """

    __slots__ = ("args", "earlier", "end", "family", "key", "name", "run_id", "waiters")

    def __init__(
        self,
        family: str,
        key: str,
        name: str,
        args: int | None = None,
        run_id: UUID | None = None,
        earlier: Callable[[], Iterator[str]] = lambda: iter(()),
    ) -> None:
        self.family, self.key, self.name, self.args, self.run_id = family, key, name, args, run_id
        self.earlier = earlier
        self.end: Event | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def __str__(self) -> str:
        return f"a call of {self.family} {self.name}"

    def has_arguments(self, recorded: int) -> bool:
        """Return True if the log's arguments are these, apart from added fields with defaults."""
        return recorded == self.args or recorded in map(fingerprint, self.earlier())


class Orders:
    """The orders of one instance.

    `open` are those without an end, `awaited` counts who waits for one of them, `unseen` are
    failures of activities that nobody has asked for. `made` are the positions at which changed
    code gave orders in the midst of a log that does not have them.
    """

    __slots__ = (
        "_dropped",
        "_loop",
        "_note",
        "_over",
        "_withdrawn",
        "awaited",
        "children",
        "has_children",
        "made",
        "open",
        "open_activities",
        "unseen",
    )

    def __init__(self, loop: WorkflowLoop, note: Note) -> None:
        self._loop, self._note = loop, note
        self.open: dict[str, Order] = {}
        self.open_activities = self.awaited = 0
        self.unseen: dict[str, Event] = {}
        self.children: dict[UUID, Order] = {}  # those with a key of the caller's own
        self.has_children = False
        self.made: dict[str, int] = {}
        self._dropped: set[str] = set()
        self._withdrawn: set[str] = set()
        self._over = False

    # What the log says

    def learn(self, event: Event) -> None:
        """Take in what the log has of an order. An end implies it, also where it is left out."""
        kind, key = event.type, event.key
        if kind not in _RECORDED or key is None:
            return
        if kind in CALLS:
            self.has_children = self.has_children or kind == CHILD_STARTED
            self._loop.recorded_orders[key] = read_order(event)
        elif kind not in _ENDS:
            self._withdrawn.add(key)
        elif key not in self.open and key not in self._dropped:
            self._loop.recorded_orders.setdefault(key, Recorded(_ENDS[kind]))

    def settle(self, event: Event) -> None:
        """Give an order the end that the log has for it; keep the end of one not yet given."""
        key = event.key or ""
        order = self.open.pop(key, None)
        if order is not None:
            self._settle(order, event)
        elif key not in self._dropped:
            self._loop.parked[key] = event

    def _settle(self, order: Order, event: Event) -> None:
        if end_family(event) != order.family:
            timer = event.type == TIMER_FIRED
            found = "a timer" if timer else str(Recorded(end_family(event)))
            self._loop.check(order.key, found, str(order))
        order.end = event
        if event.type in (ACTIVITY_FAILED, CHILD_FAILED):
            self._loop.failures.arrive(order.key, self._loop.position)
        self.awaited -= len(order.waiters)
        if order.family == ACTIVITY:
            self.open_activities -= 1
            if event.type == ACTIVITY_FAILED and not order.waiters:
                self.unseen[order.key] = event
        for waiter in order.waiters:
            if not waiter.done():
                waiter.set_result(None)
        order.waiters.clear()

    # What the code does

    def recorded(self, key: str) -> Recorded | None:
        """Return what the log has for a key that is called now."""
        return self._loop.recorded_orders.get(key)

    def place(self, order: Order, write: Callable[[], str]) -> None:
        """Give an order; `write` returns its details, for the log that does not have it yet."""
        loop, key = self._loop, order.key
        if loop.closing:
            return
        loop.called_at = loop.position
        recorded = loop.recorded_orders.pop(key, None)
        if recorded is not None:
            self._compare(order, recorded)
        elif key in loop.recorded_timers:
            loop.check(key, "a timer", str(order))
        parked = loop.parked.pop(key, None) if loop.parked else None
        if recorded is None and parked is None:
            if order.family in _ROWS:
                _check_row_key(order)
            if loop.position < loop.known:
                self.made[key] = loop.position
            self._note(_ORDERS[order.family], key, write())
        if order.family == SIGNAL:
            return
        self.has_children = self.has_children or order.family == CHILD
        self.open_activities += order.family == ACTIVITY
        if parked is None:
            self.open[key] = order
        else:
            self._settle(order, parked)

    def _compare(self, order: Order, recorded: Recorded) -> None:
        name = recorded.name or order.name
        if is_same_name(name, order.name):
            name = order.name
        found = f"a call of {recorded.family} {name}"
        self._loop.check(order.key, found, str(order))
        if recorded.args is not None and not order.has_arguments(recorded.args):
            self._loop.check(order.key, f"{found} with other arguments", found)
        if recorded.run_id is not None:
            order.run_id = recorded.run_id

    async def end_of(self, order: Order, *, withdraw: bool) -> Event:
        """Wait for the end of an order; with `withdraw`, a waiter that is the last one and is
        cancelled takes the order back.
        """
        self.unseen.pop(order.key, None)
        if order.end is None:
            # Not a WorkflowFuture: the exact class is asyncio's fast path, and no code sees it.
            waiter = asyncio.Future[None](loop=self._loop)
            order.waiters.append(waiter)
            self.awaited += 1
            try:
                await waiter
            except BaseException:
                self._given_up(order, waiter, withdraw)
                raise
        assert order.end is not None, "only an end wakes who waits for it"
        return order.end

    def _given_up(self, order: Order, waiter: asyncio.Future[None], withdraw: bool) -> None:
        if order.end is None and not self._loop.closing:
            order.waiters.remove(waiter)
            self.awaited -= 1
            if withdraw:
                self.withdraw(order)

    def withdraw(self, order: Order, reason: str | None = None) -> None:
        """Ask for an order to be dropped, unless somebody waits for it or it has ended."""
        key = order.key
        if self._loop.closing or order.end is not None or order.waiters:
            return
        if order.family != CHILD:  # which tells how it ended
            if self.open.pop(key, None) is None:
                return
            self._dropped.add(key)
            self.open_activities -= order.family == ACTIVITY
        self.cancel(order, reason)

    def cancel(self, order: Order, reason: str | None = None) -> None:
        """Note that an order is to be dropped, whoever waits for it. Once for an order."""
        key = order.key
        if self._loop.closing or order.end is not None or key in self._withdrawn:
            return
        self._withdrawn.add(key)
        text = None
        if order.family == CHILD and order.run_id is not None:
            request = ChildCancelRequested(order.run_id, reason)
            text = write_details(request)
        self._note(_WITHDRAWALS[order.family], key, text)

    # Ending

    def let_go(self) -> bool:
        """Say whether the code, which has ended, let activities go that have not ended.

        Those that it still awaits somewhere are asked to stop, like steps.
        """
        if not self._over:
            self._over = True
            for order in list(self.open.values()):
                if order.family == ACTIVITY and order.waiters:
                    self.awaited -= len(order.waiters)
                    order.waiters.clear()
                    self.withdraw(order)
        return self.open_activities > 0

    def stop_waiting(self) -> None:
        """Ask the activities that the ended code let go of to stop."""
        for order in list(self.open.values()):
            if order.family == ACTIVITY:
                self.withdraw(order)

    def failures(self) -> list[str]:
        """Describe the failures of activities that nobody has asked for."""
        return [
            f"activity {key} failed, and nobody awaited it: "
            f"{read_activity_failed(event.details or '').error}"
            for key, event in self.unseen.items()
        ]


def _check_row_key(order: Order) -> None:
    """Refuse a key that no index can hold: it would hold up all that is committed with it."""
    length = len(order.key.encode())
    if length > _MAX_ROW_KEY:
        raise ConfigurationError(
            f"{order} has a key of {length:,} bytes, more than {_MAX_ROW_KEY:,}: give the call, or "
            "the tasks around it, a shorter name"
        )


def read_order(event: Event) -> Recorded:
    """Return what a log has for the key of an order that it notes."""
    text = event.details or ""
    if event.type == ACTIVITY_SCHEDULED:
        activity = read_recorded_activity(text)
        return Recorded(ACTIVITY, activity.activity_name, activity.args)
    if event.type == CHILD_STARTED:
        child = read_recorded_child(text)
        return Recorded(CHILD, child.workflow_name, child.args, child.child_run_id)
    if event.type == SIGNAL_SENT:
        sent = read_signal_sent(text)
        return Recorded(SIGNAL, sent.signal_name, sent.fingerprint)
    asked = read_approval_requested(text)
    return Recorded(APPROVAL, repr(asked.title), asked.fingerprint)


def end_family(event: Event) -> str:
    """Return what an event ends: an order of a family, or a step."""
    return _ENDS.get(event.type, "step")
