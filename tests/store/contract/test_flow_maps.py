"""Maps: a task for each element, counters, results in order. P5."""

from __future__ import annotations

import json

import pytest

from .flow_actors import NO_LUCK, Flows, StepWorker, end, mapped, single


async def test_a_map_has_a_task_for_each_element(flows: Flows, worker: StepWorker) -> None:
    """Elements are given as they stand in the array; the output has the order of the elements."""
    run_id = await flows.run_of(single("list"), mapped("each", "list"), single("sum", "each"))
    [task] = (await worker.claims()).tasks
    await worker.report(end(task, output='[1.50, {"b":1,"a":2},"x" ]'))
    tasks = await worker.take()
    assert {key: task.payload for key, task in tasks.items()} == {
        "each:0": "1.50",
        "each:1": '{"b":1,"a":2}',
        "each:2": '"x"',
    }
    await worker.complete(tasks["each:2"], "last")
    await worker.complete(tasks["each:0"], None)
    each = (await flows.steps(run_id))["each"]
    assert (each.status, each.initial_tasks, each.remaining_tasks) == ("started", 3, 1)
    assert (each.output, each.attempts, each.ended_at) == (None, None, None)
    await worker.complete(tasks["each:1"], {})
    each = (await flows.steps(run_id))["each"]
    assert (each.status, each.remaining_tasks, each.output) == ("completed", 0, '[null,{},"last"]')
    last = await worker.one()
    assert last.payload == '{"run":null,"each":[null,{},"last"]}'
    assert await flows.details(run_id, "FlowStepStarted") == [{"tasks": 3}]
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted list",
        "FlowStepStarted each",
        "FlowStepCompleted each",
    ]


