"""Activities that are scheduled, ended and stopped at the worst moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from clocks import ThoroughStore
from contract.actors import ManualWorker, details, log, log_types, start
from scene import Scene, Session, yielded

from holdfast.retry import Retry
from holdfast.types import (
    ANY_END,
    ActivityEnd,
    ClaimedTask,
    Event,
    Lease,
    Notice,
    Release,
    TurnCommit,
)

RENDER = ("render@0",)
RETRY = {"attempts": 3, "backoff": "fixed", "base": 0, "max": 60, "factor": 2, "jitter": 0}
ERROR = '{"kind":"builtins.ValueError","message":"no"}'


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


@pytest.fixture
def ann(scene: Scene) -> ManualWorker:
    return ManualWorker(scene.store, "ann")


@pytest.fixture
def bob(scene: Scene) -> ManualWorker:
    return ManualWorker(scene.store, "bob")


def ordered(**options: Any) -> str:
    """Return the details of an ActivityScheduled."""
    order = {"activity_name": "render", "args": 0, "input": [7], "queue": "gpu", "priority": 2}
    limits = {"start_to_close": None, "schedule_to_close": None, "heartbeat_timeout": None}
    return json.dumps({**order, "retry": RETRY, **limits, **options})


async def schedule(scene: Scene, run_ids: list[UUID], keys: list[str], **options: Any) -> None:
    """Schedule activities of runs, as a commit that orders them."""
    now = await scene.value("select holdfast.now()")
    told = [ordered(**options)] * len(keys)
    await scene.watcher.call("_schedule_activities", now, run_ids, keys, told)


async def scheduled(scene: Scene, *keys: str, **options: Any) -> UUID:
    """Start a run, and schedule activities of it."""
    run_id = await start(scene.store)
    await schedule(scene, [run_id] * len(keys), list(keys), **options)
    return run_id


async def waiting(scene: Scene, ann: ManualWorker, *keys: str, **options: Any) -> UUID:
    """Start a run that sleeps until one of its activities ends."""
    run_id = await scheduled(scene, *keys, **options)
    await ann.suspend(await ann.take(), awaiting=(ANY_END,))
    return run_id


async def take(worker: ManualWorker, **options: Any) -> ClaimedTask:
    """Claim the one activity that is due."""
    return await worker.take(queues=["gpu"], handlers=RENDER, **options)


async def take_all(worker: ManualWorker, **options: Any) -> list[ClaimedTask]:
    """Claim all activities that are due."""
    return (await worker.claim(queues=["gpu"], handlers=RENDER, **options)).tasks


def done(task: ClaimedTask, **fields: Any) -> ActivityEnd:
    """Return the end of an attempt; a completion, if nothing else is said."""
    ended = fields or {"result": '{"pages":7}'}
    return ActivityEnd(run_id=task.run_id, key=task.key, lease_no=task.lease_no, **ended)


async def end(worker: ManualWorker, task: ClaimedTask, **fields: Any) -> str:
    """End an attempt; return what became of that."""
    ended = await worker.store.end_activities(worker.worker_id, [done(task, **fields)])
    [outcome] = ended.outcomes
    return outcome


def token_of(task: ClaimedTask) -> str:
    """Return the token of an attempt."""
    return f"{task.run_id}:{task.lease_no}:{task.key}"


async def outside(scene: Scene, function: str, *arguments: object) -> str:
    """End an attempt with its token; return what became of that."""
    [row] = await scene.watcher.call(function, *arguments)
    return row["outcome"]


async def end_in(session: Session, task: ClaimedTask, result: str = "1") -> list[str]:
    """End an attempt of ann's on a connection whose transaction may stay open."""
    columns = [task.run_id], [task.key], [task.lease_no], [result], [None], [True]
    [row] = await session.call("end_activities", "ann", *columns, [False], [None], [None])
    return row["outcomes"]


async def expire(scene: Scene, key: str) -> None:
    """Let the lease of an activity run out now."""
    await scene.value(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 s' where key = $1",
        key,
    )


async def deadlocks(scene: Scene) -> int:
    """Count the deadlocks of this database."""
    await scene.value("select pg_stat_clear_snapshot()")
    return await scene.value(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )


# Ends


