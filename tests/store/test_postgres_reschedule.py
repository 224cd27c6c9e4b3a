"""Changes of where and when runs may run that meet claims, time-outs, commits and ends."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from contract.actors import ManualWorker, get, log_types, new_run, start
from contract.commands import child
from scene import Scene, finished, yielded

from holdfast.types import Reschedule

BIG = Reschedule(queue="big")


async def test_a_run_that_a_claim_has_chosen_is_not_leased_after_it_was_moved(
    scene: Scene, ann: ManualWorker
) -> None:
    """The claim stands between its choice and its locks, in a function that it calls for each."""
    run_id = await start(scene.store)
    source = await scene.value(
        "select pg_get_functiondef(oid) from pg_proc where proname = '_may_have'"
    )
    execute = scene.watcher.connection.execute
    begin, end = source.index("\n LANGUAGE"), "as $$ begin perform pg_advisory_xact_lock(7)"
    await execute(f"{source[:begin]} language plpgsql immutable {end}; return true; end $$")
    session = await scene.session()
    try:
        await session.connection.execute("select pg_advisory_lock(7)")

        async def move() -> None:
            assert (await scene.store.reschedule_runs([run_id], BIG)).outcomes == ["delivered"]
            await session.connection.execute("select pg_advisory_unlock(7)")

        assert (await scene.while_blocked(ann.claim(), move)).tasks == []
    finally:
        await execute(source)
    assert await ann.claims(queues=("big",)) == [run_id]


async def test_a_change_waits_for_a_claim_and_then_finds_the_run_begun(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id, session = await start(scene.store), await scene.session()
    claiming = session.transaction()
    await claiming.start()
    await session.call("claim_tasks", "ann", ["default"], ["order@1"], 1, 30.0)
    later = scene.store.reschedule_runs([run_id], Reschedule(delay_seconds=60.0))
    assert (await scene.while_blocked(later, claiming.commit)).outcomes == ["begun"]
    assert await log_types(scene.store, run_id) == ["WorkflowStarted"]


async def test_a_run_is_not_timed_out_whose_deadline_was_moved_before_it_was_locked(
    scene: Scene, ann: ManualWorker
) -> None:
    """The time-out has found the run, and stands at the row of its child."""
    child_id = UUID(int=1)
    run_id = await start(scene.store, timeout_seconds=0.0)
    task = await ann.take()
    await ann.command(task, child(child_id, parent_close="terminate"), awaiting=(":end",))
    session = await scene.session()
    holding = session.transaction()
    await holding.start()
    await session.connection.execute(
        "select from holdfast.tasks where run_id = $1 for update", child_id
    )

    async def move() -> None:
        told = await scene.store.reschedule_runs([run_id], Reschedule(timeout_seconds=60.0))
        assert told.outcomes == ["delivered"]
        await holding.commit()

    assert (await scene.while_blocked(scene.store.time_out_runs(), move))[0] == 0
    assert (await get(scene.store, run_id)).status == "running"


@pytest.mark.parametrize("ends", [False, True])
async def test_a_change_that_meets_a_commit_is_in_the_log_after_it_or_finds_the_run_ended(
    scene: Scene, ann: ManualWorker, ends: bool
) -> None:
    run_id, session = await start(scene.store), await scene.session()
    task = await ann.take()
    committing = session.transaction()
    await committing.start()
    await session.commit("ann", finished(task) if ends else yielded(task, "packed"))
    changing = scene.store.reschedule_runs([run_id], BIG)
    told = await scene.while_blocked(changing, committing.commit)
    assert told.outcomes == ["ended" if ends else "delivered"]
    assert (await get(scene.store, run_id)).queue == ("default" if ends else "big")
    assert (await log_types(scene.store, run_id))[1:] == (
        ["WorkflowCompleted"] if ends else ["WorkflowTaskYielded", "WorkflowRescheduled"]
    )


async def test_changes_of_many_runs_in_any_order_do_not_wait_for_each_other(scene: Scene) -> None:
    """Each locks by run_id; every run has both changes, one after the other."""
    runs = [new_run() for _ in range(20)]
    await scene.store.start_runs(runs)
    run_ids = [run.run_id for run in runs]
    told = await asyncio.gather(
        *(
            scene.store.reschedule_runs(order, change)
            for order in (run_ids, run_ids[::-1])
            for change in (BIG, Reschedule(timeout_seconds=60.0))
        )
    )
    assert all(set(each.outcomes) <= {"delivered", "duplicate"} for each in told)
    for run_id in run_ids:
        run = await get(scene.store, run_id)
        assert run.queue == "big"
        assert run.deadline_at is not None
