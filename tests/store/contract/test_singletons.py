"""Singletons: one active run for each key."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import (
    DeclaredRules,
    Event,
    Finish,
    NewRun,
    RulesOfStart,
    SingletonConflict,
    StartedRun,
    StartRules,
)

from .actors import SECOND, ManualWorker, details, get, log, log_types, new_run, start


async def declare(
    store: Store, conflict: SingletonConflict = "refuse", *, key: str | None = "input.customer"
) -> None:
    """Make the runs of `order` singletons by customer."""
    rules = StartRules(singleton_conflict=conflict, singleton_key=key)
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])


def order(customer: object = "ann", **fields: Any) -> NewRun:
    """Return an order of a customer to start."""
    return new_run(input=json.dumps({"customer": customer}), **fields)


async def start_one(store: Store, run: NewRun) -> StartedRun:
    [started], _ = await store.start_runs([run])
    return started


async def test_second_start_with_a_key_is_refused_and_names_the_active_run(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store)
    first = await start(store, input='{"customer": "ann"}')
    second = order()
    assert await start_one(store, second) == StartedRun(first, False, "running", "singleton")
    assert second.run_id not in await store.get_runs([second.run_id])

    other = order("bob")
    assert (await start_one(store, other)).created

    for task in (await ann.claim()).tasks:
        await ann.finish(task)
    assert (await start_one(store, second)).created


async def test_second_start_with_a_key_returns_the_active_run(store: Store) -> None:
    await declare(store, "return")
    first = await start(store, input='{"customer": "ann"}')
    assert await start_one(store, order()) == StartedRun(first, False, "running")


async def test_run_is_active_until_its_end_also_while_it_waits(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store)
    first = await start(store, input='{"customer": "ann"}')
    await ann.suspend(await ann.take())
    assert (await start_one(store, order())).run_id == first
    await store.terminate_runs([first])
    assert (await start_one(store, order())).created


async def test_starts_of_one_call_obey_the_rule_among_themselves(store: Store) -> None:
    await declare(store)
    runs = [order("ann"), order("bob"), order("ann")]
    answers, _ = await store.start_runs(runs)
    assert answers == [
        StartedRun(runs[0].run_id, True, "running"),
        StartedRun(runs[1].run_id, True, "running"),
        StartedRun(runs[0].run_id, False, "running", "singleton"),
    ]


async def test_start_of_an_existing_id_finds_it_whatever_the_rule_says(
    store: Store, ann: ManualWorker
) -> None:
    """B5. An idempotency key is stronger than a singleton's key."""
    await declare(store)
    run = order()
    await start_one(store, run)
    assert await start_one(store, run) == StartedRun(run.run_id, False, "running")
    await ann.finish(await ann.take())
    assert await start_one(store, run) == StartedRun(run.run_id, False, "completed")
    assert (await start_one(store, order())).created  # the look-up took no key


async def test_rule_of_the_caller_holds_until_a_worker_has_declared_one(store: Store) -> None:
    mine = msgspec.json.encode(
        RulesOfStart(declared=StartRules(singleton_conflict="return"))
    ).decode()
    first = order("ann", rules=mine)
    await start_one(store, first)
    assert (await start_one(store, order("bob", rules=mine))).run_id == first.run_id
    await declare(store)
    assert (await start_one(store, order("bob", rules=mine))).created


async def test_rule_that_is_given_with_a_start_changes_the_declared_one(store: Store) -> None:
    await declare(store)
    first = order()
    await start_one(store, first)
    given = msgspec.json.encode(RulesOfStart(given={"singleton_conflict": "return"})).decode()
    assert await start_one(store, order(rules=given)) == StartedRun(first.run_id, False, "running")


async def test_rule_that_cannot_work_is_refused_at_the_start(store: Store) -> None:
    given = msgspec.json.encode(RulesOfStart(given={"singleton_conflict": "explode"})).decode()
    with pytest.raises(InvalidInput, match="singleton_conflict"):
        await start_one(store, order(rules=given))


async def test_older_program_does_not_change_what_a_newer_one_declared(store: Store) -> None:
    newer = DeclaredRules("order", 2, StartRules(singleton_conflict="return"))
    await store.declare_start_rules([newer])
    await store.declare_start_rules([DeclaredRules("order", 1, None)])
    assert await store.list_start_rules() == [newer]
    await store.declare_start_rules([DeclaredRules("order", 2, None)])
    assert await store.list_start_rules() == []


