"""Steps of flows that are runs: of a workflow, or of another flow."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import WORK_TOPIC, Store
from holdfast.types import (
    ANY_END,
    ClaimedTask,
    DeclaredRules,
    Event,
    Finish,
    FlowShape,
    NewRun,
    Notice,
    Reschedule,
    RunFilter,
    StartRules,
    StepShape,
)
from holdfast.values.ids import keyed_run_id, step_run_id

from .actors import SECOND, ManualWorker, details, get, log, start
from .flow_actors import NAME, Flows, StepWorker, mapped, single
from .test_flow_children import with_child

FAILURE = '{"kind":"builtins.OSError","message":"boom"}'


def run_step(slug: str, *deps: str, **options: Any) -> StepShape:
    """Return a step that is a run of the workflow `order`."""
    return StepShape(
        slug=slug, deps=deps, **{"runs": "order@1", "runs_kind": "workflow", **options}
    )


async def child_of(store: Store, run_id: UUID, key: str, attempt: int = 1) -> Any:
    """Return the run that stands for a task."""
    created_at = (await get(store, run_id)).created_at
    return await get(store, step_run_id(run_id, key, attempt, created_at))


async def started(store: Store, worker: ManualWorker) -> dict[str | None, ClaimedTask]:
    """Claim runs of workflows, and return them by the tasks for which they stand."""
    tasks = (await worker.claim()).tasks
    return {(await get(store, task.run_id)).parent_key: task for task in tasks}


async def fail(worker: ManualWorker, task: ClaimedTask) -> None:
    """Let the run of a workflow fail."""
    event = Event("WorkflowFailed", None, None, 0)
    answer = await worker.commit(task, event, then=Finish("failed", error=FAILURE))
    assert not answer.refused, answer.refused


async def test_a_run_gets_the_output_before_it_and_its_output_is_the_steps(
    flows: Flows, store: Store, bob: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"), run_step("sub", "a"), single("z", "sub"))
    run_id = await flows.start(
        {"n": 1}, headers={"tenant": "acme"}, priority=1, retention_seconds=60.0
    )
    await worker.complete(await worker.one(), [10, 20])
    assert await worker.take() == {}
    child = await child_of(store, run_id, "sub")
    assert (child.parent_run_id, child.parent_key, child.kind) == (run_id, "sub", "workflow")
    assert (child.priority, child.headers, child.retention_seconds) == (1, {"tenant": "acme"}, 60.0)
    assert await flows.statuses(run_id) == {"a": "completed", "sub": "started", "z": "created"}
    task = await bob.take()
    assert (task.run_id, json.loads(task.input or "")) == (child.run_id, [10, 20])
    answer = await bob.finish(task, '"s"')
    assert answer.notices == [Notice("work", "default")]
    last = await worker.one()
    assert json.loads(last.payload or "") == {"run": {"n": 1}, "sub": "s"}
    await worker.complete(last, 1)
    assert await flows.output(run_id) == {"z": 1}
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted a",
        "FlowStepCompleted sub",
        "FlowStepCompleted z",
        "WorkflowCompleted",
    ]


async def test_a_root_run_gets_the_input_of_the_flow(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(run_step("sub"), given={"n": 1})
    task = await bob.take()
    assert json.loads(task.input or "") == {"n": 1}
    await bob.finish(task, "2")
    assert await flows.output(run_id) == {"sub": 2}


async def test_each_element_of_a_map_may_be_a_run(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(
        mapped("each", runs="order@1", runs_kind="workflow"), given=[1, 2, 3]
    )
    tasks = (await bob.claim()).tasks
    assert sorted(json.loads(task.input or "") for task in tasks) == [1, 2, 3]
    for task in tasks:
        await bob.finish(task, str(10 * json.loads(task.input or "")))
    assert await flows.output(run_id) == {"each": [10, 20, 30]}


async def test_two_runs_may_end_in_one_commit(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(run_step("a"), run_step("b"), given=1)
    end = Event("WorkflowCompleted", None, None, 0)
    await bob.commit_together(
        *((task, [end], Finish("completed", output="7")) for task in (await bob.claim()).tasks)
    )
    assert await flows.output(run_id) == {"a": 7, "b": 7}


async def test_a_run_that_fails_is_tried_again_as_another_run(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(run_step("sub", max_attempts=2, base_delay=5), given=1)
    await fail(bob, await bob.take())
    assert await bob.claims() == []
    [told] = await flows.details(run_id, "FlowStepRetryScheduled")
    assert (told["attempt"], told["error"]["cause"]) == (1, json.loads(FAILURE))
    assert told["retry_at"] == await store.now() + 10 * SECOND
    await clock.advance(10)
    task = await bob.take()
    assert task.run_id == (await child_of(store, run_id, "sub", 2)).run_id
    await bob.finish(task, "2")
    assert await flows.output(run_id) == {"sub": 2}
    assert (await flows.steps(run_id))["sub"].attempts == 2


async def test_a_run_that_fails_for_good_fails_the_flow_and_cancels_its_other_runs(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(
        run_step("a", max_attempts=1), run_step("b", max_attempts=1), given=1
    )
    tasks = {task.parent_run_id: task for task in (await bob.claim(1)).tasks}
    await fail(bob, tasks[run_id])
    error = await flows.error(run_id)
    assert (error["cause"]["kind"], error["cause"]["cause"]) == (
        "holdfast.errors.ChildFailed",
        json.loads(FAILURE),
    )
    runs = [await child_of(store, run_id, key) for key in ("a", "b")]
    assert {run.status for run in runs} == {"failed", "cancelled"}


async def test_a_failure_may_skip_the_step(flows: Flows, store: Store, bob: ManualWorker) -> None:
    run_id = await flows.run_of(
        mapped("each", runs="order@1", runs_kind="workflow", max_attempts=1, when_exhausted="skip"),
        given=[1, 2],
    )
    [task] = (await bob.claim(1)).tasks
    await fail(bob, task)
    assert await flows.output(run_id) == {}
    statuses = [(await child_of(store, run_id, f"each:{n}")).status for n in range(2)]
    assert sorted(statuses) == ["cancelled", "failed"]


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_a_run_that_a_person_ends_is_not_tried_again(
    flows: Flows, store: Store, how: str
) -> None:
    run_id = await flows.run_of(run_step("sub"), given=1)
    child = await child_of(store, run_id, "sub")
    stop = store.cancel_runs if how == "cancelled" else store.terminate_runs
    await stop([child.run_id])
    error = await flows.error(run_id)
    assert error["cause"]["status"] == how
    assert (
        error["message"]
        == f"step sub failed: holdfast.errors.ChildFailed: run {child.run_id} was {how}"
    )


async def test_a_run_that_takes_too_long_fails_its_attempt(
    flows: Flows, store: Store, clock: Clock
) -> None:
    run_id = await flows.run_of(run_step("sub", timeout=5, max_attempts=1), given=1)
    await clock.advance(5)
    assert (await store.time_out_runs())[0] == 1
    assert (await flows.error(run_id))["cause"]["status"] == "timed_out"


@pytest.mark.parametrize("how", ["cancelled", "terminated", "timed_out"])
async def test_the_end_of_the_flow_cancels_its_runs(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker, how: str
) -> None:
    await flows.define(run_step("a"), run_step("b"))
    run_id = await flows.start(1, timeout_seconds=5.0)
    [begun] = (await bob.claim(1)).tasks
    if how == "timed_out":
        await clock.advance(5)
        await store.time_out_runs()
    else:
        await (store.cancel_runs if how == "cancelled" else store.terminate_runs)([run_id])
    assert (await get(store, run_id)).status == how
    children = [await child_of(store, run_id, key) for key in ("a", "b")]
    assert {child.status for child in children} == {"running", "cancelled"}
    assert "WorkflowCancelRequested" in [event.type for event in await log(store, begun.run_id)]
    assert await flows.statuses(run_id) == {"a": "started", "b": "started"}


async def test_a_flow_in_a_flow_in_a_workflow_ends_in_one_transaction(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    inner = FlowShape(name="shop/inner", steps=(single("deep"),))
    await flows.store.ensure_flow(inner, "hash")
    await flows.define(run_step("mid", runs="shop/inner@1", runs_kind="flow"))
    parent_id, _ = await with_child(store, ann)
    task = await worker.one(handlers=("shop/inner@1",))
    await worker.complete(task, "deep")
    event = (await log(store, parent_id))[-1]
    assert (event.type, details(event)["output"]) == ("ChildCompleted", {"mid": {"deep": "deep"}})
    assert await ann.claims() == [parent_id]


async def test_the_output_of_a_flow_in_a_flow_may_be_deeper_than_one_value(
    flows: Flows, store: Store, worker: StepWorker
) -> None:
    """It is put together from values that were checked, and is the output of a step then."""
    inner = FlowShape(name="shop/inner", steps=(single("deep"),))
    await store.ensure_flow(inner, "hash")
    within = {"runs": "shop/inner@1", "runs_kind": "flow"}
    run_id = await flows.run_of(run_step("mid", **within), single("last", "mid"))
    output: list[Any] = []
    for _ in range(255):
        output = [output]
    assert await worker.complete(await worker.one(handlers=("shop/inner@1",)), output) == "recorded"
    task = await worker.one()
    assert json.loads(task.payload or "")["mid"] == {"deep": output}
    await worker.complete(task, 1)
    assert await flows.output(run_id) == {"last": 1}


async def test_a_failure_goes_up_all_levels_and_down_again(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    """The innermost fails: the flow around it fails, its other runs stop, the workflow is told."""
    inner = FlowShape(name="shop/inner", steps=(single("deep"),), max_attempts=1)
    await flows.store.ensure_flow(inner, "hash")
    step = {"runs": "shop/inner@1", "runs_kind": "flow", "max_attempts": 1}
    await flows.define(run_step("x", **step), run_step("y", **step))
    parent_id, child_id = await with_child(store, ann)
    [task, other] = (await worker.claims(handlers=("shop/inner@1",))).tasks
    await worker.fail(task)
    assert (await get(store, child_id)).status == "failed"
    assert (await get(store, other.run_id)).status == "cancelled"
    assert await worker.complete(other, 1) == "lost"
    event = (await log(store, parent_id))[-1]
    assert (event.type, details(event)["status"]) == ("ChildFailed", "failed")


async def test_runs_that_end_at_once_end_the_flow_at_once(flows: Flows, store: Store) -> None:
    """In the transaction that starts it, with its log in order."""
    await flows.store.ensure_flow(FlowShape(name="shop/empty"), "hash")
    empty = {"runs": "shop/empty@1", "runs_kind": "flow"}
    await flows.define(run_step("a", **empty), run_step("b", "a", **empty))
    run = NewRun(run_id=uuid4(), name=NAME, input="1")
    [started], _ = await flows.store.start_flows([run])
    assert started.status == "completed"
    assert await flows.output(run.run_id) == {"b": {}}
    assert await flows.log(run.run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted a",
        "FlowStepCompleted b",
        "WorkflowCompleted",
    ]


@pytest.mark.parametrize(
    ("runs", "kind"), [("shop/gone@1", "UnknownFlow"), ("shop/each@1", "InvalidInput")]
)
async def test_a_start_that_is_refused_fails_the_step(
    flows: Flows, store: Store, runs: str, kind: str
) -> None:
    await flows.store.ensure_flow(FlowShape(name="shop/each", steps=(mapped("m"),)), "hash")
    run_id = await flows.run_of(run_step("a", runs=runs, runs_kind="flow"), given=1)
    assert (await flows.error(run_id))["cause"]["kind"] == f"holdfast.errors.{kind}"


async def test_a_run_that_ends_at_once_and_fails_its_flow_leaves_no_other(
    flows: Flows, store: Store
) -> None:
    """The map over the one's output fails the flow, before or after the other has started."""
    await store.ensure_flow(FlowShape(name="shop/none", steps=(mapped("m"),)), "hash")
    await store.ensure_flow(FlowShape(name="shop/slow", steps=(single("s"),)), "hash")
    run_id = await flows.run_of(
        run_step("a", runs="shop/none@1", runs_kind="flow"),
        mapped("each", "a"),
        run_step("b", runs="shop/slow@1", runs_kind="flow"),
        given=[],
    )
    assert (await get(store, run_id)).status == "failed"
    assert (await child_of(store, run_id, "a")).status == "completed"
    children = await store.list_runs(RunFilter(parent_run_id=run_id))
    assert "running" not in [child.status for child in children.runs]


