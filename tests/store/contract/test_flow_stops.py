"""Runs of flows that are stopped, paused and late, as other runs are."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.types import Fork, Notice, RunFilter

from .actors import get, signal
from .flow_actors import NAME, Flows, StepWorker, mapped, single


async def stop(flows: Flows, how: str, run_id: Any) -> tuple[str, list[Notice]]:
    call = flows.store.cancel_runs if how == "cancel" else flows.store.terminate_runs
    delivered = await call([run_id], reason="no")
    [outcome] = delivered.outcomes
    return outcome, list(delivered.notices)


STOPS = [
    ("cancel", "cancelled", ["WorkflowCancelRequested", "WorkflowCanceled"]),
    ("terminate", "terminated", ["WorkflowTerminated"]),
]


@pytest.mark.parametrize(("how", "status", "entries"), STOPS)
async def test_a_run_that_is_stopped_ends_at_once(
    flows: Flows, worker: StepWorker, how: str, status: str, entries: list[str]
) -> None:
    """The stop comes first: the holder is told, and its completion is lost."""
    run_id = await flows.run_of(single("a"), mapped("m"), single("c", "a", "m"), given=[1, 2])
    tasks = await worker.take(2)
    outcome, notices = await stop(flows, how, run_id)
    assert outcome == "delivered"
    assert {(n.topic, n.payload) for n in notices} == {
        ("worker/ann", f"{run_id} {key}") for key in tasks
    }
    assert (await get(flows.store, run_id)).status == status
    assert await flows.log(run_id) == ["WorkflowStarted", "FlowStepStarted m", *entries]
    for task in tasks.values():
        assert await worker.complete(task) == "lost"
    statuses = await flows.statuses(run_id)
    assert (statuses["m"], statuses["c"]) == ("started", "created")
    assert await worker.take() == {}
    assert (await stop(flows, how, run_id))[0] == "ended"


@pytest.mark.parametrize(("how", "status", "entries"), STOPS)
async def test_a_completion_before_the_stop_is_kept(
    flows: Flows, worker: StepWorker, how: str, status: str, entries: list[str]
) -> None:
    run_id = await flows.run_of(single("a"), single("b", "a"))
    task = await worker.one()
    await worker.complete(task)
    await stop(flows, how, run_id)
    assert await flows.statuses(run_id) == {"a": "completed", "b": "created"}
    assert (await get(flows.store, run_id)).status == status
    other = await flows.start()
    await worker.complete(await worker.one())
    await worker.complete(await worker.one())
    assert (await stop(flows, how, other))[0] == "ended"
    assert await flows.output(other) == {"b": None}


async def test_a_step_that_was_given_back_or_waits_to_be_tried_again_was_under_way(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"), single("b"), single("c"))
    tasks = await worker.take(2)
    await worker.fail(tasks["a"])
    await worker.release(tasks["b"])
    await stop(flows, "terminate", run_id)
    steps = await flows.steps(run_id)
    assert {slug: (s.status, s.worker) for slug, s in steps.items()} == {
        "a": ("started", None),
        "b": ("started", None),
        "c": ("created", None),
    }


async def test_a_run_past_its_deadline_is_timed_out(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    await flows.define(single("a"))
    run_id = await flows.start(timeout_seconds=10.0, waiter="client/1")
    task = await worker.one()
    await clock.advance(10)
    ended, _, notices = await flows.store.time_out_runs()
    assert ended == 1
    assert {(n.topic, n.payload) for n in notices} == {
        ("worker/ann", f"{run_id} a"),
        ("client/1", str(run_id)),
    }
    assert (await get(flows.store, run_id)).status == "timed_out"
    assert await worker.complete(task) == "lost"


async def test_nothing_of_a_paused_run_is_claimed(flows: Flows, worker: StepWorker) -> None:
    """What is under way is recorded; what it makes ready is paused too, until the run resumes."""
    run_id = await flows.run_of(single("a"), single("b"), single("c", "a"))
    task = (await worker.take(1))["a"]
    await flows.store.pause_runs([run_id])
    assert (await get(flows.store, run_id)).state == "running"
    assert await worker.complete(task) == "recorded"
    assert (await get(flows.store, run_id)).state == "paused"
    assert await worker.take() == {}
    resumed = await flows.store.resume_runs([run_id])
    assert Notice("work", "default") in resumed.notices
    assert sorted(await worker.take()) == ["b", "c"]
    assert (await flows.log(run_id))[1:4] == [
        "WorkflowPaused",
        "FlowStepCompleted a",
        "WorkflowResumed",
    ]


@pytest.mark.parametrize(("scope", "name"), [("queue", "default"), ("workflow", NAME)])
async def test_nothing_of_a_paused_queue_or_flow_is_claimed(
    flows: Flows, worker: StepWorker, scope: Any, name: str
) -> None:
    await flows.run_of(single("a"))
    await flows.store.set_pause(scope, name, paused=True)
    assert await worker.take() == {}
    await flows.store.set_pause(scope, name, paused=False)
    assert list(await worker.take()) == ["a"]


async def test_a_run_of_a_flow_is_listed_as_other_runs(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"))
    run_id = await flows.start({"n": 1}, tags=("x",), priority=1)
    run = await get(flows.store, run_id)
    assert (run.app, run.name, run.version, run.queue) == ("shop", "trip", 1, "default")
    assert (run.status, run.priority, run.started_at) == ("running", 1, run.created_at)
    assert run.wait is not None
    assert (run.wait.visible_at, run.wait.worker, run.wait.lease_no) == (None, None, 0)
    where = RunFilter(names=(NAME,), tags=("x",), input_contains='{"n":1}')
    page = await flows.store.list_runs(where)
    assert [found.run_id for found in page.runs] == [run_id]
    await worker.complete(await worker.one(), 1)
    run = await get(flows.store, run_id)
    assert (run.status, run.output, run.wait) == ("completed", '{"a":1}', None)


async def test_a_signal_to_a_run_of_a_flow_stays_in_its_log(
    flows: Flows, worker: StepWorker
) -> None:
    """Nobody reads it, and it wakes nobody."""
    run_id = await flows.run_of(single("a"))
    assert await signal(flows.store, run_id) == ("delivered", [])
    await worker.complete(await worker.one())
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        "SignalReceived",
        "FlowStepCompleted a",
        "WorkflowCompleted",
    ]


@pytest.mark.parametrize("retry", [False, True])
async def test_a_run_of_a_flow_is_not_forked(flows: Flows, retry: bool) -> None:
    run_id = await flows.run_of(single("a"))
    await stop(flows, "terminate", run_id)
    with pytest.raises(InvalidInput, match="is one of a flow"):
        await flows.store.fork_run(Fork(run_id=run_id, new_run_id=uuid4(), retry=retry))
