"""Pauses: of a run, of a queue, of a workflow."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import ANY_END, Notice, Pause, RunFilter, Scope, Suspend

from .actors import (
    SECOND,
    ManualWorker,
    details,
    get,
    lease_of,
    log,
    log_types,
    signal,
    start,
    step,
)
from .commands import FAILURE, RESIZE, activity, ordered


async def test_nothing_is_claimed_of_a_paused_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B6. Until it is resumed; what came meanwhile lies in its log."""
    run_id, other = await start(store), await start(store)
    await clock.advance(1)
    paused = await store.pause_runs([run_id], reason="look")
    assert (paused.outcomes, paused.notices) == (["delivered"], [])
    event = (await log(store, run_id))[-1]
    assert (event.type, event.at) == ("WorkflowPaused", await store.now())
    assert details(event) == {"reason": "look"}
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.status, run.state, run.wait.paused) == ("running", "paused", True)
    assert await ann.claims() == [other]
    assert (await ann.claim()).next_due_at is None
    assert (await signal(store, run_id))[0] == "delivered"
    assert await ann.claims() == []
    resumed = await store.resume_runs([run_id])
    assert (resumed.outcomes, resumed.notices) == (["delivered"], [Notice("work", "default")])
    assert await ann.claims() == [run_id]
    assert (await log_types(store, run_id))[1:] == [
        "WorkflowPaused",
        "SignalReceived",
        "WorkflowResumed",
    ]


async def test_pausing_twice_is_pausing_once(store: Store, ann: ManualWorker) -> None:
    """B6. Each run of a call has its own outcome."""
    run_id, ended = await start(store), await start(store)
    await store.terminate_runs([ended])
    asked = [uuid4(), run_id, ended, run_id]
    assert (await store.pause_runs(asked)).outcomes == [
        "missing",
        "delivered",
        "ended",
        "duplicate",
    ]
    assert (await store.resume_runs(asked)).outcomes == [
        "missing",
        "delivered",
        "ended",
        "duplicate",
    ]
    assert (await store.resume_runs([run_id])).outcomes == ["duplicate"]
    assert len(await log(store, run_id)) == 3


