"""Retries of runs of flows: new runs that do what others lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked

from holdfast.values.ids import retry_run_id

NULL, WRONG = "22004", "22023"


def retry(hand: Hand, run_id: UUID, step: str | None = None) -> UUID:
    new = uuid4()
    outcome = retry_outcome(hand, run_id, new, step)
    assert outcome == "started"
    return new


def retry_outcome(hand: Hand, run_id: UUID, new: UUID, step: str | None = None) -> str:
    (row,) = hand.rows("select * from holdfast.retry_flow(%s, %s, %s)", run_id, new, step)
    assert row["outcome"] != "started" or row["notices"] is None or row["notices"][0][0] == "work"
    return str(row["outcome"])


def tried(hand: Hand, flow: str) -> list[str]:
    """Return what is due, and lease it: the step, with the index for an element of a map."""
    kinds = {
        row["step_slug"]: row["step_type"]
        for row in hand.rows("select step_slug, step_type from holdfast.steps")
    }
    return [
        task["step_slug"] + (f":{task['task_index']}" if kinds[task["step_slug"]] == "map" else "")
        for task in hand.work(flow)
    ]


def end(hand: Hand, run_id: UUID) -> None:
    hand.rows("select * from holdfast.terminate_runs(array[%s::uuid])", run_id)


def test_completed_steps_are_copied_and_the_rest_runs(hand: Hand) -> None:
    hand.define("line", ("a", []), ("b", ["a"]), ("c", ["b"]))
    first = hand.start("line", {"n": 1})
    hand.work("line")
    hand.complete(first, "a", "from a")
    hand.rows("update holdfast.steps set opt_max_attempts = 1 returning 1")
    hand.work("line")
    assert hand.fail(first, "b") == "recorded"
    assert hand.run(first)["status"] == "failed"
    second = retry(hand, first)
    assert hand.statuses(second) == {"a": "completed", "b": "created", "c": "created"}
    (task,) = hand.work("line")
    assert (task["run_id"], task["step_slug"]) == (second, "b")
    assert task["input"] == {"run": {"n": 1}, "a": "from a"}
    hand.complete(second, "b", "from b")
    assert tried(hand, "line") == ["c"]
    hand.complete(second, "c", "from c")
    assert hand.run(second)["output"] == {"c": "from c"}
    assert hand.log(second) == [
        "WorkflowStarted",
        "WorkflowForked",
        "FlowStepCompleted b",
        "FlowStepCompleted c",
        "WorkflowCompleted",
    ]
    assert hand.run(first)["status"] == "failed"


def test_a_retry_has_the_values_of_the_run_but_not_its_key(hand: Hand) -> None:
    hand.define("kept", ("a", []))
    first, second = uuid4(), uuid4()
    hand.rows(
        "select * from holdfast.start_flows(array[%s::uuid], array['kept'], array['[1]']::json[],"
        " array['k'], array['far'], array[1], array[60], array[7], array['[\"t\"]']::json[],"
        ' array[\'{"by": "ann"}\']::json[])',
        first,
    )
    end(hand, first)
    assert retry_outcome(hand, first, second) == "started"
    old, new = hand.run(first), hand.run(second)
    for name in ("kind", "name", "version", "queue", "priority", "tags", "headers", "retention"):
        assert old[name] == new[name], name
    assert (new["key"], new["input"], new["parent_run_id"]) == (None, [1], None)
    assert new["deadline_at"] - new["created_at"] == old["deadline_at"] - old["created_at"]
    details = hand.value(
        "select details from holdfast.events where run_id = %s and event_type = 'WorkflowForked'",
        second,
    )
    assert details == {"run_id": str(first), "idx": 2, "seed": str(first), "run_key": "k"}


def test_two_retries_with_one_id_are_one_run(hand: Hand) -> None:
    hand.define("once", ("a", []))
    first = hand.start("once", {})
    end(hand, first)
    second = retry_run_id(first)
    assert retry_outcome(hand, first, second) == "started"
    assert retry_outcome(hand, first, second) == "exists"
    assert hand.value("select count(*) from holdfast.tasks where kind = 'step'") == 1


def test_two_retries_at_once_are_one_run(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("once", ("a", []))
    first = bob.start("once", {})
    end(bob, first)
    second = retry_run_id(first)
    ann.begin()
    assert retry_outcome(ann, first, second) == "started"
    assert while_blocked(watcher, lambda: retry_outcome(bob, first, second), ann.commit) == "exists"
    assert bob.value("select count(*) from holdfast.tasks where kind = 'step'") == 1


def test_what_cannot_be_retried_has_an_outcome(hand: Hand) -> None:
    hand.define("known", ("a", []))
    run_id, new = hand.start("known", {}), uuid4()
    assert retry_outcome(hand, uuid4(), new) == "missing"
    assert retry_outcome(hand, run_id, new) == "running"
    assert retry_outcome(hand, run_id, new, "a") == "running"
    hand.work("known")
    hand.complete(run_id, "a", 1)
    assert retry_outcome(hand, run_id, new) == "running"
    assert retry_outcome(hand, run_id, new, "") == "running"
    assert retry_outcome(hand, run_id, new, "b") == "unknown_step"
    assert retry_outcome(hand, run_id, run_id, "a") == "exists"
    assert retry_outcome(hand, run_id, new, "a") == "started"


def test_a_run_of_a_workflow_is_not_retried_as_a_flow(hand: Hand) -> None:
    run_id = hand.value("select holdfast.start_run('shop/order')")
    with pytest.raises(psycopg.Error, match="is not one of a flow") as caught:
        retry(hand, run_id)
    assert caught.value.sqlstate == WRONG


def test_a_step_runs_again_with_all_behind_it(hand: Hand) -> None:
    hand.define("diamond", ("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"]))
    first = hand.start("diamond", {})
    for step in "abcd":
        hand.work("diamond")
        hand.complete(first, step, step)
    assert hand.run(first)["status"] == "completed"
    second = retry(hand, first, "b")
    assert tried(hand, "diamond") == ["b"]
    hand.complete(second, "b", "again")
    (task,) = hand.work("diamond")
    assert (task["step_slug"], task["input"]) == ("d", {"run": {}, "b": "again", "c": "c"})
    hand.complete(second, "d", "done")
    assert hand.run(second)["output"] == {"d": "done"}


def mapped(hand: Hand, results: list[int]) -> UUID:
    """Return a run that failed in a map of five elements, of which these have their results."""
    hand.rows("select * from holdfast.create_flow('mapped', max_attempts => 1)")
    hand.add("mapped", "words", [])
    hand.add("mapped", "size", ["words"], step_type="map")
    hand.add("mapped", "double", ["size"], step_type="map")
    run_id = hand.start("mapped", {})
    hand.work("mapped")
    hand.complete(run_id, "words", ["a", "bb", "ccc", "dddd", "eeeee"])
    hand.work("mapped")
    for index in results:
        assert hand.complete(run_id, "size", index + 1, index) == "recorded"
    (failed,) = {0, 1, 2, 3, 4} - {*results, *([] if 4 in results else [4])} - {0} or {0}
    hand.fail(run_id, "size", "no", failed)
    assert hand.run(run_id)["status"] == "failed"
    return run_id


def test_a_map_repeats_only_the_elements_that_have_no_result(hand: Hand) -> None:
    second = retry(hand, mapped(hand, [0, 1, 3]))
    assert tried(hand, "mapped") == ["size:2", "size:4"]
    (state,) = [s for s in steps(hand, second) if s["step_slug"] == "size"]
    assert (state["initial_tasks"], state["remaining_tasks"]) == (5, 2)
    entry = hand.value(
        "select details from holdfast.events where run_id = %s and event_type = 'FlowStepStarted'",
        second,
    )
    assert entry == {"tasks": 2}
    for index in (2, 4):
        assert hand.complete(second, "size", index + 1, index) == "recorded"
    assert tried(hand, "mapped") == [f"double:{index}" for index in range(5)]
    for index in range(5):
        hand.complete(second, "double", 2 * index, index)
    assert hand.run(second)["output"] == {"double": [0, 2, 4, 6, 8]}


@pytest.mark.parametrize("step", ["size", "words"])
def test_a_map_that_is_to_run_again_repeats_all_elements(hand: Hand, step: str) -> None:
    second = retry(hand, mapped(hand, [0, 1, 3]), step)
    if step == "words":
        assert tried(hand, "mapped") == ["words"]
        hand.complete(second, "words", ["x", "y"])
        assert tried(hand, "mapped") == ["size:0", "size:1"]
    else:
        assert tried(hand, "mapped") == [f"size:{index}" for index in range(5)]


def test_a_retry_of_a_retry_keeps_what_both_have(hand: Hand) -> None:
    second = retry(hand, mapped(hand, [0, 1, 3]))
    assert tried(hand, "mapped") == ["size:2", "size:4"]
    hand.complete(second, "size", 5, 4)
    hand.fail(second, "size", "no", 2)
    third = retry(hand, second)
    assert tried(hand, "mapped") == ["size:2"]
    hand.complete(third, "size", 3, 2)
    assert [s["output"] for s in steps(hand, third)][1] == [1, 2, 3, 4, 5]


def steps(hand: Hand, run_id: UUID) -> list[dict[str, Any]]:
    return hand.rows("select * from holdfast.flow_steps(array[%s::uuid])", run_id)


def test_what_a_skip_took_along_stays_skipped(hand: Hand) -> None:
    """c would run without b otherwise: b is skipped with all that depends on it."""
    hand.define("split", ("a", []))
    hand.add(
        "split", "b", [], required_input_pattern=json.dumps({"go": True}), when_unmet="skip-cascade"
    )
    hand.add("split", "c", ["a", "b"])
    hand.add("split", "d", ["c"])
    hand.add("split", "e", ["a"])
    first = hand.start("split", {"go": False})
    hand.work("split")
    end(hand, first)
    second = retry(hand, first)
    assert hand.statuses(second) == {
        "a": "created",
        "b": "skipped",
        "c": "skipped",
        "d": "skipped",
        "e": "created",
    }
    for step in ("a", "e"):
        assert tried(hand, "split") == [step]
        hand.complete(second, step, step)
    assert tried(hand, "split") == []
    run = hand.run(second)
    assert (run["status"], run["output"]) == ("completed", {"e": "e"})
    third = retry(hand, second, "d")
    assert (hand.run(third)["status"], hand.run(third)["output"]) == ("completed", {"e": "e"})
    fourth = retry(hand, second, "b")
    assert hand.run(fourth)["status"] == "completed"
    assert hand.statuses(fourth)["b"] == "skipped"


def test_a_flow_without_steps_is_retried_to_its_end(hand: Hand) -> None:
    """It completes at its start, so only a run that was stopped before could be retried."""
    hand.rows("select * from holdfast.create_flow('empty')")
    run_id = hand.start("empty", {})
    assert hand.run(run_id)["status"] == "completed"
    assert retry_outcome(hand, run_id, uuid4()) == "running"


def test_a_run_whose_shape_was_replaced_starts_from_the_beginning(hand: Hand) -> None:
    ensure = "select status from holdfast.ensure_flow('shop/f', 1, %s, %s::jsonb, true)"
    old = {"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a"]}]}
    assert hand.value(ensure, "1", json.dumps(old)) == "compiled"
    first = hand.start("f", {})
    hand.work("f")
    hand.complete(first, "a", 1)
    new = {"steps": [{"slug": "a"}, {"slug": "c", "deps": ["a"]}]}
    assert hand.value(ensure, "2", json.dumps(new)) == "replaced"
    second = retry(hand, first)
    assert hand.statuses(second) == {"a": "created", "c": "created"}
    for step in "ac":
        assert tried(hand, "f") == [step]
        hand.complete(second, step, step)
    assert hand.run(second)["output"] == {"c": "c"}


def test_a_retry_is_paused_and_ended_as_any_run(hand: Hand) -> None:
    second = retry(hand, mapped(hand, [0, 1, 3]))
    hand.rows("select * from holdfast.pause_runs(array[%s::uuid])", second)
    assert tried(hand, "mapped") == []
    end(hand, second)
    assert hand.value("select count(*) from holdfast.tasks") == 0
