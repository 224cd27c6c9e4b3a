"""What flows do not pay for: calls for each step, and comparisons of all with all."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hand import Hand

pytestmark = pytest.mark.fresh_database

RUNS = 20
MANY = 200
EVERY_HOUR = {"throttle_limit": 1, "throttle_period_seconds": 3600, "throttle_excess": "refuse"}


@pytest.fixture
def runs(hand: Hand) -> list[UUID]:
    """Runs whose first step is followed by a step, by a map and by a step with a condition."""
    hand.define("order", ("check", []), ("pack", ["check"]))
    hand.add("order", "label", ["check"], step_type="map")
    hand.add("order", "gift", ["check"], required_input_pattern='{"check": [1]}')
    return [hand.start("order", n) for n in range(RUNS)]


def test_many_claimed_steps_are_given_their_inputs_by_one_query(
    hand: Hand, runs: list[UUID]
) -> None:
    called = calls(
        hand,
        "select * from holdfast.claim_tasks('ann', array['default'], array['order@1'], 100, 30)",
    )
    assert called["claim_tasks"] == called["_given_to_steps"] == 1
    assert not called.keys() & {"_step_input", "_step_inputs"}


def test_many_steps_that_are_handed_over_are_given_their_inputs_by_one_query(
    hand: Hand, runs: list[UUID]
) -> None:
    hand.work("order")
    called = end_checks(hand, runs, "[]", room=RUNS)
    assert called["end_step_tasks"] == 1
    assert called["_step_inputs"] == called["_condition_met"] == RUNS  # of the conditions alone
    assert "_step_input" not in called


def test_only_maps_are_counted_and_only_conditions_are_judged(hand: Hand, runs: list[UUID]) -> None:
    hand.work("order")
    called = end_checks(hand, runs, "[1, 2]")
    assert called["_judge_steps"] == 1  # of all runs together
    assert (called["_count_elements"], called["_condition_met"]) == (RUNS, RUNS)


def test_steps_without_conditions_are_not_judged(hand: Hand) -> None:
    hand.define("chain", ("a", []), ("b", ["a"]))
    run_id = hand.start("chain", None)
    hand.work("chain")
    of_a = calls(hand, "select holdfast.complete_task(%s, 'a', 0, '1')", run_id)
    hand.work("chain")
    of_b = calls(hand, "select holdfast.complete_task(%s, 'b', 0, '2')", run_id)
    assert hand.run(run_id)["status"] == "completed"
    assert not {*of_a, *of_b} & {"_judge_steps", "_condition_met", "_count_elements"}


def test_elements_whose_starts_a_rule_refuses_are_not_compared_with_each_other(hand: Hand) -> None:
    hand.rows(
        "select holdfast.declare_start_rules(array['leaf'], array[1], array[%s::json])",
        json.dumps(EVERY_HOUR),
    )
    define(hand, {"slug": "m", "kind": "map", "runs": "leaf@1", "runs_kind": "workflow"})
    assert start_of_many(hand, list(range(MANY))) < 10 * MANY
    assert hand.value("select count(*) from holdfast.runs where name = 'leaf'") == 1


def test_elements_that_flows_refuse_are_not_compared_with_each_other(hand: Hand) -> None:
    hand.define("leaf")
    hand.add("leaf", "all", [], step_type="map")
    define(hand, {"slug": "m", "kind": "map", "runs": "leaf@1", "runs_kind": "flow"})
    assert start_of_many(hand, list(range(MANY))) < 10 * MANY
    assert hand.value("select count(*) from holdfast.runs where name = 'leaf'") == 0


def test_steps_whose_conditions_do_not_hold_are_not_compared_with_each_other(hand: Hand) -> None:
    define(hand, *({"slug": f"s{n}", "required": '{"a": 1}'} for n in range(MANY)))
    assert start_of_many(hand, None) < 10 * MANY
    assert hand.value("select status from holdfast.runs") == "completed"


@pytest.mark.parametrize("is_run", [False, True])
def test_elements_that_are_skipped_are_not_compared_with_each_other(
    hand: Hand, is_run: bool
) -> None:
    hand.rows("select holdfast.create_flow('leaf', 1), holdfast.add_step('leaf', 's')")
    what = {"runs": "leaf@1", "runs_kind": "flow"} if is_run else {}
    define(hand, {"slug": "m", "kind": "map", "when_exhausted": "skip", **what})
    hand.start("many", list(range(MANY)))
    [task] = hand.work("leaf" if is_run else "many", 1)
    failing = (task["run_id"], task["step_slug"], task["task_index"])
    query = "select holdfast.fail_task(%s, %s, %s, 'no')"
    assert comparisons(hand, query, *failing) < 10 * MANY
    left = "select count(*) from holdfast.runs where status = 'running'"
    assert hand.value(left) == 0


def test_steps_that_are_added_are_not_compared_with_each_other(hand: Hand) -> None:
    """The plans are those that a larger flow leads to."""
    define(hand, *({"slug": f"s{n}", "deps": [f"s{n - 1}"] if n else []} for n in range(500)))
    hand.connection.execute("analyze holdfast.steps, holdfast.deps")
    hand.define("chain", ("s0", []))
    for n in range(1, MANY // 2):
        hand.add("chain", f"s{n}", [f"s{n - 1}"])
    assert comparisons(hand, "select holdfast.add_step('chain', 'last', array['s0'])") < 5 * MANY


@pytest.mark.parametrize(
    "query",
    [
        "select * from holdfast.flow_steps(array[%s]::uuid[])",
        "select holdfast.get_flow('many') where %s is not null",
    ],
)
def test_what_a_step_depends_on_is_found_by_the_step(hand: Hand, query: str) -> None:
    """By the key of `deps` each step reads those of all; a plan of a small table is kept."""
    define(hand, {"slug": "a"}, *({"slug": f"s{n}", "deps": ["a"]} for n in range(20)))
    used = set[str]().union(*map(indexes, plans_of(hand, query, hand.start("many", 1))))
    assert "deps_by_step" in used
    assert "deps_pkey" not in used


def define(hand: Hand, *steps: dict[str, Any]) -> None:
    """Define the flow `many`, whose steps are not tried again."""
    shape = {"name": "many", "version": 1, "max_attempts": 1, "steps": steps}
    hand.rows("select holdfast.ensure_flow('many', 1, 'h', %s::jsonb)", json.dumps(shape))


def start_of_many(hand: Hand, value: object) -> int:
    return comparisons(hand, "select holdfast.start_flow('many', %s::jsonb)", json.dumps(value))


def comparisons(hand: Hand, query: str, *values: object) -> int:
    """Return how many pairs of rows the joins within a call compared in vain."""
    return sum(map(in_vain, plans_of(hand, query, *values)))


def plans_of(hand: Hand, query: str, *values: object) -> list[dict[str, Any]]:
    """Return the plans of the statements within a call."""
    plans: list[Any] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        plans.append(json.loads((notice.message_primary or "").partition("plan:")[2]))

    hand.connection.execute(
        "load 'auto_explain'; set auto_explain.log_min_duration = 0;"
        "set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;"
        "set auto_explain.log_timing = off; set auto_explain.log_format = json;"
        "set auto_explain.log_level = notice"
    )
    hand.connection.add_notice_handler(keep)
    hand.rows(query, *values)
    hand.connection.remove_notice_handler(keep)
    hand.connection.execute("set auto_explain.log_min_duration = -1")
    assert plans
    return [plan["Plan"] for plan in plans]


def in_vain(node: dict[str, Any]) -> int:
    of_this = node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
    return int(of_this) + sum(in_vain(part) for part in node.get("Plans", ()))


def indexes(node: dict[str, Any]) -> set[str]:
    found = {index} if (index := node.get("Index Name")) else set[str]()
    return found.union(*map(indexes, node.get("Plans", ())))


def end_checks(hand: Hand, runs: list[UUID], output: str, room: int = 0) -> dict[str, int]:
    """Complete the first step of all runs in one call; return what was called."""
    return calls(
        hand,
        "select * from holdfast.end_step_tasks(null, %s::uuid[], %s, null, %s::json[],"
        " p_room => %s, p_queues => array['default'], p_handlers => array['order@1'])",
        runs,
        ["check"] * len(runs),
        [output] * len(runs),
        room,
    )


def calls(hand: Hand, query: str, *values: object) -> dict[str, int]:
    """Return how often a query calls each function."""
    hand.begin()
    hand.connection.execute("set local track_functions = 'all'")
    hand.rows(query, *values)
    found = hand.rows("select funcname, calls from pg_stat_xact_user_functions")
    hand.commit()
    return {row["funcname"]: row["calls"] for row in found}
