"""Limits: whose turn it is among the groups of tasks that wait, in whatever workflow."""

from __future__ import annotations

from uuid import UUID

import pytest
from clocks import Clock

from holdfast.store.port import Store

from .actors import ManualWorker
from .test_limits import buy, later, queue_limit, workflow_limit

HANDLERS = ("shop/buy@1", "shop/sell@1")


async def take_one(worker: ManualWorker) -> UUID:
    """Claim the one task that limits allow, and end its run."""
    task = await worker.take(handlers=HANDLERS)
    await worker.finish(task)
    return task.run_id


@pytest.mark.parametrize(("busy", "other"), [("shop/buy", "shop/sell"), ("shop/sell", "shop/buy")])
async def test_a_workflow_with_much_work_does_not_keep_back_another_of_its_queue(
    store: Store, clock: Clock, ann: ManualWorker, busy: str, other: str
) -> None:
    """One of them has a limit of its own, so they wait in two groups. These take turns."""
    await store.set_limit(queue_limit(1))
    await store.set_limit(workflow_limit(9))
    others = [await later(store, clock, name=other) for _ in range(3)]
    many = [await later(store, clock, name=busy) for _ in range(9)]
    begun = [await take_one(ann) for _ in range(6)]
    assert {*begun} == {*others, *many[:3]}


async def test_the_keys_of_a_queue_take_turns_in_all_its_workflows(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    await store.set_limit(queue_limit(None, kind="fairness", key="input.customer"))
    for _ in range(5):
        await later(store, clock, name="shop/sell", input='{"customer": "ann"}')
    of_bob = {await later(store, clock, name="shop/buy", input='{"customer": "bob"}') for _ in "12"}
    begun = [await take_one(ann) for _ in range(4)]
    assert [run_id in of_bob for run_id in begun] == [False, True, False, True]


async def test_urgent_work_does_not_change_whose_turn_it_is_in_a_workflow_without(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    await store.set_limit(queue_limit(None, kind="fairness", key="input.customer"))
    of_ann = await buy(store, "ann")
    of_zoe = {await buy(store, "zoe") for _ in range(2)}
    given = '{"customer": "max"}'
    for expected in ({of_ann}, of_zoe):
        urgent = await later(store, clock, name="shop/sell", input=given, priority=0)
        assert await take_one(ann) == urgent
        assert await take_one(ann) in expected
