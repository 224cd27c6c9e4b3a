"""Throttles: at most so many starts of a key within any period."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import msgspec
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import (
    DeclaredRules,
    NewRun,
    RulesOfStart,
    StartedRun,
    StartRules,
    StartWait,
    ThrottleExcess,
)

from .actors import SECOND, ManualWorker, get, new_run
from .test_singletons import start_one


async def declare(store: Store, excess: ThrottleExcess = "delay", limit: int = 2) -> None:
    """Allow two starts of `order` a customer and 10 s."""
    rules = StartRules(
        throttle_limit=limit,
        throttle_period_seconds=10.0,
        throttle_key="input.customer",
        throttle_excess=excess,
    )
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])


def order(customer: str = "ann", **fields: Any) -> NewRun:
    """Return an order to start."""
    return new_run(input=json.dumps({"customer": customer}), **fields)


async def test_excess_is_delayed_until_it_is_allowed(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store)
    began = await store.now()
    runs = [order() for _ in range(5)]
    for run in runs:
        assert (await start_one(store, run)).created
    due = [
        wait.visible_at for wait in [(await get(store, run.run_id)).wait for run in runs] if wait
    ]
    assert due == [began + n * SECOND for n in (0, 0, 10, 10, 20)]
    assert await store.start_wait(runs[0].run_id) is None
    assert await store.start_wait(runs[4].run_id) == StartWait("throttle", "ann")
    assert set(await ann.claims()) == {run.run_id for run in runs[:2]}
    await clock.advance(10)
    assert set(await ann.claims()) == {run.run_id for run in runs[2:4]}


async def test_excess_is_refused_and_says_until_when(store: Store, clock: Clock) -> None:
    await declare(store, "refuse")
    began = await store.now()
    await start_one(store, order())
    await clock.advance(4)
    await start_one(store, order())
    excess = order()
    until = began + 10 * SECOND
    refused = await start_one(store, excess)
    assert (refused.created, refused.refused, refused.refused_until) == (False, "throttle", until)
    assert refused.status is None
    assert await store.get_runs([excess.run_id]) == {}
    assert (await start_one(store, order("bob"))).created
    await clock.advance(6)
    assert (await start_one(store, excess)).created
    assert (await start_one(store, order())).refused_until == began + 14 * SECOND


async def test_starts_are_not_refused_for_hours_after_the_clock_went_back(
    store: Store, clock: Clock
) -> None:
    """A slot that lies ahead counts no more; the next one does again."""
    await declare(store, "refuse", limit=1)
    assert (await start_one(store, order())).created
    await clock.advance(-3600)
    began = await store.now()
    assert (await start_one(store, order())).created
    assert (await start_one(store, order())).refused_until == began + 10 * SECOND
    await clock.advance(11)
    assert (await start_one(store, order())).created


async def test_start_of_an_existing_id_takes_no_slot(store: Store) -> None:
    await declare(store, "refuse")
    run = order()
    await start_one(store, run)
    for _ in range(5):
        assert await start_one(store, run) == StartedRun(run.run_id, False, "running")
    assert (await start_one(store, order())).created


async def test_racing_starts_take_each_slot_once(store: Store) -> None:
    await declare(store, "refuse")
    answers = await asyncio.gather(*(start_one(store, order()) for _ in range(10)))
    assert sum(answer.created for answer in answers) == 2


async def test_no_period_has_more_starts_from_whatever_moment_on(
    store: Store, clock: Clock
) -> None:
    await declare(store, limit=3)
    draw = random.Random(7)
    runs: list[NewRun] = []
    for _ in range(40):
        await clock.advance(draw.choice([0, 0, 0.5, 2, 7]))
        runs.append(order())
        await start_one(store, runs[-1])
    due: list[int] = []
    for run in runs:
        wait = (await get(store, run.run_id)).wait
        assert wait is not None
        assert wait.visible_at is not None
        due.append(wait.visible_at)
    assert due == sorted(due)
    assert all(later - earlier >= 10 * SECOND for earlier, later in zip(due, due[3:], strict=False))


async def test_key_that_was_not_used_for_a_period_is_deleted(store: Store, clock: Clock) -> None:
    await declare(store, "refuse")
    await start_one(store, order())
    await clock.advance(9)
    assert await store.expire_start_keys() == 0
    await clock.advance(2)
    assert await store.expire_start_keys() == 1
    assert (await start_one(store, order())).created


async def test_singleton_that_a_throttle_refuses_takes_no_key(store: Store, clock: Clock) -> None:
    rules = StartRules(
        singleton_conflict="refuse",
        throttle_limit=1,
        throttle_period_seconds=10.0,
        throttle_excess="refuse",
    )
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    first = order()
    await start_one(store, first)
    await store.terminate_runs([first.run_id])
    assert (await start_one(store, order())).refused == "throttle"
    await clock.advance(10)
    assert (await start_one(store, order())).created


def throttle(limit: int, seconds: float, excess: ThrottleExcess = "refuse") -> StartRules:
    """Return rules that allow starts without regard to a key."""
    return StartRules(throttle_limit=limit, throttle_period_seconds=seconds, throttle_excess=excess)


async def declare_rules(store: Store, rules: StartRules) -> None:
    """Replace the rules of `order`."""
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])


async def test_start_with_a_lower_limit_of_its_own_lets_no_other_start_begin(
    store: Store, clock: Clock
) -> None:
    """Starts under both rules count for each, whatever the last one asked for."""
    await declare_rules(store, throttle(2, 100.0))
    began = await store.now()
    given = RulesOfStart(given={"throttle_limit": 1, "throttle_period_seconds": 1.0})
    brought = msgspec.json.encode(given).decode()
    for rules in (None, brought):
        assert (await start_one(store, order(rules=rules))).created
        await clock.advance(2)
    refused = await start_one(store, order())
    assert (refused.refused, refused.refused_until) == ("throttle", began + 100 * SECOND)
    assert (await start_one(store, order(rules=brought))).created
    await clock.advance(2)
    assert await store.expire_start_keys() == 0  # the long period counts


async def test_limit_that_is_lowered_and_raised_again_forgets_no_start(
    store: Store, clock: Clock
) -> None:
    await declare_rules(store, throttle(3, 100.0))
    began = await store.now()
    assert (await start_one(store, order())).created
    await clock.advance(5)
    await declare_rules(store, throttle(1, 4.0))
    assert (await start_one(store, order())).created
    await declare_rules(store, throttle(2, 100.0))
    refused = await start_one(store, order())
    assert (refused.refused, refused.refused_until) == ("throttle", began + 100 * SECOND)


async def test_raised_limit_is_listed_as_full_until_the_delayed_runs_begin(store: Store) -> None:
    """What is listed is the slot that the next start gets: no run overtakes an earlier one."""
    await declare_rules(store, throttle(1, 10.0, "delay"))
    began = await store.now()
    for _ in range(4):
        await start_one(store, order())
    for limit, slot in ((2, 30), (3, 30), (2, 40), (3, 40)):
        await declare_rules(store, throttle(limit, 10.0, "delay"))
        [held] = await store.list_start_keys("order")
        assert held.until == began + slot * SECOND
        run = order()
        await start_one(store, run)
        wait = (await get(store, run.run_id)).wait
        assert wait is not None
        assert wait.visible_at == held.until


async def test_slots_that_count_no_more_are_deleted(store: Store, clock: Clock) -> None:
    """A raised limit finds no slot of long ago, and a busy key does not grow."""
    await declare_rules(store, throttle(1, 1.0))
    for _ in range(30):
        assert (await start_one(store, order())).created
        await clock.advance(1)
    await declare_rules(store, throttle(3, 1000.0))
    assert [(await start_one(store, order())).created for _ in range(3)] == [True, True, False]


async def test_keys_are_not_listed_as_full_after_the_clock_went_back(
    store: Store, clock: Clock
) -> None:
    await declare_rules(store, throttle(1, 10.0))
    assert (await start_one(store, order())).created
    await clock.advance(-3600)
    assert await store.list_start_keys("order") == []
    assert (await start_one(store, order())).created
    [held] = await store.list_start_keys("order")
    assert held.until == await store.now() + 10 * SECOND


async def test_many_starts_at_once_take_the_longest_delay(store: Store) -> None:
    await declare(store)
    starts, _ = await store.start_runs([order(delay_seconds=1e10) for _ in range(2)])
    assert [start.created for start in starts] == [True, True]
