"""Waiting for signals."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass

import pytest

from holdfast import Context
from holdfast.errors import InvalidName, PayloadError
from holdfast.events import TIMER_FIRED
from holdfast.types import Finish, Suspend
from tests.runtime.bench import SECOND, START, Bench, work


@dataclass
class Decision:
    approved: bool
    by: str = "nobody"


def test_after_a_signal_between_replay_and_suspension_the_run_continues_at_once() -> None:
    """Trap 1. The commit is held, the signal is written, and the run continues."""

    async def flow(ctx: Context) -> object:
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    assert bench.suspended
    assert bench.commit_due is not None
    bench.refuse(bench.signal("go", 5))
    assert not bench.suspended
    bench.settle()
    assert bench.output == 5


def test_a_wait_suspends_with_the_names_it_awaits() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b", timeout="1m"))

    bench = Bench(flow)
    bench.commit()
    assert bench.suspend == Suspend(START + 60 * SECOND, ("a", "b"))


def test_signals_are_taken_first_in_first_out_per_name() -> None:
    """S9."""

    async def flow(ctx: Context) -> list[object]:
        found: list[object] = [await ctx.wait_for_signal("x")]
        found += await asyncio.gather(*(ctx.wait_for_signal("x") for _ in range(3)))
        return [*found, await ctx.wait_for_signal("y")]

    bench = Bench(flow)
    signals = [bench.signal("x", n) for n in range(3)]
    bench.refuse(bench.signal("y", "y"), *signals)
    bench.settle()
    bench.resume(bench.signal("x", 3))
    bench.settle()
    assert bench.output == [0, 1, 2, 3, "y"]


def test_a_signal_during_a_sleep_is_there_for_the_later_wait() -> None:
    """Trap 4. S9."""

    async def flow(ctx: Context) -> object:
        await ctx.sleep(60)
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.signal("go", "early"))
    bench.settle()
    assert bench.suspend == Suspend(START + 60 * SECOND, ())
    bench.now += 60 * SECOND
    bench.resume()
    bench.settle()
    assert bench.output == "early"


def test_a_wait_that_timed_out_stays_timed_out_when_the_signal_comes_late() -> None:
    """Trap 5. S9. B4."""

    async def flow(ctx: Context) -> object:
        try:
            await ctx.wait_for_signal("go", timeout=60)
        except TimeoutError:
            await work(1)
            return ["timeout", await ctx.wait_for_signal("go")]
        return "in time"

    bench = Bench(flow)
    bench.commit()
    bench.now += 60 * SECOND
    bench.resume()
    bench.commit()
    assert bench.starts == ["work"]
    bench.log.append(bench.signal("go", "late"))
    bench.crash()
    assert bench.starts == ["work"]
    bench.complete("work")
    bench.settle()
    assert bench.output == ["timeout", "late"]


def test_a_signal_that_was_delivered_but_not_seen_survives_the_worker() -> None:
    """Trap 6."""

    async def flow(ctx: Context) -> object:
        payload = await ctx.wait_for_signal("go")
        await work(1)
        return payload

    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.signal("go", {"n": 1}))
    bench.crash()
    assert bench.starts == ["work"]
    bench.crash()
    bench.complete("work")
    bench.settle()
    assert bench.output == {"n": 1}


@pytest.mark.parametrize("seed", range(250))
def test_signal_against_timeout_against_a_turn_in_flight_has_one_outcome(seed: int) -> None:
    """Trap 7. In every order there is one outcome, the same on replay, and no stray task."""
    chance = random.Random(seed)

    async def flow(ctx: Context) -> list[str]:
        async def wait() -> str:
            try:
                await ctx.wait_for_signal("go", timeout=10)
            except TimeoutError:
                return "timeout"
            return "signal"

        found = await asyncio.gather(wait(), work(1))
        await work(2)
        return [str(one) for one in found]

    bench = Bench(flow)
    todo = ["signal", "time", "work"]
    chance.shuffle(todo)
    while not isinstance(bench.last and bench.last.then, Finish):
        if todo and chance.random() < 0.5:
            act(bench, todo.pop())
        elif bench.commit_due is not None:
            answer(bench)
        elif bench.suspended:
            if "time" in todo:
                todo.remove("time")
                bench.now += 10 * SECOND
            bench.resume()
        elif "work#2" in bench.turn.executing:
            bench.complete("work#2")
        elif todo:
            act(bench, todo.pop())
    replayed = Bench(flow)
    replayed.log, outcome = bench.log[:-1], bench.output
    replayed.lease = 9
    replayed.claim()
    replayed.settle()
    assert replayed.output == outcome
    assert outcome[0] in ("signal", "timeout")
    assert len(bench.of_type(TIMER_FIRED)) == (outcome[0] == "timeout")
    assert not bench.problems


def act(bench: Bench, what: str) -> None:
    if what == "signal":
        bench.log.append(bench.signal("go"))
    elif what == "time":
        bench.pass_time(10)
    elif "work" in bench.turn.executing:
        bench.complete("work")


def answer(bench: Bench) -> None:
    known = bench.turn.durable_length
    if len(bench.log) == known:
        bench.commit()
    else:
        bench.commit_due = None
        bench.take(bench.turn.conflict(bench.log[known:]))
        if bench.needs_log:
            bench.take(bench.turn.rebuild(bench.log))


def test_only_a_payload_that_contains_the_pattern_is_taken() -> None:
    """B4."""

    async def flow(ctx: Context) -> list[object]:
        mine = await ctx.wait_for_signal("packed", match={"order": {"id": 7}})
        return [mine, await ctx.wait_for_signal("packed")]

    bench = Bench(flow)
    other = {"order": {"id": 6}}
    bench.refuse(bench.signal("packed", other))
    bench.settle()
    assert bench.suspend.awaiting == ("packed",)
    bench.resume(bench.signal("packed", {"order": {"id": 7, "size": 2}, "by": "ann"}))
    bench.settle()
    assert bench.output == [{"order": {"id": 7, "size": 2}, "by": "ann"}, other]


def test_a_payload_is_decoded_into_the_type_that_is_asked_for() -> None:
    async def flow(ctx: Context) -> list[object]:
        good = await ctx.wait_for_signal("decision", type=Decision)
        try:
            await ctx.wait_for_signal("decision", type=Decision)
        except PayloadError as error:
            return [good, str(error)]
        return []

    bench = Bench(flow)
    bench.refuse(bench.signal("decision", {"approved": True, "by": "ann"}))
    bench.settle()
    bench.resume(bench.signal("decision", {"approved": "maybe"}))
    bench.settle()
    assert bench.output[0] == {"approved": True, "by": "ann"}
    assert "approved" in bench.output[1]


def test_a_waiter_that_is_cancelled_as_its_signal_comes_loses_no_signal() -> None:
    async def flow(ctx: Context) -> object:
        loser = asyncio.create_task(ctx.wait_for_signal("go"))
        await asyncio.sleep(0)
        winner = asyncio.create_task(ctx.wait_for_signal("stop"))
        await winner
        loser.cancel()
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.refuse(bench.signal("stop"))
    bench.settle()
    bench.resume(bench.signal("go", 1))
    bench.settle()
    assert bench.output == 1


def test_the_name_of_a_signal_is_checked() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.wait_for_signal("not a name")
        except InvalidName as error:
            return str(error)
        return "waited"

    bench = Bench(flow)
    bench.settle()
    assert "not a name" in json.dumps(bench.output)
