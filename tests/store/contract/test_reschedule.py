"""Runs that are rescheduled: another queue, another start, another deadline."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import Delivered, Notice, Reschedule, RulesOfStart, StartRules

from .actors import SECOND, ManualWorker, details, get, log, log_types, new_run, signal, start
from .test_limits import queue_limit

BIG = ("big",)


async def change(store: Store, *run_ids: Any, **fields: Any) -> list[str]:
    """Reschedule runs; return the outcomes."""
    told: Delivered = await store.reschedule_runs(run_ids, Reschedule(**fields))
    return list(told.outcomes)


async def test_a_waiting_run_moves_to_another_queue(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """One that has not begun, one that sleeps, one that awaits a signal; each keeps its moment."""
    fresh, sleeps, awaits = [await start(store) for _ in range(3)]
    tasks = {task.run_id: task for task in (await ann.claim(100)).tasks}
    now = await store.now()
    await ann.release(tasks[fresh])
    await ann.suspend(tasks[sleeps], until=now + 10 * SECOND)
    await ann.suspend(tasks[awaits], awaiting=("packed",))
    told = await store.reschedule_runs(
        [fresh, sleeps, awaits, fresh, uuid4()], Reschedule(queue="big"), reason="slow", by="eve"
    )
    assert told.outcomes == ["delivered", "delivered", "delivered", "duplicate", "missing"]
    assert set(told.notices) == {Notice("work", "big")}
    event = (await log(store, sleeps))[-1]
    assert (event.type, details(event)) == (
        "WorkflowRescheduled",
        {"queue": "big", "reason": "slow", "by": "eve"},
    )
    assert (await get(store, sleeps)).queue == "big"
    assert await change(store, fresh, queue="big") == ["duplicate"]
    assert await ann.claims() == []
    assert await bob.claims(queues=BIG) == [fresh]
    assert (await signal(store, awaits))[1] == [Notice("work", "big")]
    assert await bob.claims(queues=BIG, sticky_seconds=0.0) == [awaits]
    await clock.advance(11)
    assert await bob.claims(queues=BIG, sticky_seconds=0.0) == [sleeps]


async def test_a_run_that_a_worker_holds_leaves_the_queue_when_it_suspends(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Its worker is told of what others wrote, and continues."""
    run_id = await start(store)
    task = await ann.take()
    assert await change(store, run_id, queue="big") == ["delivered"]
    assert await bob.claims(queues=BIG) == []
    assert (await ann.refusal(task)).reason == "conflict"
    await ann.suspend(task, until=await store.now(), expected=2)
    assert await ann.claims() == []
    assert await bob.claims(queues=BIG, sticky_seconds=0.0) == [run_id]


