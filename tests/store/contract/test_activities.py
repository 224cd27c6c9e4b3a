"""Activities: scheduled by their run's commit, claimed by workers of their queue."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import ANY_END, ActivityEnd, Finish, Notice, Suspend

from .actors import SECOND, ManualWorker, details, get, lease_of, log, log_types, start, step
from .commands import FAILURE, RESIZE, activity, cancelled_activity, failed, ordered


async def test_a_scheduled_activity_is_a_task_of_its_queue(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S4, S7. In the log if and only if it is in the queue; another worker takes it."""
    run_id = await start(store)
    event = activity(queue="gpu", priority=0)
    answer = await ann.command(await ann.take(), event)
    assert answer.notices == [Notice("work", "gpu")]
    assert (await bob.claim(handlers=RESIZE)).tasks == []
    task = await bob.take(queues=["gpu"], handlers=RESIZE)
    assert (task.run_id, task.key, task.kind) == (run_id, "resize", "activity")
    assert (task.name, task.version, task.queue) == ("resize", 0, "gpu")
    assert (task.attempts, task.lease_no, task.log_length) == (1, 1, 2)
    assert (task.input, task.heartbeat, task.parent_run_id) == (None, None, None)
    assert json.loads(task.payload or "") == json.loads(event.details or "")
    assert await log_types(store, run_id) == ["WorkflowStarted", "ActivityScheduled"]


async def test_urgent_activities_come_first(store: Store, ann: ManualWorker) -> None:
    """S7. An activity has a priority of its own."""
    await ordered(store, ann, activity("late", priority=4), activity("soon", priority=0))
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    assert [task.key for task in tasks] == ["soon", "late"]


async def test_an_activity_without_a_priority_has_that_of_its_run(
    store: Store, ann: ManualWorker
) -> None:
    """An urgent run does not wait behind the activities of a backfill."""
    runs = {priority: await start(store, priority=priority) for priority in (4, 0, 3)}
    for turn in (await ann.claim()).tasks:
        await ann.command(turn, activity())
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    assert [task.run_id for task in tasks] == [runs[0], runs[3], runs[4]]


async def test_a_result_is_recorded_and_wakes_the_run(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7, trap 1. The log has the very value, and who made it when."""
    run_id = await ordered(store, ann, activity())
    await clock.advance(5)
    task = await bob.take(handlers=RESIZE)
    ended = await bob.end(task, result='{"z":1e300,"a":2}', started_at=task.started_at)
    assert (ended.outcomes, ended.now) == (["recorded"], await store.now())
    assert ended.notices == [Notice("work", "default")]
    recorded = (await log(store, run_id))[-1]
    assert (recorded.type, recorded.key, recorded.at) == (
        "ActivityCompleted",
        "resize",
        await store.now(),
    )
    assert details(recorded) == {
        "activity_name": "resize",
        "result": {"z": 1e300, "a": 2},
        "attempt": 1,
        "started_at": task.started_at,
        "worker": "bob",
    }
    assert (await ann.take()).log_length == 3
    assert (await bob.claim(handlers=RESIZE)).tasks == []


async def test_an_end_before_the_suspend_refuses_it(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 1. The holder of the run hears of the end, and finds it in its way."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity())
    ended = await bob.end(await bob.take(handlers=RESIZE), result="1")
    assert ended.notices == [Notice("worker/ann", str(run_id))]
    refusal = await ann.refusal(turn, step(), then=Suspend(awaiting=(ANY_END,)), expected=2)
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["ActivityCompleted"]


async def test_an_end_that_the_run_does_not_await_lies_in_its_log(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 4. Fire and forget: recorded, and nobody is woken."""
    run_id = await start(store)
    await ann.command(await ann.take(), activity(), awaiting=("packed",))
    ended = await ann.end(await ann.take(handlers=RESIZE), result="1")
    assert (ended.outcomes, ended.notices) == (["recorded"], [])
    assert (await log_types(store, run_id))[-1] == "ActivityCompleted"
    assert await ann.claims() == []


async def test_several_ends_in_one_call_keep_their_order(store: Store, ann: ManualWorker) -> None:
    """Trap 29. Ten of one run and one of another, with one that stands twice."""
    keys = [f"resize#{n}" for n in range(10)]
    run_id = await ordered(store, ann, *(activity(key) for key in keys))
    other = await ordered(store, ann, activity("alone"))
    tasks = {task.key: task for task in (await ann.claim(handlers=RESIZE)).tasks}
    ends = [
        ActivityEnd(run_id=tasks[key].run_id, key=key, lease_no=1, result=json.dumps(key))
        for key in [*reversed(keys), "alone", "alone"]
    ]
    ended = await store.end_activities("ann", ends)
    assert ended.outcomes == ["recorded"] * 11 + ["lost"]
    recorded = (await log(store, run_id))[-10:]
    assert [event.key for event in recorded] == list(reversed(keys))
    assert [details(event)["result"] for event in recorded] == list(reversed(keys))
    assert await log_types(store, other) == [
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityCompleted",
    ]


async def test_parallel_ends_leave_no_gap_and_lose_no_wake_up(
    store: Store, ann: ManualWorker
) -> None:
    """Traps 1, 14 and 31. Thirty at once, while the run suspends."""
    keys = [f"resize#{n}" for n in range(30)]
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, *(activity(key) for key in keys))
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    suspend = ann.commit(turn, step(), then=Suspend(awaiting=(ANY_END,)), expected=31)
    answers = await asyncio.gather(suspend, *(ann.end(task, result="1") for task in tasks))
    assert all(answer.outcomes == ["recorded"] for answer in answers[1:])
    events = await log(store, run_id, 31)
    ends = [event.key for event in events if event.type == "ActivityCompleted"]
    assert sorted(ends) == sorted(keys)
    if run_id in answers[0].refused:
        assert (await get(store, run_id)).state == "running"
    else:
        assert await ann.claims() == [run_id]