async def test_late_completion_after_a_reclaim_is_fenced(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, traps 8 and 32. The claim that takes the activity is not committed when it comes."""
    run_id = await scheduled(scene, "render:1")
    stale = await take(ann)
    await expire(scene, "render:1")
    session = await scene.session()
    claiming = session.transaction()
    await claiming.start()
    await session.call("claim_tasks", "bob", ["gpu"], ["render@0"], 1, 30.0)
    assert await scene.while_blocked(end(ann, stale), claiming.commit) == "lost"
    fresh = ActivityEnd(run_id=run_id, key="render:1", lease_no=2, result="2")
    assert (await scene.store.end_activities("bob", [fresh])).outcomes == ["recorded"]
    _, lost, completed = await log(scene.store, run_id)
    assert details(lost) == {"task_key": "render:1", "lease_no": 1, "worker": "ann"}
    assert details(completed)["result"] == 2
    assert details(completed)["attempt"] == 2


async def test_completion_that_is_under_way_is_not_claimed(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. The lease ran out, but its end is written first."""
    run_id = await scheduled(scene, "render:1")
    task = await take(ann)
    await expire(scene, "render:1")
    session = await scene.session()
    async with session.transaction():
        assert await end_in(session, task) == ["recorded"]
        assert await take_all(bob) == []
    assert await take_all(bob) == []
    assert await log_types(scene.store, run_id) == ["WorkflowStarted", "ActivityCompleted"]


async def test_end_during_suspend_wakes_the_run(scene: Scene, ann: ManualWorker) -> None:
    """Trap 1. The suspend is written but not committed when the activity ends."""
    run_id = await scheduled(scene, "render:1")
    turn, activity = await ann.take(), await take(ann)
    session = await scene.session()
    suspending = session.transaction()
    await suspending.start()
    await session.commit("ann", yielded(turn, ANY_END))
    ending = scene.store.end_activities("ann", [done(activity)])
    ended = await scene.while_blocked(ending, suspending.commit)
    assert (ended.outcomes, ended.notices) == (["recorded"], [Notice("work", "default")])
    assert await ann.claims() == [run_id]


async def test_suspend_behind_an_uncommitted_end_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """Traps 1 and 4. The worker goes on with the end in hand."""
    await scheduled(scene, "render:1")
    turn, activity = await ann.take(), await take(ann)
    session = await scene.session()
    async with session.transaction():
        await end_in(session, activity)
        assert (await ann.refusal(turn)).reason == "busy"
    refusal = await ann.refusal(turn)
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["ActivityCompleted"]


async def test_ends_land_behind_a_checkpoint_as_one_block(scene: Scene, ann: ManualWorker) -> None:
    """Storage rules 5 and 24. The run's worker was faster; no gap, and nothing between."""
    run_id = await scheduled(scene, "render:1", "render:2", "render:3")
    turn, activities = await ann.take(), await take_all(ann)
    session = await scene.session()
    checkpoint = session.transaction()
    await checkpoint.start()
    await session.commit("ann", TurnCommit(run_id, 1, 1, [Event("ValueSet", "a", "1", 0)]))
    ending = scene.store.end_activities("ann", [done(task) for task in activities])
    ended = await scene.while_blocked(ending, checkpoint.commit)
    assert ended.notices == [Notice("worker/ann", str(turn.run_id))]
    types = await log_types(scene.store, run_id)
    assert types == ["WorkflowStarted", "ValueSet", *["ActivityCompleted"] * 3]
    assert await scene.idx(run_id) == [0, 1, 2, 3, 4]


async def test_workers_that_end_in_opposite_orders_do_not_deadlock(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 31. Ends, signals, releases, reclaims and checkpoints over the same runs."""
    run_ids = [await start(scene.store) for _ in range(12)]
    turns = {task.run_id: task for task in (await ann.claim()).tasks}
    keys = [f"render:{number}" for number in range(30)]
    for key in keys:
        await schedule(scene, run_ids, [key] * 12, retry={**RETRY, "attempts": None})
    crowd = [ann, bob, *(ManualWorker(scene.store, name) for name in ("cat", "dan"))]

    async def finish(worker: ManualWorker, reverse: bool) -> int:
        recorded = 0
        while tasks := await take_all(worker, limit=20, lease_seconds=0.0):
            tasks.sort(key=lambda task: (task.run_id, task.key), reverse=reverse)
            await worker.store.release_tasks(
                worker.worker_id, [Release(t.run_id, t.key, t.lease_no) for t in tasks[3::7]]
            )
            ends = [done(t, error=ERROR) if n % 5 == 1 else done(t) for n, t in enumerate(tasks)]
            answer = await worker.store.end_activities(worker.worker_id, ends)
            recorded += answer.outcomes.count("recorded")
        return recorded

    async def checkpoints() -> None:
        for _ in range(40):
            ranges = [(run_id, 0) for run_id in run_ids]
            logs = await scene.store.read_events(ranges)
            event = Event("ValueSet", "a", "1", 0)
            parts = [
                TurnCommit(run_id, turns[run_id].lease_no, len(logs[run_id]), [event])
                for run_id in reversed(run_ids)
            ]
            await scene.store.commit("ann", run_ids[0], parts)

    recorded = await asyncio.gather(
        *(finish(worker, number % 2 == 0) for number, worker in enumerate(crowd)), checkpoints()
    )
    assert sum(count or 0 for count in recorded) <= 12 * 30
    while tasks := await take_all(ann):
        await scene.store.end_activities("ann", [done(task) for task in tasks])
    assert await deadlocks(scene) == 0
    for run_id in run_ids:
        places = await scene.idx(run_id)
        assert places == list(range(len(places)))
        types = await log_types(scene.store, run_id)
        assert types.count("ActivityCompleted") == 30


async def test_lost_answer_may_be_asked_for_again(scene: Scene, ann: ManualWorker) -> None:
    """Trap 10. The second call finds nothing to record; what stands twice counts once."""
    run_id = await scheduled(scene, "render:1", "render:2", "render:3")
    one, two, three = await take_all(ann)
    ends = [done(one), done(two, error=ERROR), done(one), done(three, details="1")]
    first = await scene.store.end_activities("ann", ends)
    assert first.outcomes == ["recorded", "retried", "lost", "deferred"]
    again = await scene.store.end_activities("ann", ends)
    assert (again.outcomes, again.notices) == (["lost"] * 4, [])
    types = await log_types(scene.store, run_id)
    assert types == ["WorkflowStarted", "ActivityCompleted", "ActivityRetryScheduled"]


async def test_end_after_the_end_of_the_run_is_lost(scene: Scene, ann: ManualWorker) -> None:
    """S11. The run's end took its activities along."""
    run_id = await scheduled(scene, "render:1")
    turn, activity = await ann.take(), await take(ann)
    await ann.finish(turn)
    assert await end(ann, activity) == "lost"
    assert await log_types(scene.store, run_id) == ["WorkflowStarted", "WorkflowCompleted"]


# Retries


@pytest.mark.parametrize("backoff", ["exp", "fixed", "linear"])
async def test_pauses_are_those_of_the_policy(scene: Scene, backoff: Any) -> None:
    """A retry waits as long as one of a step would."""
    policy = Retry(attempts=None, backoff=backoff, base=0.5, max=3600, factor=1.5, jitter=0)
    written = {"backoff": backoff, "base": 0.5, "max": 3600, "factor": 1.5, "jitter": 0}
    for attempt in (1, 2, 3, 10, 40, 5000):
        [(pause,)] = await scene.watcher.call("_retry_pause", json.dumps(written), attempt)
        assert pause == pytest.approx(policy.delay_seconds(attempt, lambda: 0.5), rel=1e-12)
    strayed = json.dumps({**written, "backoff": "fixed", "jitter": 0.2})
    pauses = [(await scene.watcher.call("_retry_pause", strayed, 1))[0][0] for _ in range(50)]
    assert all(0.4 <= pause <= 0.6 for pause in pauses)
    assert len(set(pauses)) > 1


async def test_failure_is_retried_until_attempts_or_time_are_over(
    scene: Scene, ann: ManualWorker
) -> None:
    """The log has every attempt's error, and the last one as the end."""
    run_id = await scheduled(scene, "render:1")
    outcomes = [await end(ann, await take(ann), error=ERROR, details=str(n)) for n in range(3)]
    assert outcomes == ["retried", "retried", "recorded"]
    _, first, second, last = await log(scene.store, run_id)
    assert [details(event)["attempt"] for event in (first, second, last)] == [1, 2, 3]
    assert (first.type, last.type) == ("ActivityRetryScheduled", "ActivityFailed")
    assert details(last)["error"] == json.loads(ERROR)
    late = {**RETRY, "base": 60}
    await schedule(scene, [run_id], ["render:2"], retry=late, schedule_to_close=30)
    assert await end(ann, await take(ann), error=ERROR) == "recorded"
    await schedule(scene, [run_id], ["render:3"])
    assert await end(ann, await take(ann), error=ERROR, retryable=False) == "recorded"


async def test_next_attempt_sees_what_the_last_one_said(scene: Scene, ann: ManualWorker) -> None:
    """A heartbeat's details outlive the lease, and so do those of the end."""
    await scheduled(scene, "render:1")
    task = await take(ann)
    assert task.heartbeat is None
    await ann.beat(Lease(task.run_id, task.key, task.lease_no, 0, '{"page": 3}'))
    await ann.beat(Lease(task.run_id, task.key, task.lease_no, 0))
    await expire(scene, "render:1")
    task = await take(ann)
    assert (task.attempts, task.heartbeat) == (2, '{"page": 3}')
    await end(ann, task, error=ERROR, details='{"page": 5}')
    assert (await take(ann)).heartbeat == '{"page": 5}'


async def test_lost_attempts_count_and_do_not_poison_the_run(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 32. The worker that gets an attempt too many says so; the run goes on."""
    run_id = await scheduled(scene, "render:1")
    for _ in range(6):
        await take(ann)
        await expire(scene, "render:1")
    task = await take(ann)
    assert (task.attempts, task.lease_no) == (7, 7)
    assert await end(ann, task, error=ERROR, retryable=False) == "recorded"
    types = await log_types(scene.store, run_id)
    assert types == ["WorkflowStarted", *["WorkerLost"] * 6, "ActivityFailed"]


async def test_lost_activity_is_left_alone_while_its_run_is_changed(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 31. Whoever has the turn's row may come to the activity's with his events written."""
    run_id = await scheduled(scene, "render:1")
    turn = await ann.take()
    await take(ann)
    await expire(scene, "render:1")
    session = await scene.session()
    async with session.transaction():
        await session.commit("ann", yielded(turn, ANY_END))
        assert await take_all(bob) == []
        now = await scene.value("select holdfast.now()")
        await session.call("_cancel_activities", now, [run_id], ["render:1"])
    assert await take_all(bob) == []
    assert await scene.value("select count(*) from holdfast.tasks where key <> ''") == 0


# Tokens


async def test_token_ends_an_attempt_that_is_still_leased(scene: Scene, ann: ManualWorker) -> None:
    """The answer came before the attempt had returned; what it says then is lost."""
    run_id = await waiting(scene, ann, "render:1")
    task = await take(ann)
    assert await outside(scene, "complete_activity", token_of(task), '{"a": 1}') == "recorded"
    assert await outside(scene, "complete_activity", token_of(task), '{"a": 1}') == "lost"
    assert await end(ann, task) == "lost"
    assert details((await log(scene.store, run_id))[-1])["result"] == {"a": 1}
    assert await ann.claims() == [run_id]


async def test_token_ends_a_deferred_attempt(scene: Scene, ann: ManualWorker) -> None:
    """The lease is given back without an event, and nobody claims the activity meanwhile."""
    run_id = await waiting(scene, ann, "render:1")
    task = await take(ann)
    assert await end(ann, task, details='"asked"') == "deferred"
    claim = await ann.claim(queues=["gpu"], handlers=RENDER)
    assert (claim.tasks, claim.next_due_at) == ([], None)
    assert await outside(scene, "complete_activity", token_of(task), None) == "recorded"
    event = (await log(scene.store, run_id))[-1]
    assert (event.type, details(event)["result"]) == ("ActivityCompleted", None)
    assert await ann.claims() == [run_id]


async def test_deferred_attempt_is_over_when_its_time_is(scene: Scene, ann: ManualWorker) -> None:
    """The next attempt follows at start-to-close, counted from the attempt's start."""
    await scheduled(scene, "render:1", start_to_close=60)
    task = await take(ann)
    now = await scene.store.now()
    assert await end(ann, task, started_at=now - 50_000_000) == "deferred"
    assert await take_all(ann, ahead_seconds=9) == []
    again = await take(ann, ahead_seconds=10)
    assert (again.attempts, again.lease_no) == (2, 2)
    assert await outside(scene, "complete_activity", token_of(task), "1") == "lost"


async def test_token_fails_an_attempt_once(scene: Scene, ann: ManualWorker) -> None:
    """Its second use would count as another attempt's failure, before there is one."""
    run_id = await scheduled(scene, "render:1")
    task = await take(ann)
    assert await outside(scene, "fail_activity", token_of(task), "no paper") == "retried"
    assert await outside(scene, "fail_activity", token_of(task), "no paper") == "lost"
    task = await take(ann)
    assert await outside(scene, "fail_activity", token_of(task), "fire", False) == "recorded"
    retried, failed = (await log(scene.store, run_id))[1:]
    assert details(retried)["error"] == {"kind": "builtins.Exception", "message": "no paper"}
    assert (failed.type, details(failed)["error"]["message"]) == ("ActivityFailed", "fire")


async def test_what_is_no_token_is_refused(scene: Scene) -> None:
    """A typing error must not look like an activity that has ended."""
    for token in ("", "render:1", f"{UUID(int=0)}:x:render:1", None):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="not the token"):
            await outside(scene, "complete_activity", token, "1")
    assert await outside(scene, "complete_activity", f"{UUID(int=0)}:1:render:1", "1") == "lost"


# Deadlines and cancellation


async def test_overdue_activities_fail_and_their_holders_are_told(
    scene: Scene, ann: ManualWorker
) -> None:
    """Leased or not; the run that waits for them wakes once."""
    run_id = await waiting(scene, ann, "render:1", "render:2", schedule_to_close=0)
    task = (await take_all(ann, limit=1))[0]
    later = await scheduled(scene, "render:3", schedule_to_close=3600)
    ended, next_due_at, notices = await scene.store.time_out_activities()
    assert (ended, await scene.store.time_out_activities()) == (2, (0, next_due_at, []))
    assert notices == [Notice("worker/ann", f"{run_id} {task.key}"), Notice("work", "default")]
    assert next_due_at is not None
    assert 3500 < (next_due_at - await scene.store.now()) / 1_000_000 <= 3600
    failed = (await log(scene.store, run_id))[2:]
    assert [(event.type, event.key) for event in failed] == [
        ("ActivityFailed", "render:1"),
        ("ActivityFailed", "render:2"),
    ]
    assert [details(event)["timed_out"] for event in failed] == [True, True]
    assert await end(ann, task) == "lost"
    assert set(await ann.claims()) == {run_id, later}


async def test_deadline_passes_over_a_run_that_is_being_changed(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. An open transaction holds up neither maintenance nor the other runs' deadlines."""
    first = await scheduled(scene, "render:1", schedule_to_close=0)
    await scheduled(scene, "render:2", schedule_to_close=0)
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [first])
        ended, next_due_at, _ = await scene.store.time_out_activities()
        assert (ended, next_due_at is None) == (1, False)
    ended, next_due_at, _ = await scene.store.time_out_activities()
    assert (ended, next_due_at) == (1, None)


async def test_cancelled_activity_ends_without_waking_anybody(
    scene: Scene, ann: ManualWorker
) -> None:
    """T8. Its holder hears of it twice: by a notice, and by its heartbeat if that got lost."""
    run_id = await waiting(scene, ann, "render:1", "render:2")
    free, leased = "render:2", await take(ann, limit=1)
    now = await scene.value("select holdfast.now()")
    [row] = await scene.watcher.call("_cancel_activities", now, [run_id] * 2, [free, leased.key])
    assert row[0] == [["worker/ann", f"{run_id} {leased.key}"]]
    beat = await ann.beat(Lease(run_id, leased.key, leased.lease_no, 0))
    assert (list(beat.cancelled), beat.lost, beat.news) == ([(run_id, leased.key)], [], [])
    assert await take_all(ann) == []
    ended = await scene.store.end_activities("ann", [done(leased, error=ERROR)])
    assert (ended.outcomes, ended.notices) == (["recorded"], [])
    assert (await log_types(scene.store, run_id))[-1] == "ActivityFailed"
    assert await ann.claims() == []


@pytest.mark.parametrize("how", ["released", "lost", "deferred"])
async def test_cancelled_activity_that_nobody_executes_any_more_is_gone(
    scene: Scene, ann: ManualWorker, how: str
) -> None:
    """S11. No other worker starts what nobody waits for."""
    run_id = await scheduled(scene, "render:1")
    task = await take(ann)
    now = await scene.value("select holdfast.now()")
    await scene.watcher.call("_cancel_activities", now, [run_id], ["render:1"])
    if how == "released":
        assert await ann.release(task) == []
    elif how == "deferred":
        assert await end(ann, task, details="1") == "deferred"
    else:
        await expire(scene, "render:1")
    assert await take_all(ann) == []
    assert await scene.value("select count(*) from holdfast.tasks where key <> ''") == 0
    assert await log_types(scene.store, run_id) == ["WorkflowStarted"]


async def test_pause_of_a_workflow_spares_an_activity_of_its_name(
    scene: Scene, ann: ManualWorker
) -> None:
    """Names of workflows and of activities are apart; a queue's pause holds both back."""
    await scene.value(
        "insert into holdfast.pauses values ('workflow', 'render', null, holdfast.now())"
    )
    await scheduled(scene, "render:1")
    assert await end(ann, await take(ann)) == "recorded"
    await scene.value("insert into holdfast.pauses values ('queue', 'gpu', null, holdfast.now())")
    await scheduled(scene, "render:1")
    assert await take_all(ann) == []
