"""What all shards are told alike is so in all of them, whatever some of them knew before."""

from __future__ import annotations

import pytest

from holdfast import Client
from holdfast.compiling import check_flows
from holdfast.errors import FlowInUse
from holdfast.store.port import Store
from holdfast.store.postgres import flows
from holdfast.types import (
    AppInfo,
    CatalogueEntry,
    FlowShape,
    LimitRule,
    NewRun,
    NewSchedule,
    RunFilter,
    RunTarget,
    StepShape,
    When,
    WorkerInfo,
)
from tests.shards.engine import id_of

TRIP = FlowShape(name="shop/trip", version=1, steps=(StepShape(slug="a"),))
OTHER = FlowShape(name="shop/trip", version=1, steps=(StepShape(slug="b"),))
RULE = LimitRule(scope="queue", name="slow", kind="concurrency", most=3, holds="turn")


class Trip:
    """The flow of the code."""

    shape = TRIP


async def start_flow(store: Store, shard: int) -> NewRun:
    run = NewRun(run_id=id_of(shard), name="shop/trip", input="{}", kind="flow")
    await store.start_flows([run])
    return run


async def hear(store: Store, *handlers: str) -> None:
    """Let a worker of these handlers be heard in a shard."""
    worker = WorkerInfo(
        worker_id="ann",
        hostname="h",
        pid=1,
        queues=("default",),
        handlers=handlers,
        concurrency=1,
        holdfast_version="1",
    )
    await store.heartbeat(worker, [], lease_seconds=30)


async def test_a_flow_that_is_used_is_deleted_nowhere(store: Store, stores: list[Store]) -> None:
    """Schedules are in shard 0 alone, open runs in any."""
    for each in stores:
        await each.ensure_flow(TRIP, "a")
    open_run = await start_flow(stores[2], 2)
    with pytest.raises(FlowInUse, match=r"runs of flow shop/trip .*, in shard 2$"):
        await store.delete_flow("shop/trip")
    await store.terminate_runs([open_run.run_id])
    schedule = NewSchedule(
        name="shop/daily",
        when=When(cron="0 4 * * *"),
        target=RunTarget(kind="flow", name="shop/trip"),
    )
    await store.create_schedule(schedule)
    with pytest.raises(FlowInUse):
        await store.delete_flow("shop/trip")
    assert None not in [await each.get_flow("shop/trip") for each in stores]
    assert (await store.delete_flow("shop/trip", force=True)).runs == 1
    assert [await each.get_flow("shop/trip") for each in stores] == [None, None, None]