async def test_repeating_an_end_changes_nothing(store: Store, ann: ManualWorker) -> None:
    """Trap 23. The answer was lost: what was recorded is lost to the second call."""
    run_id = await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE)
    assert (await ann.end(task, result="1")).outcomes == ["recorded"]
    again = await ann.end(task, result="2")
    assert (again.outcomes, again.notices) == (["lost"], [])
    assert details((await log(store, run_id))[-1])["result"] == 1


async def test_repeating_a_commit_schedules_nothing_twice(store: Store, ann: ManualWorker) -> None:
    """Trap 23. A repeated call finds its own orders and does not carry them out again."""
    await start(store)
    turn, token = await ann.take(), UUID(int=5)
    await ann.command(turn, activity(), token=token)
    task = await ann.take(handlers=RESIZE)
    await ann.end(task, result="1")
    answer = await ann.commit(turn, activity(), token=token)
    assert (answer.refused, answer.notices) == ({}, [])
    assert (await ann.claim(handlers=RESIZE)).tasks == []


async def test_a_refused_commit_schedules_nothing(store: Store, ann: ManualWorker) -> None:
    """S4, S5, trap 8."""
    await start(store)
    turn = await ann.take()
    await ann.commit(turn, step())
    assert (await ann.refusal(turn, activity())).reason == "conflict"
    assert (await ann.claim(handlers=RESIZE)).tasks == []


@pytest.mark.parametrize("first", ["commit", "end"])
async def test_nothing_of_a_finished_run_is_dispatched(
    store: Store, ann: ManualWorker, first: str
) -> None:
    """S11. Not what it ordered before, nor with its last commit; late results are lost."""
    run_id = await start(store)
    turn = await ann.take()
    last = [failed()] if first == "commit" else [activity("late"), failed()]
    await ann.command(turn, activity("early"), activity("taken"))
    taken = (await ann.claim(1, handlers=RESIZE)).tasks[0]
    await ann.commit(turn, *last, then=Finish("failed", error=FAILURE), expected=3)
    assert (await ann.claim(handlers=RESIZE)).tasks == []
    assert (await ann.end(taken, result="1")).outcomes == ["lost"]
    beat = await ann.beat(lease_of(taken))
    assert beat.lost == [(run_id, taken.key)]
    assert (await log_types(store, run_id))[-1] == "WorkflowFailed"


