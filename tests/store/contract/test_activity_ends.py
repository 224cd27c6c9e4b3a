"""Activities that fail, run out of time, or are completed from outside."""

from __future__ import annotations

import asyncio

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ANY_END, ActivityEnd, ClaimedTask, Notice
from holdfast.values.ids import keyed_run_id

from .actors import SECOND, ManualWorker, details, log, log_types, start
from .commands import FAILURE, RESIZE, activity, end_from_outside, ordered

FINISHED = ["WorkflowStarted", "ActivityScheduled", "ActivityCompleted"]


async def test_a_failure_is_tried_again_after_a_pause(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7, B2, ruling 6. Each failure that is tried again is a fact, the last is the end."""
    run_id = await ordered(store, ann, activity())
    for attempt, pause in ((1, 1), (2, 2)):
        task = await bob.take(handlers=RESIZE)
        ended = await bob.end(task, error=FAILURE, started_at=5, details=str(attempt))
        assert (ended.outcomes, ended.notices) == (["retried"], [Notice("work", "default")])
        fact = (await log(store, run_id))[-1]
        assert (fact.type, fact.key) == ("ActivityRetryScheduled", "resize")
        assert details(fact) == {
            "activity_name": "resize",
            "attempt": attempt,
            "error": {"kind": "builtins.OSError", "message": "no such picture"},
            "retry_at": ended.now + pause * SECOND,
            "timed_out": False,
            "started_at": 5,
            "worker": "bob",
        }
        assert (await bob.claim(handlers=RESIZE)).tasks == []
        assert await ann.claims() == []
        await clock.advance(pause)
    task = await bob.take(handlers=RESIZE)
    assert (task.attempts, task.lease_no, task.heartbeat) == (3, 3, "2")
    ended = await bob.end(task, error=FAILURE, started_at=5, timed_out=True)
    assert (ended.outcomes, ended.notices) == (["recorded"], [Notice("work", "default")])
    last = (await log(store, run_id))[-1]
    assert (last.type, last.key) == ("ActivityFailed", "resize")
    assert details(last) == {
        "activity_name": "resize",
        "error": {"kind": "builtins.OSError", "message": "no such picture"},
        "attempt": 3,
        "timed_out": True,
        "started_at": 5,
        "worker": "bob",
    }
    assert await ann.claims() == [run_id]


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        ({"backoff": "fixed", "base": 3.0}, [3, 3, 3]),
        ({"backoff": "linear", "base": 2.0}, [2, 4, 6]),
        ({"backoff": "exp", "factor": 3.0, "max": 5.0}, [1, 3, 5]),
        ({"attempts": None, "base": 0.5}, [0.5, 1, 2]),
    ],
)
async def test_pauses_grow_as_the_policy_says(
    store: Store, clock: Clock, ann: ManualWorker, policy: dict[str, object], pauses: list[float]
) -> None:
    """B2, S7. As steps' pauses do."""
    run_id = await ordered(store, ann, activity(retry={"attempts": 4, **policy}))
    for pause in pauses:
        ended = await ann.end(await ann.take(handlers=RESIZE), error=FAILURE)
        assert ended.outcomes == ["retried"]
        fact = details((await log(store, run_id))[-1])
        assert fact["retry_at"] == ended.now + round(pause * SECOND)
        await clock.advance(pause)


async def test_pauses_are_spread_by_the_jitter(store: Store, ann: ManualWorker) -> None:
    """B2. Within the bounds of the policy, and not all the same."""
    keys = [f"resize#{n}" for n in range(20)]
    retry = {"base": 10.0, "jitter": 0.5}
    run_id = await ordered(store, ann, *(activity(key, retry=retry) for key in keys))
    for task in (await ann.claim(handlers=RESIZE)).tasks:
        await ann.end(task, error=FAILURE)
    now = await store.now()
    pauses = [details(event)["retry_at"] - now for event in (await log(store, run_id))[-20:]]
    assert all(5 * SECOND <= pause <= 15 * SECOND for pause in pauses)
    assert len(set(pauses)) > 1


async def test_an_error_that_is_not_to_be_retried_is_final(store: Store, ann: ManualWorker) -> None:
    """B2. The worker asked `should_retry`."""
    run_id = await ordered(store, ann, activity())
    ended = await ann.end(await ann.take(handlers=RESIZE), error=FAILURE, retryable=False)
    assert ended.outcomes == ["recorded"]
    assert (await log_types(store, run_id))[-1] == "ActivityFailed"


async def test_the_deadline_of_all_attempts_ends_an_activity_in_the_queue(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S7. Schedule-to-close: no worker came. The next deadline is told."""
    run_id = await ordered(
        store,
        ann,
        activity(schedule_to_close=10.0),
        activity("later", schedule_to_close=25.0),
        activity("whenever"),
    )
    now = await store.now()
    assert await store.time_out_activities() == (0, now + 10 * SECOND, [])
    await clock.advance(10)
    answer = await store.time_out_activities()
    assert answer == (1, now + 25 * SECOND, [Notice("work", "default")])
    last = (await log(store, run_id))[-1]
    assert (last.type, last.key) == ("ActivityFailed", "resize")
    told = details(last)
    assert told.pop("error")["kind"] == "holdfast.errors.ActivityTimedOut"
    assert told == {
        "activity_name": "resize",
        "attempt": 0,
        "timed_out": True,
        "started_at": None,
        "worker": None,
    }
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    assert {task.key for task in tasks} == {"later", "whenever"}
    await clock.advance(15)
    assert (await store.time_out_activities())[:2] == (1, None)
    assert await ann.claims() == [run_id]


async def test_the_deadline_of_all_attempts_stops_the_one_under_way(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7, trap 8. Its worker is told, and its late result is lost."""
    run_id = await ordered(store, ann, activity(schedule_to_close=10.0))
    task = await bob.take(handlers=RESIZE, lease_seconds=60)
    await clock.advance(10)
    ended, next_at, notices = await store.time_out_activities()
    assert (ended, next_at) == (1, None)
    assert sorted(notice.topic for notice in notices) == ["work", "worker/bob"]
    assert Notice("worker/bob", f"{run_id} resize") in notices
    assert (await bob.end(task, result="1")).outcomes == ["lost"]
    assert details((await log(store, run_id))[-1])["worker"] == "bob"


async def test_the_pause_that_an_error_asks_for_is_kept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Longer or shorter than the policy's; attempts count all the same."""
    run_id = await ordered(store, ann, activity())
    for pause in (90.0, 0.0):
        ended = await ann.end(await ann.take(handlers=RESIZE), error=FAILURE, delay_seconds=pause)
        assert ended.outcomes == ["retried"]
        assert details((await log(store, run_id))[-1])["retry_at"] == ended.now + pause * SECOND
        await clock.advance(pause)
    last = await ann.end(await ann.take(handlers=RESIZE), error=FAILURE, delay_seconds=1.0)
    assert last.outcomes == ["recorded"]


async def test_no_attempt_is_made_beyond_the_deadline(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S7, trap 3. A pause that would end behind it is not begun."""
    run_id = await ordered(
        store, ann, activity(schedule_to_close=3.0, retry={"attempts": None, "base": 2.0})
    )
    assert (await ann.end(await ann.take(handlers=RESIZE), error=FAILURE)).outcomes == ["retried"]
    await clock.advance(2)
    assert (await ann.end(await ann.take(handlers=RESIZE), error=FAILURE)).outcomes == ["recorded"]
    assert (await log_types(store, run_id))[-1] == "ActivityFailed"


async def test_an_end_and_the_deadline_at_once_give_one_end(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 7. The first of the two wins; the log has one of them."""
    for _ in range(20):
        run_id = await ordered(store, ann, activity(schedule_to_close=10.0))
        task = await ann.take(handlers=RESIZE)
        await clock.advance(10)
        await asyncio.gather(ann.end(task, result="1"), store.time_out_activities())
        types = await log_types(store, run_id)
        assert len(types) == 3
        assert types[-1] in ("ActivityCompleted", "ActivityFailed")
        await ann.finish(await ann.take())


async def test_an_activity_is_completed_from_outside_with_its_token(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7. The lease is given back meanwhile; nobody else takes the activity."""
    run_id = await ordered(store, ann, activity())
    task = await bob.take(handlers=RESIZE)
    ended = await bob.end(task, details='"sent"')
    assert (ended.outcomes, ended.notices) == (["deferred"], [])
    claim = await bob.claim(handlers=RESIZE)
    assert (claim.tasks, claim.next_due_at) == ([], None)
    assert await log_types(store, run_id) == FINISHED[:2]
    assert await end_from_outside(store, task, result='{"ok":true}') == "recorded"
    assert details((await log(store, run_id))[-1]) == {
        "activity_name": "resize",
        "result": {"ok": True},
        "attempt": 1,
        "started_at": None,
        "worker": None,
    }
    assert await ann.claims() == [run_id]
    assert await end_from_outside(store, task, result="2") == "lost"


async def test_who_is_outside_may_be_faster_than_the_attempt(
    store: Store, ann: ManualWorker
) -> None:
    """S7, trap 7. The webhook comes before the attempt has given its lease back."""
    run_id = await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE)
    assert await end_from_outside(store, task, result="1") == "recorded"
    assert (await ann.end(task)).outcomes == ["lost"]
    assert await log_types(store, run_id) == FINISHED


async def test_a_failure_from_outside_is_tried_again(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S7, S12. The token of the attempt that failed is nobody's; the next attempt's counts."""
    run_id = await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE)
    await ann.end(task)
    assert await end_from_outside(store, task, error=FAILURE) == "retried"
    assert await end_from_outside(store, task, result="1") == "lost"
    await clock.advance(1)
    again = await ann.take(handlers=RESIZE)
    assert (again.attempts, again.lease_no) == (2, 2)
    assert await end_from_outside(store, task, result="1") == "lost"
    assert await end_from_outside(store, again, error=FAILURE, retryable=False) == "recorded"
    assert (await log_types(store, run_id))[-2:] == ["ActivityRetryScheduled", "ActivityFailed"]


async def test_an_attempt_that_nobody_completes_in_time_is_given_up(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7, S12. Start-to-close counts from the attempt's start; the next claim fences its token."""
    await ordered(store, ann, activity(start_to_close=10.0))
    task = await ann.take(handlers=RESIZE)
    started_at = task.started_at
    await clock.advance(4)
    await ann.end(task, started_at=started_at, details='{"asked":1}')
    assert (await bob.claim(handlers=RESIZE)).next_due_at == started_at + 10 * SECOND
    await clock.advance(6)
    again = await bob.take(handlers=RESIZE)
    assert (again.attempts, again.heartbeat) == (2, '{"asked":1}')
    assert await end_from_outside(store, task, result="1") == "lost"


async def test_a_token_of_an_earlier_release_counts(store: Store, ann: ManualWorker) -> None:
    """It does not say when the activity began."""
    run_id = await ordered(store, ann, activity())
    task = await ann.take(handlers=RESIZE)
    end = ActivityEnd(run_id=run_id, key="resize", lease_no=task.lease_no, result="1")
    assert (await store.end_activities(None, [end])).outcomes == ["recorded"]
    assert await log_types(store, run_id) == FINISHED


async def test_a_token_of_a_deleted_run_is_not_that_of_the_next_one(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: it completed the same attempt of the run whose key was used again."""
    run_id, tasks = keyed_run_id("order", "k"), list[ClaimedTask]()
    for _ in range(2):
        await start(store, run_id=run_id, key="k", retention_seconds=1.0)
        await ann.command(await ann.take(), activity(), awaiting=(ANY_END,))
        tasks.append(await ann.take(handlers=RESIZE))
        if len(tasks) == 1:
            await store.terminate_runs([run_id])
            await clock.advance(10)
            assert (await store.sweep_runs()).deleted == 1
    assert tasks[0].lease_no == tasks[1].lease_no
    assert await end_from_outside(store, tasks[0], result="1") == "lost"
    assert await end_from_outside(store, tasks[0], error=FAILURE) == "lost"
    assert await log_types(store, run_id) == FINISHED[:2]
    assert await end_from_outside(store, tasks[1], result="2") == "recorded"


async def test_an_end_of_what_is_no_attempt_is_lost(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S5, trap 8. A turn, an activity that nobody claimed, another worker's attempt."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity())
    never = ActivityEnd(run_id=run_id, key="resize", lease_no=0, result="1")
    assert (await store.end_activities(None, [never])).outcomes == ["lost"]
    assert await end_from_outside(store, turn, result="1") == "lost"
    assert (await ann.end(turn, result="1")).outcomes == ["lost"]
    task = await ann.take(handlers=RESIZE)
    assert (await bob.end(task, result="1")).outcomes == ["lost"]
    assert await log_types(store, run_id) == FINISHED[:2]
