"""Who carries out what a run orders: workers of other queues, child runs, people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.codec import describe
from holdfast.events import (
    ACTIVITY_CANCEL,
    ACTIVITY_COMPLETED,
    ACTIVITY_FAILED,
    ACTIVITY_SCHEDULED,
    APPROVAL_REQUESTED,
    APPROVAL_RESOLVED,
    APPROVAL_WITHDRAWN,
    CHILD_CANCEL,
    CHILD_COMPLETED,
    CHILD_FAILED,
    CHILD_STARTED,
    COMMANDS,
    EVENT_SUBSCRIBED,
    WEBHOOK_CLOSED,
    WEBHOOK_OPENED,
    WEBHOOK_RECEIVED,
)
from holdfast.types import Event, TurnCommit

if TYPE_CHECKING:
    from tests.runtime.world import World

_CALLS = (ACTIVITY_SCHEDULED, CHILD_STARTED, APPROVAL_REQUESTED, WEBHOOK_OPENED)
_BACK = (ACTIVITY_CANCEL, CHILD_CANCEL, APPROVAL_WITHDRAWN, WEBHOOK_CLOSED)
_SEEN_FIRST = (APPROVAL_WITHDRAWN, WEBHOOK_CLOSED)  # a decision or a POST before it was seen


class Outside:
    """The orders of one run. `open` are those that may still end, `ordered` all keys ever."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open: dict[str, Event] = {}
        self.ordered: set[str] = set()
        self.subscribed: list[str] = []  # names of the signals that tell of events

    def options(self) -> list[str]:
        """What may happen next."""
        world = self.world
        found = ["end"] * min(3, len(self.open))
        found += ["update"] if world.pick(3) == 0 else []
        if world.paused:
            found += ["resume"]
        elif world.pick(12) == 0:
            found += ["pause"]
        return found

    def carry_out(self, part: TurnCommit) -> None:
        """Take the orders of a commit that is durable."""
        assert part.has_commands == any(event.type in COMMANDS for event in part.events)
        for event in part.events:
            key = event.key or ""
            if event.type in _CALLS:
                assert key not in self.ordered, f"{key} is ordered twice"
                self.ordered.add(key)
                self.open[key] = event
            elif event.type == EVENT_SUBSCRIBED:
                assert key not in self.subscribed, f"{key} is subscribed twice"
                self.subscribed.append(key)
            elif event.type in _BACK:
                assert key in self.ordered, f"{key} is taken back before it was ordered"
                if event.type in _SEEN_FIRST:
                    assert key in self.open, f"{key} is taken back, and has ended"
                if event.type in _SEEN_FIRST or self.world.pick(2):
                    self.open.pop(key, None)  # else it ends all the same, too late

    def unfinished(self) -> set[str]:
        """Return the activities that were neither ended nor asked to stop."""
        log = self.world.log
        stopped = {event.key for event in log if event.type == ACTIVITY_CANCEL}
        activities = {k for k, e in self.open.items() if e.type == ACTIVITY_SCHEDULED}
        return activities - stopped

    def can_end(self) -> list[str]:
        """Return the keys of the open orders."""
        return list(self.open)

    def end(self) -> Event:
        """Let one of the open orders end."""
        world = self.world
        key = self.can_end()[world.pick(len(self.open))]
        order = self.open.pop(key)
        asked: dict[str, Any] = json.loads(order.details or "")
        bad = world.pick(4) == 0
        error = msgspec.to_builtins(describe(OSError(world.count)))
        if order.type == ACTIVITY_SCHEDULED:
            kind = ACTIVITY_FAILED if bad else ACTIVITY_COMPLETED
            end: dict[str, Any] = {"activity_name": asked["activity_name"], "attempt": 1}
            end |= {"error": error} if bad else {"result": world.count}
        elif order.type == CHILD_STARTED:
            kind = CHILD_FAILED if bad else CHILD_COMPLETED
            end = {"child_run_id": asked["child_run_id"]}
            end |= {"status": "failed", "error": error} if bad else {"output": world.count}
        elif order.type == WEBHOOK_OPENED:
            kind, end = WEBHOOK_RECEIVED, {"body": world.count}
        else:
            kind = APPROVAL_RESOLVED
            end = {"approved": not bad, "by": str(world.count), "decision_id": "d"}
        return Event(kind, key, json.dumps(end), world.now)