async def test_a_lost_worker_of_an_activity_leaves_the_turn_alone(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, traps 8 and 32. Same input, next attempt; the run's holder keeps its lease."""
    run_id = await start(store)
    turn = await ann.take(lease_seconds=600)
    await ann.command(turn, activity())
    lost = await ann.take(handlers=RESIZE, lease_seconds=10)
    await clock.advance(10)
    task = await bob.take(handlers=RESIZE)
    assert (task.attempts, task.lease_no, task.payload) == (2, 2, lost.payload)
    assert (task.log_length, task.started_at) == (3, lost.started_at)
    fence = (await log(store, run_id))[-1]
    assert details(fence) == {"task_key": "resize", "lease_no": 1, "worker": "ann"}
    assert (await ann.end(lost, result="1")).outcomes == ["lost"]
    assert (await bob.end(task, result="2")).outcomes == ["recorded"]
    assert not (await ann.commit(turn, step(), expected=4)).refused


async def test_lost_workers_of_an_activity_do_not_fail_its_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S12, trap 10. Attempts are still counted: the policy's limit is the worker's to report."""
    run_id = await ordered(store, ann, activity(retry={"attempts": 2}))
    for attempt in (1, 2, 3):
        task = await ann.take(handlers=RESIZE, lease_seconds=10, max_attempts=2)
        assert task.attempts == attempt
        await clock.advance(10)
    task = await ann.take(handlers=RESIZE, max_attempts=2)
    assert (await get(store, run_id)).status == "running"
    ended = await ann.end(task, error=FAILURE, retryable=False)
    assert ended.outcomes == ["recorded"]
    assert details((await log(store, run_id))[-1])["attempt"] == 4


async def test_a_released_activity_is_due_at_once(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 26. A worker that stops gives it back, and the attempt does not count."""
    await ordered(store, ann, activity(queue="gpu"))
    task = await ann.take(queues=["gpu"], handlers=RESIZE)
    assert await ann.release(task) == [Notice("work", "gpu")]
    again = await bob.take(queues=["gpu"], handlers=RESIZE)
    assert (again.attempts, again.lease_no) == (1, 2)
    assert (await ann.end(task, result="1")).outcomes == ["lost"]


async def test_heartbeats_keep_the_lease_and_what_was_said_last(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7. Silence says nothing new; the next attempt gets the last words."""
    await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE, lease_seconds=10)
    for said in ('{"page":3}', None):
        await clock.advance(6)
        lease = lease_of(task, known=0)
        beat = await ann.beat(
            type(lease)(lease.run_id, lease.key, lease.lease_no, 0, said), lease_seconds=10
        )
        assert (beat.lost, beat.unread, list(beat.cancelled)) == ([], [], [])
    assert (await bob.claim(handlers=RESIZE)).tasks == []
    await clock.advance(10)
    await store.remove_worker("ann")
    assert json.loads((await bob.take(handlers=RESIZE)).heartbeat or "") == {"page": 3}


async def test_a_cancelled_activity_that_nobody_has_is_forgotten(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 16."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity())
    answer = await ann.command(turn, cancelled_activity(), expected=2)
    assert answer.notices == []
    assert (await ann.claim(handlers=RESIZE)).tasks == []
    assert (await log_types(store, run_id))[-1] == "ActivityCancelRequested"


@pytest.mark.parametrize("end", [{"result": "1"}, {"error": FAILURE}])
async def test_the_holder_of_a_cancelled_activity_is_told(
    store: Store, ann: ManualWorker, bob: ManualWorker, end: dict[str, str]
) -> None:
    """S7, B6, trap 16. By a notice and by its heartbeat; its late end wakes nobody."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity())
    task = await bob.take(handlers=RESIZE)
    answer = await ann.command(
        turn, cancelled_activity(), cancelled_activity(), expected=2, awaiting=(ANY_END,)
    )
    assert answer.notices == [Notice("worker/bob", f"{run_id} resize")]
    beat = await bob.beat(lease_of(task, known=0))
    assert (list(beat.cancelled), beat.lost, beat.unread) == ([(run_id, "resize")], [], [])
    ended = await bob.end(task, **end)
    assert (ended.outcomes, ended.notices) == (["recorded"], [])
    assert (await log_types(store, run_id))[-1] in ("ActivityCompleted", "ActivityFailed")
    assert await ann.claims() == []


async def test_a_cancelled_activity_whose_worker_is_lost_is_forgotten(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 26. Nobody waits for it: the next claim deletes it."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity())
    await bob.take(handlers=RESIZE, lease_seconds=5)
    await ann.command(turn, cancelled_activity(), expected=2)
    await clock.advance(6)
    assert (await ann.claim(handlers=RESIZE)).tasks == []
    assert await store.list_activities(run_id) == []
    assert "WorkerLost" not in await log_types(store, run_id)


async def test_a_cancelled_activity_that_is_given_back_is_forgotten(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 26. Nobody waits for it: no other worker starts it."""
    await start(store)
    turn = await ann.take()
    await ann.command(turn, activity("released"), activity("deferred"))
    tasks = {task.key: task for task in (await bob.claim(handlers=RESIZE)).tasks}
    await ann.command(
        turn, cancelled_activity("released"), cancelled_activity("deferred"), expected=3
    )
    assert await bob.release(tasks["released"]) == []
    await bob.end(tasks["deferred"])
    assert (await bob.claim(handlers=RESIZE)).tasks == []


async def test_a_result_that_the_database_refuses_is_not_recorded(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 20. The attempt is still open afterwards."""
    await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE)
    with pytest.raises(PayloadError):
        await ann.end(task, result='{"a":')
    assert (await ann.end(task, result="1")).outcomes == ["recorded"]


async def test_activities_are_seen_where_nobody_serves_them(
    store: Store, ann: ManualWorker
) -> None:
    """B7. Like turns that no worker can run."""
    await ordered(store, ann, activity(queue="gpu"))
    await ann.beat()
    assert await store.unserved() == [("gpu", "resize@0", 1)]
    await ann.beat(queues=("gpu",), handlers=RESIZE)
    assert await store.unserved() == [("default", "order@1", 1)]


async def test_a_claim_says_when_the_next_attempt_is_due(store: Store, ann: ManualWorker) -> None:
    """S8."""
    await ordered(store, ann, activity())
    await ann.end(await ann.take(handlers=RESIZE), error=FAILURE)
    claim = await ann.claim(handlers=RESIZE)
    assert (claim.tasks, claim.next_due_at) == ([], claim.now + SECOND)


async def test_activities_that_failed_before_their_worker_was_lost_are_not_held_one_by_one(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. To fail is not to eat one's worker: each would wait until the one before ended."""
    policy = {"attempts": None, "backoff": "fixed", "base": 0.0}
    await ordered(store, ann, *(activity(str(number), retry=policy) for number in range(4)))
    for _ in range(3):
        for task in (await ann.claim(handlers=RESIZE)).tasks:
            await ann.end(task, error=FAILURE)
    assert len((await ann.claim(handlers=RESIZE, lease_seconds=10)).tasks) == 4
    await clock.advance(10)
    assert len((await bob.claim(handlers=RESIZE)).tasks) == 4


async def test_a_worker_holds_one_activity_at_a_time_that_has_lost_three(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. An activity that eats its workers does not take along those beside it."""
    await ordered(store, ann, *(activity(str(number)) for number in range(2)))
    for _ in range(3):
        assert len((await ann.claim(handlers=RESIZE, lease_seconds=10)).tasks) == 2
        await clock.advance(10)
    (first,) = (await ann.claim(handlers=RESIZE)).tasks
    assert (await ann.claim(handlers=RESIZE)).tasks == [], "it holds one already"
    await ann.end(first, result="1")
    assert len((await ann.claim(handlers=RESIZE)).tasks) == 1