async def test_a_map_over_the_input_and_a_map_over_a_map(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(mapped("one"), mapped("two", "one"), given=[3, 4])
    tasks = await worker.take()
    assert [task.payload for _, task in sorted(tasks.items())] == ["3", "4"]
    await worker.report(end(tasks["one:1"], 40), end(tasks["one:0"], 30))
    tasks = await worker.take()
    assert {key: task.payload for key, task in tasks.items()} == {"two:0": "30", "two:1": "40"}
    await worker.report(*(end(task, task.key) for task in tasks.values()))
    assert await flows.output(run_id) == {"two": ["two:0", "two:1"]}


async def test_results_are_in_the_order_of_numbers_not_of_texts(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(mapped("each"), given=list(range(12)))
    tasks = await worker.take()
    await worker.report(*(end(task, json.loads(task.payload or "")) for task in tasks.values()))
    assert await flows.output(run_id) == {"each": list(range(12))}


async def test_a_null_of_a_step_is_null_and_not_absent(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(single("a"), single("b", "a", wants_run=False))
    await worker.complete(await worker.one())
    task = await worker.one()
    assert task.payload == '{"a":null}'
    await worker.complete(task)
    assert (await flows.steps(run_id))["a"].output == "null"
    assert await flows.output(run_id) == {"b": None}


async def test_the_last_elements_of_two_maps_may_end_in_one_call(
    flows: Flows, worker: StepWorker
) -> None:
    """The step behind both maps becomes ready once."""
    await flows.run_of(mapped("m"), mapped("n"), single("z", "m", "n"), given=[1, 2])
    tasks = await worker.take()
    await worker.report(end(tasks["m:0"]), end(tasks["n:0"]))
    await worker.report(end(tasks["n:1"]), end(tasks["m:1"]))
    assert (await worker.one()).payload == '{"run":[1, 2],"m":[null,null],"n":[null,null]}'


async def test_an_element_that_ends_twice_counts_once(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(mapped("each"), given=[1, 2])
    tasks = await worker.take()
    first = end(tasks["each:0"], 1)
    assert (await worker.report(first, first)).outcomes == ["recorded", "lost"]
    assert (await worker.report(first, end(tasks["each:1"], 2))).outcomes == ["lost", "recorded"]
    assert await flows.output(run_id) == {"each": [1, 2]}


async def test_maps_without_elements_complete_in_a_row(flows: Flows, worker: StepWorker) -> None:
    """`[]` to a map of a map, to a single step, and to the end of the run."""
    run_id = await flows.run_of(mapped("m"), mapped("n", "m"), single("z", "n"), given=[])
    n = (await flows.steps(run_id))["n"]
    assert (n.status, n.initial_tasks, n.remaining_tasks, n.output) == ("completed", 0, 0, "[]")
    task = await worker.one()
    assert task.payload == '{"run":[],"n":[]}'
    await flows.define(mapped("m"), name="shop/short")
    done = await flows.start([], name="shop/short")
    assert await flows.output(done) == {"m": []}
    assert await flows.log(done) == ["WorkflowStarted", "FlowStepCompleted m", "WorkflowCompleted"]


async def test_a_thousand_maps_without_elements_complete_in_one_call(flows: Flows) -> None:
    steps = [mapped("m0"), *(mapped(f"m{n}", f"m{n - 1}") for n in range(1, 1000))]
    run_id = await flows.run_of(*steps, given=[])
    assert await flows.output(run_id) == {"m999": []}
    assert len(await flows.log(run_id)) == 1002


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ('"text"', "string"),
        ("null", "null"),
        ("{}", "object"),
        ("1", "number"),
        ("true", "boolean"),
    ],
)
async def test_a_map_over_what_is_not_an_array_fails_the_run(
    flows: Flows, worker: StepWorker, output: str, found: str
) -> None:
    """Whatever when_exhausted says of the step that returned it: it fails, and not the map."""
    run_id = await flows.run_of(
        single("list", when_exhausted="skip"),
        mapped("m", "list"),
        mapped("n", "list"),
        single("beside"),
    )
    tasks = await worker.take()
    ended = await worker.report(end(tasks["list"], output=output))
    assert ended.outcomes == ["recorded"]
    message = f"Map step m expects array input but dependency list produced {found}"
    assert await flows.error(run_id) == {
        "kind": "holdfast.errors.FlowTypeViolation",
        "step": "list",
        "message": f"[TYPE_VIOLATION] {message}",
    }
    assert await flows.statuses(run_id) == {
        "list": "failed",
        "m": "created",
        "n": "created",
        "beside": "started",
    }
    assert await flows.log(run_id) == ["WorkflowStarted", "FlowStepFailed list", "WorkflowFailed"]
    assert await worker.complete(tasks["beside"]) == "lost"


async def test_one_element_fails_beside_the_ends_of_others(
    flows: Flows, worker: StepWorker
) -> None:
    """Outputs come first: what has a result keeps it in a run that fails."""
    run_id = await flows.run_of(
        mapped("each", max_attempts=1), single("last", "each"), given=[1, 2]
    )
    tasks = await worker.take()
    ended = await worker.report(end(tasks["each:0"], error=NO_LUCK), end(tasks["each:1"], 2))
    assert ended.outcomes == ["recorded", "recorded"]
    each = (await flows.steps(run_id))["each"]
    assert (each.status, each.initial_tasks, each.remaining_tasks) == ("failed", 2, 1)
    assert (await flows.error(run_id))["task_index"] == 0


async def test_an_element_that_fails_may_end_its_map(flows: Flows, worker: StepWorker) -> None:
    """Skip: what is left of the map is deleted, also what is worked on, and the run continues."""
    run_id = await flows.run_of(
        mapped("each", max_attempts=1, when_exhausted="skip"), single("z", "each"), given=[1, 2, 3]
    )
    tasks = await worker.take(2)
    ended = await worker.report(end(tasks["each:0"], error=NO_LUCK))
    told = {notice.payload for notice in ended.notices if notice.topic == "worker/ann"}
    assert told == {f"{run_id} each:0", f"{run_id} each:1"}
    assert await worker.complete(tasks["each:1"]) == "lost"
    each = (await flows.steps(run_id))["each"]
    assert (each.status, each.skip_reason) == ("skipped", "handler_failed")
    assert (each.initial_tasks, each.remaining_tasks, each.output) == (3, None, None)
    error = json.loads(each.error or "")
    assert (error["task_index"], error["cause"]["message"]) == (0, "no luck")
    assert (await worker.one()).payload == '{"run":[1, 2, 3]}'


async def test_a_map_behind_a_step_that_was_skipped_has_no_elements(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        single("list", max_attempts=1, when_exhausted="skip"), mapped("each", "list")
    )
    await worker.fail(await worker.one())
    assert await flows.output(run_id) == {"each": []}
    assert await flows.statuses(run_id) == {"list": "skipped", "each": "completed"}
