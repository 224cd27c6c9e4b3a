"""What is known of activities that have not ended."""

from __future__ import annotations

from uuid import uuid4

import msgspec

from holdfast.store.port import Store

from .actors import ManualWorker, lease_of
from .commands import FAILURE, RESIZE, activity, ordered


async def test_an_activity_is_shown_with_its_queue_until_it_ends(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7. T13."""
    run_id = await ordered(store, ann, activity("b", queue="gpu"), activity("a"))
    other, waiting = await store.list_activities(run_id)
    assert (other.key, other.queue, other.name) == ("a", "default", "resize")
    assert (waiting.run_id, waiting.key, waiting.queue) == (run_id, "b", "gpu")
    assert (waiting.attempts, waiting.worker, waiting.heartbeat) == (0, None, None)
    assert waiting.visible_at == await store.now()
    task = await bob.take(queues=["gpu"], handlers=RESIZE)
    await bob.beat(msgspec.structs.replace(lease_of(task, known=0), details='{"page":2}'))
    (_, leased) = await store.list_activities(run_id)
    assert (leased.attempts, leased.worker, leased.heartbeat) == (1, "bob", '{"page":2}')
    await bob.end(task, result="1")
    assert [each.key for each in await store.list_activities(run_id)] == ["a"]


async def test_an_activity_that_is_completed_from_outside_has_no_moment(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7."""
    run_id = await ordered(store, ann, activity())
    await bob.end(await bob.take(handlers=RESIZE))
    (deferred,) = await store.list_activities(run_id)
    assert (deferred.worker, deferred.visible_at, deferred.attempts) == (None, None, 1)


async def test_an_activity_that_could_not_be_begun_says_why_until_an_attempt_ends(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id = await ordered(store, ann, activity())
    await bob.release(await bob.take(handlers=RESIZE), stuck="it does not fit")
    (held,) = await store.list_activities(run_id)
    assert (held.worker, held.attempts, held.stuck) == (None, 0, "it does not fit")
    await bob.end(await bob.take(handlers=RESIZE), error=FAILURE, retryable=True)
    (again,) = await store.list_activities(run_id)
    assert (again.attempts, again.stuck) == (1, None)


async def test_a_run_without_activities_has_none(store: Store) -> None:
    assert await store.list_activities(uuid4()) == []
