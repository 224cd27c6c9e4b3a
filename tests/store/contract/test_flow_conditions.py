"""Conditions of steps, and what it means for others that a step is skipped. P6."""

from __future__ import annotations

from typing import Any

import pytest

from .flow_actors import Flows, StepWorker, end, mapped, single

NEVER: Any = {"required": '{"run":{"never":1}}'}
NEVER_ROOT: Any = {"required": '{"never":1}'}


@pytest.mark.parametrize(
    ("given", "pattern", "is_met"),
    [
        ({}, "{}", True),
        ({"a": 1}, '{"a":1}', True),
        ({"a": 1.0}, '{"a":1}', True),
        ({"a": True}, '{"a":1}', False),
        ({"a": None}, '{"a":null}', True),
        ({}, '{"a":null}', False),
        ({"a": {"b": 1, "c": 2}}, '{"a":{"b":1}}', True),
        ({"a": [1, 2]}, '{"a":[2]}', True),
        ({"a": [1, 2]}, '{"a":2}', False),
        ({"a": 1}, '{"a":{}}', False),
        ({"a": []}, '{"a":{}}', False),
        ([1], "{}", False),
        ("text", "{}", False),
        (None, "{}", False),
    ],
)
async def test_the_input_contains_a_pattern_as_in_postgresql(
    flows: Flows, given: object, pattern: str, is_met: bool
) -> None:
    run_id = await flows.run_of(
        single("if", required=pattern), single("unless", forbidden=pattern), given=given
    )
    statuses = await flows.statuses(run_id)
    expected = {True: "created", False: "skipped"}
    assert statuses == {"if": expected[is_met], "unless": expected[not is_met]}


async def test_other_steps_are_judged_by_the_input_and_their_dependencies(
    flows: Flows, worker: StepWorker
) -> None:
    """The input counts also for a step that is not given it."""
    run_id = await flows.run_of(
        single("a"),
        single("b", "a", wants_run=False, required='{"run":{"n":1},"a":{"ok":true}}'),
        single("c", "a", forbidden='{"a":{"ok":true}}'),
        given={"n": 1},
    )
    await worker.complete(await worker.one(), {"ok": True, "more": 1})
    assert await flows.statuses(run_id) == {"a": "completed", "b": "created", "c": "skipped"}


async def test_the_run_completes_although_all_its_steps_are_skipped(flows: Flows) -> None:
    run_id = await flows.run_of(single("a", **NEVER_ROOT), single("b", "a", **NEVER), given={})
    assert await flows.output(run_id) == {}
    assert await flows.statuses(run_id) == {"a": "skipped", "b": "skipped"}
    steps = await flows.steps(run_id)
    assert {step.skip_reason for step in steps.values()} == {"condition_unmet"}
    assert await flows.details(run_id, "FlowStepSkipped") == [{"reason": "condition_unmet"}] * 2


