"""Claiming tasks."""

from __future__ import annotations

import asyncio

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import Release, Suspend

from .actors import SECOND, ManualWorker, get, log, new_run, signal, start, step
from .commands import RESIZE, activity


async def test_a_claim_leases_the_run_with_its_input(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S12, T8. Attempts, lease number and the moment of the first claim are counted."""
    run_id = await start(store, input='{"n":1}')
    await clock.advance(1)
    task = await ann.take(lease_seconds=10)
    assert (task.run_id, task.key, task.kind) == (run_id, "", "workflow")
    assert (task.queue, task.name, task.version) == ("default", "order", 1)
    assert (task.attempts, task.lease_no, task.log_length) == (1, 1, 1)
    assert (task.input, task.payload) == ('{"n":1}', None)
    assert task.started_at == await store.now()

    run = await get(store, run_id)
    assert (run.state, run.started_at) == ("running", task.started_at)
    assert run.wait is not None
    assert (run.wait.worker, run.wait.visible_at) == ("ann", task.started_at + 10 * SECOND)


async def test_a_claim_brings_the_key_and_the_headers_that_the_run_was_started_with(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Not to the worker that suspended the run: it has them, and its claim reads no run's row."""
    asked = new_run(key="order-7", headers={"traceparent": "00-ab"})
    await store.start_runs([asked])
    first = await ann.take()
    await ann.commit(first, step("charge"), then=Suspend(awaiting=("packed",)))
    await signal(store, asked.run_id)
    woken = await ann.take()
    await store.release_tasks("ann", [Release(asked.run_id, "", woken.lease_no)])
    moved = await bob.take()
    assert [(task.run_key, task.headers) for task in (first, woken, moved)] == [
        ("order-7", {"traceparent": "00-ab"}),
        (None, None),
        ("order-7", {"traceparent": "00-ab"}),
    ]


async def test_a_claim_of_an_activity_brings_the_key_and_the_headers_of_its_run(
    store: Store, ann: ManualWorker
) -> None:
    asked = new_run(key="order-7", headers={"traceparent": "00-ab"})
    await store.start_runs([asked])
    await ann.command(await ann.take(), activity())
    task = await ann.take(handlers=RESIZE)
    assert (task.run_key, task.headers) == ("order-7", {"traceparent": "00-ab"})


async def test_a_leased_task_is_not_given_to_another_worker(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S5."""
    await start(store)
    await ann.take()
    assert await bob.claims() == []
    assert await ann.claims() == []


async def test_workers_that_claim_at_once_share_the_tasks(store: Store) -> None:
    """S5, S8. No task is given twice, and none is left."""
    runs = [new_run() for _ in range(60)]
    await store.start_runs(runs)
    workers = [ManualWorker(store, f"w{i}") for i in range(8)]
    found: list[object] = []
    while claimed := await asyncio.gather(*(worker.claims(limit=5) for worker in workers)):
        if not any(claimed):
            break
        found += [run_id for batch in claimed for run_id in batch]
    assert len(found) == 60
    assert set(found) == {run.run_id for run in runs}


async def test_a_claim_is_by_priority_then_age(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    expected = []
    for priority in (2, 0, 4, 1, 3):
        for _ in range(2):
            expected.append((priority, await start(store, priority=priority)))
            await clock.advance(1)
    by_urgency = [run_id for _, run_id in sorted(expected, key=lambda pair: pair[0])]
    assert await ann.claims(limit=3) == by_urgency[:3]
    assert await ann.claims() == by_urgency[3:]


async def test_a_claim_takes_no_more_than_its_limit(store: Store, ann: ManualWorker) -> None:
    await store.start_runs([new_run() for _ in range(5)])
    assert len(await ann.claims(limit=2)) == 2
    assert len(await ann.claims(limit=0)) == 0
    assert len(await ann.claims(limit=9)) == 3


async def test_a_worker_without_the_version_never_claims_the_run(
    store: Store, ann: ManualWorker
) -> None:
    """B7, trap 25. No attempt is burnt, and the run is shown as one that nobody can run."""
    run_id = await start(store, version=3)
    assert await ann.claims(handlers=["order@2", "refund@3"]) == []
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.wait.attempts, run.wait.lease_no) == (0, 0)
    await ann.beat(handlers=("order@2",))
    assert await store.unserved() == [("default", "order@3", 1)]
    assert await ann.claims(handlers=["order@2", "order@3"]) == [run_id]


async def test_a_worker_claims_its_queues_only(store: Store, ann: ManualWorker) -> None:
    gpu = await start(store, queue="gpu")
    assert await ann.claims(queues=["default", "cpu"]) == []
    assert await ann.claims(queues=["default", "gpu"]) == [gpu]


async def test_a_claim_ahead_takes_what_is_due_that_soon(store: Store, ann: ManualWorker) -> None:
    soon = await start(store, delay_seconds=1.0)
    later = await start(store, delay_seconds=3.0)
    claims = await ann.claim(ahead_seconds=2.0)
    assert [task.run_id for task in claims.tasks] == [soon]
    run = await get(store, later)
    assert run.wait is not None
    assert claims.next_due_at == run.wait.visible_at


async def test_a_run_begins_no_earlier_than_its_log(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What the code sees first is the same in a replay, which has the log's moments."""
    await clock.advance(1)
    run_id = await start(store)
    [started] = await log(store, run_id)
    await clock.advance(-1)  # the claim read the time before the start did
    task = (await ann.claim(ahead_seconds=2.0)).tasks[0]
    assert task.started_at == started.at > await store.now()
    await ann.release(task)
    await clock.advance(5)
    assert (await ann.take()).started_at == started.at
    assert (await get(store, run_id)).started_at == started.at


async def test_a_claim_ahead_leaves_running_leases_alone(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. A lease that runs out soon has not run out."""
    run_id = await start(store)
    await ann.take(lease_seconds=10)
    await clock.advance(9)
    assert await bob.claims(ahead_seconds=5.0) == []
    await clock.advance(1)
    assert await bob.claims() == [run_id]


async def test_a_claim_says_when_to_ask_again(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S8. The wake-up is on time without polling."""
    claims = await ann.claim()
    assert (claims.now, claims.next_due_at) == (await store.now(), None)
    await start(store, delay_seconds=30.0)
    await start(store, delay_seconds=20.0)
    await start(store, delay_seconds=10.0, queue="gpu")
    claims = await ann.claim()
    assert claims.next_due_at == claims.now + 20 * SECOND


async def test_a_claim_that_reached_its_limit_says_to_ask_again_at_once(
    store: Store, ann: ManualWorker
) -> None:
    await store.start_runs([new_run() for _ in range(3)])
    claims = await ann.claim(limit=2)
    assert claims.next_due_at == claims.now
    claims = await ann.claim(limit=2)
    assert (len(claims.tasks), claims.next_due_at) == (1, None)


async def test_no_worker_claims_what_waits_for_a_signal_alone(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    await clock.advance(10 * 365 * 86_400)
    claims = await ann.claim()
    assert (claims.tasks, claims.next_due_at) == ([], None)
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.state, run.wait.visible_at, run.wait.awaiting) == ("waiting", None, ("packed",))


async def test_a_suspended_run_is_left_to_its_worker_for_a_moment(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    due_at = await store.now() + 5 * SECOND
    first, second = await start(store), await start(store)
    for task in (await ann.claim()).tasks:
        await ann.suspend(task, until=due_at)
    await clock.advance(5)
    await ann.beat()
    assert await bob.claims(sticky_seconds=0.5) == []
    assert await ann.claims(limit=1) in ([first], [second])
    await clock.advance(0.5)
    assert set(await bob.claims(sticky_seconds=0.5)) < {first, second}


async def test_a_run_that_a_silent_worker_suspended_may_be_claimed_by_any_worker(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S15. Who was killed does not keep its runs waiting."""
    due_at = await store.now() + 5 * SECOND
    run_id = await start(store)
    await ann.beat()
    await ann.suspend(await ann.take(), until=due_at)
    await clock.advance(5)
    assert await bob.claims(sticky_seconds=0.5) == [run_id]


async def test_a_later_claim_of_a_longer_log_reads_it(store: Store, ann: ManualWorker) -> None:
    """The input comes with the claim only where the log has nothing else."""
    await start(store, input="7")
    task = await ann.take()
    await ann.commit(task, step())
    await ann.suspend(task, until=0, expected=2)
    again = await ann.take()
    assert (again.log_length, again.input) == (3, None)
    assert (again.attempts, again.lease_no) == (1, 2)
    assert again.started_at == task.started_at


async def test_a_claim_brings_the_end_of_the_log_to_the_worker_that_has_the_run(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """One round trip less for a run that is woken."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    await signal(store, run_id, "packed")
    task = await ann.take()
    assert task.tail_from == 1
    assert list(task.tail) == await log(store, run_id, 1)

    await ann.suspend(task, awaiting=("packed",))
    await signal(store, run_id, "packed")
    assert (await bob.take()).tail_from is None


async def test_a_claim_brings_no_long_end_of_a_log(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    for _ in range(10):
        await signal(store, run_id, "packed")
    task = await ann.take()
    assert (task.tail_from, list(task.tail)) == (task.log_length, [])


async def test_a_claim_says_whether_its_worker_was_the_last_to_suspend_the_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What that worker keeps in memory is of this log only then. A lost lease suspends nothing."""
    await start(store)
    task = await ann.take()
    assert task.tail_from is None
    await ann.suspend(task, until=0)
    task = await ann.take()
    assert task.tail_from == 1
    await clock.advance(100)
    task = await ann.take()
    assert (task.lease_no, task.tail_from) == (3, None)
    await ann.suspend(task, until=0, expected=task.log_length)
    await store.release_tasks("ann", [Release(task.run_id, "", (await ann.take()).lease_no)])
    assert (await ann.take()).tail_from is None
