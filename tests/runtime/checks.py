"""What must hold of a run that a world has let happen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from holdfast.events import (
    CALL_COMMANDS,
    COMMAND_ENDS,
    SIGNAL_RECEIVED,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    UPDATE_ACCEPTED,
    UPDATE_COMPLETED,
    UPDATE_REJECTED,
    UPDATE_REPLIES,
    VALUE_SET,
    read_timer,
)
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.log.virtual_log import in_delivery_order
from holdfast.runtime.turn.turn import State
from holdfast.types import Event
from tests.runtime.world import World


def state(instance: Instance) -> dict[str, str]:
    """Describe all of an instance that a replay must agree on."""
    return {
        "pending": repr(sorted((c.key, c.arguments) for c in instance.steps.pending.values())),
        "timers": repr(sorted(instance.timers.live)),
        "signals": repr(sorted((m.name, bytes(m.payload)) for m in instance.mailbox.unread)),
        "updates": repr([m.id for m in instance.ledger(Updates).unread]),
        "awaited": repr(sorted(instance.awaiting)) if not instance.loop.ended else "",
        "open": repr(sorted(instance.ledger(Commands).open)) if not instance.loop.ended else "",
        "paused": repr([event.type for event in instance.paused_events or ()]),
        "now": repr(instance.loop.now),
        "ends": repr(sorted(instance.history.ends)),
        "outcome": outcome(instance),
        "order": repr(instance.loop._last_hash),  # how many tasks, futures and timers were made
    }


def outcome(instance: Instance) -> str:
    root = instance.root
    if root is None or not root.done():
        return "running"
    if root.cancelled():
        return "cancelled"
    return repr(root.exception()) if root.exception() else json.dumps(root.result())


def check(world: World) -> None:
    """Every way to read the log agrees: live, replayed, from each prefix, on cached turns."""
    log = world.log
    check_log(log)
    full = world.replay(log)
    final = state(full)
    assert not full.history.unused(), "the log has calls that a replay does not make"
    if world.end is not None:
        assert not world.noted[id(full)], "a replay of the whole log writes what it does not have"
    live = world.turn
    if live is not None and live.state is State.ENDED:
        # What was pending is closed with the run's end, and cleanup writes to the trace.
        found = state(live.instance)
        assert [found[key] for key in ("signals", "now")] == [final["signals"], final["now"]]
    if world.end is not None:
        check_updates(log, full)
    if world.end == "completed":
        assert not world.outside.unfinished(), "the run ends before what it let go"
        trace = json.loads(world.output or "")
        assert json.loads(final["outcome"]) == trace
        written = sum(event.type == VALUE_SET for event in log)
        assert written == sum(entry[1:] == ["set", "end"] for entry in trace)
    elif world.end == "cancelled":
        assert final["outcome"] == "cancelled"
    check_prefixes(world)
    for turn in world.cached:
        tail = in_delivery_order(log[turn.durable_length :], turn.durable_length)
        turn.instance.history.position = turn.durable_length
        turn.instance.foresee(tail)
        for event in tail:
            turn.instance.feed(event)
        assert state(turn.instance) == final, "a cached turn, fed the tail"


def check_prefixes(world: World) -> None:
    """Feeding one more is the same as a replay up to there, in the order of delivery."""
    ordered = in_delivery_order(world.log)
    going_on = world.feed([], ordered)
    for length, event in enumerate(ordered, 1):
        going_on.feed(event)
        again = world.feed(ordered[:length], ordered)
        first, second = state(going_on), state(again)
        assert first == second, f"after event {length}"
        again.close()


def check_updates(log: Sequence[Event], ended: Instance) -> None:
    """Each update was answered, or nobody accepted it. None is lost."""
    received = [
        event.key
        for event in log
        if event.type == SIGNAL_RECEIVED and '"update": true' in (event.details or "")
    ]
    said = {kind: {e.key for e in log if e.type == kind} for kind in UPDATE_REPLIES}
    assert said[UPDATE_ACCEPTED] == said[UPDATE_COMPLETED]
    answered = said[UPDATE_COMPLETED] | said[UPDATE_REJECTED]
    left = {message.id for message in ended.ledger(Updates).unread}
    left |= {event.key for event in ended.paused_events or () if event.type == SIGNAL_RECEIVED}
    assert not answered & left
    assert answered | left == {*received, *(key for key in left if key is None)}


def check_log(log: Sequence[Event]) -> None:
    """Trap 15. A timer is recorded once, fires once, and not before its moment.

    What is ordered is ordered once, and ended once; an update is answered once.
    """
    once = Counter(
        (event.type, event.key)
        for event in log
        if event.type in CALL_COMMANDS | COMMAND_ENDS | UPDATE_REPLIES
    )
    assert all(number == 1 for number in once.values()), once.most_common(3)
    scheduled: dict[str | None, int] = {}
    fired: set[str | None] = set()
    for event in log:
        if event.type == TIMER_SCHEDULED:
            assert event.key not in scheduled, f"two timers: {event.key}"
            scheduled[event.key] = read_timer(event.details or "").fire_at
        elif event.type == TIMER_FIRED:
            fire_at = json.loads(event.details or "")["fire_at"]
            assert event.key not in fired
            fired.add(event.key)
            assert event.at >= fire_at
            assert scheduled.get(event.key, fire_at) == fire_at, "a deadline has moved"