async def test_racing_starts_make_one_run(store: Store) -> None:
    await declare(store, "return")
    runs = [order() for _ in range(20)]
    answers = await asyncio.gather(*(start_one(store, run) for run in runs))
    [created] = [answer.run_id for answer in answers if answer.created]
    assert {answer.run_id for answer in answers} == {created}


async def test_child_that_the_rule_refuses_fails_in_its_parent(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "return")
    active = await start(store, input='{"customer": "ann"}')
    parent = await start(store, name="parent")
    task = await ann.take(handlers=["parent@1"])
    child = uuid4()
    await ann.command(task, child_of(child))
    *_, refused = await log(store, parent)
    assert refused.type == "ChildFailed"
    assert details(refused)["status"] == "refused"
    assert details(refused)["error"]["kind"] == "holdfast.errors.RunActive"
    assert str(active) in details(refused)["error"]["message"]
    assert child not in await store.get_runs([child])


def child_of(run_id: UUID, customer: str = "ann") -> Event:
    """Return the event that asks for an order as a child."""
    asked = {
        "child_run_id": str(run_id),
        "workflow_name": "order",
        "version": 1,
        "queue": "default",
        "priority": 2,
        "parent_close": "terminate",
        "input": {"customer": customer},
    }
    return Event("ChildStarted", "child", json.dumps(asked), 0)


async def test_next_run_begins_when_the_one_before_ends_in_order(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "queue")
    runs = [order() for _ in range(3)]
    for run in runs:
        assert (await start_one(store, run)).created
    for run in runs:
        task = await ann.take()
        assert task.run_id == run.run_id
        assert await ann.claims() == []
        await ann.finish(task)
    assert (await start_one(store, order())).created


async def test_waiting_run_says_what_it_waits_for_and_its_timeout_counts_from_its_turn(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await declare(store, "queue")
    await start(store, input='{"customer": "ann"}')
    second = order(timeout_seconds=60.0)
    await start_one(store, second)
    waiting = await get(store, second.run_id)
    assert waiting.state == "waiting"
    assert waiting.wait is not None
    assert (waiting.wait.awaiting, waiting.wait.visible_at) == ((":singleton",), None)
    assert waiting.deadline_at is None
    await clock.advance(100)
    await ann.finish(await ann.take())
    begun = await get(store, second.run_id)
    assert begun.deadline_at == await store.now() + 60 * SECOND
    assert (await ann.take()).run_id == second.run_id


async def test_waiting_run_that_is_terminated_lets_the_one_after_it_begin(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "queue")
    runs = [order() for _ in range(3)]
    for run in runs:
        await start_one(store, run)
    await store.terminate_runs([runs[1].run_id])
    await ann.finish(await ann.take())
    assert (await ann.take()).run_id == runs[2].run_id


async def test_waiting_run_that_ends_with_the_active_one_is_never_the_active_one(
    store: Store,
) -> None:
    """Its time does not begin."""
    await declare(store, "queue")
    runs = [order(timeout_seconds=5) for _ in range(3)]
    await store.start_runs(runs)
    first, second, third = (run.run_id for run in runs)
    await store.terminate_runs([first, second])
    assert (await get(store, second)).deadline_at is None
    assert (await get(store, third)).deadline_at is not None


async def test_paused_and_resumed_run_still_waits_for_the_one_before(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "queue")
    runs = [order() for _ in range(2)]
    for run in runs:
        await start_one(store, run)
    await store.pause_runs([runs[1].run_id])
    await store.resume_runs([runs[1].run_id])
    first = await ann.take()
    assert first.run_id == runs[0].run_id
    assert await ann.claims() == []
    await ann.finish(first)
    assert (await ann.take()).run_id == runs[1].run_id


async def test_singleton_that_continues_as_new_stays_the_active_run(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "queue")
    first, second = order(), order()
    await start_one(store, first)
    await start_one(store, second)
    successor = uuid4()
    told = json.dumps(
        {"run_id": str(successor), "version": 1, "input": {"customer": "ann"}, "signals": []}
    )
    await ann.commit(
        await ann.take(),
        Event("WorkflowContinuedAsNew", "", told, 0),
        then=Finish("continued", output=json.dumps({"run_id": str(successor)})),
        has_children=True,
    )
    task = await ann.take()
    assert task.run_id == successor
    assert await ann.claims() == []
    await ann.finish(task)
    assert (await ann.take()).run_id == second.run_id
    assert "WorkflowStarted" in await log_types(store, second.run_id)
