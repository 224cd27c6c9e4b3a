"""Activities that are scheduled, ended and stopped at the worst moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from clocks import ThoroughStore
from contract.actors import ManualWorker, details, log, log_types, start
from contract.commands import FAILURE, RESIZE, activity, cancelled_activity, ordered
from scene import Scene, Session, yielded
from scene import turn as turn_part

from holdfast.definitions.activities import ActivityContext
from holdfast.retry import Retry
from holdfast.types import ANY_END, ActivityEnd, ClaimedTask, Event, Notice, Release, Suspend

AT_ONCE = {"backoff": "fixed", "base": 0.0}


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


async def take(worker: ManualWorker) -> ClaimedTask:
    """Claim the one activity that is due."""
    return await worker.take(handlers=RESIZE)


async def take_all(worker: ManualWorker, **options: Any) -> list[ClaimedTask]:
    """Claim all activities that are due."""
    return (await worker.claim(handlers=RESIZE, **options)).tasks


def done(task: ClaimedTask, **fields: Any) -> ActivityEnd:
    """Return the end of an attempt; a completion, if nothing else is said."""
    ended = fields or {"result": '{"pages":7}'}
    return ActivityEnd(run_id=task.run_id, key=task.key, lease_no=task.lease_no, **ended)


async def end(worker: ManualWorker, task: ClaimedTask, **fields: Any) -> str:
    """End an attempt; return what became of that."""
    [outcome] = (
        await worker.store.end_activities(worker.worker_id, [done(task, **fields)])
    ).outcomes
    return outcome


def token_of(task: ClaimedTask) -> str:
    """Return the token of an attempt."""
    return ActivityContext(task, is_async=False).token


async def outside(scene: Scene, function: str, *arguments: object) -> str:
    """End an attempt with its token, as users of SQL do; return what became of that."""
    [row] = await scene.watcher.call(function, *arguments)
    return row["outcome"]


async def end_in(session: Session, task: ClaimedTask) -> list[str]:
    """End an attempt of ann's on a connection whose transaction may stay open."""
    columns = [task.run_id], [task.key], [task.lease_no], ["1"], [None], [True]
    [row] = await session.call("end_activities", "ann", *columns, [False], [None], [None])
    return row["outcomes"]


async def expire(scene: Scene) -> None:
    """Let the leases of all activities run out now."""
    await scene.value(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 s' "
        "where key <> '' and worker is not null"
    )


async def activities_left(scene: Scene) -> int:
    """Count the tasks other than turns."""
    return await scene.value("select count(*) from holdfast.tasks where key <> ''")


async def held(worker: ManualWorker, *keys: str, **fields: Any) -> ClaimedTask:
    """Start a run that orders activities and stays with its worker; return its turn."""
    await start(worker.store)
    turn = await worker.take()
    await worker.command(turn, *(activity(key, **fields) for key in keys))
    return msgspec.structs.replace(turn, log_length=turn.log_length + len(keys))


# Ends