async def test_a_delayed_start_and_a_start_delay_hold_runs_back(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    await flows.define(run_step("a"), run_step("b", start_delay=5))
    await flows.start(1, delay_seconds=10.0)
    assert await bob.claims() == []
    await clock.advance(10)
    assert len(await bob.claims()) == 1
    await clock.advance(5)
    assert len(await bob.claims()) == 1


async def test_a_step_that_is_a_run_begins_when_its_run_does(
    flows: Flows, store: Store, clock: Clock
) -> None:
    await flows.define(run_step("a"), run_step("b", start_delay=5))
    run_id, other = [await flows.start(1, delay_seconds=10.0) for _ in range(2)]
    now, steps = await store.now(), await flows.steps(run_id)
    assert {slug: step.status for slug, step in steps.items()} == {"a": "created", "b": "created"}
    assert steps["a"].started_at == now + 10 * SECOND
    assert steps["b"].started_at == now + 15 * SECOND
    await clock.advance(10)
    assert await flows.statuses(run_id) == {"a": "started", "b": "created"}
    await store.terminate_runs([other])
    assert await flows.statuses(other) == {"a": "started", "b": "created"}
    await clock.advance(5)
    assert await flows.statuses(run_id) == {"a": "started", "b": "started"}


async def test_a_step_that_is_a_run_begins_when_that_is_rescheduled_to(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    await flows.define(
        run_step("a"), run_step("b"), mapped("each", runs="order@1", runs_kind="workflow")
    )
    run_id = await flows.start([1], delay_seconds=10.0)
    a, b, element = [await child_of(store, run_id, key) for key in ("a", "b", "each:0")]
    now = await store.now()
    later = Reschedule(start_at=now + 60 * SECOND)
    await store.reschedule_runs([a.run_id, element.run_id], Reschedule(start_at=now - SECOND))
    await store.reschedule_runs([b.run_id], later)
    assert set(await bob.claims()) == {a.run_id, element.run_id}
    steps = await flows.steps(run_id)
    assert (steps["a"].status, steps["a"].started_at) == ("started", now)
    assert (steps["b"].status, steps["b"].started_at) == ("created", later.start_at)
    await clock.advance(59)
    assert (await flows.statuses(run_id))["b"] == "created"
    await clock.advance(1)
    assert (await flows.statuses(run_id))["b"] == "started"


async def test_the_times_of_runs_count_from_a_delayed_start(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    """Nothing takes too long before the start, at any depth."""
    inner = run_step("c", start_delay=5, timeout=5)
    await store.ensure_flow(FlowShape(name="shop/inner", steps=(inner,)), "hash")
    within = {"runs": "shop/inner@1", "runs_kind": "flow"}
    await flows.define(run_step("a", timeout=5), run_step("b", **within), run_step("d"))
    run_id = await flows.start(1, delay_seconds=60.0)
    now = await store.now()
    a, b, d = [await child_of(store, run_id, key) for key in "abd"]
    c = await child_of(store, b.run_id, "c")
    assert [child.due_at - now for child in (a, b, c, d)] == [
        60 * SECOND,
        60 * SECOND,
        65 * SECOND,
        60 * SECOND,
    ]
    assert [a.deadline_at - now, c.deadline_at - now] == [65 * SECOND, 70 * SECOND]
    assert (b.deadline_at, d.deadline_at) == (None, None)
    await clock.advance(59)
    assert (await store.time_out_runs())[0] == 0
    assert await bob.claims() == []
    await clock.advance(1)
    assert set(await bob.claims()) == {a.run_id, d.run_id}


async def test_a_run_that_waits_for_another_begins_no_earlier_than_the_delayed_start(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    """Its time counts from the start, too."""
    await store.declare_start_rules(
        [DeclaredRules("order", 1, StartRules(singleton_conflict="queue"))]
    )
    await flows.define(run_step("a", timeout=5))
    first = await flows.start(1)
    second = await flows.start(2, delay_seconds=60.0)
    child = await child_of(store, second, "a")
    assert (child.due_at, child.deadline_at) == (None, None)
    (task,) = (await bob.claim()).tasks
    assert task.run_id == (await child_of(store, first, "a")).run_id
    await bob.commit(task, then=Finish("completed", output="1"))
    now = await store.now()
    assert await bob.claims() == []
    child = await child_of(store, second, "a")
    await clock.advance(59)
    assert await bob.claims() == []
    await clock.advance(1)
    assert await bob.claims() == [child.run_id]
    assert child.deadline_at - now == 65 * SECOND


async def test_a_run_that_waits_for_quiet_holds_its_key_until_a_delayed_start(
    flows: Flows, store: Store, clock: Clock
) -> None:
    await store.declare_start_rules([DeclaredRules("order", 1, StartRules(debounce_seconds=5.0))])
    await flows.define(run_step("a"))
    run_id = await flows.start(1, delay_seconds=60.0)
    child = await child_of(store, run_id, "a")
    assert child.due_at == child.created_at + 60 * SECOND
    await clock.advance(30)
    (held,) = await store.list_start_keys("order")
    assert (held.rule, held.run_id, held.until) == ("debounce", child.run_id, child.due_at)


async def test_the_delay_of_a_map_of_runs_counts_once_whatever_its_concurrency(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker
) -> None:
    """An element whose turn comes before the delay is over waits for what is left of it."""
    options: dict[str, Any] = {"concurrency": 1, "tolerated_count": 1, "start_delay": 60}
    await flows.define(mapped("m", runs="order@1", runs_kind="workflow", **options))
    run_id = await flows.start([1, 2, 3])
    begun_at = (await get(store, run_id)).created_at
    await clock.advance(20)
    await store.cancel_runs([(await child_of(store, run_id, "m:0")).run_id])
    assert (await child_of(store, run_id, "m:1")).due_at == begun_at + 60 * SECOND
    await clock.advance(39)
    assert await bob.claims() == []
    await clock.advance(1)
    (task,) = (await bob.claim()).tasks
    await bob.commit(task, then=Finish("completed", output="1"))
    last = await child_of(store, run_id, "m:2")
    assert last.due_at is None
    assert await bob.claims() == [last.run_id]


async def test_runs_of_steps_get_places_in_the_order_of_steps_and_elements(
    flows: Flows, store: Store
) -> None:
    rules = StartRules(throttle_limit=3, throttle_period_seconds=60.0, throttle_excess="refuse")
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    options: dict[str, Any] = {"tolerated_percent": 100, "max_attempts": 1}
    maps = [mapped(slug, runs="order@1", runs_kind="workflow", **options) for slug in ("z", "a")]
    await flows.define(*maps)
    run_id = await flows.start(list(range(2)))
    begun = [run.parent_key for run in (await store.list_runs(RunFilter(names=("order",)))).runs]
    assert sorted(map(str, begun)) == ["a:0", "z:0", "z:1"]
    assert [step.failed_tasks for step in (await flows.steps(run_id)).values()] == [0, 1]


async def test_a_refused_run_that_ends_the_flow_comes_before_runs_of_flows(
    flows: Flows, store: Store
) -> None:
    """No run begins that would be cancelled at once."""
    await store.declare_start_rules(
        [DeclaredRules("order", 1, StartRules(singleton_conflict="refuse"))]
    )
    await store.start_runs([NewRun(run_id=uuid4(), name="order")])
    await store.ensure_flow(FlowShape(name="shop/inner", steps=(single("s"),)), "hash")
    inner = StepShape(slug="a", runs="shop/inner@1", runs_kind="flow")
    await flows.define(inner, run_step("b"))
    run_id = await flows.start(1)
    assert (await flows.error(run_id))["step"] == "b"
    assert not (await store.list_runs(RunFilter(names=("shop/inner",)))).runs


async def test_a_start_in_the_past_leaves_runs_their_time(flows: Flows, store: Store) -> None:
    await flows.define(run_step("a", timeout=5))
    run_id = await flows.start(1, start_at=await store.now() - 60 * SECOND)
    child = await child_of(store, run_id, "a")
    assert (child.due_at, child.deadline_at) == (None, child.created_at + 5 * SECOND)


async def test_a_cancel_before_a_delayed_start_runs_no_step_of_runs(
    flows: Flows, store: Store, worker: StepWorker
) -> None:
    last = single("last", trigger_rule="always")
    await store.ensure_flow(FlowShape(name="shop/inner", steps=(single("c"), last)), "hash")
    await flows.define(run_step("a", runs="shop/inner@1", runs_kind="flow"))
    run_id = await flows.start(1, delay_seconds=60.0)
    await store.cancel_runs([run_id])
    assert (await child_of(store, run_id, "a")).status == "cancelled"


async def test_a_paused_run_starts_no_run_for_a_step_until_it_is_resumed(
    flows: Flows, store: Store, worker: StepWorker, bob: ManualWorker
) -> None:
    await flows.define(single("a"), run_step("sub", "a"))
    run_id = await flows.start(1)
    task = await worker.one()
    await store.pause_runs([run_id])
    await worker.complete(task, 2)
    assert await bob.claims() == []
    assert await flows.statuses(run_id) == {"a": "completed", "sub": "created"}
    await store.resume_runs([run_id])
    assert await flows.statuses(run_id) == {"a": "completed", "sub": "started"}
    await bob.finish(await bob.take(), "3")
    assert await flows.output(run_id) == {"sub": 3}


async def test_what_begins_when_a_shape_is_replaced_has_the_new_shape(
    flows: Flows, store: Store, worker: StepWorker
) -> None:
    """The ends of runs that are steps let other flows start more of them in the same call."""
    old = FlowShape(name="shop/inner", steps=(single("a"), single("b", "a")))
    await store.ensure_flow(old, "old")
    inner = {"runs": old.handler, "runs_kind": "flow", "when_exhausted": "skip"}
    await flows.define(run_step("first", **inner), run_step("then", "first", **inner))
    run_id = await flows.start(1)
    before = await child_of(store, run_id, "first")
    new = msgspec.structs.replace(old, steps=(single("c"), single("d", "c")))
    assert (await store.ensure_flow(new, "new", replace=True)).ended == 1
    after = await child_of(store, run_id, "then")
    for key in ("c", "d"):
        task = await worker.one(handlers=[old.handler])
        assert (task.run_id, task.key) == (after.run_id, key)
        await worker.complete(task, 1)
    assert await flows.statuses(before.run_id) == {"a": "created", "b": "created"}
    assert await flows.statuses(after.run_id) == {"c": "completed", "d": "completed"}
    assert await flows.output(run_id) == {"then": {"d": 1}}


async def test_a_paused_flow_starts_no_run_for_a_step_until_it_is_resumed(
    flows: Flows, store: Store, worker: StepWorker, bob: ManualWorker
) -> None:
    """The same for runs that begin meanwhile, further attempts, and elements of maps."""
    order = {"runs": "order@1", "runs_kind": "workflow", "max_attempts": 2, "base_delay": 0}
    each = mapped("each", concurrency=1, **order)
    await flows.define(single("a"), run_step("sub", "a", **order), each)
    run_id = await flows.start([1, 2])
    first = await started(store, bob)
    task = await worker.one()
    await store.set_pause("workflow", NAME, paused=True)
    later = await flows.start([3])
    await worker.complete(task, 2)
    await fail(bob, first["each:0"])
    assert await bob.claims() == []
    assert (await flows.statuses(run_id))["sub"] == "created"
    await store.resume_runs([run_id])
    assert await bob.claims() == []
    await store.pause_runs([later])
    changed, notices = await store.set_pause("workflow", NAME, paused=False)
    assert changed
    assert Notice(WORK_TOPIC, "default") in notices
    assert (await flows.statuses(run_id))["sub"] == "started"
    assert set(await started(store, bob)) == {"each:0", "sub"}
    await store.resume_runs([later])
    assert set(await started(store, bob)) == {"each:0"}


async def test_a_resume_starts_the_runs_that_were_to_begin_and_no_other(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    """Elements that wait for others still do, and those under way are not begun again."""
    order = {"runs": "order@1", "runs_kind": "workflow", "max_attempts": 2, "base_delay": 0}
    await flows.define(mapped("each", concurrency=2, **order), run_step("sub", **order))
    run_id = await flows.start([1, 2, 3, 4])
    first = await started(store, bob)
    assert set(first) == {"each:0", "each:1", "sub"}
    await store.pause_runs([run_id])
    await bob.finish(first["each:0"], "1")
    await fail(bob, first["sub"])
    assert await bob.claims() == []
    await store.resume_runs([run_id])
    assert set(await started(store, bob)) == {"each:2", "sub"}


async def test_a_resume_may_end_a_run_and_the_runs_above_it(
    flows: Flows, store: Store, worker: StepWorker
) -> None:
    await store.ensure_flow(FlowShape(name="shop/none", steps=(mapped("m"),)), "hash")
    within = {"runs": "shop/none@1", "runs_kind": "flow"}
    inner = FlowShape(name=NAME, steps=(single("a"), run_step("sub", "a", **within)))
    await store.ensure_flow(inner, "hash")
    outer = run_step("step", runs=inner.handler, runs_kind="flow")
    await store.ensure_flow(FlowShape(name="shop/outer", steps=(outer,)), "hash")
    top = NewRun(run_id=uuid4(), name="shop/outer", input="1")
    await store.start_flows([top])
    task = await worker.one()
    await store.pause_runs([task.run_id])
    await worker.complete(task, [])
    await store.resume_runs([task.run_id])
    run = await get(store, top.run_id)
    assert json.loads(run.output or "") == {"step": {"sub": {"m": []}}}


async def test_a_run_that_continues_as_new_is_still_the_step(
    flows: Flows, store: Store, bob: ManualWorker
) -> None:
    run_id = await flows.run_of(run_step("sub"), given=1)
    task, next_id = await bob.take(), uuid4()
    told = json.dumps({"run_id": str(next_id), "version": 1, "input": 2, "signals": []})
    event = Event("WorkflowContinuedAsNew", None, told, 0)
    answer = await bob.commit(task, event, then=Finish("continued", output=told))
    assert not answer.refused, answer.refused
    again = await bob.take()
    assert again.run_id == next_id
    await bob.finish(again, "3")
    assert await flows.output(run_id) == {"sub": 3}


async def test_a_parent_that_awaits_other_ends_is_not_confused(
    flows: Flows, store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """A workflow's own children are told to it, though a flow stands between it and others."""
    await flows.define(run_step("sub"))
    parent_id = await start(store)
    await ann.command(await ann.take(), awaiting=(ANY_END,))
    run_id = await flows.start(1)
    await bob.finish(await bob.take(), "1")
    assert await flows.output(run_id) == {"sub": 1}
    assert (await get(store, parent_id)).status == "running"


@pytest.mark.parametrize(
    "wrong",
    [
        {"runs": "order", "runs_kind": "workflow"},
        {"runs": "order@0", "runs_kind": "workflow"},
        {"runs": "order@1", "runs_kind": None},
        {"deps": ("a", "b")},
    ],
)
async def test_a_step_that_cannot_be_a_run_is_refused(flows: Flows, wrong: dict[str, Any]) -> None:
    step = msgspec.structs.replace(run_step("c"), **wrong)
    shape = FlowShape(name=NAME, steps=(single("a"), single("b"), step))
    with pytest.raises(InvalidInput):
        await flows.store.ensure_flow(shape, "hash")


async def test_the_shape_is_kept(flows: Flows) -> None:
    shape = await flows.define(run_step("a"), run_step("b", "a", runs="shop/x@2", runs_kind="flow"))
    assert await flows.store.get_flow(NAME, 1) == shape


async def test_a_flow_whose_key_is_used_again_starts_runs_of_its_own(
    flows: Flows, store: Store, clock: Clock, bob: ManualWorker, worker: StepWorker
) -> None:
    """Fault: its step waited for ever for a run that a deleted run of its id has left."""
    await flows.define(run_step("sub"), single("a"))
    for again in (False, True):
        fields: dict[str, Any] = {
            "run_id": keyed_run_id(NAME, "k"),
            "key": "k",
            "retention_seconds": 60.0,
        }
        run_id = await flows.start({"again": again}, **fields)
        if again:
            break
        task = await bob.take()
        await worker.fail(await worker.one(), retryable=False)
        await clock.advance(70)
        await bob.finish(task, expected=2)
        assert (await store.sweep_runs()).deleted == 1
    task = await bob.take()
    assert json.loads(task.input or "") == {"again": True}
    await bob.finish(task)
    assert (await flows.statuses(run_id))["sub"] == "completed"
