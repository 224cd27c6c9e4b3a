"""Rules for starts that schedules, flows and workflows make."""

from __future__ import annotations

from uuid import UUID

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import DeclaredRules, FlowShape, RunFilter, StartRules

from .actors import ManualWorker, get, log, start
from .commands import child
from .flow_actors import Flows, single
from .schedule_actors import MINUTE, NAME, ManualScheduler
from .test_flow_runs import run_step


async def test_tick_that_a_rule_refuses_has_failed_and_says_why(store: Store, clock: Clock) -> None:
    rules = StartRules(singleton_conflict="refuse")
    await store.declare_start_rules([DeclaredRules("shop/order", 1, rules)])
    sally = ManualScheduler(store)
    first = await sally.create(overlap="allow")
    for number in range(2):
        await clock.advance(60)
        await sally.fire(first + number * MINUTE)
    later, earlier = await store.list_buckets(NAME)
    assert (earlier.outcome, later.outcome) == ("started", "failed")
    assert f"run {earlier.run_id}" in (later.error or "")


async def test_tick_leads_to_the_run_that_a_rule_returns(store: Store, clock: Clock) -> None:
    rules = StartRules(singleton_conflict="return")
    await store.declare_start_rules([DeclaredRules("shop/order", 1, rules)])
    sally = ManualScheduler(store)
    first = await sally.create(overlap="allow")
    for number in range(2):
        await clock.advance(60)
        await sally.fire(first + number * MINUTE)
    later, earlier = await store.list_buckets(NAME)
    assert (earlier.outcome, later.outcome) == ("started", "started")
    assert later.run_id == earlier.run_id


async def test_step_that_a_rule_refuses_fails_for_good(store: Store, flows: Flows) -> None:
    rules = StartRules(singleton_conflict="refuse")
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    await flows.define(run_step("sub", max_attempts=3))
    first = await flows.start({"n": 1})
    second = await flows.start({"n": 2})
    assert (await get(store, first)).status == "running"
    failed = await get(store, second)
    assert failed.status == "failed"
    assert "is active with the same key" in (failed.error or "")


async def test_step_that_a_rule_refuses_leaves_no_other_run(store: Store, flows: Flows) -> None:
    rules = StartRules(singleton_conflict="refuse")
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    await store.ensure_flow(FlowShape(name="shop/inner", steps=(single("a"),)), "hash")
    within = run_step("within", runs="shop/inner@1", runs_kind="flow")
    await flows.define(run_step("sub"), within)
    await flows.start({"n": 1})
    second = await flows.start({"n": 2})
    assert (await get(store, second)).status == "failed"
    children = await store.list_runs(RunFilter(parent_run_id=second))
    assert "running" not in [child.status for child in children.runs]


async def test_children_of_one_commit_get_places_in_the_order_of_the_calls(
    store: Store, ann: ManualWorker
) -> None:
    """Whatever their ids are."""
    rules = StartRules(throttle_limit=2, throttle_period_seconds=60.0, throttle_excess="refuse")
    await store.declare_start_rules([DeclaredRules("refund", 1, rules)])
    run_id = await start(store)
    task = await ann.take()
    calls = [
        child(UUID(int=number), f"call#{number}", workflow_name="refund")
        for number in range(9, 5, -1)
    ]
    await ann.commit(task, *calls)
    found = await store.list_runs(RunFilter(names=("refund",)))
    assert {run.run_id.int for run in found.runs} == {8, 9}
    refused = [event.key for event in await log(store, run_id) if event.type == "ChildFailed"]
    assert refused == ["call#7", "call#6"]
