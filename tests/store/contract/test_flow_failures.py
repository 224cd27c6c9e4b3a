"""Attempts that fail: they are tried again, skipped over, or fail the run. P3, P6, P8."""

from __future__ import annotations

import json

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput, PayloadError

from .actors import SECOND
from .flow_actors import NO_LUCK, Flows, StepWorker, end, mapped, single


async def test_a_failed_attempt_is_tried_again_after_a_growing_pause(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """The pause is the base times two to the power of the attempts; the next one has the error."""
    run_id = await flows.run_of(single("a", base_delay=3, max_attempts=3))
    task = await worker.one()
    for attempt, pause in ((1, 6), (2, 12)):
        assert (task.attempts, task.lease_no) == (attempt, attempt)
        assert await worker.fail(task) == "retried"
        claims = await worker.claims()
        assert (claims.tasks, claims.next_due_at) == ([], claims.now + pause * SECOND)
        state = (await flows.steps(run_id))["a"]
        assert (state.status, state.attempts, state.worker) == ("started", attempt, None)
        await clock.advance(pause)
        task = await worker.one()
        assert json.loads(task.heartbeat or "") == {"error": json.loads(NO_LUCK)}
    first, second = await flows.details(run_id, "FlowStepRetryScheduled")
    assert (first["tasks"], first["task_index"], first["attempt"]) == (1, None, 1)
    assert first["error"] == json.loads(NO_LUCK)
    assert second["retry_at"] - first["retry_at"] == 12 * SECOND
    assert await worker.fail(task) == "recorded"
    error = await flows.error(run_id)
    assert error == {
        "kind": "holdfast.errors.StepFailed",
        "step": "a",
        "task_index": None,
        "attempts": 3,
        "worker": "ann",
        "message": "step a failed: OSError: no luck",
        "cause": json.loads(NO_LUCK),
    }
    assert await flows.details(run_id, "FlowStepFailed") == [{"error": error}]
    state = (await flows.steps(run_id))["a"]
    assert (state.status, json.loads(state.error or "")) == ("failed", error)
    assert (state.attempts, state.worker) == (3, "ann")
    assert (await flows.log(run_id))[-2:] == ["FlowStepFailed a", "WorkflowFailed"]


async def test_a_step_with_one_attempt_is_not_tried_again(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a", max_attempts=1), max_attempts=5)
    run_id = await flows.start()
    assert await worker.fail(await worker.one()) == "recorded"
    assert (await flows.statuses(run_id)) == {"a": "failed"}


async def test_a_step_has_the_options_of_its_flow_unless_it_has_its_own(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    await flows.define(single("a"), single("b", base_delay=0), max_attempts=2, base_delay=1)
    run_id = await flows.start()
    tasks = await worker.take()
    await worker.report(*(end(task, error=NO_LUCK) for task in tasks.values()))
    assert list(await worker.take()) == ["b"]
    await clock.advance(2)
    await worker.fail(await worker.one())
    assert (await flows.error(run_id))["step"] == "a"


async def test_a_pause_never_leads_beyond_what_a_timestamp_holds(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a", base_delay=2**31 - 1, max_attempts=9))
    assert await worker.fail(await worker.one()) == "retried"
    [retry] = await flows.details(run_id, "FlowStepRetryScheduled")
    claims = await worker.claims()
    assert claims.next_due_at == retry["retry_at"] == claims.now + 2 * (2**31 - 1) * SECOND


async def test_an_error_that_is_not_to_be_tried_again_is_final(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a", max_attempts=9))
    assert await worker.fail(await worker.one(), retryable=False) == "recorded"
    assert (await flows.error(run_id))["attempts"] == 1


async def test_elements_that_fail_in_one_call_have_one_entry(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(mapped("each"), given=[1, 2, 3])
    tasks = await worker.take()
    keys = ("each:2", "each:1")
    ended = await worker.report(*(end(tasks[key], error=NO_LUCK) for key in keys))
    assert ended.outcomes == ["retried", "retried"]
    [retry] = await flows.details(run_id, "FlowStepRetryScheduled")
    assert (retry["tasks"], retry["task_index"], retry["attempt"]) == (2, 1, 1)


async def test_the_error_of_a_run_names_the_element_that_failed(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(mapped("each", max_attempts=1), given=[1, 2, 3])
    tasks = await worker.take()
    await worker.report(end(tasks["each:2"], error=NO_LUCK))
    error = await flows.error(run_id)
    assert (error["step"], error["task_index"]) == ("each", 2)
    assert error["message"] == "step each:2 failed: OSError: no luck"
    state = (await flows.steps(run_id))["each"]
    assert (state.status, state.attempts, state.worker) == ("failed", 1, "ann")


async def test_a_run_that_has_failed_takes_no_output_any_more(
    flows: Flows, worker: StepWorker
) -> None:
    """A failure, then a completion: the completion is lost, and the step shows that it ran."""
    run_id = await flows.run_of(single("a", max_attempts=1), single("b"), single("c"))
    tasks = await worker.take(2)
    ended = await worker.report(end(tasks["a"], error=NO_LUCK))
    assert {(n.topic, n.payload) for n in ended.notices} == {
        ("worker/ann", f"{run_id} a"),
        ("worker/ann", f"{run_id} b"),
    }
    assert await worker.complete(tasks["b"]) == "lost"
    assert await flows.statuses(run_id) == {"a": "failed", "b": "started", "c": "created"}
    b = (await flows.steps(run_id))["b"]
    assert (b.attempts, b.worker, b.initial_tasks, b.remaining_tasks) == (1, "ann", 1, 1)


@pytest.mark.parametrize("together", [False, True])
async def test_a_step_that_has_completed_stays_so_in_a_run_that_fails(
    flows: Flows, worker: StepWorker, together: bool
) -> None:
    """A completion, then a failure, in two calls or in one, where the failure comes first."""
    run_id = await flows.run_of(single("a", max_attempts=1), single("b"), single("c", "b"))
    tasks = await worker.take()
    failure, success = end(tasks["a"], error=NO_LUCK), end(tasks["b"], 1)
    if together:
        assert (await worker.report(failure, success)).outcomes == ["recorded", "recorded"]
    else:
        await worker.report(success)
        await worker.report(failure)
    assert (await flows.error(run_id))["step"] == "a"
    assert await flows.statuses(run_id) == {"a": "failed", "b": "completed", "c": "created"}
    assert await worker.take() == {}
    assert await flows.log(run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted b",
        "FlowStepFailed a",
        "WorkflowFailed",
    ]


async def test_the_failure_that_is_fatal_wins_over_one_that_is_skipped(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        single("a", max_attempts=1, when_exhausted="skip"), single("b", max_attempts=1)
    )
    tasks = await worker.take()
    await worker.report(end(tasks["a"], error=NO_LUCK), end(tasks["b"], error=NO_LUCK))
    assert (await flows.error(run_id))["step"] == "b"
    assert await flows.statuses(run_id) == {"a": "started", "b": "failed"}


async def test_failures_of_several_runs_do_not_meet(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a", max_attempts=1), single("b", "a"))
    runs = sorted([await flows.start() for _ in range(3)])
    tasks = {task.run_id: task for task in (await worker.claims()).tasks}
    await worker.report(
        end(tasks[runs[0]], 1), end(tasks[runs[1]], error=NO_LUCK), end(tasks[runs[2]], 3)
    )
    states = await flows.store.get_runs(runs)
    assert [states[run_id].status for run_id in runs] == ["running", "failed", "running"]
    due = {task.run_id for task in (await worker.claims()).tasks}
    assert due == {runs[0], runs[2]}


async def test_a_step_that_fails_may_be_skipped(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(
        single("a", max_attempts=1, when_exhausted="skip"), single("b", "a", wants_run=False)
    )
    assert await worker.fail(await worker.one()) == "recorded"
    a = (await flows.steps(run_id))["a"]
    assert (a.status, a.skip_reason) == ("skipped", "handler_failed")
    assert (a.attempts, a.worker) == (1, "ann")
    assert json.loads(a.error or "")["cause"] == json.loads(NO_LUCK)
    assert (await worker.one()).payload == "{}"
    assert await flows.details(run_id, "FlowStepSkipped") == [{"reason": "handler_failed"}]


async def test_a_value_that_no_reader_can_read_is_refused(flows: Flows, worker: StepWorker) -> None:
    """A NUL, and what is not JSON: the whole call is refused, and nothing of it is recorded."""
    run_id = await flows.run_of(single("a"), single("b"))
    tasks = await worker.take()
    for text, refusal in (('"\\u0000"', InvalidInput), ("{", PayloadError)):
        with pytest.raises(refusal):
            await worker.report(end(tasks["b"], 1), end(tasks["a"], output=text))
        with pytest.raises(refusal):
            await worker.report(end(tasks["a"], error=text))
    assert await flows.statuses(run_id) == {"a": "started", "b": "started"}


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("builtins.AssertionError", "", "AssertionError"),
        ("builtins.KeyError", "'x'", "KeyError: 'x'"),
        ("shop.Declined", "no", "shop.Declined: no"),
    ],
)
async def test_the_error_of_a_run_has_the_class_of_the_error(
    flows: Flows, worker: StepWorker, kind: str, message: str, line: str
) -> None:
    """A bare assert has no message, and that of a KeyError is only the key."""
    run_id = await flows.run_of(single("a", max_attempts=1))
    task = await worker.one()
    await worker.report(end(task, error=json.dumps({"kind": kind, "message": message})))
    assert (await flows.error(run_id))["message"] == f"step a failed: {line}"
