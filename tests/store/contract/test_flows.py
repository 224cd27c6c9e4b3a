"""Runs of flows: their steps run in the order of their dependencies."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput, RunExists, UnknownFlow
from holdfast.types import NewRun

from .actors import SECOND, get, new_run, told
from .flow_actors import NAME, Flows, StepWorker, end, mapped, single


async def test_a_step_is_claimed_when_its_dependencies_have_ended(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        single("site"),
        single("mood", "site"),
        single("links", "site", wants_run=False),
        single("save", "mood", "links"),
        given={"url": "a"},
    )
    site = await worker.one()
    assert (site.key, site.kind, site.name, site.version) == ("site", "step", NAME, 1)
    assert site.payload == '{"run":{"url": "a"}}'
    assert (site.attempts, site.lease_no, site.log_length) == (1, 1, 1)
    assert await worker.complete(site, [1]) == "recorded"
    tasks = await worker.take()
    assert json.loads(tasks["mood"].payload or "") == {"run": {"url": "a"}, "site": [1]}
    assert json.loads(tasks["links"].payload or "") == {"site": [1]}
    assert await worker.complete(tasks["links"], {"n": 1}) == "recorded"
    assert await worker.take() == {}
    assert await flows.statuses(run_id) == {
        "site": "completed",
        "mood": "started",
        "links": "completed",
        "save": "created",
    }
    await worker.complete(tasks["mood"], "good")
    save = await worker.one()
    assert save.payload == '{"run":{"url": "a"},"links":{"n": 1},"mood":"good"}'
    await worker.complete(save, None)
    assert await flows.output(run_id) == {"save": None}
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted site",
        "FlowStepCompleted links",
        "FlowStepCompleted mood",
        "FlowStepCompleted save",
        "WorkflowCompleted",
    ]


async def test_a_claim_brings_the_key_and_the_headers_of_the_run(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.define(single("a"))
    await flows.start(key="k", headers={"traceparent": "00-ab"})
    task = await worker.one()
    assert (task.run_key, task.headers) == ("k", {"traceparent": "00-ab"})


async def test_a_flow_without_steps_completes_at_once(flows: Flows, clock: Clock) -> None:
    """Its waiter is not registered: the answer says that the run has ended."""
    await flows.define()
    run = NewRun(run_id=uuid4(), name=NAME, waiter="client/1")
    [started], notices = await flows.store.start_flows([run])
    assert (started.created, started.status, notices) == (True, "completed", [])
    assert await flows.output(run.run_id) == {}
    assert await flows.log(run.run_id) == ["WorkflowStarted", "WorkflowCompleted"]


async def test_a_waiter_is_told_of_the_end(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"))
    run_id = await flows.start(waiter="client/1")
    ended = await worker.report(end(await worker.one(), 7))
    assert ended.notices == [told("client/1", run_id, '{"a":7}')]


async def test_the_last_two_steps_may_end_in_one_call(flows: Flows, worker: StepWorker) -> None:
    """Two last siblings at once: each is counted, and the run ends once."""
    run_id = await flows.run_of(single("a"), single("b"), single("c", "a", "b"))
    tasks = await worker.take()
    await worker.report(end(tasks["b"], 2), end(tasks["a"], 1))
    assert json.loads((await worker.one()).payload or "") == {"run": None, "a": 1, "b": 2}
    assert (await flows.statuses(run_id))["c"] == "started"


async def test_a_repeated_end_changes_nothing(flows: Flows, worker: StepWorker) -> None:
    """Three times in three calls, and twice in one call: the first counts."""
    run_id = await flows.run_of(single("a"), single("b"), single("c", "a", "b"))
    tasks = await worker.take()
    outcomes = [await worker.complete(tasks["a"], n) for n in range(3)]
    assert outcomes == ["recorded", "lost", "lost"]
    twice = await worker.report(end(tasks["b"], 1), end(tasks["b"], 2))
    assert twice.outcomes == ["recorded", "lost"]
    await worker.complete(await worker.one())
    steps = await flows.steps(run_id)
    assert (steps["a"].output, steps["b"].output) == ("0", "1")


async def test_an_end_of_another_lease_is_lost(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    await flows.run_of(single("a"))
    task = await worker.one()
    assert await other.complete(task) == "lost"
    await worker.release(task)
    again = await other.one()
    assert (again.attempts, again.lease_no) == (1, 2)
    assert await worker.complete(task) == "lost"
    assert await other.complete(again) == "recorded"


async def test_a_run_that_exists_is_left_as_it_is(flows: Flows) -> None:
    """The same id and another input; also twice in one call."""
    await flows.define(single("a"))
    run = NewRun(run_id=uuid4(), name=NAME, input="1")
    answers, _ = await flows.store.start_flows([run, run])
    assert [answer.created for answer in answers] == [True, False]
    [again], notices = await flows.store.start_flows([NewRun(run_id=run.run_id, name=NAME)])
    assert (again.created, again.status, notices) == (False, "running", [])
    assert (await get(flows.store, run.run_id)).input == "1"


async def test_an_id_of_a_run_of_something_else_is_refused(flows: Flows) -> None:
    await flows.define(single("a"))
    workflow = new_run()
    await flows.store.start_runs([workflow])
    with pytest.raises(RunExists):
        await flows.store.start_flows([NewRun(run_id=workflow.run_id, name=NAME)])


async def test_a_flow_that_is_not_defined_is_refused(flows: Flows) -> None:
    await flows.define(single("a"))
    for name, version in ((NAME, 2), ("shop/other", 0), ("other", 0)):
        which = f"{name}@{version}" if version else name
        with pytest.raises(UnknownFlow, match=f"flow {which} does not exist: start a worker"):
            await flows.store.start_flows([NewRun(run_id=uuid4(), name=name, version=version)])


async def test_version_0_is_the_newest_and_the_app_may_be_left_out(
    flows: Flows, worker: StepWorker
) -> None:
    for version in (1, 2):
        await flows.define(single(f"a{version}"), version=version)
    run_id = await flows.start(name="trip", version=0)
    task = await worker.one(handlers=(f"{NAME}@2",))
    assert (task.run_id, task.key, task.name, task.version) == (run_id, "a2", NAME, 2)
    run = await get(flows.store, run_id)
    assert (run.full_name, run.version) == (NAME, 2)
    await flows.define(single("a"), name="bar/trip")
    with pytest.raises(InvalidInput):
        await flows.start(name="trip", version=0)


@pytest.mark.parametrize("given", [None, {}, "text", 1])
async def test_a_map_over_the_input_needs_an_array(flows: Flows, given: object) -> None:
    await flows.define(mapped("each"))
    with pytest.raises(InvalidInput):
        await flows.start(given)
    assert (await flows.store.get_runs([])) == {}


async def test_a_step_waits_for_its_start_delay(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    await flows.run_of(single("a", start_delay=5))
    claims = await worker.claims()
    assert (claims.tasks, claims.next_due_at) == ([], claims.now + 5 * SECOND)
    await clock.advance(5)
    assert (await worker.one()).key == "a"


async def test_a_step_may_have_a_queue_of_its_own(flows: Flows, worker: StepWorker) -> None:
    await flows.run_of(single("a", queue="gpu"), single("b"))
    assert list(await worker.take(queues=("gpu",))) == ["a"]
    assert list(await worker.take(queues=("default",))) == ["b"]


async def test_the_more_urgent_run_comes_first(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"))
    await flows.start(priority=3)
    urgent = await flows.start(priority=1)
    [task] = (await worker.claims(1)).tasks
    assert task.run_id == urgent


async def test_ends_of_one_call_are_in_the_log_in_their_order(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(*(single(slug) for slug in "abc"))
    tasks = await worker.take()
    await worker.report(*(end(tasks[slug]) for slug in "cab"))
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        *(f"FlowStepCompleted {slug}" for slug in "cab"),
        "WorkflowCompleted",
    ]


async def test_of_several_maps_that_refuse_an_input_the_first_is_named(flows: Flows) -> None:
    await flows.define(mapped("b"), mapped("a"))
    with pytest.raises(InvalidInput, match=r"step b of flow .* maps over the input"):
        await flows.start({"n": 1})
