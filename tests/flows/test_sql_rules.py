"""Trigger rules and options of maps under sessions that meet, and for workers that speak SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked

Hands = Callable[[], Hand]
OPEN = "select key from holdfast.tasks where run_id = %s and key <> '' order by key"


def keys(hand: Hand, run_id: UUID) -> list[str]:
    return [row["key"] for row in hand.rows(OPEN, run_id)]


def due(hand: Hand, run_id: UUID) -> int:
    """Count the elements that are due or started."""
    found = hand.value(
        "select count(*) from holdfast.tasks where run_id = %s and key <> ''"
        " and visible_at < 'infinity'",
        run_id,
    )
    return int(found)


def cancel(hand: Hand, run_id: UUID) -> str:
    return str(hand.value("select outcomes[1] from holdfast.cancel_runs(array[%s::uuid])", run_id))


def test_a_failure_and_an_output_at_once_make_a_step_ready_once(hands: Hands) -> None:
    ann, bob, eve = hands(), hands(), hands()
    eve.rows("select * from holdfast.create_flow('f', 1)")
    eve.add("f", "a", [])
    eve.add("f", "b", [])
    eve.add("f", "c", ["a", "b"], trigger_rule="one_failed")
    eve.add("f", "last", [], trigger_rule="always")
    run_id = eve.start("f", 1)
    eve.work("f")
    ann.begin()
    assert ann.fail(run_id, "a") == "recorded"
    assert while_blocked(eve, lambda: bob.complete(run_id, "b", 2), ann.commit) == "recorded"
    assert keys(eve, run_id) == ["c"]
    (task,) = eve.work("f")
    assert (task["input"]["b"], list(task["input"]["$failed"])) == (2, ["a"])
    assert eve.complete(run_id, "c", 3) == "recorded"
    (task,) = eve.work("f")
    assert task["step_slug"] == "last"
    assert eve.complete(run_id, "last", 3) == "recorded"
    assert eve.run(run_id)["status"] == "completed"


@pytest.mark.parametrize("first", ["cancel", "end"])
def test_a_cancel_and_the_last_end_begin_the_step_that_always_runs_once(
    hands: Hands, first: str
) -> None:
    ann, bob, eve = hands(), hands(), hands()
    eve.define("f", ("a", []))
    eve.add("f", "last", ["a"], trigger_rule="always")
    run_id = eve.start("f", 1)
    eve.work("f")
    calls: dict[str, Callable[[Hand], str]] = {
        "cancel": lambda hand: cancel(hand, run_id),
        "end": lambda hand: hand.complete(run_id, "a", 2),
    }
    second = "end" if first == "cancel" else "cancel"
    ann.begin()
    calls[first](ann)
    outcome = while_blocked(eve, lambda: calls[second](bob), ann.commit)
    assert outcome == ("lost" if second == "end" else "delivered")
    (task,) = eve.work("f")
    assert task["input"] == ({"run": 1} if first == "cancel" else {"run": 1, "a": 2})
    assert eve.complete(run_id, "last", 3) == "recorded"
    assert eve.run(run_id)["status"] == "cancelled"
    assert keys(eve, run_id) == []


def test_a_cancelled_flow_stops_its_runs_and_waits_for_its_last_step(hands: Hands) -> None:
    """The flow that is a step has a last step too, and nobody waits for that."""
    hand = hands()
    inner = {"name": "inner", "version": 1, "steps": [
        {"slug": "s"}, {"slug": "clean", "trigger_rule": "always"},
    ]}  # fmt: skip
    outer = {"name": "outer", "version": 1, "steps": [
        {"slug": "x", "runs": "inner@1", "runs_kind": "flow"},
        {"slug": "last", "deps": ["x"], "trigger_rule": "always"},
    ]}  # fmt: skip
    for shape in (inner, outer):
        hand.rows("select holdfast.ensure_flow(%s, 1, 'h', %s)", shape["name"], json.dumps(shape))
    run_id = hand.start("outer", 1)
    child = hand.value("select run_id from holdfast.runs where parent_run_id = %s", run_id)
    assert cancel(hand, run_id) == "delivered"
    assert (keys(hand, run_id), keys(hand, child)) == (["last"], ["clean"])
    hand.work("outer")
    assert hand.complete(run_id, "last", 1) == "recorded"
    assert hand.run(run_id)["status"] == "cancelled"
    hand.work("inner")
    assert hand.complete(child, "clean", 1) == "recorded"
    assert hand.run(child)["status"] == "cancelled"


def test_a_flow_that_fails_after_its_handlers_is_handled_by_the_flow_around_it(
    hands: Hands,
) -> None:
    hand = hands()
    inner = {"name": "inner", "version": 1, "max_attempts": 1, "steps": [
        {"slug": "s"}, {"slug": "clean", "trigger_rule": "always"},
    ]}  # fmt: skip
    outer = {"name": "outer", "version": 1, "max_attempts": 1, "steps": [
        {"slug": "x", "runs": "inner@1", "runs_kind": "flow"},
        {"slug": "fix", "deps": ["x"], "trigger_rule": "one_failed"},
    ]}  # fmt: skip
    for shape in (inner, outer):
        hand.rows("select holdfast.ensure_flow(%s, 1, 'h', %s)", shape["name"], json.dumps(shape))
    run_id = hand.start("outer", 1)
    child = hand.value("select run_id from holdfast.runs where parent_run_id = %s", run_id)
    hand.work("inner")
    hand.fail(child, "s", "no luck")
    hand.work("inner")
    assert hand.complete(child, "clean", 1) == "recorded"
    (task,) = hand.work("outer")
    assert "no luck" in task["input"]["$failed"]["x"]["message"]
    assert hand.complete(run_id, "fix", 2) == "recorded"
    assert hand.run(run_id)["output"] == {"fix": 2}


def elements(hand: Hand, size: int, **options: Any) -> UUID:
    hand.rows("select * from holdfast.create_flow('m', 1)")
    hand.add("m", "each", [], step_type="map", **options)
    return hand.start("m", list(range(size)))


def test_ends_at_once_begin_as_many_elements(hands: Hands) -> None:
    """The second end counts down, and begins another element, after the first has committed."""
    ann, bob, eve = hands(), hands(), hands()
    run_id = elements(eve, 20, concurrency=2)
    eve.work("m")
    ann.begin()
    assert ann.complete(run_id, "each", 0, 0) == "recorded"
    assert while_blocked(eve, lambda: bob.complete(run_id, "each", 1, 1), ann.commit) == "recorded"
    assert [task["task_index"] for task in eve.work("m")] == [2, 3]
    assert due(eve, run_id) == 2


@pytest.mark.parametrize("ends_by", ["pause", "fail", "complete"])
def test_an_end_and_what_locks_all_tasks_wait_for_each_other(hands: Hands, ends_by: str) -> None:
    """Who has the turn row may have the task of the next element: the end then waits for the turn.

    `complete_task` of an element that has not begun has its task, too, for a moment.
    """
    ann, bob, eve = hands(), hands(), hands()
    run_id = elements(eve, 20, concurrency=2)
    eve.work("m")
    ann.begin()
    if ends_by == "pause":
        ann.rows("select holdfast.pause_runs(array[%s::uuid])", run_id)
    elif ends_by == "fail":
        assert ann.fail(run_id, "each", index=0) == "recorded"
    else:
        assert ann.complete(run_id, "each", 0, 2) == "lost"
    outcome = while_blocked(eve, lambda: bob.complete(run_id, "each", 1, 1), ann.commit)
    if ends_by == "fail":
        assert (outcome, eve.run(run_id)["status"]) == ("lost", "failed")
        return
    assert outcome == "recorded"
    assert due(eve, run_id) == 2
    if ends_by == "pause":
        assert eve.work("m") == []
        eve.rows("select holdfast.resume_runs(array[%s::uuid])", run_id)
    assert [task["task_index"] for task in eve.work("m")] == [2]


def test_a_step_that_sql_defined_has_its_rule_in_a_copy_of_its_shape(hand: Hand) -> None:
    """Leaves that come later are what the last step waits for, too."""
    hand.define("f", ("a", []))
    hand.add("f", "last", [], trigger_rule="always")
    hand.start("f", 1)
    hand.add("f", "b", ["a"])
    deps = hand.rows(
        "select dep_slug, step_slug, is_implied from holdfast.deps where handler = 'f@2'"
        " order by step_slug, dep_slug"
    )
    assert [tuple(row.values()) for row in deps] == [
        ("b", "", False),
        ("last", "", True),
        ("a", "b", False),
        ("b", "last", True),
    ]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no step comes after it"):
        hand.add("f", "c", ["last"])
    hand.rows("select holdfast.create_flow('g')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="add a step that comes before"):
        hand.add("g", "last", [], trigger_rule="always")
