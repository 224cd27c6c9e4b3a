"""Debounces: starts within a quiet time lead to one run, with the last input."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import DeclaredRules, NewRun, StartedRun, StartRules, StartWait

from .actors import SECOND, ManualWorker, get, log, new_run, start
from .test_singletons import child_of, start_one


async def declare(store: Store, **fields: Any) -> None:
    """Debounce `order` by customer: 5 s of quiet, a minute at most."""
    rules = StartRules(
        debounce_seconds=5.0,
        debounce_key="input.customer",
        debounce_max_wait_seconds=60.0,
        **fields,
    )
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])


def order(number: int, customer: str = "ann", **fields: Any) -> NewRun:
    """Return an order to start."""
    return new_run(input=json.dumps({"customer": customer, "number": number}), **fields)


async def test_run_waits_for_quiet_and_gets_the_last_input(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store)
    first = order(1)
    assert await start_one(store, first) == StartedRun(first.run_id, True, "running")
    await clock.advance(3)
    last = order(2, tags=("late",), priority=0)
    assert await start_one(store, last) == StartedRun(first.run_id, False, "running")
    await clock.advance(4.9)
    assert await ann.claims() == []
    assert (await get(store, first.run_id)).state == "waiting"
    await clock.advance(0.1)
    task = await ann.take()
    assert (task.run_id, json.loads(task.input or "")["number"]) == (first.run_id, 2)
    run = await get(store, first.run_id)
    assert (run.tags, run.priority, run.input) == (("late",), 0, last.input)
    assert run.due_at == run.started_at == run.created_at + 8 * SECOND
    assert [event.details for event in await log(store, first.run_id)] == [last.input]


async def test_start_after_the_quiet_time_makes_another_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store)
    await start_one(store, order(1))
    await clock.advance(5)
    second = order(2)  # the first has not been claimed, but its time is over
    assert (await start_one(store, second)).created
    assert len(await ann.claims()) == 1
    assert (await start_one(store, order(3))).run_id == second.run_id


async def test_longest_wait_ends_however_often_it_is_started(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store)
    first = order(0)
    await start_one(store, first)
    for number in range(1, 15):
        await clock.advance(4)
        assert (await start_one(store, order(number))).run_id == first.run_id
    assert await ann.claims() == []
    await clock.advance(4)
    task = await ann.take()
    assert (task.run_id, json.loads(task.input or "")["number"]) == (first.run_id, 14)


async def test_racing_starts_lead_to_one_run(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await declare(store)
    runs = [order(number) for number in range(20)]
    answers = await asyncio.gather(*(start_one(store, run) for run in runs))
    [created] = [answer.run_id for answer in answers if answer.created]
    assert {answer.run_id for answer in answers} == {created}
    await clock.advance(5)
    assert (await ann.take()).run_id == created


async def test_keys_are_debounced_apart(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await declare(store)
    runs = [order(1), order(2, "bob"), order(3), order(4, "bob")]
    answers, _ = await store.start_runs(runs)
    assert [answer.run_id for answer in answers] == [runs[n].run_id for n in (0, 1, 0, 1)]
    await clock.advance(5)
    taken = (await ann.claim()).tasks
    assert {json.loads(task.input or "")["number"] for task in taken} == {3, 4}


async def test_run_that_was_ended_while_it_waited_is_not_started_again(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store)
    first = order(1)
    await start_one(store, first)
    await store.cancel_runs([first.run_id])
    second = order(2)
    assert (await start_one(store, second)).created
    await clock.advance(5)
    assert (await ann.take()).run_id == second.run_id


async def test_timeout_counts_from_the_end_of_the_quiet_time(store: Store, clock: Clock) -> None:
    await declare(store)
    first = order(1, timeout_seconds=60.0)
    await start_one(store, first)
    await clock.advance(3)
    await start_one(store, order(2, timeout_seconds=30.0))
    assert (await get(store, first.run_id)).deadline_at == await store.now() + 35 * SECOND


async def test_waiting_run_says_what_it_waits_for(store: Store) -> None:
    await declare(store)
    first = order(1)
    await start_one(store, first)
    latest = await store.now() + 60 * SECOND
    assert await store.start_wait(first.run_id) == StartWait("debounce", "ann", latest=latest)
    run = await get(store, first.run_id)
    assert run.wait is not None
    assert run.wait.visible_at == await store.now() + 5 * SECOND


async def test_waiting_run_says_what_it_waits_for_without_its_rules(store: Store) -> None:
    await declare(store)
    first = order(1)
    await start_one(store, first)
    await store.declare_start_rules([DeclaredRules("order", 2, None)])
    assert await store.start_wait(first.run_id) == StartWait("debounce", "")


async def test_child_is_not_shared(store: Store, ann: ManualWorker) -> None:
    await declare(store)
    first = order(1)
    await start_one(store, first)
    parent = await start(store, name="parent")
    await ann.command(await ann.take(handlers=["parent@1"]), child_of(uuid4()))
    assert (await log(store, parent))[-1].type == "ChildFailed"
    assert (await get(store, first.run_id)).input == first.input


async def test_debounced_singleton_gets_new_inputs_while_it_waits(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store, singleton_conflict="queue", singleton_key="input.customer")
    await start_one(store, order(1))
    await clock.advance(5)
    running = await ann.take()
    second = order(2)
    assert (await start_one(store, second)).created
    await clock.advance(2)
    assert (await start_one(store, order(3))).run_id == second.run_id
    await ann.finish(running)
    assert await ann.claims() == []  # its quiet time has not ended
    await clock.advance(5)
    task = await ann.take()
    assert (task.run_id, json.loads(task.input or "")["number"]) == (second.run_id, 3)


async def test_keys_without_meaning_are_deleted(store: Store, clock: Clock) -> None:
    await declare(store)
    await start_one(store, order(1))
    await start_one(store, order(2, "bob"))
    assert await store.expire_start_keys() == 0
    await clock.advance(6)
    assert await store.expire_start_keys(limit=1) == 1
    assert await store.expire_start_keys() == 1