async def test_a_flow_with_many_runs_in_one_shard_is_deleted_whole(
    store: Store, stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the other shards, which were done at once, said when the deletion had begun."""
    monkeypatch.setattr(flows, "_DELETED_AT_ONCE", 2)
    for each in stores:
        await each.ensure_flow(TRIP, "a")
    for _ in range(5):
        await start_flow(stores[1], 1)
    async with Client(store=store) as client:
        assert await client.flows.delete("trip", terminate=True) == 5
    assert (await store.list_runs(RunFilter())).runs == []


async def test_another_shape_in_any_shard_is_said(store: Store, stores: list[Store]) -> None:
    await stores[1].ensure_flow(OTHER, "b")
    assert [each.status for each in await check_flows(store, [Trip])] == ["different"]
    answer = await store.ensure_flow(TRIP, "a")
    assert (answer.status, answer.found) == ("mismatch", OTHER)
    assert (await store.ensure_flow(TRIP, "a", replace=True)).status == "replaced"
    assert [each.status for each in await check_flows(store, [Trip])] == ["verified"]
    assert (await store.ensure_flow(TRIP, "a")).status == "verified"


async def test_a_flow_that_a_shard_lacks_is_said(store: Store, stores: list[Store]) -> None:
    await stores[0].ensure_flow(TRIP, "a")
    assert [each.status for each in await check_flows(store, [Trip])] == ["missing"]


async def test_a_change_in_any_shard_is_a_change(store: Store, stores: list[Store]) -> None:
    """The call before was cut off when it had reached some of them."""
    await stores[0].set_pause("queue", "slow", paused=True)
    assert [each.reason for each in await store.list_pauses()] == ["in shard 0 alone"]
    assert await store.set_pause("queue", "slow", paused=True) == (True, [])
    assert await store.set_pause("queue", "slow", paused=True) == (False, [])
    assert [each.reason for each in await store.list_pauses()] == [None]
    for each in stores[1:]:
        await each.set_pause("workflow", "shop/buy", paused=True, reason="stock")
    assert (await store.list_pauses())[1].reason == "stock; in shard 1, 2 alone"
    await stores[2].set_limit(RULE)
    assert await store.remove_limit("queue", "slow", "concurrency")
    assert not await store.remove_limit("queue", "slow", "concurrency")
    assert await store.set_limit(RULE)
    assert not await store.set_limit(RULE)


async def test_a_build_that_one_shard_knows_is_promoted_in_all(
    store: Store, stores: list[Store]
) -> None:
    """Its workers sign on one after the other."""
    for each in stores:
        await each.declare_build("shop", "b1", ["shop/buy@1"])
    await stores[1].declare_build("shop", "b2", ["shop/buy@1"])
    assert (await store.promote_build("shop", "b3")).outcome == "unknown"
    assert (await store.promote_build("shop", "b2")).outcome == "changed"
    for each in stores:
        current = [found.build for found in await each.list_builds("shop") if found.is_current]
        assert current == ["b2"]
    assert (await store.promote_build("shop", "b2")).outcome == "same"


async def test_all_shards_return_to_the_build_that_shard_0_had(
    store: Store, stores: list[Store]
) -> None:
    """One that was added later knows another past."""
    for build in ("b1", "b2", "b3"):
        await stores[0].declare_build("shop", build, ["shop/buy@1"])
    for build in ("b3", "b2"):
        await stores[0].promote_build("shop", build)
    await stores[1].declare_build("shop", "b2", ["shop/buy@1"])
    await stores[2].declare_build("shop", "b1", ["shop/buy@1"])
    assert (await store.promote_build("shop", "b2")).outcome == "changed"
    assert (await store.ramp_build("shop", "b1", 20)).outcome == "changed"
    assert (await store.roll_back_build("shop")).outcome == "ramp"
    for build in ("b3", "b1"):
        assert (await store.roll_back_build("shop")).current == build
        for each in stores:
            current = [one.build for one in await each.list_builds("shop") if one.is_current]
            assert current == [build]


async def test_a_roll_back_that_was_cut_off_is_completed(store: Store, stores: list[Store]) -> None:
    for build in ("b1", "b2", "b3"):
        for each in stores:
            await each.declare_build("shop", build, ["shop/buy@1"])
        await store.promote_build("shop", build)
    for each in stores[:2]:
        await each.roll_back_build("shop")
    assert [one.build for one in await store.list_builds("shop") if one.safe_to_stop] == ["b1"]
    assert (await store.roll_back_build("shop")).current == "b2"
    for each in stores:
        assert [one.build for one in await each.list_builds("shop") if one.is_current] == ["b2"]


async def test_runs_move_to_a_build_that_their_shard_does_not_know(
    store: Store, stores: list[Store]
) -> None:
    for each in stores:
        await each.declare_build("shop", "b1", ["shop/buy@1"])
    run = NewRun(run_id=id_of(2), name="shop/buy")
    await stores[2].start_runs([run])
    await stores[0].declare_build("shop", "b2", ["shop/buy@1"])
    assert (await store.move_to_build([run.run_id], "b2")).outcomes == {run.run_id: "moved"}


async def test_a_build_that_any_shard_needs_is_not_safe_to_stop(
    store: Store, stores: list[Store]
) -> None:
    for each in stores:
        for build in ("b1", "b2"):
            await each.declare_build("shop", build, [f"shop/buy@{build[1]}"])
        await each.promote_build("shop", "b2")
    await hear(stores[2], "shop/buy@1+b1", "shop/remind@1")
    await stores[2].start_runs([NewRun(run_id=id_of(2), name="shop/remind")])
    [b1] = [each for each in await store.list_builds("shop") if each.build == "b1"]
    assert (b1.needed_for, b1.safe_to_stop) == (("shop/remind@1",), False)


async def test_what_code_says_is_that_of_its_highest_version(
    store: Store, stores: list[Store]
) -> None:
    """While a new version is deployed, some shards have the old one only."""
    new = FlowShape(name="shop/trip", version=2, steps=(StepShape(slug="a"),))
    await stores[0].ensure_flow(TRIP, "a")
    await stores[2].ensure_flow(new, "n")
    assert await store.get_flow("shop/trip") == new
    assert await store.get_flow("shop/trip", 1) == TRIP
    for number, version in ((0, 1), (2, 2)):
        await stores[number].declare_catalogue([CatalogueEntry("shop/order", version)])
    assert (await store.read_catalogue(["shop/order"]))["shop/order"].version == 2
    await stores[0].sign_on_app(AppInfo(app="shop", workflows=("order",)))
    await stores[2].sign_on_app(AppInfo(app="shop", workflows=("order", "refund")))
    assert (await store.list_apps())[0].workflows == ("order", "refund")
    assert [each.version for each in await store.list_flows()] == [1, 2]
