"""Retries of runs of flows, which do what others lack, and deletions of flows with their runs."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import msgspec
import pytest

from holdfast.errors import FlowInUse, InvalidInput, UnknownFlow
from holdfast.types import NewSchedule, Notice, RunTarget, When

from .actors import SECOND, get, new_run
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single


async def retry(flows: Flows, run_id: UUID, from_step: str | None = None) -> UUID:
    new_run_id = uuid4()
    outcome, _ = await flows.store.retry_flow(run_id, new_run_id, from_step=from_step)
    assert outcome == "started"
    return new_run_id


async def stop(flows: Flows, *run_ids: UUID) -> None:
    await flows.store.terminate_runs(run_ids)


async def test_a_retry_does_what_a_failed_run_lacks(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(
        single("a"), single("b", "a", max_attempts=1), single("c", "b", wants_run=False), given=[1]
    )
    await worker.complete(await worker.one(), "from a")
    await worker.fail(await worker.one())
    second = await retry(flows, first)
    assert await flows.statuses(second) == {"a": "completed", "b": "created", "c": "created"}
    task = await worker.one()
    assert (task.run_id, task.payload) == (second, '{"run":[1],"a":"from a"}')
    await worker.complete(task, 2)
    await worker.complete(await worker.one(), 3)
    assert await flows.output(second) == {"c": 3}
    assert await flows.log(second) == [
        "WorkflowStarted",
        "WorkflowForked",
        "FlowStepCompleted b",
        "FlowStepCompleted c",
        "WorkflowCompleted",
    ]
    assert (await flows.steps(second))["a"] == msgspec.structs.replace(
        (await flows.steps(first))["a"], run_id=second
    )
    assert (await get(flows.store, first)).status == "failed"


async def test_a_retry_has_the_properties_of_the_run_but_not_its_key(flows: Flows) -> None:
    await flows.define(single("a"))
    properties = {"queue": "gpu", "priority": 1, "tags": ("t",), "headers": {"by": "ann"}}
    first = await flows.start([1], key="k", timeout_seconds=60.0, **properties)
    await stop(flows, first)
    second = await retry(flows, first)
    old, new = await get(flows.store, first), await get(flows.store, second)
    for name in ("kind", "full_name", "version", "input", *properties):
        assert getattr(old, name) == getattr(new, name), name
    assert (new.key, new.parent_run_id) == (None, None)
    assert new.deadline_at == new.created_at + 60 * SECOND
    [details] = await flows.details(second, "WorkflowForked")
    assert details == {"run_id": str(first), "idx": 2, "seed": str(first), "run_key": "k"}


async def test_what_cannot_be_retried_has_an_outcome(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(single("a"))
    ask, new = flows.store.retry_flow, uuid4()
    assert await ask(uuid4(), new) == ("missing", [])
    assert await ask(run_id, new) == ("running", [])
    await worker.complete(await worker.one())
    assert await ask(run_id, new) == ("running", [])
    assert await ask(run_id, new, from_step="b") == ("unknown_step", [])
    assert await ask(run_id, new, from_step="") == ("running", [])  # nothing failed
    assert await ask(run_id, run_id, from_step="a") == ("exists", [])
    assert (await ask(run_id, new, from_step="a"))[0] == "started"
    assert await ask(run_id, new, from_step="a") == ("exists", [])
    workflow = new_run()
    await flows.store.start_runs([workflow])
    with pytest.raises(InvalidInput):
        await ask(workflow.run_id, uuid4())


async def test_a_map_repeats_only_the_elements_that_have_no_result(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(mapped("m", max_attempts=1), mapped("n", "m"), given=[1, 2, 3])
    tasks = await worker.take()
    await worker.report(end(tasks["m:2"], 30), end(tasks["m:1"], error=NO_LUCK))
    second = await retry(flows, first)
    m = (await flows.steps(second))["m"]
    assert (m.status, m.initial_tasks, m.remaining_tasks) == ("started", 3, 2)
    assert await flows.details(second, "FlowStepStarted") == [{"tasks": 2}]
    tasks = await worker.take()
    assert {key: task.payload for key, task in tasks.items()} == {"m:0": "1", "m:1": "2"}
    await worker.report(end(tasks["m:0"], 10), end(tasks["m:1"], 20))
    tasks = await worker.take()
    assert [tasks[f"n:{place}"].payload for place in range(3)] == ["10", "20", "30"]
    await stop(flows, second)
    third = await retry(flows, second, "m")
    assert sorted(await worker.take()) == ["m:0", "m:1", "m:2"]
    assert (await flows.statuses(third)) == {"m": "started", "n": "created"}


async def test_a_step_runs_again_with_all_behind_it(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(
        single("a"), single("b", "a"), single("c", "a"), single("d", "b", "c")
    )
    for _ in range(3):
        for task in (await worker.take()).values():
            await worker.complete(task, task.key)
    assert await flows.output(first) == {"d": "d"}
    second = await retry(flows, first, "b")
    task = await worker.one()
    assert task.key == "b"
    await worker.complete(task, "again")
    assert (await worker.one()).payload == '{"run":null,"b":"again","c":"c"}'
    assert (await flows.statuses(second))["c"] == "completed"


async def test_what_a_cascade_skipped_stays_skipped(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(
        single("a"),
        single("b", required='{"go":true}', when_unmet="skip-cascade"),
        single("c", "a", "b"),
        single("d", "c"),
        single("e", "a"),
        given={},
    )
    await stop(flows, first)
    second = await retry(flows, first)
    await worker.complete(await worker.one(), "a")
    await worker.complete(await worker.one(), "e")
    assert await flows.output(second) == {"e": "e"}
    assert await flows.statuses(second) == {
        "a": "completed",
        "b": "skipped",
        "c": "skipped",
        "d": "skipped",
        "e": "completed",
    }
    assert await flows.output(await retry(flows, second, "d")) == {"e": "e"}


async def test_a_run_whose_shape_was_replaced_runs_from_the_beginning(
    flows: Flows, worker: StepWorker
) -> None:
    old = await flows.define(single("a"), single("b", "a"))
    first = await flows.start()
    await worker.complete(await worker.one(), 1)
    new = msgspec.structs.replace(old, steps=(single("a"), single("c", "a")))
    await flows.store.ensure_flow(new, "new", replace=True)
    second = await retry(flows, first)
    await worker.complete(await worker.one(), 2)
    assert (await worker.one()).payload == '{"run":null,"a":2}'
    assert await flows.statuses(second) == {"a": "completed", "c": "started"}


async def test_a_retry_of_a_run_that_is_older_than_its_flow_keeps_what_it_has(
    flows: Flows, worker: StepWorker
) -> None:
    run = new_run(name=NAME)  # by name: who starts it does not know what it is
    await flows.store.start_runs([run])
    await flows.clock.advance(1)
    await flows.define(single("a"), single("b", "a", max_attempts=1))
    turn = await worker.one()
    assert await flows.store.run_as_flow(worker.worker_id, run.run_id, turn.lease_no) is not None
    await worker.complete(await worker.one(), 1)
    await worker.fail(await worker.one())
    second = await retry(flows, run.run_id)
    assert await flows.statuses(second) == {"a": "completed", "b": "created"}


async def test_a_run_whose_new_shape_cannot_map_its_input_is_not_retried(flows: Flows) -> None:
    old = await flows.define(single("a"))
    first = await flows.start({"no": "array"})
    new = msgspec.structs.replace(old, steps=(mapped("m"),))
    await flows.store.ensure_flow(new, "new", replace=True)
    new_run_id = uuid4()
    with pytest.raises(InvalidInput, match="maps over the input"):
        await flows.store.retry_flow(first, new_run_id)
    assert await flows.store.get_runs([new_run_id]) == {}


async def test_nothing_is_left_of_a_flow_that_is_deleted(flows: Flows, worker: StepWorker) -> None:
    await flows.define(mapped("m"))
    await flows.define(single("a"), version=2)
    await flows.define(single("a"), name="shop/other")
    done, other = await flows.start([1]), await flows.start(name="shop/other")
    await worker.complete(await worker.one(), 1)
    assert (await flows.store.delete_flow("trip")).runs == 1
    assert [flow.name for flow in await flows.store.list_flows()] == ["shop/other"]
    assert list(await flows.store.get_runs([done, other])) == [other]
    assert await flows.store.read_events([(done, 0)]) == {done: []}
    assert await flows.store.flow_steps([done]) == {}
    with pytest.raises(UnknownFlow):
        await flows.start([1])
    assert (await flows.store.delete_flow(NAME)).runs is None


async def test_a_flow_with_open_runs_is_deleted_only_if_they_are_to_be_ended(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"))
    task = await worker.one()
    with pytest.raises(FlowInUse):
        await flows.store.delete_flow(NAME)
    assert (await get(flows.store, run_id)).status == "running"
    assert (await flows.store.delete_flow(NAME, terminate=True)).runs == 1
    assert await worker.complete(task) == "lost"
    assert await flows.store.get_runs([run_id]) == {}
    await flows.define(single("b"))
    assert json.loads((await get(flows.store, await flows.start(5))).input or "") == 5


async def test_a_deletion_tells_waiters_and_workers_of_runs_that_it_ends(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.define(single("a"))
    run_id = await flows.start(waiter="client/1")
    await worker.one()
    deleted = await flows.store.delete_flow(NAME, terminate=True)
    assert set(deleted.notices) == {
        Notice("client/1", str(run_id)),
        Notice("worker/ann", f"{run_id} a"),
    }


async def test_a_flow_that_others_run_is_deleted_only_if_forced(
    flows: Flows, worker: StepWorker
) -> None:
    """Steps of other flows, of a newest version or with open runs, and schedules are named."""
    pays = {"runs": f"{NAME}@1", "runs_kind": "flow"}
    await flows.define(single("a"))
    await flows.define(single("pay", **pays), name="shop/order")
    await flows.define(single("b"), name="shop/order", version=2)
    assert (await flows.store.delete_flow(NAME)).runs == 0  # an old version that nobody uses
    await flows.define(single("a"))
    await flows.define(single("first"), single("pay", "first", **pays), name="shop/parcel")
    await flows.store.create_schedule(
        NewSchedule(
            name="shop/nightly", when=When(cron="@daily"), target=RunTarget(kind="flow", name=NAME)
        )
    )
    users = r"step pay of flow shop/parcel@1, schedule shop/nightly\. Change or delete"
    with pytest.raises(FlowInUse, match=f"^flow {NAME} is still run by {users}"):
        await flows.store.delete_flow(NAME, terminate=True)
    run_id = await flows.start(name="shop/parcel")
    await flows.define(single("first"), name="shop/parcel", version=2)
    await flows.store.delete_schedule("shop/nightly")
    with pytest.raises(FlowInUse, match=r"is still run by step pay of flow shop/parcel@1\. Change"):
        await flows.store.delete_flow(NAME)  # its open run comes to that step
    assert (await flows.store.delete_flow(NAME, force=True)).runs == 0
    await worker.complete(await worker.one(handlers=("shop/parcel@1",)), 1)
    failed = await get(flows.store, run_id)
    assert failed.status == "failed"
    assert NAME in (failed.error or "")


async def test_a_deletion_ends_the_runs_that_begin_because_of_it(
    flows: Flows, worker: StepWorker
) -> None:
    """A map of another flow starts the next element for each that was terminated."""
    await flows.define(single("a"))
    each = mapped(
        "each",
        runs=f"{NAME}@1",
        runs_kind="flow",
        concurrency=1,
        max_attempts=1,
        tolerated_percent=100,
    )
    await flows.define(each, single("last", "each"), name="shop/order")
    run_id = await flows.start([1, 2, 3], name="shop/order")
    deleted = await flows.store.delete_flow(NAME, terminate=True, force=True)
    assert (deleted.runs, deleted.is_done) == (3, True)
    task = await worker.one(handlers=("shop/order@1",))
    assert (task.run_id, task.key) == (run_id, "last")
    assert (await flows.steps(run_id))["each"].failed_tasks == 3
