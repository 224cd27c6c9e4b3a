"""A start of one plain run takes a short way; what it writes is what the long one writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked
from test_sql_linear import called, rows_of

SHORT, LONG = "_start_plain_flow", "_start_flows"


@pytest.fixture
def row(hand: Hand) -> Hand:
    """A person whose flow has had a run: before the first one, a start takes the long way."""
    hand.define("row", ("b", []), ("c", ["b"]), ("a", []))
    hand.start("row", None)
    return hand


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"p_keys": "k", "p_queues": "slow", "p_priorities": 1},
        {"p_retentions": 60.0, "p_waiters": "client"},
    ],
    ids=["defaults", "queue", "waiter"],
)
def test_the_short_way_writes_what_the_long_way_writes(row: Hand, options: dict[str, Any]) -> None:
    """Tags, be they none, take the long way."""
    short, short_said = start(row, **options)
    long, long_said = start(row, p_tags=None, **options)
    assert (short_said.pop("took"), long_said.pop("took")) == ({SHORT}, {LONG})
    assert short_said == long_said
    assert rows_of(row, short) == rows_of(row, long)
    queue = options.get("p_queues", "default")
    assert short_said["rows"] == [(short_said["rows"][0][0], True, "running", [["work", queue]])]
    waiting = [
        row.rows("select topic from holdfast.waiters where run_id = %s", r) for r in (short, long)
    ]
    assert waiting[0] == waiting[1]
    assert len(waiting[0]) == ("p_waiters" in options)


def test_a_run_that_exists_is_found_by_the_long_way(row: Hand) -> None:
    run_id, _ = start(row)
    _, said = start(row, run_id=run_id, p_waiters="client")
    assert said["took"] == {SHORT, LONG}
    assert said["rows"][0][1:] == (False, "running", None)
    assert row.value("select count(*) from holdfast.waiters where run_id = %s", run_id) == 1
    assert row.log(run_id) == ["WorkflowStarted"]


@pytest.mark.parametrize(
    "define",
    [
        lambda hand: hand.define("other", ("a", [])),
        lambda hand: (hand.define("other"), hand.add("other", "a", [], step_type="map")),
        lambda hand: (hand.define("other"), hand.add("other", "a", [], start_delay=60)),
        lambda hand: (
            hand.define("other", ("z", [])),
            hand.add("other", "a", [], required_input_pattern='{"n": 1}'),
        ),
        lambda hand: hand.define("other"),
    ],
    ids=["first run", "map", "delay", "condition", "no steps"],
)
def test_what_does_not_begin_with_plain_steps_takes_the_long_way(
    hand: Hand, define: Callable[[Hand], object], request: pytest.FixtureRequest
) -> None:
    define(hand)
    if "first run" not in request.node.callspec.id:
        start(hand, "other@1", value="[1]")
    _, said = start(hand, "other@1", value="[1]")
    assert said["took"] == {SHORT, LONG}


@pytest.mark.parametrize(
    ("flow", "options", "code"),
    [
        ("nobody@1", {}, "HF003"),
        ("row@2", {}, "HF003"),
        ("row@1", {"p_priorities": 9}, "22023"),
        ("row@1", {"p_queues": "a b"}, "22023"),
    ],
)
def test_a_plain_start_is_refused_as_any_other(
    row: Hand, flow: str, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        start(row, flow, **options)
    assert refused.value.sqlstate == code
    row.connection.execute("rollback")


def test_a_plain_start_waits_for_a_flow_that_is_being_deleted(hands: Callable[[], Hand]) -> None:
    hand, other, watcher = hands(), hands(), hands()
    hand.define("row", ("a", []))
    hand.start("row", None)
    other.begin()
    other.rows("select * from holdfast.delete_flow('row', true)")
    with pytest.raises(psycopg.Error) as refused:
        while_blocked(watcher, lambda: start(hand), other.commit)
    assert refused.value.sqlstate == "HF003"


def start(
    hand: Hand,
    flow: str = "row@1",
    *,
    value: str = "{}",
    run_id: UUID | None = None,
    **options: Any,
) -> tuple[UUID, dict[str, Any]]:
    """Start a run; return its id, what was said of it, and which of the ways were taken."""
    run_id = run_id or uuid4()
    named = "".join(f", {name} => array[%s]{CASTS.get(name, '')}" for name in options)
    hand.connection.execute("set track_functions = 'all'")
    hand.begin()
    before = called(hand)
    rows = hand.rows(
        f"select * from holdfast.start_flows(array[%s::uuid], array[%s], array[%s::json]{named})",
        run_id,
        flow,
        value,
        *options.values(),
    )
    took = {way for way in (SHORT, LONG) if called(hand).get(way) != before.get(way)}
    hand.commit()
    said = [
        (row["run_id"] == run_id, row["created"], row["status"], row["notices"]) for row in rows
    ]
    return run_id, {"took": took, "rows": said}


CASTS = {"p_tags": "::json[]"}
