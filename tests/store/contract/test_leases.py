"""Leases: how they end, and what becomes of the holder."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ActivityEnd, ClaimedTask, Finish, Notice, Suspend, ThreadUse

from .actors import (
    SECOND,
    ManualWorker,
    details,
    get,
    lease_of,
    log,
    log_types,
    lose,
    signal,
    start,
    step,
)
from .commands import RESIZE, activity, ordered


async def test_a_lease_that_ran_out_is_fenced_in_the_log(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, trap 8. The new holder has the same input; the log says who lost which lease."""
    run_id = await start(store, input="7", timeout_seconds=600.0)
    lost = await lose(clock, ann)
    task = await bob.take()
    assert (task.run_id, task.lease_no, task.attempts) == (run_id, lost.lease_no + 1, 2)
    assert (task.log_length, task.started_at) == (2, lost.started_at)
    started, fence = await log(store, run_id)
    assert started.details == "7"
    assert (fence.type, fence.at) == ("WorkerLost", await store.now())
    assert details(fence) == {"task_key": "", "lease_no": lost.lease_no, "worker": "ann"}


async def test_a_stale_worker_is_refused_and_writes_nothing(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S5, S12, trap 8. Not a checkpoint, not a suspend, not an end."""
    run_id = await start(store)
    stale = await lose(clock, ann)
    await bob.take()
    for then in (None, Suspend(), Finish("completed", output="1")):
        refusal = await ann.refusal(stale, step(), then=then)
        assert [event.type for event in refusal.tail] == ["WorkerLost"]
    assert await log_types(store, run_id) == ["WorkflowStarted", "WorkerLost"]
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.status, run.wait.worker) == ("running", "bob")


async def test_a_stale_holder_that_has_read_its_own_loss_is_fenced(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 32. Knowing the log's length does not give the lease back."""
    run_id = await start(store)
    stale = await lose(clock, ann)
    await bob.take()
    for then in (None, Suspend(), Finish("completed", output="1")):
        assert (await ann.refusal(stale, step(), then=then, expected=2)).reason == "lost"
    assert await log_types(store, run_id) == ["WorkflowStarted", "WorkerLost"]


async def test_a_slow_holder_that_nobody_replaced_may_go_on(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await start(store)
    task = await lose(clock, ann)
    assert not (await ann.commit(task, step())).refused
    await ann.finish(task, expected=2)


async def test_an_expired_lease_is_still_a_lease_to_a_signal(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 32. A wake-up never touches a leased row: the next claim fences its holder."""
    run_id = await start(store)
    await ann.take(lease_seconds=10)
    await clock.advance(10)
    assert await signal(store, run_id) == ("delivered", [Notice("worker/ann", str(run_id))])
    await bob.take()
    assert (await log_types(store, run_id))[1:] == ["SignalReceived", "WorkerLost"]


async def test_a_run_that_eats_workers_fails(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """Trap 10. After the limit the claim fails the run, and other runs are untouched."""
    poison = await start(store, waiter="client/1")
    for attempt in (1, 2, 3):
        assert (await lose(clock, ann)).attempts == attempt
    healthy = await start(store)
    claims = await ann.claim(max_attempts=3)
    assert [task.run_id for task in claims.tasks] == [healthy]
    assert set(claims.notices) == {
        Notice("client/1", str(poison)),
        Notice("worker/ann", str(poison)),  # it may be slow, and not gone
    }

    run = await get(store, poison)
    assert (run.status, run.wait) == ("failed", None)
    assert run.completed_at == claims.now
    assert json.loads(run.error or "")["kind"] == "holdfast.PoisonedRun"
    assert (await log_types(store, poison))[-2:] == ["WorkerLost", "WorkflowFailed"]
    assert json.loads((await log(store, poison))[-1].details or "") == json.loads(run.error or "")
    assert await ann.claims() == []


async def test_a_worker_holds_one_run_at_a_time_that_has_lost_three(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. A run that eats its workers does not take along the runs beside it."""
    suspects = {await start(store) for _ in range(3)}
    for _ in range(3):
        assert set(await ann.claims(lease_seconds=10)) == suspects
        await clock.advance(10)
    healthy = await start(store)
    first = (await ann.claim()).tasks
    assert healthy in {task.run_id for task in first}
    assert len(first) == 2
    assert await ann.claims() == [], "it holds one already"
    (second,) = (await bob.claim()).tasks
    for task in (*first, second):
        worker = bob if task is second else ann
        await worker.finish(task, expected=task.log_length)
    assert len(await ann.claims()) == 1, "the first made way for the last"


async def make_suspects(clock: Clock, worker: ManualWorker, count: int) -> set[UUID]:
    """Start runs, and lose three workers that hold them all."""
    suspects = {await start(worker.store) for _ in range(count)}
    for _ in range(3):
        assert set(await worker.claims(lease_seconds=10)) == suspects
        await clock.advance(10)
    return suspects


async def test_a_suspect_that_makes_progress_makes_way_for_the_next(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. Its worker still has it: what it lost no longer counts."""
    suspects = await make_suspects(clock, ann, 3)
    first = await ann.take()
    await signal(store, first.run_id)
    assert await ann.claims() == [], "a signal is not its own progress"
    await ann.commit(first, step(), expected=first.log_length + 1)
    second = await ann.take()
    assert await ann.claims() == []
    await ann.suspend(second, until=await store.now() + 86_400 * SECOND)
    third = await ann.take()
    assert {first.run_id, second.run_id, third.run_id} == suspects


async def test_a_claim_says_if_there_are_suspects(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """So that their worker claims the next when one has made way, and does not ask before."""
    assert (await ann.claim(seeks_leases=True)).suspects is False
    await make_suspects(clock, ann, 2)
    for worker in (ann, ann, bob):
        assert (await worker.claim(seeks_leases=True)).suspects is True
    assert (await ann.claim(seeks_leases=True)).suspects is False, "each of the two has a worker"


async def test_an_activity_is_a_suspect_until_it_ends(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. Whatever its run does meanwhile."""
    patient = {"attempts": 9}
    run_id = await ordered(store, bob, activity("a", retry=patient), activity("b", retry=patient))
    asked: dict[str, Any] = {"handlers": RESIZE, "lease_seconds": 10}
    for _ in range(3):
        assert len((await ann.claim(**asked)).tasks) == 2
        await clock.advance(10)
    first = await ann.take(**asked)
    await store.cancel_runs([run_id])
    await bob.commit(await bob.take(), step())
    assert (await ann.claim(**asked)).tasks == []
    end = ActivityEnd(run_id=run_id, key=first.key, lease_no=first.lease_no, result="1")
    await store.end_activities("ann", [end])
    assert {first.key, (await ann.take(**asked)).key} == {"a", "b"}


async def test_a_suspect_counts_that_a_claim_does_not_ask_for(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. It runs on while its queue is paused, or while its worker has no room for more."""
    queues = ["fast", "slow"]
    for queue in queues:
        await start(store, queue=queue)
    for _ in range(3):
        assert len(await ann.claims(queues=queues, lease_seconds=10)) == 2
        await clock.advance(10)
    held = await ann.take(queues=["slow"])
    assert await ann.claims(queues=["fast"]) == []
    await store.set_pause("queue", "slow", paused=True)
    assert await ann.claims(queues=queues) == []
    await ann.finish(held, expected=held.log_length)
    assert len(await ann.claims(queues=queues)) == 1


async def test_a_poison_takes_none_of_fifty_innocent_suspects_along(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. Each time that it is taken over, it is the only suspect of its worker."""
    suspects = await make_suspects(clock, ann, 51)
    poison = sorted(suspects)[20]
    deaths = 0
    while (claims := await ann.claim(lease_seconds=10)).suspects or claims.notices:
        for task in claims.tasks:
            if task.run_id != poison:
                await ann.finish(task, expected=task.log_length)
                continue
            deaths += 1
            assert await ann.claims(lease_seconds=10) == [], "it is alone"
            await clock.advance(10)
    assert deaths == 2
    for run_id in suspects:
        status = (await get(store, run_id)).status
        assert status == ("failed" if run_id == poison else "completed")
        lost = (await log_types(store, run_id)).count("WorkerLost")
        assert lost == (5 if run_id == poison else 3)


async def test_a_claim_tells_the_deadline_of_a_run_that_begins(
    store: Store, ann: ManualWorker
) -> None:
    """S10. So that its worker ends it at its moment."""
    await start(store, timeout_seconds=5.0)
    task = await ann.take()
    assert task.deadline_at == await store.now() + 5 * SECOND


async def test_progress_restarts_the_count_of_attempts(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. A step that was recorded since the claim is progress."""
    await start(store)
    await lose(clock, ann)
    task = await ann.take(lease_seconds=10)
    assert task.attempts == 2
    await ann.commit(task, step())
    await clock.advance(10)
    assert (await ann.take()).attempts == 1


async def test_what_others_append_is_no_progress(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 10. Signals and cancels do not keep a poisoned run alive."""
    run_id = await start(store)
    for attempt in (1, 2):
        assert (await ann.take(lease_seconds=10)).attempts == attempt
        await signal(store, run_id)
        await store.cancel_runs([run_id])
        await clock.advance(10)
    assert await ann.claims(max_attempts=2) == []
    assert (await get(store, run_id)).status == "failed"


async def test_a_suspend_is_progress(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """Trap 10. A run that sleeps a hundred times is not poison."""
    await start(store)
    for _ in range(7):
        task = await ann.take(max_attempts=2)
        assert task.attempts == 1
        await ann.suspend(task, until=0)


async def test_a_heartbeat_renews_the_leases_it_names(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """T8, trap 24. What is renewed stays; what is not named runs out."""
    kept, dropped = [await start(store), await start(store)]
    tasks = {task.run_id: task for task in (await ann.claim(lease_seconds=10)).tasks}
    await bob.beat()
    for _ in range(6):
        await clock.advance(2)
        answer = await ann.beat(lease_of(tasks[kept]), lease_seconds=10)
        assert (answer.now, answer.lost, answer.unread) == (await store.now(), [], [])
        await bob.beat()
    assert await bob.claims(lease_seconds=10) == [dropped]


async def test_a_heartbeat_says_which_leases_are_lost(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 8. Also where the lease is the same worker's own newer one."""
    run_id = await start(store)
    first = await lose(clock, ann)
    await lose(clock, ann)
    assert (await ann.beat(lease_of(first))).lost == [(run_id, "")]
    await store.remove_worker("ann")
    third = await bob.take()
    await bob.finish(third)
    assert (await bob.beat(lease_of(third))).lost == [(run_id, "")]


async def test_a_heartbeat_renews_no_lease_of_another(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id = await start(store)
    task = await ann.take(lease_seconds=10)
    assert (await bob.beat(lease_of(task), lease_seconds=99)).lost == [(run_id, "")]
    await clock.advance(10)
    assert await bob.claims() == [run_id]


async def test_a_heartbeat_brings_news_of_unread_events(store: Store, ann: ManualWorker) -> None:
    """Trap 16. A cancel request reaches a worker inside a long step."""
    run_id = await start(store)
    task = await ann.take()
    await store.cancel_runs([run_id])
    assert (await ann.beat(lease_of(task, known=1))).unread == [run_id]
    assert (await ann.beat(lease_of(task, known=2))).unread == []


async def test_leases_and_timers_follow_the_stores_clock(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 21. A worker that believes it is an hour later changes neither."""
    run_id = await start(store)
    task = await ann.take(lease_seconds=10)
    an_hour_off = await store.now() + 3600 * SECOND
    answer = await ann.commit(task, step(at=an_hour_off))
    assert answer.now == await store.now()
    await clock.advance(9)
    assert await bob.claims() == []
    await clock.advance(1)
    assert await bob.claims() == [run_id]
    fence = (await log(store, run_id))[-1]
    assert (fence.type, fence.at) == ("WorkerLost", await store.now())


async def test_a_released_task_is_due_at_once_and_counts_no_attempt(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """T8. No event is written, and the other worker need not wait."""
    run_id = await start(store)
    task = await ann.take()
    assert await ann.release(task) == [Notice("work", "default")]
    assert (await get(store, run_id)).state == "queued"
    again = await bob.take()
    assert (again.attempts, again.lease_no) == (1, 2)
    assert await log_types(store, run_id) == ["WorkflowStarted"]


async def test_a_stuck_run_says_why_and_is_tried_again_later(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(store)
    task = await ann.take()
    retry_at = await store.now() + 5 * SECOND
    await ann.release(task, visible_at=retry_at, stuck="key charge: another fingerprint")
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.state, run.wait.visible_at) == ("stuck", retry_at)
    assert run.wait.stuck == "key charge: another fingerprint"
    assert await ann.claims() == []
    await clock.advance(5)
    await ann.suspend(await ann.take())
    healed = await get(store, run_id)
    assert healed.wait is not None
    assert (healed.state, healed.wait.stuck) == ("waiting", None)


async def test_only_the_holder_may_release(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 8."""
    run_id = await start(store)
    stale = await lose(clock, ann)
    current = await bob.take()
    assert await ann.release(stale) == []
    assert await bob.release(stale) == []
    assert (await get(store, run_id)).state == "running"
    await bob.finish(current)
    assert await bob.release(current) == []


async def test_a_released_lease_cannot_commit(store: Store, ann: ManualWorker) -> None:
    """Trap 26 at the store: another worker continues released runs."""
    run_id = await start(store)
    task = await ann.take()
    await ann.release(task)
    for then in (None, Suspend(), Finish("completed", output="1")):
        assert (await ann.refusal(task, step(), then=then)).reason == "lost"
    assert await log_types(store, run_id) == ["WorkflowStarted"]


async def test_workers_sign_on_are_heard_and_sign_off(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    await ann.beat()
    signed_on_at = await store.now()
    await clock.advance(5)
    await ann.beat(concurrency=20)
    await bob.beat()
    first, second = await store.list_workers()
    assert (first.worker_id, first.concurrency) == ("ann", 20)
    assert (first.hostname, first.pid, first.holdfast_version) == ("host", 1, "0")
    assert (first.queues, first.handlers) == (("default",), ("order@1",))
    assert (first.started_at, first.heard_at) == (signed_on_at, await store.now())
    assert second.worker_id == "bob"
    await store.remove_worker("ann")
    assert [info.worker_id for info in await store.list_workers()] == ["bob"]


async def test_a_beat_tells_how_the_worker_s_threads_are_used(
    store: Store, ann: ManualWorker
) -> None:
    for use in (None, ThreadUse(32, 0, 0, 0), ThreadUse(8, 8, 3, 40)):
        await ann.beat(threads=use)
        [known] = await store.list_workers()
        assert known.threads == use


async def test_a_beat_tells_which_queues_the_worker_consumes(
    store: Store, ann: ManualWorker
) -> None:
    """None is that of an earlier release, which does not say so."""
    for queues in (None, (), ("mails", "parcels")):
        await ann.beat(consumes=queues)
        [known] = await store.list_workers()
        assert known.consumes == queues


async def test_a_beat_tells_if_hints_reach_the_worker(store: Store, ann: ManualWorker) -> None:
    for hints in (None, True, False):
        await ann.beat(hints=hints)
        [known] = await store.list_workers()
        assert known.hints is hints


async def test_lease_numbers_only_grow(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """Trap 32. Neither a release nor a suspend nor a loss resets them."""
    await start(store)
    numbers: list[int] = []
    task = await ann.take()
    numbers.append(task.lease_no)
    await ann.release(task)
    task = await ann.take()
    numbers.append(task.lease_no)
    await ann.suspend(task, until=0)
    task = await lose(clock, ann)
    numbers.append(task.lease_no)
    numbers.append((await ann.take()).lease_no)
    assert numbers == [1, 2, 3, 4]


async def test_the_pause_of_a_stuck_run_doubles_with_each_try_of_any_worker(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The process that made a try may have ended by it; progress ends the series."""
    run_id = await start(store)
    for worker, pause in ((ann, 2), (bob, 4), (ann, 8)):
        await worker.release(await worker.take(), stuck="it spins")
        assert await due_after(store, run_id) == pause * SECOND
        await clock.advance(pause)
    for _ in range(8):
        await bob.release(await bob.take(), stuck="it spins")
        await clock.advance(300)
    assert await due_after(store, run_id) == 0
    task = await ann.take()
    await ann.suspend(task, until=await store.now())
    await ann.release(await ann.take(), stuck="it spins")
    assert await due_after(store, run_id) == 2 * SECOND


async def test_a_stuck_run_may_be_due_later_than_its_pause(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    at = await store.now() + 60 * SECOND
    await ann.release(await ann.take(), visible_at=at, stuck="it spins")
    assert await due_after(store, run_id) == 60 * SECOND


async def test_a_task_that_a_worker_cannot_read_is_due_when_that_worker_says(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Each time: a worker with newer code may know it, however often others had it before."""
    await ordered(store, ann, activity())
    for worker in (ann, bob, ann, bob):
        [task] = (await worker.claim(handlers=RESIZE)).tasks
        at = await store.now() + SECOND
        await worker.release(task, visible_at=at, stuck="it has no such code")
        assert (await worker.claim(handlers=RESIZE)).tasks == []
        await clock.advance(1)


async def due_after(store: Store, run_id: UUID) -> int:
    """Return after how many microseconds a run is due."""
    wait = (await get(store, run_id)).wait
    assert wait is not None
    return wait.visible_at - await store.now()


async def test_a_lease_that_its_worker_does_not_name_is_stray_after_a_while(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The answer to a claim was lost: a heartbeat renews the leases that its worker knows."""
    tasks: list[ClaimedTask] = []
    for worker in (ann, ann, bob):
        await start(store)
        tasks.append(await worker.take())
    known, lost, _ = tasks
    named = [lease_of(known)]

    async def strays() -> list[UUID]:
        found = await store.stray_leases("ann", named, lease_seconds=30.0, since_seconds=8.0)
        assert {each.lease_no for each in found} <= {lost.lease_no}
        return [each.run_id for each in found]

    assert await strays() == []
    await clock.advance(7)
    assert await strays() == []
    await clock.advance(2)
    assert await strays() == [lost.run_id]
    found = await store.stray_leases("ann", named, lease_seconds=30.0, since_seconds=8.0)
    await store.release_tasks("ann", found)
    assert await strays() == []
    again = await bob.take()
    assert (again.run_id, again.attempts, again.lease_no) == (lost.run_id, 1, lost.lease_no + 1)
    assert await log_types(store, lost.run_id) == ["WorkflowStarted"]
