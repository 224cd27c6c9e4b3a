"""Ends of steps that one step follows take short ways; their results are those of the long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from hand import Hand
from meeting import while_blocked

Define = Callable[[Hand], object]

ALONE, SHORT, LONG = "_end_linear_step", "_end_linear_steps", "_advance_flows"


def chain(hand: Hand) -> None:
    hand.define("row", ("a", []), ("b", ["a"]))


def sorted_runs(hand: Hand) -> list[UUID]:
    """Start two runs with other inputs, the one with the lower id first: it is handed on first."""
    while True:
        runs = [hand.start("row", {"n": n}) for n in (1, 2)]
        if runs == sorted(runs):
            return runs
        hand.rows("delete from holdfast.tasks where run_id = any (%s) returning run_id", runs)


@pytest.mark.parametrize("room", [0, 1, 4])
@pytest.mark.parametrize(("count", "way"), [(1, ALONE), (2, SHORT)])
def test_the_short_ways_write_what_the_long_way_writes(
    hand: Hand, count: int, way: str, room: int
) -> None:
    """A call with a failure, be it of a run that does not exist, takes the long way."""
    chain(hand)
    short, long = (sorted_runs(hand)[:count] for _ in range(2))
    claim(hand)
    waiting = "insert into holdfast.waiters select unnest(%s::uuid[]), 'client' returning topic"
    hand.rows(waiting, [*short, *long])
    for step in ("a", "b"):
        by_short = end(hand, every(short, step), room=room)
        by_long = end(hand, every(long, step), failing=uuid4(), room=room)
        assert (by_short.pop("took"), by_long.pop("took")) == ({way}, {LONG})
        assert by_short == by_long
        assert [rows_of(hand, run) for run in short] == [rows_of(hand, run) for run in long]
        claim(hand)
    assert {hand.run(run)["status"] for run in (*short, *long)} == {"completed"}
    assert hand.run(short[0])["output"] == {"b": {"of": "b"}}


@pytest.mark.parametrize(
    "define",
    [
        lambda hand: hand.define("row", ("a", []), ("b", ["a"]), ("c", ["a"])),
        lambda hand: hand.define("row", ("a", []), ("z", []), ("b", ["a", "z"])),
        lambda hand: (hand.define("row", ("a", [])), hand.add("row", "b", ["a"], step_type="map")),
        lambda hand: (hand.define("row", ("a", [])), hand.add("row", "b", ["a"], start_delay=60)),
        lambda hand: (
            hand.define("row", ("a", [])),
            hand.add("row", "b", ["a"], required_input_pattern='{"a": {"of": "x"}}'),
        ),
        lambda hand: (
            hand.define("row", ("a", [])),
            hand.add("row", "b", ["a"], forbidden_input_pattern='{"a": {"of": "a"}}'),
        ),
    ],
    ids=["two follow", "join", "map", "delay", "condition", "forbidden"],
)
def test_what_is_not_followed_by_one_plain_step_takes_the_long_way(
    hand: Hand, define: Define
) -> None:
    define(hand)
    run = hand.start("row", None)
    claim(hand)
    assert end(hand, [(run, "a")], room=4)["took"] == {ALONE, LONG}
    assert hand.statuses(run)["a"] in ("completed", "failed")


def test_one_step_of_another_kind_sends_its_whole_call_the_long_way(hand: Hand) -> None:
    chain(hand)
    hand.define("wide", ("a", []), ("b", ["a"]), ("c", ["a"]))
    runs = [hand.start("row", None), hand.start("wide", None)]
    claim(hand)
    ended = end(hand, every(runs, "a"), room=4)
    assert ended["took"] == {SHORT, LONG}
    assert ended["outcomes"] == ["recorded", "recorded"]
    assert sorted(ended["handed"]) == ["b", "b", "c"]


def test_a_lost_lease_is_told_and_the_others_are_recorded(hand: Hand) -> None:
    chain(hand)
    first, second, ended_run = (hand.start("row", None) for _ in range(3))
    claim(hand)
    hand.rows(
        "update holdfast.tasks set lease_no = 2 where run_id = %s and key = 'a' returning key",
        second,
    )
    hand.rows("select holdfast.terminate_runs(array[%s::uuid])", ended_run)
    runs = [first, second, ended_run]
    ended = end(hand, every(runs, "a"), room=4)
    assert ended["outcomes"] == ["recorded", "lost", "lost"]
    assert ended["handed"] == ["b"]
    assert hand.statuses(second)["a"] == "started"


def test_a_paused_run_keeps_its_next_step_in_the_queue(hand: Hand) -> None:
    chain(hand)
    run = hand.start("row", None)
    claim(hand)
    hand.rows("select holdfast.pause_runs(array[%s::uuid])", run)
    ended = end(hand, [(run, "a")], room=4)
    assert (ended["took"], ended["handed"]) == ({ALONE}, [])
    assert hand.value(
        "select paused and worker is null from holdfast.tasks where run_id = %s and key = 'b'", run
    )


@pytest.mark.parametrize("between", [0, 1])
def test_two_steps_of_one_run_take_the_long_way(hand: Hand, between: int) -> None:
    hand.define("row", ("a", []), ("b", ["a"]), ("y", []), ("z", ["y"]))
    run, *others = [hand.start("row", None) for _ in range(1 + between)]
    claim(hand)
    ended = end(hand, [(run, "a"), *every(others, "a"), (run, "y")], room=4)
    assert ended["took"] - {SHORT} == {LONG}
    assert hand.log(run) == ["WorkflowStarted", "FlowStepCompleted a", "FlowStepCompleted y"]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("select holdfast.pause_runs(array[%s::uuid])", "recorded"),
        ("select holdfast.terminate_runs(array[%s::uuid])", "lost"),
        (
            "update holdfast.tasks set visible_at = visible_at + interval '1 second'"
            " where run_id = %s and key = 'a' returning key",
            "recorded",
        ),
        (
            "update holdfast.tasks set lease_no = lease_no + 1, worker = 'bob'"
            " where run_id = %s and key = 'a' returning key",
            "lost",
        ),
        (
            "with held as (select from holdfast.tasks where run_id = %s and key = '' for update)"
            " insert into holdfast.events (run_id, idx, event_type, key, at)"
            " select run_id, 1, 'FlowStepCompleted', 'z', now() from holdfast.tasks, held"
            " where kind = 'flow' returning idx",
            "recorded",
        ),
    ],
    ids=["paused", "terminated", "lease extended", "lease taken over", "appended"],
)
def test_what_changes_while_the_call_waits_is_seen(
    hands: Callable[[], Hand], change: str, outcome: str
) -> None:
    """The rows that it waited for have other places by then, and the log is longer."""
    hand, other, watcher = hands(), hands(), hands()
    chain(hand)
    run = hand.start("row", None)
    claim(hand)
    other.begin()
    other.rows(change, run)
    ended = while_blocked(watcher, lambda: end(hand, [(run, "a")], room=4), other.commit)
    assert (ended["took"], ended["outcomes"]) == ({ALONE}, [outcome])
    if outcome == "recorded":
        assert hand.log(run)[-1] == "FlowStepCompleted a"
        left = hand.rows("select key from holdfast.tasks where run_id = %s and key <> ''", run)
        assert [row["key"] for row in left] == ["b"]
        assert ended["handed"] == ([] if "pause" in change else ["b"])
    else:
        assert hand.log(run).count("FlowStepCompleted a") == len(ended["handed"]) == 0


def every(runs: list[UUID], step: str) -> list[tuple[UUID, str]]:
    return [(run, step) for run in runs]


def claim(hand: Hand) -> list[dict[str, Any]]:
    return hand.rows(
        "select run_id, key from holdfast.claim_tasks('ann', array['default'],"
        " array['row@1', 'wide@1'], 100, 30) where run_id is not null"
    )


def end(
    hand: Hand, steps: list[tuple[UUID, str]], *, room: int, failing: UUID | None = None
) -> dict[str, Any]:
    """End steps in one call; return what was said, and which of the ways were taken."""
    hand.connection.execute("set track_functions = 'all'")
    hand.begin()
    before = called(hand)
    runs = [*(run for run, _ in steps), *([] if failing is None else [failing])]
    first, *handed = hand.rows(
        "select * from holdfast.end_step_tasks('ann', %s, %s, %s, %s::json[],"
        " p_errors => %s::json[], p_retryable => %s, p_room => %s,"
        " p_queues => array['default'], p_handlers => array['row@1', 'wide@1'])",
        runs,
        [*(step for _, step in steps), *([] if failing is None else ["a"])],
        [1] * len(runs),
        [f'{{"of": "{step}"}}' for _, step in steps] + [None] * (failing is not None),
        None if failing is None else [None] * len(steps) + ['{"kind": "x", "message": "no"}'],
        [True] * len(runs),
        room,
    )
    took = {way for way in (ALONE, SHORT, LONG) if called(hand).get(way) != before.get(way)}
    hand.commit()
    return {
        "took": took,
        "outcomes": first["outcomes"][: len(steps)],
        "notices": [
            (topic, [runs.index(UUID(text)) if len(text) == 36 else text for text in said.split()])
            for topic, said in first["notices"] or ()
        ],
        "handed": [row["key"] for row in handed],
        "given": sorted(
            (row["input"], row["queue"], row["handler"], row["attempts"], row["lease_no"])
            for row in handed
        ),
    }


def called(hand: Hand) -> dict[str, int]:
    """Return how often this session has called each function since its counts were sent."""
    found = hand.rows("select funcname, calls from pg_stat_xact_user_functions")
    return {row["funcname"]: row["calls"] for row in found}


def rows_of(hand: Hand, run: UUID) -> list[Any]:
    """Return all rows of a run without what differs from run to run and from call to call."""
    differing = ["run_id", "at", "visible_at", "started_at", "ended_at", "created_at"]
    differing += ["completed_at", "delete_after"]
    found: list[Any] = []
    for table, order in (
        ("tasks", "key"),
        ("step_states", "step_slug"),
        ("events", "idx"),
        ("runs", "run_id"),
    ):
        found += hand.rows(
            f"select to_jsonb(t) - %s::text[] as row, to_jsonb(t) ->> 'visible_at' = 'infinity' as"
            f" waits, to_jsonb(t) ->> 'started_at' is null as is_new from holdfast.{table} t"
            f" where run_id = %s order by {order}",
            differing,
            run,
        )
    return found