async def test_late_completion_after_a_reclaim_is_fenced(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, traps 8 and 32. The claim that takes the activity is not committed when it comes."""
    run_id = await ordered(scene.store, ann, activity())
    stale = await take(ann)
    await expire(scene)
    session = await scene.session()
    claiming = session.transaction()
    await claiming.start()
    await session.call("claim_tasks", "bob", ["default"], RESIZE, 1, 30.0)
    assert await scene.while_blocked(end(ann, stale), claiming.commit) == "lost"
    fresh = msgspec.structs.replace(stale, lease_no=2)
    assert await end(bob, fresh, result="2") == "recorded"
    lost, completed = (await log(scene.store, run_id))[-2:]
    assert details(lost) == {"task_key": "resize", "lease_no": 1, "worker": "ann"}
    assert (details(completed)["result"], details(completed)["attempt"]) == (2, 2)


async def test_completion_that_is_under_way_is_not_claimed(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. The lease ran out, but its end is written first."""
    run_id = await ordered(scene.store, ann, activity())
    task = await take(ann)
    await expire(scene)
    session = await scene.session()
    async with session.transaction():
        assert await end_in(session, task) == ["recorded"]
        assert await take_all(bob) == []
    assert await take_all(bob) == []
    assert (await log_types(scene.store, run_id))[-1] == "ActivityCompleted"


async def test_end_during_suspend_wakes_the_run(scene: Scene, ann: ManualWorker) -> None:
    """Trap 1. The suspend is written but not committed when the activity ends."""
    turn = await held(ann, "resize")
    task = await take(ann)
    session = await scene.session()
    suspending = session.transaction()
    await suspending.start()
    await session.commit("ann", yielded(turn, ANY_END))
    ending = scene.store.end_activities("ann", [done(task)])
    ended = await scene.while_blocked(ending, suspending.commit)
    assert (ended.outcomes, ended.notices) == (["recorded"], [Notice("work", "default")])
    assert await ann.claims() == [turn.run_id]


async def test_suspend_behind_an_uncommitted_end_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """Traps 1 and 4. The worker continues with the end."""
    turn = await held(ann, "resize")
    task = await take(ann)
    session = await scene.session()
    async with session.transaction():
        await end_in(session, task)
        assert (await ann.refusal(turn)).reason == "busy"
    refusal = await ann.refusal(turn)
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["ActivityCompleted"]


async def test_ends_land_behind_a_checkpoint_as_one_block(scene: Scene, ann: ManualWorker) -> None:
    """Storage rules 5 and 24. The run's worker was faster; no gap, and nothing between."""
    turn = await held(ann, "one", "two", "three")
    tasks = await take_all(ann)
    session = await scene.session()
    checkpoint = session.transaction()
    await checkpoint.start()
    await session.commit("ann", turn_part(turn))
    ending = scene.store.end_activities("ann", [done(task) for task in tasks])
    ended = await scene.while_blocked(ending, checkpoint.commit)
    assert ended.notices == [Notice("worker/ann", str(turn.run_id))]
    types = (await log_types(scene.store, turn.run_id))[4:]
    assert types == ["StepCompleted", *["ActivityCompleted"] * 3]
    assert await scene.idx(turn.run_id) == list(range(8))


async def test_workers_that_end_in_opposite_orders_do_not_deadlock(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. Ends, releases, reclaims and checkpoints over the same runs."""
    keys = [str(number) for number in range(30)]
    fields = {"queue": "other", "retry": {**AT_ONCE, "attempts": None}}
    turns = [await held(ann, *keys, **fields) for _ in range(12)]

    async def finish(worker: ManualWorker, reverse: bool) -> None:
        while tasks := await take_all(worker, limit=20, lease_seconds=0.0, queues=["other"]):
            tasks.sort(key=lambda task: (task.run_id, task.key), reverse=reverse)
            await worker.store.release_tasks(
                worker.worker_id, [Release(t.run_id, t.key, t.lease_no) for t in tasks[3::7]]
            )
            ends = [done(t, error=FAILURE) if n % 5 == 1 else done(t) for n, t in enumerate(tasks)]
            await worker.store.end_activities(worker.worker_id, ends)

    async def checkpoints() -> None:
        for _ in range(40):
            logs = await scene.store.read_events([(turn.run_id, 0) for turn in turns])
            parts = [turn_part(t, expected=len(logs[t.run_id])) for t in reversed(turns)]
            await scene.store.commit("ann", uuid4(), parts)

    crowd = [ManualWorker(scene.store, f"worker-{number}") for number in range(4)]
    await asyncio.gather(
        *(finish(worker, number % 2 == 0) for number, worker in enumerate(crowd)), checkpoints()
    )
    async with asyncio.timeout(60):
        while await activities_left(scene):  # the last claim of each skips what others had locked
            await finish(crowd[0], False)
    await scene.value("select pg_stat_clear_snapshot()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await scene.value(deadlocks) == 0
    for turn in turns:
        places = await scene.idx(turn.run_id)
        assert places == list(range(len(places)))
        assert (await log_types(scene.store, turn.run_id)).count("ActivityCompleted") == 30


async def test_lost_answer_may_be_asked_for_again(scene: Scene, ann: ManualWorker) -> None:
    """Trap 23. The second call finds nothing to record; what stands twice counts once."""
    run_id = await ordered(
        scene.store, ann, *(activity(key, retry=AT_ONCE) for key in ("one", "two", "three"))
    )
    tasks = {task.key: task for task in await take_all(ann)}
    one, two, three = tasks["one"], tasks["two"], tasks["three"]
    ends = [done(one), done(two, error=FAILURE), done(one), done(three, details="1")]
    first = await scene.store.end_activities("ann", ends)
    assert first.outcomes == ["recorded", "retried", "lost", "deferred"]
    again = await scene.store.end_activities("ann", ends)
    assert (again.outcomes, again.notices) == (["lost"] * 4, [])
    types = (await log_types(scene.store, run_id))[4:]
    assert types == ["ActivityCompleted", "ActivityRetryScheduled"]


async def test_lost_activity_is_left_alone_while_its_run_is_changed(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 31. The commit comes to the activity's row with its events written."""
    turn = await held(ann, "resize")
    await take(ann)
    await expire(scene)
    session = await scene.session()
    events = cancelled_activity(), Event("WorkflowTaskYielded", None, None, 0)
    part = turn_part(turn, *events, then=Suspend())
    async with session.transaction():
        await session.commit("ann", msgspec.structs.replace(part, has_commands=True))
        assert await take_all(bob) == []
    assert await take_all(bob) == []
    assert await activities_left(scene) == 0


@pytest.mark.parametrize("how", ["released", "lost", "deferred"])
async def test_cancelled_activity_that_nobody_executes_any_more_is_gone(
    scene: Scene, ann: ManualWorker, how: str
) -> None:
    """S11. No other worker starts what nobody waits for."""
    turn = await held(ann, "resize")
    task = await take(ann)
    await ann.command(turn, cancelled_activity())
    if how == "released":
        assert await ann.release(task) == []
    elif how == "deferred":
        assert await end(ann, task, details="1") == "deferred"
    else:
        await expire(scene)
    assert await take_all(ann) == []
    assert await activities_left(scene) == 0
    assert (await log_types(scene.store, turn.run_id))[-1] == "ActivityCancelRequested"


# Policies and deadlines


@pytest.mark.parametrize("base", [0.5, 0])
@pytest.mark.parametrize("backoff", ["exp", "fixed", "linear"])
async def test_pauses_are_those_of_a_step(scene: Scene, backoff: Any, base: float) -> None:
    """The policy means the same in SQL, also after thousands of attempts."""
    written: dict[str, Any] = {"backoff": backoff, "base": base, "max": 3600.0}
    written |= {"factor": 1.5, "jitter": 0.0}
    policy = Retry(attempts=None, **written)
    for attempt in (1, 2, 3, 10, 40, 5000):
        [(pause,)] = await scene.watcher.call("_retry_pause", json.dumps(written), attempt, None)
        assert pause == pytest.approx(policy.delay_seconds(attempt, lambda: 0.5), rel=1e-12)


async def test_deadline_passes_over_a_run_that_is_being_changed(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. An open transaction holds up neither maintenance nor the other runs' deadlines."""
    first = await ordered(scene.store, ann, activity(schedule_to_close=0))
    await ordered(scene.store, ann, activity(schedule_to_close=0))
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [first])
        ended, next_due_at, _ = await scene.store.time_out_activities()
        assert (ended, next_due_at is None) == (1, False)
    ended, next_due_at, _ = await scene.store.time_out_activities()
    assert (ended, next_due_at) == (1, None)


async def test_pause_of_a_workflow_spares_an_activity_of_its_name(
    scene: Scene, ann: ManualWorker
) -> None:
    """B6. Names of workflows and of activities are apart."""
    await scene.store.set_pause("workflow", "resize", paused=True)
    await ordered(scene.store, ann, activity())
    assert await end(ann, await take(ann)) == "recorded"


# Tokens


async def test_token_ends_an_attempt_that_is_still_leased(scene: Scene, ann: ManualWorker) -> None:
    """The answer came before the attempt had returned; what it says then is lost."""
    run_id = await ordered(scene.store, ann, activity())
    task = await take(ann)
    assert await outside(scene, "complete_activity", token_of(task), '{"a": 1}') == "recorded"
    assert await outside(scene, "complete_activity", token_of(task), '{"a": 1}') == "lost"
    assert await end(ann, task) == "lost"
    assert details((await log(scene.store, run_id))[-1])["result"] == {"a": 1}
    assert await ann.claims() == [run_id]


async def test_token_ends_a_deferred_attempt(scene: Scene, ann: ManualWorker) -> None:
    """The lease is given back without an event, and nobody claims the activity meanwhile."""
    run_id = await ordered(scene.store, ann, activity())
    task = await take(ann)
    assert await end(ann, task, details='"asked"') == "deferred"
    claim = await ann.claim(handlers=RESIZE)
    assert (claim.tasks, claim.next_due_at) == ([], None)
    assert await outside(scene, "complete_activity", token_of(task), None) == "recorded"
    event = (await log(scene.store, run_id))[-1]
    assert (event.type, details(event)["result"]) == ("ActivityCompleted", None)
    assert await ann.claims() == [run_id]


async def test_token_fails_an_attempt_once(scene: Scene, ann: ManualWorker) -> None:
    """Its second use would count as another attempt's failure, before there is one."""
    run_id = await ordered(scene.store, ann, activity(retry=AT_ONCE))
    task = await take(ann)
    assert await outside(scene, "fail_activity", token_of(task), "no paper") == "retried"
    assert await outside(scene, "fail_activity", token_of(task), "no paper") == "lost"
    task = await take(ann)
    assert await outside(scene, "fail_activity", token_of(task), "fire", False) == "recorded"
    retried, failed = (await log(scene.store, run_id))[2:]
    assert details(retried)["error"] == {"kind": "builtins.Exception", "message": "no paper"}
    assert (failed.type, details(failed)["error"]["message"]) == ("ActivityFailed", "fire")


async def test_an_invalid_token_is_refused(scene: Scene) -> None:
    """A typing error must not look like an activity that has ended."""
    for token in ("", "resize", f"{UUID(int=0)}:x:resize"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="not the token"):
            await outside(scene, "complete_activity", token, "1")
    with pytest.raises(asyncpg.NullValueNotAllowedError, match="token"):
        await outside(scene, "complete_activity", None, "1")
    assert await outside(scene, "complete_activity", f"{UUID(int=0)}:1:resize", "1") == "lost"
