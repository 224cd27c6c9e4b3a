"""Leases of tasks of steps: lost, given back, renewed, and handed over. P7, P8."""

from __future__ import annotations

import json

import pytest
from clocks import Clock

from holdfast.types import Lease, Notice, StepShape

from .actors import SECOND, ManualWorker
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single


async def lose(flows: Flows, clock: Clock) -> None:
    """Let all leases run out; the workers that claim after that judge the others lost."""
    await clock.advance(31)


@pytest.mark.parametrize("late_first", [False, True])
async def test_a_late_completion_counts_until_the_task_is_claimed_again(
    flows: Flows, worker: StepWorker, other: StepWorker, clock: Clock, late_first: bool
) -> None:
    """A reclaim against a late completion, in both orders."""
    run_id = await flows.run_of(single("a"))
    task = await worker.one()
    await lose(flows, clock)
    if late_first:
        assert await worker.complete(task, 1) == "recorded"
        assert await other.take() == {}
        assert await flows.output(run_id) == {"a": 1}
        return
    again = await other.one()
    assert (again.attempts, again.lease_no, again.log_length) == (2, 2, 2)
    assert await worker.complete(task, 1) == "lost"
    assert await other.complete(again, 2) == "recorded"
    assert await flows.output(run_id) == {"a": 2}
    lost = await flows.details(run_id, "WorkerLost")
    assert lost == [{"task_key": "a", "lease_no": 1, "worker": "ann"}]


@pytest.mark.parametrize("steps", [(single("a"),), (single("a"), single("b", "a"))])
async def test_a_worker_that_claims_its_own_task_again_ends_only_the_new_attempt(
    flows: Flows, worker: StepWorker, clock: Clock, steps: tuple[StepShape, ...]
) -> None:
    """F30. The attempt that it lost says no more, whether it ended well or not."""
    await flows.run_of(*steps)
    lost = await worker.one()
    await lose(flows, clock)
    again = await worker.one()
    assert (again.lease_no, lost.lease_no) == (2, 1)
    assert await worker.complete(lost, 1) == "lost"
    assert await worker.fail(lost, retryable=False) == "lost"
    assert await worker.complete(again, 2) == "recorded"


async def test_the_fourth_lost_lease_fails_the_task(
    flows: Flows, worker: StepWorker, other: StepWorker, clock: Clock
) -> None:
    """A lease that is lost counts as an attempt, but never exhausts a step by itself."""
    run_id = await flows.run_of(single("a", max_attempts=2), single("b", "a"))
    for attempt in range(1, 5):
        task = await (worker if attempt % 2 else other).one()
        assert (task.attempts, task.lease_no) == (attempt, attempt)
        await lose(flows, clock)
    claims = await worker.claims()
    assert claims.tasks == []
    assert Notice("worker/bob", f"{run_id} a") in claims.notices
    error = await flows.error(run_id)
    assert (error["kind"], error["attempts"], error["worker"]) == (
        "holdfast.errors.StepFailed",
        4,
        "bob",
    )
    assert error["cause"]["kind"] == "holdfast.errors.WorkerLost"
    assert len(await flows.details(run_id, "WorkerLost")) == 4
    assert await other.complete(task) == "lost"


