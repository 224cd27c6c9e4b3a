"""What is counted and listed is that of all shards, each thing once."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from holdfast.insight.load import read_load
from holdfast.store.port import Store
from holdfast.store.shards.merging import merge_alerts, merge_samples
from holdfast.types import (
    AlertInfo,
    AlertRule,
    AppInfo,
    CatalogueEntry,
    DeclaredRules,
    FlowShape,
    Gauges,
    LoadSample,
    NewRun,
    RunFilter,
    StartRules,
    StepShape,
)
from tests.shards.conftest import COUNT
from tests.shards.engine import id_of


async def start(stores: list[Store], *numbers: int, name: str = "shop/order") -> list[NewRun]:
    """Start a run in each of these shards, one after the other."""
    runs = [NewRun(run_id=id_of(each), name=name, retention_seconds=0) for each in numbers]
    for number, run in zip(numbers, runs, strict=True):
        await stores[number].start_runs([run])
    return runs


async def test_the_load_of_one_workflow_is_that_of_all_shards(
    store: Store, stores: list[Store]
) -> None:
    await start(stores, 0, 1, 1, 2)
    await start(stores, 2, name="shop/other")
    for each in stores:
        assert await each.sample_load()
    assert (await read_load(store)).queues[0].most == 5
    assert (await read_load(store, name="shop/order")).queues[0].most == 4


def test_a_shard_that_was_looked_at_more_seldom_counts_as_the_others() -> None:
    """Means are sums of looks divided by their number, which is that of all queues together."""
    seldom = [LoadSample(0, "", 1, 4, 3, 10), LoadSample(0, "mail", 1, 4, 3, 0)]
    often = [
        LoadSample(0, "", 2, 3, 4, 20),
        LoadSample(0, "slow", 1, 3, 4, 0),
        LoadSample(1, "", 1, 0, 0, 10),
    ]
    assert merge_samples([seldom, often]) == [
        LoadSample(0, "", 2, 7, 10, 40),
        LoadSample(0, "mail", 1, 4, 6, 0),
        LoadSample(0, "slow", 1, 3, 4, 0),
        LoadSample(1, "", 1, 0, 0, 10),
    ]


async def test_an_app_that_shard_0_has_not_heard_of_yet_is_known(
    store: Store, stores: list[Store]
) -> None:
    """The workers of a new app sign on one after the other."""
    await stores[2].sign_on_app(AppInfo(app="shop", workflows=("order",)))
    new, old = CatalogueEntry("shop/order", 1), CatalogueEntry("shop/refund", 1)
    await stores[0].declare_catalogue([old])
    await stores[2].declare_catalogue([old, new])
    assert set(await store.read_catalogue([old.name, new.name])) == {old.name, new.name}
    assert await store.apps_with("order") == ["shop"]
    assert await store.apps_with("other") == []
    assert [each.app for each in await store.list_apps()] == ["shop"]


async def test_a_gauge_of_nothing_stays_a_gauge(store: Store, stores: list[Store]) -> None:
    """A metric that is not given any more would keep its last value at who collects it."""
    await start(stores, 0, 2)
    for each in stores:
        await each.claim_tasks("ann", ["default"], ["shop/order@1"], 9, lease_seconds=60)
    gauges: Gauges = await store.read_gauges()
    assert (gauges.in_flight, gauges.due) == ({"shop/order": 2}, {"default": 0})


async def test_a_count_that_ended_has_the_runs_of_all_shards_since_then(
    store: Store, stores: list[Store]
) -> None:
    """Three of shard 0 are the newest: what is older than where its count ended is left out."""
    await start(stores, 1, 1, 2)
    newest = await start(stores, 2, 0, 0, 0)
    found = await store.count_runs_by("workflow", RunFilter(limit=2))
    record = (await store.get_runs([newest[2].run_id]))[newest[2].run_id]
    assert found.searched_until is not None
    assert found.searched_until.timestamp() == pytest.approx(record.created_at / 1e6, abs=1e-5)
    assert found.counts == {"shop/order": 2}
    whole = await store.count_runs_by("workflow", RunFilter(limit=9))
    assert (whole.counts, whole.searched_until) == ({"shop/order": 7}, None)


async def test_keys_that_rules_hold_are_listed_up_to_a_number_of_each_rule(
    store: Store, stores: list[Store]
) -> None:
    rules = StartRules(singleton_conflict="queue", singleton_key="input.customer")
    for each in stores:
        await each.declare_start_rules([DeclaredRules("shop/order", 1, rules)])
    for number, each in enumerate(stores):  # as children, each with its parent
        given = f'{{"customer": {number}}}'
        await each.start_runs([NewRun(run_id=uuid4(), name="shop/order", input=given)])
    assert len(await store.list_start_keys("shop/order")) == 3
    assert len(await store.list_start_keys("shop/order", limit=2)) == 2


def test_an_alert_is_listed_once_as_it_stands_where_it_is_worst() -> None:
    rule = AlertRule(name="fails", kind="failed", subject="", threshold=2, topic="ops")
    fine = AlertInfo(app="shop", rule=rule, is_active=False, value=9, changed_at=1, looked_at=2)
    active = msgspec.structs.replace(fine, is_active=True, value=3.0)
    refused = msgspec.structs.replace(fine, value=0.0, error="no topic")
    other = msgspec.structs.replace(fine, app="bar")
    assert merge_alerts([[fine, other], [active], [refused]]) == [
        other,
        msgspec.structs.replace(active, error="no topic"),
    ]
    fewest = msgspec.structs.replace(rule, kind="no_worker")
    alerts = [msgspec.structs.replace(fine, rule=fewest, value=value) for value in (3.0, 0.0, 1.0)]
    assert [each.value for each in merge_alerts([[each] for each in alerts])] == [0.0]


async def test_what_a_sweep_would_delete_is_told_once_for_each_workflow(
    store: Store, stores: list[Store]
) -> None:
    runs = await start(stores, 0, 1, 2)
    await store.cancel_runs([each.run_id for each in runs])
    [share] = await store.preview_sweep()
    assert (share.name, share.due) == ("shop/order", COUNT)


async def test_a_run_has_the_shape_that_its_shard_had(store: Store, stores: list[Store]) -> None:
    """The workers of a shard declare what they have: here one later than the other."""
    old = FlowShape(name="shop/trip", version=1, steps=(StepShape(slug="a"),))
    new = msgspec.structs.replace(old, steps=(StepShape(slug="b"),))
    for each in stores:
        await each.ensure_flow(old, "a")
    run_id = id_of(1)
    await stores[1].start_flows([NewRun(run_id=run_id, name="shop/trip", input="{}", kind="flow")])
    for each in stores:
        assert (await each.ensure_flow(new, "b", replace=True)).status == "replaced"
    run = (await store.get_runs([run_id]))[run_id]
    assert await store.shape_of_run(run_id, "shop/trip", 1, run.created_at) == old
    assert await store.get_flow("shop/trip") == new
