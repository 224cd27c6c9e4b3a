"""Calls that meet inside the database, held at the worst moment."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest
from contract.actors import ManualWorker, lease_of, log, log_types, new_run, signal, start, step
from scene import DEADLINE_SECONDS, Scene, finished, turn, yielded

from holdfast.errors import TransientDatabaseError
from holdfast.store.postgres import start_statement
from holdfast.store.postgres.database import translated
from holdfast.types import Claims, Delivered, NewSignal, Refusal
from holdfast.values.ids import keyed_run_id


async def expire(scene: Scene, run_id: UUID) -> None:
    """Let a lease run out now."""
    await scene.value(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 s' where run_id = $1",
        run_id,
    )


async def test_signal_during_suspend_wakes_the_run(scene: Scene, ann: ManualWorker) -> None:
    """Trap 1. The suspend is written but not committed when the signal comes."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    suspending = session.transaction()
    await suspending.start()
    await session.commit("ann", yielded(task, "packed"))
    outcome, notices = await scene.while_blocked(signal(scene.store, run_id), suspending.commit)
    assert (outcome, [notice.topic for notice in notices]) == ("delivered", ["work"])
    assert await ann.claims() == [run_id]


async def test_suspend_behind_an_uncommitted_signal_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """Traps 1 and 4. The worker continues with the signal."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    async with session.transaction():
        await session.call("signal_runs", [run_id], ["packed"], ["7"], [None])
        assert (await ann.refusal(task)).reason == "busy"
    refusal = await ann.refusal(task)
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["SignalReceived"]


async def test_signal_timeout_and_turn_race_to_one_outcome(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 7. The first one wins, and the others find it in the log; no task is left behind."""
    for _ in range(150):
        run_id = await start(scene.store)
        now = await scene.store.now()
        await ann.suspend(await ann.take(), until=now + 500, awaiting=("packed",))
        (outcome, _), *claims = await asyncio.gather(
            signal(scene.store, run_id), ann.claim(), bob.claim()
        )
        taken = [task for claim in claims for task in claim.tasks]
        while not taken:
            taken = (await ann.claim(sticky_seconds=0.0)).tasks
        [task] = taken
        holder = ann if claims[1].tasks == [] else bob
        known = await log_types(scene.store, run_id)
        await holder.finish(task, expected=len(known))
        assert outcome == "delivered"
        assert known == ["WorkflowStarted", "WorkflowTaskYielded", "SignalReceived"]
    assert await scene.value("select count(*) from holdfast.tasks") == 0


