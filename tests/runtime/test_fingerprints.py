"""Changed code under what a run has recorded of approvals, signals to others, and timers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import pytest

from holdfast import Context
from holdfast.definitions.steps import Step
from holdfast.events import APPROVAL_RESOLVED, SIGNAL_SENT
from holdfast.types import Event
from tests.runtime.bench import SECOND, START, Bench, Code

TARGET, OTHER = UUID(int=1), UUID(int=2)


async def _elsewhere(item: str) -> str:
    raise AssertionError("the test gives the results")


work = Step(_elsewhere, name="work")


@dataclass
class Terms:
    discount: float
    reason: Literal["volume", "loyalty"] = "volume"


@dataclass
class LongerTerms:
    discount: float
    months: int
    reason: Literal["volume", "loyalty"] = "volume"


def decided(bench: Bench, key: str = "approve") -> Event:
    text = json.dumps({"approved": True, "by": "ann", "values": {"discount": 1}})
    return Event(APPROVAL_RESOLVED, key, text, bench.now)


def stuck_then_healed(bench: Bench, changed: Code, healed: Code) -> str:
    """Replay with changed code, which is stuck and writes nothing, then with other code."""
    bench.crash(changed)
    found = str(bench.stuck)
    assert bench.commit_due is None
    bench.claim(healed)
    assert bench.stuck is None
    return found


# Approvals


async def thank(ctx: Context) -> str:
    thanks = await ctx.request_approval("Send a thank-you mail?", form=Terms)
    return await work(str(thanks.approved))


@pytest.mark.parametrize("answered", [False, True])
def test_a_decision_is_not_given_to_another_question(answered: bool) -> None:
    async def delete(ctx: Context) -> str:
        await ctx.request_approval("Delete the account?")
        return await thank(ctx)

    bench = Bench(thank)
    bench.settle()
    if answered:
        bench.resume(decided(bench))
    found = stuck_then_healed(bench, delete, thank)
    assert "approval 'Delete the account?' now" in found
    assert "approval 'Send a thank-you mail?' in the log" in found


def test_a_form_with_other_fields_is_another_question() -> None:
    async def changed(ctx: Context) -> str:
        thanks = await ctx.request_approval("Send a thank-you mail?", form=LongerTerms)
        return await work(str(thanks.approved))

    bench = Bench(thank)
    bench.settle()
    bench.resume(decided(bench))
    assert "with other arguments" in stuck_then_healed(bench, changed, thank)


def test_the_description_of_a_question_may_change() -> None:
    async def changed(ctx: Context) -> str:
        thanks = await ctx.request_approval(
            "Send a thank-you mail?", form=Terms, description="For the order.", timeout="1d"
        )
        return await work(str(thanks.approved))

    bench = Bench(thank)
    bench.settle()
    bench.resume(decided(bench))
    bench.crash(changed)
    assert bench.starts == ["work"]


# Signals to other runs


def sender(*sent: tuple[UUID, str, object]) -> Code:
    async def code(ctx: Context) -> str:
        for target, name, payload in sent:
            ctx.signal_run(target, name, payload)
        return await work("x")

    return code


@pytest.mark.parametrize(
    "first", [(TARGET, "reserve", {"b": 1, "a": 2}), (OTHER, "ship", None), (TARGET, "ship", 1)]
)
def test_a_signal_that_was_sent_is_not_taken_for_another(first: tuple[UUID, str, object]) -> None:
    """Neither for another name nor for another run or payload: one would be lost, one doubled."""
    ship = (TARGET, "ship", None)
    before, after = sender(ship), sender(first, ship)
    bench = Bench(before)
    bench.settle()
    assert "a call of signal" in stuck_then_healed(bench, after, before)


def test_a_signal_that_was_sent_is_recognized_on_replay() -> None:
    code = sender((TARGET, "ship", {"b": 1.5, "a": "é"}), (TARGET, "ship", None))
    bench = Bench(code)
    bench.settle()
    bench.crash()
    assert bench.stuck is None
    assert bench.starts == ["work"]
    assert len(bench.of_type(SIGNAL_SENT)) == 2


# Timers


def short_sleeper(sleep: Callable[[Context], float | str]) -> Code:
    async def nap(ctx: Context) -> None:
        await ctx.sleep(sleep(ctx))

    async def code(ctx: Context) -> None:
        await asyncio.gather(nap(ctx), work("x"))
        await work("y")

    return code


def fired_beside_a_step(code: Code) -> Bench:
    """A run whose short timer fired while a step ran: the log has only that it fired."""
    bench = Bench(code)
    bench.pass_time(0.6)
    bench.commit()
    assert bench.types() == ["WorkflowStarted", "TimerFired"]
    return bench


def test_a_short_timer_that_fired_is_not_taken_for_a_long_one() -> None:
    bench = fired_beside_a_step(short_sleeper(lambda ctx: 0.5))
    text = json.loads(bench.log[1].details or "")
    assert text["delay"] == 0.5
    found = stuck_then_healed(
        bench, short_sleeper(lambda ctx: 3600), short_sleeper(lambda ctx: 0.5)
    )
    assert "a timer of 3600 s now, and a timer of 0.5 s in the log" in found


def test_a_timer_that_fired_is_compared_also_if_it_is_created_later() -> None:
    def code(length: float, name: str) -> Code:
        async def flow(ctx: Context) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("work", _elsewhere, "x"))
                group.create_task(ctx.sleep(length, id="nap"))
            await work("y")

        return flow

    async def later(ctx: Context) -> None:
        await work("x")
        await asyncio.ensure_future(ctx.sleep(60, id="nap"))

    bench = fired_beside_a_step(code(0.5, "sleep"))
    bench.complete("work", "done")
    bench.settle()
    bench.crash(later)
    assert "a timer of 60 s now, and a timer of 0.5 s in the log" in str(bench.stuck)


def test_a_timer_that_fired_under_an_older_release_has_no_length() -> None:
    bench = fired_beside_a_step(short_sleeper(lambda ctx: 0.5))
    fired = bench.log[1]
    fields = json.loads(fired.details or "")
    del fields["delay"]
    bench.log[1] = Event(fired.type, fired.key, json.dumps(fields), fired.at)
    bench.crash()
    assert bench.stuck is None
    assert bench.starts == ["work"]


def test_timers_are_compared_to_the_microsecond() -> None:
    def sleeper(seconds: float) -> Code:
        async def code(ctx: Context) -> None:
            await ctx.sleep(seconds)

        return code

    bench = Bench(sleeper(1_000_000))
    bench.settle()
    bench.crash(sleeper(1_000_000.000001))
    assert "a timer of 1000000.000001 s now" in str(bench.stuck)


def test_a_sleep_until_a_moment_is_compared_by_its_moment() -> None:
    def sleeper(after: int) -> Code:
        async def code(ctx: Context) -> None:
            await work("x")
            await ctx.sleep_until(datetime.fromtimestamp(START // SECOND, UTC) + timedelta(after))

        return code

    bench = Bench(sleeper(2))
    bench.complete("work", "x")
    bench.settle()
    bench.crash()
    assert bench.stuck is None
    bench.crash(sleeper(3))
    found = str(bench.stuck)
    assert "a timer until 2023-11-17" in found
    assert "a timer until 2023-11-16" in found
