"""Calls that meet a heartbeat: it locks no turn row, and gives the activity's row a new place."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgspec
import pytest
from contract.actors import ManualWorker, log_types, start
from contract.commands import FAILURE, RESIZE, activity, cancelled_activity, ordered
from scene import Scene, finished, turn

from holdfast import App, Client, Context
from holdfast.store.postgres import PostgresStore
from holdfast.types import ActivityEnd, ClaimedTask
from holdfast.worker import Worker, WorkerOptions

T = TypeVar("T")
AT_ONCE = {"backoff": "fixed", "base": 0.0}


async def take(worker: ManualWorker) -> ClaimedTask:
    """Claim the one activity that is due."""
    return await worker.take(handlers=RESIZE)


async def end(worker: ManualWorker, task: ClaimedTask, **fields: Any) -> str:
    """End an attempt; return what became of that."""
    ended = ActivityEnd(run_id=task.run_id, key=task.key, lease_no=task.lease_no, **fields)
    [outcome] = (await worker.store.end_activities(worker.worker_id, [ended])).outcomes
    return outcome


async def held(worker: ManualWorker) -> ClaimedTask:
    """Start a run that orders an activity and stays with its worker; return its turn."""
    await start(worker.store)
    task = await worker.take()
    await worker.command(task, activity())
    return msgspec.structs.replace(task, log_length=task.log_length + 1)


async def left(scene: Scene, condition: str = "true") -> int:
    """Count the tasks that are there still."""
    return await scene.value(f"select count(*) from holdfast.tasks where {condition}")


async def while_heard_of(scene: Scene, task: ClaimedTask, blocked: Coroutine[Any, Any, T]) -> T:
    """Make a call while ann's worker says that an activity lives; return the call's answer."""
    session = await scene.session()
    saying = session.transaction()
    await saying.start()
    worker = "ann", "host", 1, ["default"], RESIZE, 1, "1", None, 30.0
    await session.call("heartbeat", *worker, [task.run_id], [task.key], [task.lease_no], [0])
    return await scene.while_blocked(blocked, saying.commit)


@pytest.mark.parametrize(
    ("fields", "outcome", "remaining"),
    [
        ({"result": "1"}, "recorded", 0),
        ({"error": FAILURE}, "retried", 1),
        ({"details": "1"}, "deferred", 1),
    ],
)
async def test_end_during_a_heartbeat_is_the_attempts_end(
    scene: Scene, ann: ManualWorker, fields: dict[str, Any], outcome: str, remaining: int
) -> None:
    """S12. What is recorded is not executed again."""
    await ordered(scene.store, ann, activity())
    task = await take(ann)
    assert await while_heard_of(scene, task, end(ann, task, **fields)) == outcome
    assert await left(scene, "key <> ''") == remaining
    assert await left(scene, "worker is not null") == 0


async def test_time_out_during_a_heartbeat_fails_the_activity_once(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 32. It is gone, and is not found overdue again."""
    run_id = await ordered(scene.store, ann, activity(schedule_to_close=0))
    task = await take(ann)
    ended, next_due_at, _ = await while_heard_of(scene, task, scene.store.time_out_activities())
    assert (ended, next_due_at) == (1, None)
    assert (await scene.store.time_out_activities())[0] == 0
    assert (await log_types(scene.store, run_id)).count("ActivityFailed") == 1


async def test_release_during_a_heartbeat_gives_the_lease_back(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The next worker does not wait for the lease's end."""
    await ordered(scene.store, ann, activity())
    task = await take(ann)
    await while_heard_of(scene, task, ann.release(task))
    assert (await take(bob)).lease_no == 2


async def test_cancel_during_a_heartbeat_marks_the_activity(
    scene: Scene, ann: ManualWorker
) -> None:
    """S11. The holder learns of it by its next heartbeat, if the notice is lost."""
    owner = await held(ann)
    task = await take(ann)
    part = turn(owner, cancelled_activity())
    session = await scene.session()
    await while_heard_of(
        scene, task, session.commit("ann", msgspec.structs.replace(part, has_commands=True))
    )
    assert await left(scene, "cancelled") == 1


async def test_pause_during_a_heartbeat_pauses_the_activity(
    scene: Scene, ann: ManualWorker
) -> None:
    """B6. An attempt that fails is not followed by another while the run is paused."""
    run_id = await ordered(scene.store, ann, activity(retry=AT_ONCE))
    task = await take(ann)
    await while_heard_of(scene, task, scene.store.pause_runs([run_id]))
    assert await end(ann, task, error=FAILURE) == "retried"
    assert (await ann.claim(handlers=RESIZE)).tasks == []


@pytest.mark.parametrize("how", ["completed", "terminated"])
async def test_run_that_ends_during_a_heartbeat_leaves_no_task(
    scene: Scene, ann: ManualWorker, how: str
) -> None:
    """Trap 32. Nobody would execute, end or forget the activity of a run that has ended."""
    owner = await held(ann)
    task = await take(ann)
    session = await scene.session()
    ending = (
        session.commit("ann", finished(owner))
        if how == "completed"
        else session.call("terminate_runs", [owner.run_id])
    )
    await while_heard_of(scene, task, ending)
    assert await left(scene) == 0


async def test_a_lease_that_a_failover_brought_back_is_given_back(scene: Scene) -> None:
    """An asynchronous standby did not have that the worker gave it back. No answer was lost."""
    app = App("shop")

    @app.workflow
    async def order(ctx: Context, order: None) -> str:
        return await ctx.wait_for_signal("paid", type=str)

    options = WorkerOptions(lease_seconds=3600, heartbeat_seconds=0.1)
    url = scene.url
    store = PostgresStore(url)
    worker = Worker(app, store, options, heartbeat_store=lambda: PostgresStore(url))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        stack.push_async_callback(worker.stop, 1)
        await worker.start()
        await stack.enter_async_context(asyncio.timeout(60))
        client = await stack.enter_async_context(Client(url, app=app))
        handle = await client.start(order, None)
        await scene.until(
            "select awaiting is not null and worker is null from holdfast.tasks", bool
        )
        before = await scene.value("select max(heard_at) from holdfast.workers")
        heard = "select bool_and(heard_at > $1) from holdfast.workers"
        while not await scene.value(heard, before):  # the doubts of its start are over
            await asyncio.sleep(0.01)
        await scene.value(
            "update holdfast.tasks set worker = $1, awaiting = null, "
            "visible_at = holdfast.now() + interval '3500 s' returning 1",
            worker.worker_id,
        )
        await client.signal(handle.run_id, "paid", "cash")
        await scene.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where (query ilike 'listen%' or query = 'select 1') and datname = current_database()"
        )
        assert await handle.result() == "cash"
