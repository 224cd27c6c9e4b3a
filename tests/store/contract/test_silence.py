"""Silence: which workers are gone, and who may say so."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.insight.doctor import check_unserved
from holdfast.insight.serving import read_served
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, FlowShape, NewRun, Notice, Release, StepShape

from .actors import ManualWorker, details, get, lease_of, log, log_types, start, step
from .commands import FAILURE, RESIZE, activity, ordered
from .flow_actors import NO_LUCK, end

BEAT = 2.0
SILENT = 8.0


@pytest.fixture
def eve(store: Store) -> ManualWorker:
    """Return a third worker."""
    return ManualWorker(store, "eve")


async def listen(
    clock: Clock, seconds: float, *workers: ManualWorker, hosts: dict[str, str] | None = None
) -> None:
    """Let time pass in which only these workers are heard."""
    for _ in range(round(seconds / BEAT)):
        await clock.advance(BEAT)
        for worker in workers:
            await worker.beat(hostname=(hosts or {}).get(worker.worker_id, "host"))


async def reap(store: Store, observer: ManualWorker) -> list[str]:
    """Forget who is silent in the eyes of a worker."""
    gone, _ = await store.reap_workers(observer=observer.worker_id, silent_seconds=SILENT)
    return gone


async def hold(
    store: Store, clock: Clock, holder: ManualWorker, *others: ManualWorker
) -> ClaimedTask:
    """Let workers be heard for a minute, and one of them claim a run."""
    await start(store)
    await holder.beat()
    for other in others:
        await other.beat()
    await listen(clock, 60, holder, *others)
    return await holder.take()


async def test_tasks_of_a_silent_worker_are_due_at_once(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, S15. Noticed before the lease ends; the lost worker is fenced like any other."""
    task = await hold(store, clock, ann, bob)
    await listen(clock, SILENT, bob)
    assert await reap(store, bob) == []
    assert await bob.claims() == []
    await listen(clock, BEAT, bob)
    gone, notices = await store.reap_workers(observer="bob", silent_seconds=SILENT)
    assert (gone, notices) == (["ann"], [Notice("work", "default")])
    assert [info.worker_id for info in await store.list_workers()] == ["bob"]
    again = await bob.take()
    assert (again.run_id, again.attempts) == (task.run_id, 2)
    assert (await ann.refusal(task)).reason == "lost"
    assert (await log_types(store, task.run_id)) == ["WorkflowStarted", "WorkerLost"]