async def test_the_start_of_a_run_is_moved_until_a_worker_has_begun_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Its time-out counts from the new start; a start in the past is none for a run that is due."""
    run_id = await start(store, delay_seconds=60.0, timeout_seconds=5.0)
    created = (await get(store, run_id)).created_at
    assert await change(store, run_id, delay_seconds=10.0) == ["delivered"]
    run = await get(store, run_id)
    now = await store.now()
    assert run.due_at is not None
    assert run.deadline_at == run.due_at + 5 * SECOND
    assert created < run.due_at <= now + 10 * SECOND
    assert details((await log(store, run_id))[-1]) == {
        "start_at": run.due_at,
        "deadline_at": run.deadline_at,
    }
    assert await ann.claims() == []
    assert await change(store, run_id, start_at=now - SECOND) == ["delivered"]
    run = await get(store, run_id)
    assert run.due_at is not None
    assert run.due_at >= now
    assert run.deadline_at == run.due_at + 5 * SECOND
    await clock.advance(3)
    assert await change(store, run_id, start_at=now - 2 * SECOND, queue="default") == ["duplicate"]
    assert await get(store, run_id) == run
    assert await ann.claims() == [run_id]
    assert await change(store, run_id, delay_seconds=1.0, queue="big") == ["begun"]
    assert ((await get(store, run_id)).queue, len(await log(store, run_id))) == ("default", 3)


async def test_a_deadline_is_set_moved_and_removed(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Of any open run; a removed one never comes, and one in the past comes at once."""
    run_id, other = await start(store), await start(store, timeout_seconds=5.0)
    await ann.suspend((await ann.claim()).tasks[0], awaiting=("x",))
    now = await store.now()
    assert await change(store, run_id, timeout_seconds=2.0) == ["delivered"]
    assert (await get(store, run_id)).deadline_at in range(now, now + 3 * SECOND)
    assert await change(store, run_id, deadline_at=now + 20 * SECOND) == ["delivered"]
    assert await change(store, run_id, deadline_at=now + 20 * SECOND) == ["duplicate"]
    assert await change(store, other, no_deadline=True) == ["delivered"]
    assert details((await log(store, other))[-1]) == {"deadline_at": None}
    assert (await get(store, other)).deadline_at is None
    await clock.advance(10)
    assert (await store.time_out_runs())[:2] == (0, now + 20 * SECOND)
    assert await change(store, run_id, deadline_at=now) == ["delivered"]
    assert (await store.time_out_runs())[:2] == (1, None)
    assert await change(store, run_id, no_deadline=True) == ["ended"]
    assert (await log_types(store, run_id))[-1] == "WorkflowTimedOut"


@pytest.mark.parametrize(
    "rules", [StartRules(debounce_seconds=60.0), StartRules(singleton_conflict="queue")]
)
async def test_a_run_that_waits_for_a_rule_moves_only_its_queue(
    store: Store, rules: StartRules
) -> None:
    """Its rule says when it begins."""
    text = msgspec.json.encode(RulesOfStart(declared=rules)).decode()
    started = [(await store.start_runs([new_run(rules=text)]))[0][0] for _ in range(2)]
    waiting = started[-1].run_id
    for fields in ({"delay_seconds": 1.0}, {"timeout_seconds": 1.0}, {"no_deadline": True}):
        assert await change(store, waiting, **fields) == ["ruled"]
    assert await change(store, waiting, queue="big") == ["delivered"]
    assert (await get(store, waiting)).queue == "big"


async def test_a_moved_run_counts_for_the_limits_of_its_new_queue(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """It leaves its place to others, and waits for one, or takes one with it that it held."""
    await store.set_limit(queue_limit(1, holds="run"))
    await store.set_limit(queue_limit(1, holds="run", name="big"))
    run_ids = {await start(store) for _ in range(3)}
    first = await ann.take()
    await ann.suspend(first, awaiting=("x",))
    assert await ann.claims() == []
    told = await store.reschedule_runs([first.run_id], Reschedule(queue="big"))
    assert set(told.notices) == {Notice("work", "default")}
    [second] = await ann.claims()
    others = run_ids - {first.run_id}
    assert second in others
    assert await change(store, *others, queue="big") == ["delivered", "delivered"]
    assert await bob.claims(queues=BIG) == []
    held = {each.rule.name: each.held for each in await store.list_limits()}
    assert held == {"default": 0, "big": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queue": "a b"},
        {"delay_seconds": -1.0},
        {"delay_seconds": 1.0, "start_at": 1},
        {"deadline_at": 1 << 60},
        {"deadline_at": 1, "timeout_seconds": 1.0},
        {"timeout_seconds": 1.0, "no_deadline": True},
        {"timeout_seconds": float("nan")},
        {"queue": "big", "reason": "x" * 70_000},
    ],
)
async def test_a_change_that_cannot_be_is_refused(store: Store, fields: dict[str, Any]) -> None:
    """B7. Nothing is changed."""
    run_id = await start(store)
    values = dict(fields)
    reason = values.pop("reason", None)
    with pytest.raises(InvalidInput):
        await store.reschedule_runs([run_id], Reschedule(**values), reason=reason)
    assert await log_types(store, run_id) == ["WorkflowStarted"]
