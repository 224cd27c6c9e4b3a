"""Pauses, decisions and forks that meet others inside the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from clocks import ThoroughStore
from contract.actors import ManualWorker, get, log, log_types, new_run, start, step
from contract.commands import approval, command, decision, ordered
from scene import Scene, finished, turn, yielded

from holdfast.types import ClaimedTask, Fork, Suspend, TurnCommit


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


async def test_a_claim_passes_over_a_run_that_is_being_paused(
    scene: Scene, ann: ManualWorker
) -> None:
    """B6. Neither before nor after the pause is committed is it claimed."""
    run_id = await start(scene.store)
    session = await scene.session()
    async with session.transaction():
        await session.call("pause_runs", [run_id], None)
        assert await ann.claims() == []
    assert await ann.claims() == []
    assert (await get(scene.store, run_id)).state == "paused"


async def test_a_pause_behind_an_uncommitted_claim_tells_the_new_holder(scene: Scene) -> None:
    """B6. The pause finds out who has the run."""
    run_id = await start(scene.store)
    session = await scene.session()
    claiming = session.transaction()
    await claiming.start()
    await session.call("claim_tasks", "ann", ["default"], ["order@1"], 1, 30.0)
    paused = await scene.while_blocked(scene.store.pause_runs([run_id]), claiming.commit)
    assert [notice.topic for notice in paused.notices] == ["worker/ann"]
    assert (await get(scene.store, run_id)).state == "running"


async def test_a_suspend_behind_an_uncommitted_pause_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """B6, trap 1. The worker hears of the pause, and can suspend for it."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    async with session.transaction():
        await session.call("pause_runs", [run_id], "lunch")
        refused = (await scene.store.commit("ann", uuid4(), [yielded(task)])).refused
        assert refused[run_id].reason == "busy"
    [refusal] = (await scene.store.commit("ann", uuid4(), [yielded(task)])).refused.values()
    assert (refusal.reason, [e.type for e in refusal.tail]) == ("conflict", ["WorkflowPaused"])


async def test_a_resume_during_the_suspend_for_the_pause_wakes_the_run(
    scene: Scene, ann: ManualWorker
) -> None:
    """B6, trap 1. The suspend is written but not committed when the run is resumed."""
    run_id = await start(scene.store)
    task = await ann.take()
    await scene.store.pause_runs([run_id])
    session = await scene.session()
    suspending = session.transaction()
    await suspending.start()
    await session.commit("ann", yielded(task, expected=2))
    resumed = await scene.while_blocked(scene.store.resume_runs([run_id]), suspending.commit)
    assert [notice.topic for notice in resumed.notices] == ["work"]
    assert await ann.claims() == [run_id]


async def test_of_two_decisions_at_once_the_first_to_lock_wins(
    scene: Scene, ann: ManualWorker
) -> None:
    """T4. The second one is told who decided."""
    run_id = await ordered(scene.store, ann, approval())
    session = await scene.session()
    deciding = session.transaction()
    await deciding.start()
    await session.call("decide_approval", run_id, "approve", "d-1", False, "eve", None, None)
    late = await scene.while_blocked(
        scene.store.decide_approval(decision(run_id, "d-2")), deciding.commit
    )
    assert late.outcome == "conflict"
    assert late.standing == (await log(scene.store, run_id))[-1]
    again = await scene.store.decide_approval(decision(run_id, "d-1"))
    assert (again.outcome, again.standing) == ("duplicate", late.standing)


async def test_decisions_by_many_at_once_leave_one_event(scene: Scene, ann: ManualWorker) -> None:
    """T4, trap 14."""
    run_id = await ordered(scene.store, ann, approval())
    decisions = [decision(run_id, f"d-{number % 10}") for number in range(40)]
    answers = await asyncio.gather(*map(scene.store.decide_approval, decisions))
    outcomes = [answer.outcome for answer in answers]
    counts = {outcome: outcomes.count(outcome) for outcome in outcomes}
    assert counts == {"decided": 1, "duplicate": 3, "conflict": 36}
    assert (await log_types(scene.store, run_id)).count("ApprovalResolved") == 1


async def test_a_decision_behind_an_uncommitted_withdrawal_finds_it_closed(
    scene: Scene, ann: ManualWorker
) -> None:
    """T4, trap 7. The timeout was first."""
    run_id = await start(scene.store)
    task = await ann.take()
    await ann.command(task, approval())
    withdrawal = TurnCommit(
        run_id,
        task.lease_no,
        2,
        [command("ApprovalWithdrawn", "approve")],
        Suspend(),
        has_commands=True,
    )
    session = await scene.session()
    withdrawing = session.transaction()
    await withdrawing.start()
    await session.commit("ann", withdrawal)
    late = await scene.while_blocked(
        scene.store.decide_approval(decision(run_id)), withdrawing.commit
    )
    assert (late.outcome, late.standing) == ("closed", None)