async def test_a_task_that_was_lost_four_times_may_be_skipped(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(mapped("m", when_exhausted="skip"), single("z", "m"), given=[1])
    for _ in range(4):
        assert set(await worker.take()) == {"m:0"}
        await lose(flows, clock)
    await worker.claims()
    m = (await flows.steps(run_id))["m"]
    assert (m.status, m.skip_reason) == ("skipped", "handler_failed")
    assert list(await worker.take()) == ["z"]


async def test_failures_and_lost_leases_count_as_attempts_together(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(single("a", max_attempts=2, base_delay=0))
    await worker.one()
    await lose(flows, clock)
    assert await worker.fail(await worker.one()) == "recorded"
    assert (await flows.error(run_id))["attempts"] == 2


async def test_a_task_that_is_given_back_was_not_an_attempt(
    flows: Flows, worker: StepWorker, other: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(single("a"))
    task = await worker.one()
    await worker.release(task, visible_at=(await flows.store.now()) + 5 * SECOND)
    assert await worker.complete(task) == "lost"
    assert await other.take() == {}
    await clock.advance(5)
    again = await other.one()
    assert (again.attempts, again.lease_no) == (1, 2)
    assert (await flows.steps(run_id))["a"].worker == "bob"


async def test_a_heartbeat_renews_a_lease_and_keeps_details(
    flows: Flows, worker: StepWorker, ann: ManualWorker, clock: Clock
) -> None:
    await flows.run_of(single("a"))
    task = await worker.one()
    await clock.advance(20)
    lease = Lease(task.run_id, task.key, task.lease_no, task.log_length, '{"at":5}')
    assert (await ann.beat(lease)).lost == []
    await clock.advance(20)
    assert await worker.take() == {}
    await flows.store.reap_workers(worker_ids=["ann"])
    again = await worker.one()
    assert (again.attempts, json.loads(again.heartbeat or "")) == (2, {"at": 5})
    assert (await ann.beat(lease)).lost == [(task.run_id, "a")]


async def test_a_worker_that_is_gone_loses_its_tasks_at_once(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    await flows.run_of(single("a"))
    await worker.one()
    await flows.store.reap_workers(worker_ids=["ann"])
    assert (await other.one()).attempts == 2


async def test_what_becomes_ready_is_handed_to_the_caller(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    """Tasks come leased, as far as the caller has room; others are due."""
    await flows.define(single("a"), mapped("m", "a"), single("b", "a"))
    run_id = await flows.start(key="k", headers={"h": "1"})
    first = await worker.one()
    ended = await worker.report(end(first, [1, 2, 3]), taker=worker.taker(3))
    handed = {task.key: task for task in ended.tasks}
    assert set(handed) == {"b", "m:0", "m:1"}
    b = handed["b"]
    assert (b.run_id, b.kind, b.queue, b.name, b.version) == (run_id, "step", "default", NAME, 1)
    assert (b.attempts, b.lease_no, b.started_at, b.run_key) == (1, 1, ended.now, "k")
    assert (b.headers, b.payload) == ({"h": "1"}, '{"run":null,"a":[1, 2, 3]}')
    assert handed["m:1"].payload == "2"
    assert ended.notices == [Notice("work", "default")]
    assert list(await other.take()) == ["m:2"]
    assert (await flows.steps(run_id))["b"].worker == "ann"
    assert (await worker.report(*(end(task) for task in handed.values()))).outcomes == [
        "recorded"
    ] * 3


async def test_a_lost_answer_of_a_hand_over_costs_one_lease(
    flows: Flows, worker: StepWorker, other: StepWorker, clock: Clock
) -> None:
    await flows.run_of(single("a"), single("b", "a"))
    await worker.report(end(await worker.one()), taker=worker.taker(lease_seconds=10.0))
    assert await other.take() == {}
    await clock.advance(10)
    again = await other.one()
    assert (again.key, again.attempts, again.lease_no) == ("b", 2, 2)


async def test_only_what_the_caller_serves_and_what_is_due_is_handed_over(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.run_of(
        single("a"),
        single("far", "a", queue="gpu"),
        single("later", "a", start_delay=5),
        single("near", "a"),
    )
    ended = await worker.report(end(await worker.one()), taker=worker.taker())
    assert [task.key for task in ended.tasks] == ["near"]
    assert {notice.payload for notice in ended.notices} == {"default", "gpu"}
    assert list(await worker.take()) == ["far"]


@pytest.mark.parametrize("paused", ["run", "queue", "another workflow"])
async def test_nothing_is_handed_over_while_something_is_paused(
    flows: Flows, worker: StepWorker, paused: str
) -> None:
    run_id = await flows.run_of(single("a"), single("b", "a"))
    task = await worker.one()
    if paused == "run":
        await flows.store.pause_runs([run_id])
    elif paused == "queue":
        await flows.store.set_pause("queue", "default", paused=True)
    else:
        await flows.store.set_pause("workflow", "another", paused=True)
    ended = await worker.report(end(task), taker=worker.taker())
    assert (ended.outcomes, ended.tasks) == (["recorded"], [])


async def test_an_attempt_that_is_tried_again_is_not_handed_over(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.run_of(single("a", base_delay=0))
    ended = await worker.report(end(await worker.one(), error=NO_LUCK), taker=worker.taker())
    assert (ended.outcomes, ended.tasks) == (["retried"], [])
    assert (await worker.one()).attempts == 2
