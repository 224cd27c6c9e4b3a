"""Starts that leave out the queue, the priority, the time limit or the retention obey the code."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import (
    DeclaredOptions,
    DeclaredRules,
    NewEvent,
    NewRun,
    NewSubscription,
    RunTarget,
    StartRules,
)

from .actors import ManualWorker, get, new_run, start
from .commands import child
from .flow_actors import Flows, single
from .schedule_actors import ManualScheduler, run_of

DAY = 86_400.0
PLAIN = ("default", 2, None, 30 * DAY)
MAIL = ("mail", 0, 60.0, 2 * DAY)


async def options_of(store: Store, run_id: UUID) -> tuple[str, int, float | None, float]:
    """Return the queue, the priority, the seconds of the time limit and of the retention."""
    run = await get(store, run_id)
    start = run.due_at or run.created_at
    limit = None if run.deadline_at is None else (run.deadline_at - start) / 1e6
    return run.queue, run.priority, limit, run.retention_seconds or 0.0


async def declare(store: Store, name: str, *options: Any, version: int = 1) -> None:
    """Declare a retention, a queue, a priority and a time limit; or those of MAIL."""
    queue, priority, timeout, kept = MAIL
    declared = options or (kept, queue, priority, timeout)
    await store.declare_options([DeclaredOptions(name, version, *declared)])


async def test_start_that_leaves_options_out_has_the_declared_ones(store: Store) -> None:
    assert await options_of(store, await start(store)) == PLAIN
    await declare(store, "order")
    assert await options_of(store, await start(store)) == MAIL
    assert await options_of(store, await start(store, name="other")) == PLAIN
    many = [NewRun(run_id=uuid4(), name=name) for name in ("order", "other", "order")]
    await store.start_runs(many)
    assert [await options_of(store, new.run_id) for new in many] == [MAIL, PLAIN, MAIL]


@pytest.mark.parametrize("alone", [True, False])
async def test_what_a_start_gives_counts(store: Store, alone: bool) -> None:
    """One that gives queue, priority and retention knows the code: its timeout may be none."""
    await declare(store, "order")
    given: dict[str, Any] = {
        "queue": "gpu",
        "priority": 4,
        "timeout_seconds": 5.0,
        "retention_seconds": DAY,
    }
    expected = dict(zip(given, MAIL, strict=True))
    for name, value in given.items():
        run = new_run(**{name: value})
        await store.start_runs([run] if alone else [run, new_run()])
        wanted = tuple((expected | {name: value}).values())
        assert await options_of(store, run.run_id) == wanted
    knows = new_run(queue="default", priority=2, retention_seconds=DAY)
    await store.start_runs([knows] if alone else [knows, new_run()])
    assert await options_of(store, knows.run_id) == ("default", 2, None, DAY)


async def test_run_waits_where_the_workers_of_its_code_look(
    store: Store, ann: ManualWorker
) -> None:
    await declare(store, "order")
    run_ids = {await start(store), await start(store)}
    assert await ann.claims(queues=["default"]) == []
    assert set(await ann.claims(queues=["mail"])) == run_ids


@pytest.mark.parametrize("count", [1, 3])
async def test_workers_of_the_declared_queue_are_told(store: Store, count: int) -> None:
    await declare(store, "order")
    _, notices = await store.start_runs([new_run() for _ in range(count)])
    assert {each.payload for each in notices} == {"mail"}


async def test_program_of_an_older_version_changes_nothing(store: Store) -> None:
    """As with rules for starts: during a deployment the newer code holds."""
    for days, version, then in ((5, 2, 5), (7, 1, 5), (6, 2, 6), (8, 3, 8)):
        await declare(store, "order", days * DAY, f"q{days}", version=version)
        assert await options_of(store, await start(store)) == (f"q{then}", 2, None, then * DAY)


async def test_limit_and_queue_can_be_taken_back(store: Store) -> None:
    await declare(store, "order")
    await declare(store, "order", 30 * DAY)
    assert await options_of(store, await start(store)) == PLAIN


async def test_children_have_the_declared_options(store: Store, ann: ManualWorker) -> None:
    """A workflow may call one of another app, of which it has only the name."""
    await declare(store, "mail")
    await start(store)
    child_id = uuid4()
    command = child(child_id, workflow_name="mail", queue=None, priority=None)
    await ann.command(await ann.take(), command, awaiting=())
    assert await options_of(store, child_id) == MAIL


async def test_ticks_and_events_start_with_the_declared_options(store: Store, clock: Clock) -> None:
    await declare(store, "shop/order")
    sally = ManualScheduler(store)
    tick = await sally.create()
    await clock.advance(60)
    assert await options_of(store, run_of(await sally.fire(tick))) == MAIL
    await store.subscribe(NewSubscription(pattern="paid", target=RunTarget(name="shop/order")))
    _, notices = await store.publish(NewEvent(topic="paid"))
    assert [each.payload for each in notices] == ["mail"]


async def test_flows_have_the_declared_options_and_the_queue_of_their_shape(
    store: Store, flows: Flows
) -> None:
    await declare(store, "shop/trip")
    await flows.define(single("one"), queue="flights")
    expected = ("flights", *MAIL[1:])
    assert await options_of(store, await flows.start()) == expected
    assert await options_of(store, await flows.start()) == expected
    assert await options_of(store, await flows.start(tags=("x",))) == expected


async def test_debounced_run_gets_the_declared_ones_back(store: Store) -> None:
    """Each start gives the run that waits all its options."""
    await declare(store, "order")
    rules = StartRules(debounce_seconds=60.0, debounce_max_wait_seconds=600.0)
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    run_id = await start(store, retention_seconds=DAY, queue="other")
    assert await options_of(store, run_id) == ("other", 0, 60.0, DAY)
    await store.start_runs([new_run()])
    assert await options_of(store, run_id) == MAIL
