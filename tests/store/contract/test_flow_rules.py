"""Trigger rules: steps that run because others failed, in any case, or at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import InvalidInput
from holdfast.types import FlowShape

from .actors import get
from .flow_actors import NAME, Flows, StepWorker, end, mapped, single

COMPLETED, SKIPPED, FAILED = "completed", "skipped", "failed"


def once(slug: str, *deps: str, **options: Any) -> Any:
    """Return a step with one attempt."""
    return single(slug, *deps, max_attempts=1, **options)


async def work(worker: StepWorker, *failing: str, given: dict[str, Any] | None = None) -> list[str]:
    """Do all that is due, in rounds; the steps named fail. Returns the keys in their order."""
    done: list[str] = []
    while tasks := await worker.take():
        for key, task in tasks.items():
            if given is not None:
                given[key] = json.loads(task.payload or "")
            if key in failing:
                await worker.fail(task)
            else:
                await worker.complete(task, key)
            done.append(key)
    return done


@pytest.mark.parametrize(
    ("failing", "done", "status"),
    [
        ((), ["a", "b", "all"], "completed"),
        (("a",), ["a", "one", "all"], "completed"),  # b is not a last step: one handled its cause
        (("b",), ["a", "b", "one", "all"], "completed"),
        (("a", "one"), ["a", "one", "all"], "completed"),
        (("b", "all"), ["a", "b", "one", "all"], "failed"),
    ],
)
async def test_a_step_runs_by_its_rule_and_the_last_steps_decide(
    flows: Flows, worker: StepWorker, failing: tuple[str, ...], done: list[str], status: str
) -> None:
    run_id = await flows.run_of(
        once("a"),
        once("b", "a"),
        once("one", "b", trigger_rule="one_failed"),
        once("all", "one", "b", trigger_rule="all_done"),
    )
    assert await work(worker, *failing) == done
    run = await get(flows.store, run_id)
    assert run.status == status, run.error
    if status == "failed":
        assert (await flows.error(run_id))["step"] == "all"


async def test_a_failure_does_not_stop_what_runs_beside_it_and_fails_the_run_at_its_end(
    flows: Flows, worker: StepWorker
) -> None:
    """A last step was skipped because of it, although another step handled it."""
    run_id = await flows.run_of(
        once("a"), once("beside"), once("b", "a"), once("c", "a", trigger_rule="one_failed")
    )
    tasks = await worker.take()
    assert await worker.fail(tasks["a"]) == "recorded"
    assert await flows.statuses(run_id) == {
        "a": FAILED,
        "beside": "started",
        "b": SKIPPED,
        "c": "created",
    }
    assert (await flows.steps(run_id))["b"].skip_reason == "dependency_failed"
    handler = await worker.one()
    assert await worker.complete(tasks["beside"]) == "recorded"
    assert (await get(flows.store, run_id)).status == "running"
    assert await worker.complete(handler) == "recorded"
    error = await flows.error(run_id)
    assert (error["step"], error["message"]) == ("a", "step a failed: OSError: no luck")
    assert (await flows.log(run_id))[1:] == [
        "FlowStepFailed a",
        "FlowStepSkipped b",
        "FlowStepCompleted beside",
        "FlowStepCompleted c",
        "WorkflowFailed",
    ]


async def test_a_step_is_given_the_errors_of_what_failed(flows: Flows, worker: StepWorker) -> None:
    """Of a step that was skipped because of another, it is the error of that one."""
    given: dict[str, Any] = {}
    run_id = await flows.run_of(
        once("a"),
        once("b", "a"),
        once("c"),
        once("d", "a", "b", "c", trigger_rule="all_done"),
        given=7,
    )
    await work(worker, "a", given=given)
    failed = given["d"].pop("$failed")
    assert given["d"] == {"run": 7, "c": "c"}
    assert failed["a"]["cause"]["message"] == "no luck"
    assert failed["b"] == failed["a"]
    assert await flows.output(run_id) == {"d": "d"}


@pytest.mark.parametrize("first", ["skip", "fail"])
async def test_a_failure_counts_more_than_a_skip_in_either_order(
    flows: Flows, worker: StepWorker, first: str
) -> None:
    run_id = await flows.run_of(
        once("skip", when_exhausted="skip-cascade"),
        once("fail"),
        once("both", "skip", "fail"),
        once("handler", "both", trigger_rule="one_failed"),
    )
    tasks = await worker.take()
    second = "fail" if first == "skip" else "skip"
    await worker.fail(tasks[first])
    await worker.fail(tasks[second])
    steps = await flows.steps(run_id)
    assert steps["both"].skip_reason == "dependency_failed"
    assert json.loads(steps["both"].error or "")["step"] == "fail"
    assert await work(worker) == ["handler"]
    assert await flows.output(run_id) == {"handler": "handler"}


async def test_a_condition_and_a_map_over_no_list_fail_their_steps_alone(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        once("a"),
        once("b", "a", required='{"a": "x"}', when_unmet="fail"),
        mapped("m", "a"),
        once("c", "b", "m", trigger_rule="one_failed"),
    )
    given: dict[str, Any] = {}
    assert await work(worker, given=given) == ["a", "c"]
    assert {slug: error["kind"] for slug, error in given["c"]["$failed"].items()} == {
        "b": "holdfast.errors.StepFailed",
        "m": "holdfast.errors.FlowTypeViolation",
    }
    assert await flows.statuses(run_id) == {
        "a": COMPLETED,
        "b": FAILED,
        "m": FAILED,
        "c": COMPLETED,
    }
    assert await flows.output(run_id) == {"c": "c"}


async def test_an_element_that_fails_fails_its_map_and_stops_the_others(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        mapped("m", max_attempts=1), once("c", "m", trigger_rule="all_done"), given=[1, 2, 3]
    )
    tasks = await worker.take()
    await worker.complete(tasks["m:1"])
    ended = await worker.report(
        end(tasks["m:0"], error='{"kind":"X","message":"y"}'), taker=worker.taker()
    )
    assert [task.key for task in ended.tasks] == ["c"]
    assert await worker.complete(tasks["m:2"]) == "lost"
    assert await worker.complete(ended.tasks[0], 1) == "recorded"
    assert await flows.output(run_id) == {"c": 1}
    assert (await flows.steps(run_id))["m"].status == FAILED


@pytest.mark.parametrize("failing", [(), ("a",), ("last",), ("a", "last")])
async def test_a_step_that_always_runs_comes_after_all_others(
    flows: Flows, worker: StepWorker, failing: tuple[str, ...]
) -> None:
    """Its own failure fails the run, unless that has failed already."""
    given: dict[str, Any] = {}
    run_id = await flows.run_of(
        once("a"), once("last", "a", trigger_rule="always"), once("b"), once("c", "b")
    )
    done = await work(worker, *failing, given=given)
    assert (set(done[:2]), done[2:]) == ({"a", "b"}, ["c", "last"])
    assert set(given["last"]) == {"run", "$failed" if "a" in failing else "a"}
    if failing:
        assert (await flows.error(run_id))["step"] == failing[0]
    else:
        assert await flows.output(run_id) == {"a": "a", "c": "c"}


@pytest.mark.parametrize("fails", [True, False])
async def test_a_cancelled_run_ends_after_the_step_that_always_runs(
    flows: Flows, worker: StepWorker, fails: bool
) -> None:
    run_id = await flows.run_of(
        once("a"),
        once("b"),
        mapped("m"),
        once("c", "a", "b", "m"),
        once("last", "a", "c", trigger_rule="always"),
        once("other", trigger_rule="always"),
        given=[1, 2],
    )
    tasks = await worker.take()
    await worker.complete(tasks["a"], 1)
    await worker.complete(tasks["m:1"], 1)
    delivered = await flows.store.cancel_runs([run_id])
    assert delivered.outcomes == ["delivered"]
    assert {notice.payload for notice in delivered.notices if notice.topic == "worker/ann"} == {
        f"{run_id} b",
        f"{run_id} m:0",
    }
    assert (await flows.store.cancel_runs([run_id])).outcomes == ["duplicate"]
    assert await worker.complete(tasks["b"]) == "lost"
    assert await worker.complete(tasks["m:0"]) == "lost"
    last = await worker.take()
    assert {key: json.loads(task.payload or "") for key, task in last.items()} == {
        "last": {"run": [1, 2], "a": 1},
        "other": {"run": [1, 2]},
    }
    await worker.complete(last["other"])
    assert (await get(flows.store, run_id)).status == "running"
    await (worker.fail(last["last"]) if fails else worker.complete(last["last"]))
    assert (await get(flows.store, run_id)).status == "cancelled"
    assert (await flows.log(run_id))[-1] == "WorkflowCanceled"
    assert await flows.statuses(run_id) == {
        "a": COMPLETED,
        "b": "started",
        "m": "started",
        "c": "created",
        "last": FAILED if fails else COMPLETED,
        "other": COMPLETED,
    }


async def test_a_cancel_while_the_last_step_runs_waits_for_it(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(once("a"), once("last", trigger_rule="always"))
    await worker.complete(await worker.one())
    last = await worker.one()
    assert (await flows.store.cancel_runs([run_id])).outcomes == ["delivered"]
    assert await worker.take() == {}
    assert await worker.complete(last) == "recorded"
    assert (await get(flows.store, run_id)).status == "cancelled"


async def test_a_run_that_is_cancelled_before_its_start_runs_no_step(
    flows: Flows, worker: StepWorker
) -> None:
    """Its start is delayed: nothing has begun that the last step would have to clean up."""
    await flows.define(once("a"), mapped("m"), once("last", trigger_rule="always"))
    early, late = [await flows.start([1], delay_seconds=60.0) for _ in range(2)]
    assert (await flows.store.cancel_runs([early])).outcomes == ["delivered"]
    assert (await get(flows.store, early)).status == "cancelled"
    assert (await flows.log(early))[-1] == "WorkflowCanceled"
    assert await worker.take() == {}
    await flows.clock.advance(60)
    await flows.store.cancel_runs([late])
    assert list(await worker.take()) == ["last"]


async def test_terminate_waits_for_no_step(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(once("a"), once("last", trigger_rule="always"))
    await flows.store.cancel_runs([run_id])
    await worker.one()
    await flows.store.terminate_runs([run_id])
    assert (await get(flows.store, run_id)).status == "terminated"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((single("a"), single("b", "a", trigger_rule="some")), "some: rules are none_failed, all_"),
        ((single("a", trigger_rule="all_done"),), "it depends on no step"),
        ((single("a"), mapped("b", "a", trigger_rule="all_done")), "a map has none"),
        (
            (single("a"), single("b", "a", trigger_rule="one_failed", when_unmet="fail")),
            "because nothing failed",
        ),
        ((single("a"), single("b", trigger_rule="always", required="{}")), "has no patterns"),
        ((single("a", trigger_rule="always"),), "step a always runs at the end"),
        (
            (single("a"), single("b", trigger_rule="always"), single("c", "b")),
            "step c depends on b, which always runs at the end",
        ),
    ],
)
async def test_rules_that_cannot_be_are_refused(flows: Flows, steps: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await flows.store.ensure_flow(FlowShape(name=NAME, steps=steps), "hash")
