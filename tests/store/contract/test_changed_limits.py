"""Limits that are set or changed while tasks wait for others."""

from __future__ import annotations

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ClaimedTask, NewSignal

from .actors import SECOND, ManualWorker
from .test_limits import BUY, buy, continue_as_new, held, queue_limit, workflow_limit


async def claim_all(worker: ManualWorker) -> list[ClaimedTask]:
    """Claim as a worker does: again as long as the answer says that there may be more."""
    found: list[ClaimedTask] = []
    for _ in range(20):
        claims = await worker.claim(handlers=BUY)
        found += claims.tasks
        if claims.next_due_at is None or claims.next_due_at > claims.now:
            return found
    raise AssertionError("there may always be more")


async def test_a_new_limit_of_runs_concerns_those_that_wait_after_one_that_has_begun(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """F30. The first of a group does not need the limit; the others do."""
    await store.set_limit(queue_limit(1))
    begun = await buy(store)
    [task] = await claim_all(ann)
    await ann.suspend(task, until=await store.now() + SECOND)
    await clock.advance(0.5)
    await buy(store)
    [other] = await claim_all(ann)
    await clock.advance(1)
    waiting = await buy(store)
    assert await claim_all(ann) == []  # both wait for a turn, in one group
    await clock.advance(1)
    await store.set_limit(workflow_limit(1))
    await store.set_limit(queue_limit(2))
    await ann.finish(other)
    [task] = await claim_all(ann)
    assert task.run_id == begun
    await ann.finish(task, expected=2)
    assert [task.run_id for task in await claim_all(ann)] == [waiting]


async def test_a_limit_that_runs_hold_from_now_on_counts_those_that_have_begun(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """F30. A run that sleeps counts, and does not wait for its own place."""
    await store.set_limit(workflow_limit(1, holds="turn"))
    begun = await buy(store)
    [task] = await claim_all(ann)
    await ann.suspend(task, awaiting=("go",))
    await clock.advance(1)
    await buy(store)
    [other] = await claim_all(ann)
    await ann.finish(other)
    await store.set_limit(workflow_limit(1, holds="run"))
    assert [info.held for info in await store.list_limits()] == [1]
    await clock.advance(1)
    waiting = await buy(store)
    assert await claim_all(ann) == []
    await store.signal_runs([NewSignal(begun, "go")])
    [task] = await claim_all(ann)
    assert task.run_id == begun
    await ann.finish(task, expected=3)
    assert [task.run_id for task in await claim_all(ann)] == [waiting]


async def test_a_run_does_not_wait_for_a_place_that_it_holds_from_now_on(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """F30. It waited for a turn; the limit is for runs now, and it has begun."""
    await store.set_limit(workflow_limit(1, holds="turn"))
    begun = await buy(store)
    [task] = await claim_all(ann)
    await ann.suspend(task, until=await store.now() + SECOND)
    await buy(store)
    [other] = await claim_all(ann)
    await clock.advance(2)
    assert await claim_all(ann) == []
    await clock.advance(1)
    await store.set_limit(workflow_limit(1, holds="run"))
    await ann.finish(other)
    assert [task.run_id for task in await claim_all(ann)] == [begun]


@pytest.mark.parametrize("removed", ["before the claim", "before the end", "after the end"])
async def test_a_limit_that_is_set_again_counts_no_run_that_has_not_begun(
    store: Store, ann: ManualWorker, removed: str
) -> None:
    """A run that continues another one held a place of the limit that was removed."""
    await store.set_limit(workflow_limit(1))
    await buy(store)
    if removed == "before the claim":
        await store.remove_limit("workflow", "shop/buy", "concurrency")
    [task] = await claim_all(ann)
    if removed == "before the end":
        await store.remove_limit("workflow", "shop/buy", "concurrency")
    await continue_as_new(ann, task)
    if removed == "after the end":
        await store.remove_limit("workflow", "shop/buy", "concurrency")
    await store.set_limit(workflow_limit(1))
    assert await held(store) == [0]


async def test_a_limit_that_runs_hold_again_counts_no_run_that_has_not_begun(
    store: Store, ann: ManualWorker
) -> None:
    await store.set_limit(workflow_limit(1))
    await buy(store)
    [task] = await claim_all(ann)
    next_id = await continue_as_new(ann, task)
    for holds in ("turn", "run"):
        await store.set_limit(workflow_limit(1, holds=holds))
        assert await held(store) == [0]
    [task] = await claim_all(ann)
    assert task.run_id == next_id
    assert await held(store) == [1]


@pytest.mark.parametrize("ending", ["terminate", "remove", "raise"])
async def test_a_claim_that_changes_what_tasks_wait_for_says_that_the_next_is_due_at_once(
    store: Store, clock: Clock, ann: ManualWorker, ending: str
) -> None:
    """F30. It may take nothing, but a worker does not wait for its next poll."""
    await store.set_limit(queue_limit(1))
    first, second = await buy(store), await buy(store)
    await clock.advance(1)
    [task] = await claim_all(ann)
    await store.set_limit(workflow_limit(1, kind="rate", period_seconds=4.0))
    await clock.advance(5)
    if ending == "terminate":
        await store.terminate_runs([task.run_id])
    elif ending == "remove":
        await store.remove_limit("queue", "default", "concurrency")
    else:
        await store.set_limit(queue_limit(2))
    claims = await ann.claim(handlers=BUY)
    if not claims.tasks:
        assert claims.next_due_at is not None
        assert claims.next_due_at <= claims.now
        claims = await ann.claim(handlers=BUY)
    assert [each.run_id for each in claims.tasks] == [({first, second} - {task.run_id}).pop()]
