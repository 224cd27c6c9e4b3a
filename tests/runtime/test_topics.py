"""Runs that wait for events of topics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest

from holdfast import Context
from holdfast.errors import InvalidInput, InvalidName, PayloadError
from holdfast.events import EVENT_SUBSCRIBED
from holdfast.types import Event
from holdfast.values.patterns import event_signal
from tests.runtime.bench import SECOND, START, Bench, work

PAID = "orders.*.paid"


@dataclass
class Paid:
    order: int


def told(
    bench: Bench, payload: object, *, pattern: str = PAID, match: str | None = None, id: str = "e"
) -> Event:
    """Return the signal that tells of an event."""
    event = {"topic": "orders.17.paid", "id": id, "payload": payload}
    return bench.signal(event_signal(pattern, match), event)


def test_a_wait_subscribes_and_suspends_in_one_commit() -> None:
    """B14. The subscription is in the database before the run waits."""

    async def flow(ctx: Context) -> object:
        event = await ctx.wait_for_event(PAID, timeout="1m", type=Paid)
        return [event.topic, event.id, event.payload.order]

    bench = Bench(flow)
    part = bench.commit()
    assert [event.type for event in part.events if event.type == EVENT_SUBSCRIBED]
    [asked] = [event for event in part.events if event.type == EVENT_SUBSCRIBED]
    assert asked.key == "event:orders.*.paid"
    assert part.has_commands
    assert bench.suspended
    assert bench.suspend.awaiting == ("event:orders.*.paid",)
    assert bench.suspend.visible_at == START + 60 * SECOND
    bench.resume(told(bench, {"order": 5}))
    bench.settle()
    assert bench.output == ["orders.17.paid", "e", 5]


def test_a_step_begins_when_the_subscription_before_it_is_durable() -> None:
    """B14, edge case 22. What the step brings about cannot come too early."""

    async def flow(ctx: Context) -> object:
        ctx.subscribe(PAID)
        await work(1)
        return (await ctx.wait_for_event(PAID)).payload

    bench = Bench(flow)
    assert bench.starts == []
    assert [event.type for event in bench.commit().events] == [EVENT_SUBSCRIBED]
    assert bench.starts == ["work"]
    bench.log.append(told(bench, "early"))
    bench.crash()
    bench.complete("work")
    bench.settle()
    assert bench.output == "early"


def test_the_bar_holds_when_others_write_first() -> None:
    """Edge case 22. After a conflict the subscription is still to be written."""

    async def flow(ctx: Context) -> object:
        ctx.subscribe(PAID)
        await work(1)
        return "done"

    bench = Bench(flow)
    for n in range(2):
        bench.refuse(bench.signal("other", n))
        assert bench.starts == []
    bench.commit()
    assert bench.starts == ["work"]


def test_no_event_between_two_waits_is_lost() -> None:
    """Edge case 22. And one after a wait has timed out is there for the next."""

    async def flow(ctx: Context) -> list[object]:
        found: list[object] = []
        for _ in range(4):
            try:
                found.append((await ctx.wait_for_event(PAID, timeout=60)).payload)
            except TimeoutError:
                found.append("late")
                await work(1)
        return found

    bench = Bench(flow)
    bench.commit()
    bench.resume(told(bench, 1, id="a"), told(bench, 2, id="b"))
    bench.settle()
    assert bench.suspended
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()
    bench.log.append(told(bench, 3, id="c"))
    bench.crash()
    bench.complete("work")
    bench.settle()
    assert bench.output == [1, 2, "late", 3]
    subscribed = [event for event in bench.log if event.type == EVENT_SUBSCRIBED]
    assert len(subscribed) == 1


def test_each_condition_has_events_of_its_own() -> None:
    async def flow(ctx: Context) -> list[object]:
        one = ctx.wait_for_event(PAID, match={"a": 1})
        other = ctx.wait_for_event(PAID)
        return [event.payload for event in await asyncio.gather(one, other)]

    bench = Bench(flow)
    bench.commit()
    bench.resume(told(bench, "second"))
    bench.settle()
    bench.resume(told(bench, "first", match='{"a":1}'))
    bench.settle()
    assert bench.output == ["first", "second"]
    asked = [event for event in bench.log if event.type == EVENT_SUBSCRIBED]
    assert [json.loads(event.details or "")["match"] for event in asked] == [{"a": 1}, None]


def test_a_payload_that_does_not_fit_names_the_event() -> None:
    async def flow(ctx: Context) -> object:
        try:
            await ctx.wait_for_event(PAID, type=Paid)
        except InvalidInput as error:
            return str(error)
        return None

    bench = Bench(flow)
    bench.commit()
    bench.resume(told(bench, {"order": "x"}))
    bench.settle()
    assert "event e of orders.17.paid" in str(bench.output)


@pytest.mark.parametrize("pattern", ["", ".", "a..b", "a.*b", "a.#b", "a b", "ä", "a" * 256])
def test_a_pattern_that_cannot_be_is_refused(pattern: str) -> None:
    """Edge cases 19, 26."""

    async def flow(ctx: Context) -> object:
        with pytest.raises(InvalidName):
            ctx.subscribe(pattern)
        return "refused"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "refused"


def test_a_match_that_no_payload_has_is_refused() -> None:
    async def flow(ctx: Context) -> object:
        for match in ("x" * 9_000, {"a": "\0"}):
            with pytest.raises(PayloadError):
                ctx.subscribe(PAID, match=match)
        return "refused"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "refused"