async def test_steps_behind_a_skipped_one_run_without_its_output(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.run_of(
        single("a", **NEVER_ROOT), single("b"), single("c", "a", "b", wants_run=False), given={}
    )
    await worker.complete(await worker.one(), 1)
    assert (await worker.one()).payload == '{"b":1}'


async def test_a_cascade_skips_all_behind_a_step(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(
        single("a", **NEVER_ROOT, when_unmet="skip-cascade"),
        single("b", "a"),
        mapped("c", "b"),
        single("d"),
        given={},
    )
    steps = await flows.steps(run_id)
    reasons = {slug: step.skip_reason for slug, step in steps.items()}
    assert reasons == {
        "a": "condition_unmet",
        "b": "dependency_skipped",
        "c": "dependency_skipped",
        "d": None,
    }
    assert await flows.log(run_id) == ["WorkflowStarted"] + [
        f"FlowStepSkipped {slug}" for slug in "abc"
    ]
    await worker.complete(await worker.one(), 1)
    assert await flows.output(run_id) == {"d": 1}


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_cascade_meets_a_parent_that_completes_in_either_order(
    flows: Flows, worker: StepWorker, first: str
) -> None:
    """What is behind both is skipped once, and ends only when both have ended."""
    run_id = await flows.run_of(
        single("a", max_attempts=1, when_exhausted="skip-cascade"),
        single("b"),
        single("c", "a", "b"),
        single("d", "b"),
    )
    tasks = await worker.take()
    for slug in sorted(tasks, reverse=first == "b"):
        if slug == "a":
            assert await worker.fail(tasks["a"]) == "recorded"
        else:
            assert await worker.complete(tasks["b"]) == "recorded"
    assert await flows.statuses(run_id) == {
        "a": "skipped",
        "b": "completed",
        "c": "skipped",
        "d": "created",
    }
    await worker.complete(await worker.one(), "end")
    assert await flows.output(run_id) == {"d": "end"}


async def test_a_run_is_not_complete_while_a_step_runs_for_which_nobody_waits(
    flows: Flows, worker: StepWorker
) -> None:
    """The only leaf was skipped because of one dependency; its other dependency still runs."""
    run_id = await flows.run_of(
        single("a", **NEVER_ROOT, when_unmet="skip-cascade"),
        single("b"),
        single("c", "a", "b"),
        given={},
    )
    assert await flows.statuses(run_id) == {"a": "skipped", "b": "created", "c": "skipped"}
    task = await worker.one()
    assert "WorkflowCompleted" not in await flows.log(run_id)
    await worker.complete(task)
    assert await flows.output(run_id) == {}


async def test_a_condition_behind_a_map_without_elements_is_judged(flows: Flows) -> None:
    run_id = await flows.run_of(
        mapped("m"), single("b", "m", required='{"m":[1]}', when_unmet="skip-cascade"), given=[]
    )
    assert await flows.output(run_id) == {}
    assert await flows.statuses(run_id) == {"m": "completed", "b": "skipped"}


async def test_a_condition_about_a_skipped_step_finds_it_absent(flows: Flows) -> None:
    run_id = await flows.run_of(
        single("a", **NEVER_ROOT),
        single("b", "a", required='{"a":{}}'),
        single("c", "a", forbidden='{"a":null}'),
        given={},
    )
    assert await flows.statuses(run_id) == {"a": "skipped", "b": "skipped", "c": "created"}


async def test_a_condition_behind_a_cascade_is_not_judged(flows: Flows) -> None:
    run_id = await flows.run_of(
        single("a", **NEVER_ROOT, when_unmet="skip-cascade"),
        single("b", "a", **NEVER, when_unmet="fail"),
        given={},
    )
    assert await flows.output(run_id) == {}
    assert (await flows.steps(run_id))["b"].skip_reason == "dependency_skipped"


async def test_a_condition_may_fail_the_run_before_anything_begins(flows: Flows) -> None:
    """Nothing of a run begins that fails on the way, also not what was ready before."""
    run_id = await flows.run_of(
        single("a"),
        single("b", **NEVER_ROOT, when_unmet="fail"),
        single("c", **NEVER_ROOT, when_unmet="fail"),
        given={},
    )
    assert await flows.error(run_id) == {
        "kind": "holdfast.errors.StepFailed",
        "step": "b",
        "message": "Condition not met",
    }
    assert await flows.statuses(run_id) == {"a": "created", "b": "failed", "c": "created"}
    assert await flows.log(run_id) == ["WorkflowStarted", "FlowStepFailed b", "WorkflowFailed"]
    assert await flows.store.unserved() == []


async def test_a_condition_that_fails_the_run_calls_off_what_runs(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        single("a"), single("b"), single("c", "a", **NEVER, when_unmet="fail")
    )
    tasks = await worker.take()
    ended = await worker.report(end(tasks["a"], 1))
    assert {(n.topic, n.payload) for n in ended.notices} == {("worker/ann", f"{run_id} b")}
    assert await flows.statuses(run_id) == {"a": "completed", "b": "started", "c": "failed"}
    assert await worker.complete(tasks["b"]) == "lost"


async def test_a_map_over_no_array_fails_before_its_condition_is_judged(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"), mapped("m", "a", **NEVER))
    await worker.complete(await worker.one(), "text")
    assert (await flows.error(run_id))["kind"] == "holdfast.errors.FlowTypeViolation"


async def test_a_cascade_goes_down_a_thousand_steps_in_one_call(flows: Flows) -> None:
    steps = [single(f"s{n}", f"s{n - 1}") for n in range(1, 1000)]
    run_id = await flows.run_of(
        single("s0", **NEVER_ROOT, when_unmet="skip-cascade"), *steps, given={}
    )
    assert await flows.output(run_id) == {}
    assert len(await flows.log(run_id)) == 1002