async def test_late_worker_is_refused_and_writes_nothing(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Traps 8 and 32, S12. The new attempt has the same input."""
    run_id = await start(scene.store, input='{"order": 7}')
    stale = await ann.take()
    await expire(scene, run_id)
    fresh = await bob.take()
    before = await log(scene.store, run_id)
    beyond = fresh.log_length  # the late worker has read its own WorkerLost
    for part in (turn(stale), turn(stale, expected=beyond), yielded(stale, expected=beyond)):
        refused = (await scene.store.commit("ann", run_id, [part])).refused
        assert refused[run_id].reason == "lost"
    assert (await ann.refusal(stale)).tail == before[1:]
    assert await log(scene.store, run_id) == before
    assert before[0].details == '{"order": 7}'
    assert (fresh.attempts, fresh.lease_no) == (2, 2)
    assert not (await bob.commit(fresh)).refused


async def test_worker_lost_lands_behind_a_late_checkpoint(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Traps 8 and 32. The claim tries again, and says how long the log is with both."""
    run_id = await start(scene.store)
    stale = await ann.take()
    await expire(scene, run_id)
    session = await scene.session()
    checkpoint = session.transaction()
    await checkpoint.start()
    await session.commit("ann", turn(stale))
    fresh = await scene.while_blocked(bob.take(), checkpoint.commit)
    assert await log_types(scene.store, run_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "WorkerLost",
    ]
    assert (fresh.log_length, fresh.lease_no, fresh.attempts) == (3, 2, 1)


async def test_worker_lost_of_another_task_leaves_the_turn_alone(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 32. A task other than the turn loses its worker; the turn's holder continues."""
    run_id = await start(scene.store)
    task = await ann.take()
    lost = json.dumps({"task_key": "render", "lease_no": 9, "worker": "eve"})
    await scene.watcher.call(
        "_append", *[await scene.value("select holdfast.now()"), run_id, "WorkerLost", lost]
    )
    refusal = await ann.refusal(task)
    assert (refusal.reason, len(refusal.tail)) == ("conflict", 1)
    assert not (await ann.commit(task, expected=2)).refused


async def test_parallel_signals_leave_no_gap_and_no_duplicate(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 14. Fifty at once, while the run's worker appends as well."""
    run_id = await start(scene.store)
    task = await ann.take()

    async def work() -> int:
        expected, written = task.log_length, 0
        while written < 20:
            answer = (await ann.commit(task, expected=expected)).refused.get(run_id)
            written += answer is None
            expected += 1 if answer is None else len(answer.tail)
        return written

    sent = [signal(scene.store, run_id, payload=str(number)) for number in range(50)]
    outcomes, written = await asyncio.gather(asyncio.gather(*sent), work())
    assert {outcome for outcome, _ in outcomes} == {"delivered"}
    assert await scene.idx(run_id) == list(range(1 + 50 + written))
    signals = [e for e in await log(scene.store, run_id) if e.type == "SignalReceived"]
    payloads = {json.loads(event.details or "")["input"] for event in signals}
    assert payloads == set(range(50))


async def test_parallel_starts_with_one_key_make_one_run(scene: Scene) -> None:
    """Trap 14, B5. The first input stays."""
    run_id = keyed_run_id("order", "7")
    runs = [new_run(run_id=run_id, key="7", input=str(number)) for number in range(50)]
    answers = await asyncio.gather(*(scene.store.start_runs([run]) for run in runs))
    created = [number for number, ([answer], _) in enumerate(answers) if answer.created]
    assert len(created) == 1
    assert (await log(scene.store, run_id))[0].details == str(created[0])
    assert await scene.idx(run_id) == [0]


async def test_two_engines_that_advance_one_run_cannot_corrupt_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """S5, T1. One wins, the other is told what stands there, and has written nothing."""
    run_id = await start(scene.store)
    task = await ann.take()
    first, second = step("charge"), step("ship")
    session = await scene.session()
    winning = session.transaction()
    await winning.start()
    await session.commit("ann", turn(task, first))
    assert (await ann.refusal(task, second, second)).reason == "busy"
    await winning.commit()
    assert await ann.refusal(task, second, second) == Refusal("conflict", [first])
    assert (await log(scene.store, run_id))[1:] == [first]


async def test_undone_commit_leaves_neither_event_nor_end(scene: Scene, ann: ManualWorker) -> None:
    """S4. The event stands in the log if and only if its side effects are stored."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    undone = session.transaction()
    await undone.start()
    await session.commit("ann", finished(task))
    await undone.rollback()
    run = (await scene.store.get_runs([run_id]))[run_id]
    assert (run.state, await scene.idx(run_id)) == ("running", [0])
    await ann.finish(task)
    run = (await scene.store.get_runs([run_id]))[run_id]
    assert (run.state, await scene.idx(run_id)) == ("completed", [0, 1])


async def test_one_timer_fires_once_for_many_engines(scene: Scene) -> None:
    """S8. Whatever comes due is leased to one of them."""
    workers = [ManualWorker(scene.store, f"worker-{number}") for number in range(6)]
    for _ in range(40):
        await start(scene.store)
        claims: list[Claims] = await asyncio.gather(*(worker.claim() for worker in workers))
        assert [len(claim.tasks) for claim in claims].count(1) == 1
        assert sum(len(claim.tasks) for claim in claims) == 1


async def test_claims_at_the_same_moment_share_what_is_due(scene: Scene) -> None:
    """T8. A claim that finds the oldest tasks locked takes the next ones."""
    await scene.store.start_runs([new_run() for _ in range(40)])
    session = await scene.session()
    async with session.transaction():
        held = await session.call("claim_tasks", "ann", ["default"], ["order@1"], 20, 30.0)
        bob = await ManualWorker(scene.store, "bob").claims(limit=20)
        assert len(bob) == 20
        assert not {row["run_id"] for row in held} & set(bob)


async def test_nothing_is_dispatched_for_a_finished_run(scene: Scene, ann: ManualWorker) -> None:
    """S11. The end takes all the run's tasks with it."""
    run_id = await start(scene.store)
    task = await ann.take()
    await scene.value(
        "insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at) "
        "values ($1, 'render', 'activity', 'default', 'order@1', 2, holdfast.now())",
        run_id,
    )
    await ann.finish(task)
    assert await ann.claims() == []
    assert await scene.value("select count(*) from holdfast.tasks") == 0


async def test_heartbeat_passes_over_a_locked_row(scene: Scene, ann: ManualWorker) -> None:
    """T8. An open transaction elsewhere must not let the other leases run out."""
    await scene.store.start_runs([new_run(), new_run()])
    first, second = (await ann.claim(lease_seconds=20.0)).tasks
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [first.run_id])
        answer = await ann.beat(lease_of(first), lease_of(second), lease_seconds=60.0)
    assert answer.lost == []
    renewed = "select run_id from holdfast.tasks where visible_at > holdfast.now() + '30 s'"
    assert await scene.value(renewed) == second.run_id


async def test_batches_that_lock_in_opposite_orders_do_not_deadlock(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. A bulk signal waits behind a suspend, a checkpoint behind the signal."""
    await scene.store.start_runs([new_run() for _ in range(3)])
    tasks = sorted((await ann.claim()).tasks, key=lambda task: task.run_id)
    low, middle, high = tasks
    first, second = await scene.session(), await scene.session()
    suspending, signalling = first.transaction(), second.transaction()
    await suspending.start()
    await first.commit("ann", yielded(high, "packed"), turn(low))
    await signalling.start()
    runs = [high.run_id, middle.run_id, low.run_id]
    signalled = asyncio.create_task(
        second.call("signal_runs", runs, ["packed"] * 3, ["1"] * 3, [None] * 3)
    )
    await scene.until_blocked()
    checkpoint = await scene.store.commit("ann", high.run_id, [turn(middle)])
    assert not checkpoint.refused
    await suspending.commit()
    [row] = await signalled
    assert row["outcomes"] == ["delivered"] * 3
    await signalling.commit()
    assert [await scene.idx(run_id) for run_id in runs] == [[0, 1, 2]] * 3


async def test_crowded_batches_do_not_deadlock(scene: Scene, ann: ManualWorker) -> None:
    """Trap 31. Suspends, claims, checkpoints and bulk signals over the same runs."""
    runs = [new_run() for _ in range(30)]
    await scene.store.start_runs(runs)
    run_ids = [run.run_id for run in runs]

    async def signals(reverse: bool) -> None:
        for _ in range(15):
            ordered = sorted(run_ids, reverse=reverse)
            answer: Delivered = await scene.store.signal_runs(
                [NewSignal(run_id, "packed") for run_id in ordered]
            )
            assert answer.outcomes == ["delivered"] * 30

    async def turns(worker: ManualWorker, reverse: bool) -> None:
        for _ in range(15):
            claims = await worker.claim(
                limit=20, lease_seconds=0.0, sticky_seconds=0.0, max_attempts=1000
            )
            # A lease of no length may be over before the claim's last search: it finds it again.
            latest = {task.run_id: task for task in claims.tasks}.values()
            tasks = sorted(latest, key=lambda task: task.run_id, reverse=reverse)
            parts = [turn(t) if n % 2 else yielded(t, "packed") for n, t in enumerate(tasks)]
            if parts:
                await scene.store.commit(worker.worker_id, parts[0].run_id, parts)

    crowd = [ManualWorker(scene.store, f"worker-{number}") for number in range(4)]
    await asyncio.gather(
        signals(True),
        signals(False),
        *(turns(worker, number % 2 == 0) for number, worker in enumerate(crowd)),
    )
    await scene.value("select pg_stat_clear_snapshot()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await scene.value(deadlocks) == 0
    for run_id in run_ids:
        places = await scene.idx(run_id)
        assert places == list(range(len(places)))


async def test_a_client_that_goes_does_not_wait_for_ends_that_tell_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. The ends of runs drop the same registrations, in an order of their own."""
    runs = [new_run(waiter="client/1") for _ in range(2)]
    await scene.store.start_runs(runs)
    session = await scene.session()
    async with session.transaction():
        await session.call("terminate_runs", [runs[1].run_id], None)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scene.store.forget_waits("client/1")
    assert await scene.value("select count(*) from holdfast.waiters") == 0


async def test_serialization_failure_of_a_stricter_caller_may_be_repeated(scene: Scene) -> None:
    """Storage rule 7. A start that lost a race inside a REPEATABLE READ transaction."""
    run = new_run()
    session = await scene.session()
    strict = session.connection.transaction(isolation="repeatable_read")
    await strict.start()
    await session.connection.fetchval("select count(*) from holdfast.runs")
    await scene.store.start_runs([run])
    statement = start_statement([run])
    with pytest.raises(TransientDatabaseError), translated():
        await session.connection.fetch(statement.text, *statement.arguments)
    await strict.rollback()
    assert await log_types(scene.store, run.run_id) == ["WorkflowStarted"]


async def test_a_signal_that_races_the_start_of_its_run_is_not_told_that_it_has_ended(
    scene: Scene,
) -> None:
    """It may look for the turn before the start commits, and for the run after that."""
    for _ in range(100):
        run = new_run()
        _, (outcome, _) = await asyncio.gather(
            scene.store.start_runs([run]), signal(scene.store, run.run_id)
        )
        assert outcome in ("delivered", "missing")
    query = "select holdfast._absence($1)"
    assert await scene.value(query, run.run_id) == "missing"
    await scene.store.terminate_runs([run.run_id])
    assert await scene.value(query, run.run_id) == "ended"