async def test_a_named_worker_is_reaped_though_it_spoke(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id = await start(store)
    await ann.beat()
    await ann.take()
    gone, _ = await store.reap_workers(worker_ids=["ann"])
    assert gone == ["ann"]
    assert await bob.claims() == [run_id]


async def test_after_an_absence_of_the_database_every_worker_is_heard_before_any_is_judged(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. The first to look finds all the others silent, and all their leases run out."""
    task = await hold(store, clock, ann, bob)
    await clock.advance(600)
    for asked in range(3):
        assert await reap(store, bob) == []
        assert await bob.claims() == []
        assert await ann.claims() == [], "not even its own"
        if asked == 0:
            await bob.beat()
        await clock.advance(1)
    assert (await ann.beat(lease_of(task))).lost == []
    await listen(clock, 20, ann, bob)
    assert await reap(store, bob) == []
    assert await log_types(store, task.run_id) == ["WorkflowStarted"]
    assert not (await ann.commit(task, step())).refused


async def test_a_worker_that_does_not_return_after_an_absence_is_reaped_then(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, trap 10. Its runs are not blamed for it."""
    task = await hold(store, clock, ann, bob)
    await clock.advance(600)
    await bob.beat()
    await listen(clock, SILENT - BEAT, bob)
    assert await reap(store, bob) == []
    await listen(clock, BEAT, bob)
    assert await reap(store, bob) == ["ann"]
    again = await bob.take()
    assert (again.run_id, again.attempts) == (task.run_id, 1)


async def test_many_absences_of_the_database_are_no_poison(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. Each time the holder is really gone."""
    task = await hold(store, clock, ann, bob)
    holder, other = ann, bob
    for _ in range(7):
        await clock.advance(60)
        await other.beat()
        await listen(clock, SILENT, other)
        assert await reap(store, other) == [holder.worker_id]
        holder, other = other, holder
        assert await holder.claims() == [task.run_id]
        await other.beat()
        await listen(clock, 20, other, holder)
        await holder.beat()
    assert (await get(store, task.run_id)).status == "running"


async def test_losses_one_by_one_are_poison(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. The run may have caused each of them."""
    task = await hold(store, clock, ann, bob)
    for number in range(4):
        await listen(clock, SILENT + BEAT, bob)
        assert await reap(store, bob) == ["ann" if number == 0 else f"ann-{number}"]
        ann = ManualWorker(store, f"ann-{number + 1}")
        await ann.beat()
        assert await ann.claims() == [task.run_id]
    await listen(clock, SILENT + BEAT, bob)
    assert await reap(store, bob) == ["ann-4"]
    assert await bob.claims() == []
    assert (await get(store, task.run_id)).status == "failed"


@pytest.mark.parametrize(("hosts", "attempts"), [(2, 1), (1, 2)])
async def test_workers_of_several_hosts_that_fall_silent_at_once_are_no_runs_fault(
    store: Store,
    clock: Clock,
    ann: ManualWorker,
    bob: ManualWorker,
    eve: ManualWorker,
    hosts: int,
    attempts: int,
) -> None:
    """Trap 10. A run may take its host along, and no other."""
    names = {"ann": "one", "eve": "two" if hosts == 2 else "one", "bob": "three"}
    await start(store)
    for worker in (ann, bob, eve):
        await worker.beat()
    await listen(clock, 20, ann, bob, eve, hosts=names)
    task = await ann.take()
    await listen(clock, BEAT, eve, bob, hosts=names)
    await listen(clock, SILENT, bob, hosts=names)
    assert await reap(store, bob) == [], "they are judged together"
    await listen(clock, BEAT, bob, hosts=names)
    assert await reap(store, bob) == ["ann", "eve"]
    again = await bob.take()
    assert (again.run_id, again.attempts) == (task.run_id, attempts)


async def test_losses_that_no_run_caused_do_not_fail_a_step_of_a_flow(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker, eve: ManualWorker
) -> None:
    """The fourth loss fails a step; a database that is restarted each night is not its fault."""
    shape = FlowShape(name="shop/long", steps=(StepShape(slug="a"),))
    await store.ensure_flow(shape, "hash")
    await store.start_flows([NewRun(run_id=uuid4(), name=shape.name)])
    names = {"ann": "one", "eve": "two", "bob": "three"}
    for _ in range(6):
        for worker in (ann, bob, eve):
            await worker.beat(hostname=names[worker.worker_id])
        await listen(clock, 20, ann, bob, eve, hosts=names)
        [task] = await claim(store, "ann", shape)
        await listen(clock, BEAT, eve, bob, hosts=names)
        await listen(clock, SILENT + BEAT, bob, hosts=names)
        assert await reap(store, bob) == ["ann", "eve"]
        [task] = await claim(store, "bob", shape)
        assert task.attempts == 1
        await store.release_tasks("bob", [Release(task.run_id, task.key, task.lease_no)])


async def claim(store: Store, worker_id: str, shape: FlowShape) -> list[ClaimedTask]:
    """Claim a task of a flow's step."""
    claims = await store.claim_tasks(
        worker_id, ["default"], [shape.handler], 1, lease_seconds=1000, sticky_seconds=0
    )
    return claims.tasks


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_a_step_that_ends_after_its_worker_was_believed_lost_counts_its_attempts(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker, outcome: str, is_heard: bool
) -> None:
    """The worker was away with the database; no other has taken the second attempt over."""
    shape = FlowShape(name="shop/late", steps=(StepShape(slug="a"),), max_attempts=2, base_delay=0)
    await store.ensure_flow(shape, "hash")
    run = NewRun(run_id=uuid4(), name=shape.name)
    await store.start_flows([run])
    for worker in (ann, bob):
        await worker.beat()
    await listen(clock, 20, ann, bob)
    [task] = await claim(store, "ann", shape)
    ends = [end(task, error=NO_LUCK)]
    assert (await store.end_step_tasks("ann", ends)).outcomes == ["retried"]
    await clock.advance(1)
    [task] = await claim(store, "ann", shape)
    assert task.attempts == 2
    await clock.advance(600)
    await bob.beat()
    await listen(clock, SILENT, bob)
    assert await reap(store, bob) == ["ann"]
    if is_heard:
        assert (await ann.beat(lease_of(task))).lost == []
    last = end(task, error=NO_LUCK) if outcome == "failed" else end(task, 1)
    assert (await store.end_step_tasks("ann", [last])).outcomes == ["recorded"]
    ended = await get(store, task.run_id)
    [state] = (await store.flow_steps([task.run_id]))[task.run_id]
    assert (ended.status, state.status) == (outcome, outcome)
    counted = json.loads(ended.error)["attempts"] if ended.error else state.attempts
    assert counted == 2


async def test_an_activity_that_ends_after_its_worker_was_believed_lost_counts_its_attempts(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Its policy allows two attempts: a failure of the second is the last."""
    run_id = await ordered(store, ann, activity(retry={"attempts": 2, "base": 0.0}))
    for worker in (ann, bob):
        await worker.beat()
    await listen(clock, 20, ann, bob)
    task = await ann.take(handlers=RESIZE)
    assert (await ann.end(task, error=FAILURE)).outcomes == ["retried"]
    await clock.advance(1)
    task = await ann.take(handlers=RESIZE)
    await clock.advance(600)
    await bob.beat()
    await listen(clock, SILENT, bob)
    assert await reap(store, bob) == ["ann"]
    assert (await ann.end(task, error=FAILURE)).outcomes == ["recorded"]
    last = (await log(store, run_id))[-1]
    assert (last.type, details(last)["attempt"]) == ("ActivityFailed", 2)


async def test_a_worker_that_has_just_come_judges_nobody(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. It does not know whether the database was away; so the others get their time."""
    task = await hold(store, clock, ann)
    await clock.advance(600)
    await bob.beat()
    assert (await reap(store, bob), await bob.claims()) == ([], [])
    await listen(clock, SILENT, bob)
    assert await reap(store, bob) == ["ann"]
    assert await bob.claims() == [task.run_id]


async def test_a_worker_that_is_away_judges_nobody(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker, eve: ManualWorker
) -> None:
    """S12. The database was away from some workers only; they come back one by one."""
    task = await hold(store, clock, ann, bob, eve)
    await clock.advance(SILENT + 1)
    await eve.beat()
    assert await reap(store, bob) == []
    await bob.beat()
    assert (await reap(store, eve), await reap(store, bob)) == ([], [])
    assert (await ann.beat(lease_of(task))).lost == []


async def test_a_lease_that_its_holder_does_not_name_runs_out_between_outages(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12, S15. Each outage is a gap for all, and they come more often than a lease is long."""
    task = await hold(store, clock, ann, bob)
    for _ in range(3):
        await clock.advance(SILENT)
        await ann.beat()
        await bob.beat()
        assert await bob.claims() == []
        await listen(clock, SILENT, ann, bob)
    assert await bob.claims() == [task.run_id]
    assert (await log_types(store, task.run_id)) == ["WorkflowStarted", "WorkerLost"]


async def test_a_holder_that_returns_after_an_outage_keeps_the_leases_that_it_names(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S12. It is late: until it names them, it has not been heard long enough to be judged."""
    task = await hold(store, clock, ann, bob)
    await clock.advance(600)
    await listen(clock, SILENT - BEAT, bob)
    assert await bob.claims() == []
    for _ in range(10):
        assert (await ann.beat(lease_of(task))).lost == []
        await bob.beat()
        assert await bob.claims() == []
        await clock.advance(BEAT)


async def test_a_lease_that_its_living_holder_does_not_name_runs_out(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Storage rule 10. The answer to the claim was lost."""
    task = await hold(store, clock, ann, bob)
    await listen(clock, 28, ann, bob)
    assert await bob.claims() == []
    await listen(clock, BEAT, ann, bob)
    assert await bob.claims() == [task.run_id]


async def test_what_only_a_silent_worker_serves_is_not_served_but_listed(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Where no other worker judges, it stays signed on."""
    await ann.beat(queues=("default", "mail"), handlers=("order@1",))
    await start(store)
    assert await store.unserved() == []
    await clock.advance(SILENT + 1)
    waiting = [("default", "order@1", 1)]
    assert await store.unserved() == waiting
    assert await store.unserved(silent_seconds=None) == []
    queues = {each.name: each for each in await read_served(store, "queue")}
    assert {name: (each.workers, each.unserved) for name, each in queues.items()} == {
        "default": (0, 1),
        "mail": (0, 0),
    }
    assert [each.name for each in await read_served(store, "workflow")] == ["order"]
    assert (await check_unserved(store)).level == "warn"
    await ann.beat(queues=("default", "mail"), handlers=("order@1",))
    assert await store.unserved() == []
    assert [each.workers for each in await read_served(store, "queue")] == [1, 1]