async def test_a_fork_of_a_run_in_flight_copies_what_is_committed(
    scene: Scene, ann: ManualWorker
) -> None:
    """S2, S5. It waits for no other call, and none waits for it; the origin continues."""
    run_id, fork_id = await start(scene.store), uuid4()
    task = await ann.take()
    await ann.commit(task, step("first"))
    session, forking = await scene.session(), await scene.session()
    async with session.transaction():
        await session.commit("ann", finished(task, expected=2))
        async with forking.transaction():
            await forking.call("fork_run", run_id, fork_id, None, False, None, None, None)
            assert not (await ann.commit(await bystander(scene, ann))).refused
    types = await log_types(scene.store, fork_id)
    assert types == ["WorkflowStarted", "StepCompleted", "WorkflowForked"]
    assert (await get(scene.store, run_id)).status == "completed"
    assert await ann.claims() == [fork_id]


async def bystander(scene: Scene, worker: ManualWorker) -> ClaimedTask:
    """Start and claim a run that has nothing to do with the others."""
    await start(scene.store)
    return await worker.take()


async def test_a_fork_during_its_origins_commits_has_no_gap(
    scene: Scene, ann: ManualWorker
) -> None:
    """S2, S5. Every copy is a beginning of the log."""
    run_id = await start(scene.store)
    task = await ann.take()
    forks = [uuid4() for _ in range(20)]

    async def work() -> None:
        for number in range(40):
            await ann.commit(task, step(f"step-{number}"), expected=number + 1)

    async def fork() -> None:
        for fork_id in forks:
            outcome, _ = await scene.store.fork_run(Fork(run_id=run_id, new_run_id=fork_id))
            assert outcome == "forked"

    await asyncio.gather(work(), fork())
    whole = await log(scene.store, run_id)
    for fork_id in forks:
        copy = await log(scene.store, fork_id)
        assert copy[:-1] == whole[: len(copy) - 1]
        assert await scene.idx(fork_id) == list(range(len(copy)))


async def test_one_fork_asked_for_twice_at_once_is_made_once(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 14. The second one waits for the first."""
    run_id, fork_id = await start(scene.store), uuid4()
    session = await scene.session()
    first = session.transaction()
    await first.start()
    await session.call("fork_run", run_id, fork_id, None, False, None, None, None)
    forking = scene.store.fork_run(Fork(run_id=run_id, new_run_id=fork_id))
    assert await scene.while_blocked(forking, first.commit) == ("exists", [])
    assert await log_types(scene.store, fork_id) == ["WorkflowStarted", "WorkflowForked"]


async def test_bulk_pauses_and_resumes_in_opposite_orders_do_not_deadlock(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. Beside commits of the same runs."""
    runs = [new_run() for _ in range(20)]
    await scene.store.start_runs(runs)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    run_ids = sorted(tasks)

    async def pause(ids: list[UUID]) -> None:
        for _ in range(6):
            await scene.store.pause_runs(ids)
            await scene.store.resume_runs(ids)

    async def work() -> None:
        for _ in range(20):
            lengths = await scene.store.read_events([(run_id, 0) for run_id in run_ids])
            parts = [turn(tasks[run_id], expected=len(lengths[run_id])) for run_id in run_ids]
            await scene.store.commit("ann", uuid4(), parts)

    await asyncio.gather(pause(run_ids), pause(run_ids[::-1]), work())
    await scene.value("select pg_stat_clear_snapshot()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await scene.value(deadlocks) == 0
    for run_id in run_ids:
        places = await scene.idx(run_id)
        assert places == list(range(len(places)))


CHANGES = {
    "cancel_runs": (),
    "terminate_runs": (),
    "pause_runs": (),
    "resume_runs": (),
    "reschedule_runs": ("other",),
}


@pytest.mark.parametrize("function", CHANGES)
@pytest.mark.parametrize("held", ["turn", "log"])
async def test_a_run_that_starts_during_a_change_is_missing_for_it(
    scene: Scene, ann: ManualWorker, function: str, held: str
) -> None:
    """It starts while the change waits for another run: for its turn, or for its log."""
    late, run = sorted((new_run(), new_run()), key=lambda each: each.run_id)
    await scene.store.start_runs([run])
    task = await ann.take()
    if function == "resume_runs":
        await scene.store.pause_runs([run.run_id])
    session, other = await scene.session(), await scene.session()
    holding = session.transaction()
    await holding.start()
    if held == "turn":
        query = "select from holdfast.tasks where run_id = $1 for update"
        await session.connection.execute(query, run.run_id)
    else:
        length = len(await log(scene.store, run.run_id))
        await session.commit("ann", turn(task, expected=length))

    async def start_and_release() -> None:
        await scene.store.start_runs([late])
        await holding.commit()

    [row] = await scene.while_blocked(
        other.call(function, [run.run_id, late.run_id], *CHANGES[function]), start_and_release
    )
    assert row["outcomes"] == ["delivered", "missing"]
    assert await log_types(scene.store, late.run_id) == ["WorkflowStarted"]
    [again] = await other.call(function, [late.run_id], *CHANGES[function])
    assert again["outcomes"] == ["duplicate" if function == "resume_runs" else "delivered"]