async def test_the_holder_of_a_paused_run_is_told(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 1. It finds the pause in its way, records what is running, and gives the run back."""
    run_id = await start(store)
    turn = await ann.take()
    paused = await store.pause_runs([run_id])
    assert paused.notices == [Notice("worker/ann", str(run_id))]
    assert (await get(store, run_id)).state == "running"
    assert (await ann.beat(lease_of(turn))).unread == [run_id]
    refusal = await ann.refusal(turn, step())
    assert [event.type for event in refusal.tail] == ["WorkflowPaused"]
    await ann.commit(turn, step(), then=Suspend(), expected=2)
    assert (await get(store, run_id)).state == "paused"
    assert await bob.claims() == []
    assert (await store.resume_runs([run_id])).notices == [Notice("work", "default")]
    assert (await ann.take()).log_length == 4


async def test_the_holder_hears_that_the_run_goes_on(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await store.pause_runs([run_id])
    resumed = await store.resume_runs([run_id])
    assert resumed.notices == [Notice("worker/ann", str(run_id))]
    assert not (await ann.commit(turn, step(), expected=3)).refused


async def test_a_paused_runs_lost_worker_is_fenced_when_it_goes_on(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, trap 8. The pause holds, although the lease runs out."""
    run_id = await start(store)
    await ann.take(lease_seconds=10)
    await store.pause_runs([run_id])
    await clock.advance(10)
    assert await bob.claims() == []
    await store.resume_runs([run_id])
    assert (await bob.take()).lease_no == 2
    assert (await log_types(store, run_id))[-1] == "WorkerLost"


async def test_resuming_does_not_start_a_delayed_run_early(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S8, trap 3."""
    run_id = await start(store, delay_seconds=60.0)
    await store.pause_runs([run_id])
    await store.resume_runs([run_id])
    assert await ann.claims() == []
    await clock.advance(60)
    assert await ann.claims() == [run_id]


async def test_a_timer_does_not_wake_a_paused_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S8, trap 15. It is overdue when the run is resumed."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), until=await store.now() + 10 * SECOND)
    await store.pause_runs([run_id])
    await clock.advance(20)
    assert await ann.claims() == []
    await store.resume_runs([run_id])
    assert await ann.claims() == [run_id]


async def test_activities_of_a_paused_run_wait(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S7, B6. Attempts under way end and are recorded; none is begun."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity("running"), activity("failing"))
    tasks = {task.key: task for task in (await bob.claim(handlers=RESIZE)).tasks}
    await ann.command(turn, activity("queued"), expected=3)
    await store.pause_runs([run_id])
    await ann.command(turn, activity("late"), expected=5)
    assert (await bob.end(tasks["running"], result="1")).outcomes == ["recorded"]
    assert (await bob.end(tasks["failing"], error=FAILURE)).outcomes == ["retried"]
    await clock.advance(5)
    claim = await bob.claim(handlers=RESIZE)
    assert (claim.tasks, claim.next_due_at) == ([], None)
    await store.resume_runs([run_id])
    assert {task.key for task in (await bob.claim(handlers=RESIZE)).tasks} == {
        "failing",
        "queued",
        "late",
    }


async def test_a_paused_run_can_be_stopped(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S10, trap 16. Its deadline counts on; a cancel waits for its code, which is paused."""
    untouched, timed, waiting = (
        await start(store),
        await start(store, timeout_seconds=10.0),
        await start(store, queue="slow"),
    )
    await ann.suspend(await ann.take(queues=["slow"]))
    await store.pause_runs([untouched, timed, waiting])
    await store.cancel_runs([untouched, waiting])
    assert (await get(store, untouched)).status == "cancelled"
    assert (await get(store, waiting)).state == "paused"
    await clock.advance(10)
    assert (await store.time_out_runs())[0] == 1
    assert await ann.claims(queues=["slow"]) == []
    await store.resume_runs([waiting])
    assert await ann.claims(queues=["slow"]) == [waiting]


async def test_paused_runs_are_listed(store: Store, ann: ManualWorker) -> None:
    """T13. As what they are, not as queued or waiting."""
    paused, queued = await start(store), await start(store)
    waiting = await start(store, delay_seconds=60.0)
    await store.pause_runs([paused])
    found = {
        state: [run.run_id for run in (await store.list_runs(RunFilter(states=(state,)))).runs]
        for state in ("paused", "queued", "waiting")
    }
    assert found == {"paused": [paused], "queued": [queued], "waiting": [waiting]}


@pytest.mark.parametrize(("scope", "name"), [("queue", "default"), ("workflow", "order")])
async def test_nothing_is_claimed_of_what_is_paused(
    store: Store, clock: Clock, ann: ManualWorker, scope: Scope, name: str
) -> None:
    """B6. A whole queue, or every version of a workflow in every queue."""
    run_id = await start(store)
    other = await start(store, name="refund", queue="slow")
    new = await start(store, version=2, start_at=await store.now() + 1)
    claims = {"queues": ["default", "slow"], "handlers": ["order@1", "order@2", "refund@1"]}
    await ann.beat()
    assert await store.set_pause(scope, name, paused=True, reason="look") == (True, [])
    assert await store.set_pause(scope, name, paused=True) == (False, [])
    assert await store.list_pauses() == [Pause(scope, name, "look", await store.now())]
    assert await ann.claims(**claims) == [other]
    await clock.advance(1)
    claim = await ann.claim(**claims)
    assert (claim.tasks, claim.next_due_at) == ([], None)
    assert (await get(store, run_id)).state == "queued"
    changed = await store.set_pause(scope, name, paused=False)
    assert changed == (True, [Notice("work", "default")])
    assert await store.set_pause(scope, name, paused=False) == (False, [])
    assert await store.list_pauses() == []
    assert await ann.claims(**claims) == [run_id, new]


async def test_pauses_are_listed_by_scope_and_name(store: Store) -> None:
    for scope, name in (("workflow", "a"), ("queue", "b"), ("queue", "a")):
        await store.set_pause(scope, name, paused=True)
    found = await store.list_pauses()
    assert [(p.scope, p.name) for p in found] == [("queue", "a"), ("queue", "b"), ("workflow", "a")]


async def test_a_paused_queue_keeps_its_activities(store: Store, ann: ManualWorker) -> None:
    """S7. Of its queue only; a workflow's pause is for runs, not for an activity of its name."""
    await ordered(store, ann, activity(queue="gpu"), activity("cpu", activity_name="order"))
    await store.set_pause("queue", "gpu", paused=True)
    await store.set_pause("workflow", "order", paused=True)
    handlers = ["resize@0", "order@0"]
    claim = await ann.claim(queues=["gpu", "default"], handlers=handlers)
    assert [task.key for task in claim.tasks] == ["cpu"]
    await store.set_pause("queue", "gpu", paused=False)
    claim = await ann.claim(queues=["gpu", "default"], handlers=handlers)
    assert [task.key for task in claim.tasks] == ["resize"]


async def test_a_lease_in_a_paused_queue_goes_on(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """B6. What is under way ends; a lease that runs out is taken up after the pause."""
    await start(store)
    await start(store, queue="slow")
    turn, lost = await ann.take(), await ann.take(queues=["slow"], lease_seconds=10)
    for queue in ("default", "slow"):
        await store.set_pause("queue", queue, paused=True)
    await ann.command(turn, step(), awaiting=(ANY_END,))
    await clock.advance(10)
    assert await bob.claims(queues=["slow"]) == []
    await store.set_pause("queue", "slow", paused=False)
    assert await bob.claims(queues=["slow"]) == [lost.run_id]


async def test_changes_say_who_made_them(store: Store) -> None:
    """Each in its event, beside the reason; a name that no row can hold is refused."""
    run_ids = [await start(store) for _ in range(3)]
    await store.pause_runs(run_ids, reason="look", by="ann")
    await store.resume_runs(run_ids, by="ben")
    await store.cancel_runs(run_ids[:1], by="cem")
    await store.terminate_runs(run_ids[1:2], reason="over", by="dora")
    last = [[each.details for each in await log(store, run_id)][1:4] for run_id in run_ids]
    assert [read(details) for details in last[0]] == [
        {"reason": "look", "by": "ann"},
        {"by": "ben"},
        {"reason": None, "by": "cem"},
    ]
    assert read(last[1][2]) == {"reason": "over", "by": "dora"}
    assert len(last[2]) == 2
    long = "a" * 100_000
    calls = (store.pause_runs, store.resume_runs, store.cancel_runs, store.terminate_runs)
    for call in calls:
        with pytest.raises(InvalidInput):
            await call(run_ids, by=long)


def read(details: str | None) -> object:
    assert details is not None
    return json.loads(details)


async def test_a_stuck_run_that_is_resumed_is_tried_at_once(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Its pauses begin again with the shortest. One that is due, or on a worker, is left."""
    run_id = await start(store)
    for pause in (2, 4, 8):
        await ann.release(await ann.take(), stuck="changed")
        assert await ann.claims() == []
        if pause < 8:
            await clock.advance(pause)
    resumed = await store.resume_runs([run_id], by="ann")
    assert (resumed.outcomes, resumed.notices) == (["delivered"], [Notice("work", "default")])
    assert (await store.resume_runs([run_id])).outcomes == ["duplicate"]
    assert (await get(store, run_id)).state == "stuck"
    task = await ann.take()
    assert (await store.resume_runs([run_id])).outcomes == ["duplicate"]
    await ann.release(task, stuck="changed")
    await clock.advance(2)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    assert (await store.resume_runs([run_id])).outcomes == ["duplicate"]
    assert (await log_types(store, run_id))[1:] == ["WorkflowResumed", "WorkflowTaskYielded"]
