"""What flows do not pay for: functions that are not called for each step."""

from __future__ import annotations

from uuid import UUID

import pytest
from hand import Hand

pytestmark = pytest.mark.fresh_database

RUNS = 20


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
    assert called["claim_tasks"] == 1
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
