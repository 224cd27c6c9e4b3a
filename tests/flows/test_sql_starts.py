"""Runs of flows that start later, and steps that begin later. P3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hand import WORKER, Hand

NULL, WRONG = "22004", "22023"


def start(hand: Hand, flow: str, value: str = "{}", **options: object) -> UUID:
    """Start a run now, as start_flows does; the options are arrays of one."""
    run_id = uuid4()
    named = "".join(f", {name} => array[%s]" for name in options)
    hand.rows(
        f"select * from holdfast.start_flows(array[%s::uuid], array[%s], array[%s::json]{named})",
        run_id,
        flow,
        value,
        *options.values(),
    )
    return run_id


@contextmanager
def seconds_later(hand: Hand, seconds: float) -> Iterator[None]:
    """Let a session see the engine's time as it will be, for the length of the block."""
    hand.connection.execute(
        "select set_config('holdfast.fake_now', (now() + %s * interval '1 s')::text, false)",
        (seconds,),
    )
    yield
    hand.connection.execute("select set_config('holdfast.fake_now', '', false)")


def due(hand: Hand, flow: str, seconds: float) -> list[str]:
    with seconds_later(hand, seconds):
        rows = hand.rows("select message from holdfast.read_tasks(%s, 0, 100)", flow)
    return sorted(row["message"]["step_slug"] for row in rows)


def test_the_first_steps_of_a_run_wait_for_its_start(hand: Hand) -> None:
    hand.define("later", ("a", []), ("b", ["a"]))
    run_id = start(hand, "later", p_delays=60.0)
    assert hand.run(run_id)["status"] == "running"
    assert (due(hand, "later", 55), due(hand, "later", 65)) == ([], ["a"])


def test_a_start_may_be_a_moment(hand: Hand) -> None:
    hand.define("later", ("a", []))
    now = hand.value("select holdfast._micros(holdfast.now())")
    start(hand, "later", p_start_ats=now + 60_000_000, p_delays=5.0)
    assert (due(hand, "later", 55), due(hand, "later", 65)) == ([], ["a"])
    start(hand, "later", p_start_ats=now - 60_000_000)
    assert due(hand, "later", 0) == ["a"]


def test_one_run_of_many_starts_later(hand: Hand) -> None:
    hand.define("later", ("a", []))
    first, second = uuid4(), uuid4()
    hand.rows(
        "select * from holdfast.start_flows(%s::uuid[], array['later', 'later'],"
        " p_delays => array[null, 60])",
        [first, second],
    )
    assert (due(hand, "later", 0), due(hand, "later", 65)) == (["a"], ["a", "a"])


def test_a_time_out_counts_from_the_start(hand: Hand) -> None:
    hand.define("later", ("a", []))
    run = hand.run(start(hand, "later", p_delays=60.0, p_timeouts=5.0))
    assert (run["deadline_at"] - run["created_at"]).total_seconds() == 65


def test_all_that_begins_with_a_run_waits_for_its_start(hand: Hand) -> None:
    hand.define("later")
    hand.add("later", "each", [], step_type="map")
    hand.add("later", "slow", [], start_delay=30)
    hand.add("later", "never", [], required_input_pattern='{"go": true}')
    hand.add("later", "behind", ["never"])
    start(hand, "later", "[1, 2]", p_delays=60.0)
    assert due(hand, "later", 55) == []
    assert due(hand, "later", 65) == ["behind", "each", "each"]
    assert due(hand, "later", 95) == ["behind", "each", "each", "slow"]


def test_a_second_start_with_another_delay_changes_nothing(hand: Hand) -> None:
    """The run keeps the input, the key and the start that it got first."""
    hand.define("later", ("a", []))
    run_id = start(hand, "later", '{"n": 1}', p_delays=60.0, p_keys="k")
    rows = hand.rows(
        "select * from holdfast.start_flows(array[%s::uuid], array['later'],"
        " array['{\"n\": 2}']::json[], array['k'])",
        run_id,
    )
    assert (rows[0]["created"], rows[0]["status"]) == (False, "running")
    assert hand.run(run_id)["input"] == {"n": 1}
    assert due(hand, "later", 55) == []


@pytest.mark.parametrize(
    "option", ["p_delays => array[-1]", "p_start_ats => array[9223372036854775807]"]
)
def test_a_start_that_is_no_moment_is_refused(hand: Hand, option: str) -> None:
    hand.define("later", ("a", []))
    with pytest.raises(psycopg.Error) as caught:
        hand.rows(
            f"select * from holdfast.start_flows(array[%s::uuid], array['later'], {option})",
            uuid4(),
        )
    assert caught.value.sqlstate == WRONG


def handed(hand: Hand, run_id: UUID, room: int = 9) -> list[dict[str, Any]]:
    """End step a, and return what is handed over for it."""
    return hand.rows(
        "select * from holdfast.end_step_tasks(%s, array[%s::uuid], array['a'], array[1],"
        " array['1']::json[], p_room => %s, p_queues => array['default'],"
        " p_handlers => array['chain@1'])",
        str(WORKER),
        run_id,
        room,
    )[1:]


def test_a_step_with_a_delay_is_not_handed_over(hand: Hand) -> None:
    hand.define("chain", ("a", []), ("b", ["a"]))
    hand.add("chain", "c", ["a"], start_delay=60)
    run_id = hand.start("chain", {})
    hand.work("chain")
    assert [task["key"] for task in handed(hand, run_id)] == ["b"]
    assert (due(hand, "chain", 55), due(hand, "chain", 65)) == ([], ["c"])


def test_a_delay_goes_on_while_its_run_is_paused(hand: Hand) -> None:
    hand.define("chain", ("a", []))
    hand.add("chain", "c", ["a"], start_delay=60)
    run_id = hand.start("chain", {})
    hand.work("chain")
    hand.rows("select * from holdfast.pause_runs(array[%s::uuid])", run_id)
    assert handed(hand, run_id) == []
    assert due(hand, "chain", 65) == []
    hand.rows("select * from holdfast.resume_runs(array[%s::uuid])", run_id)
    assert (due(hand, "chain", 55), due(hand, "chain", 65)) == ([], ["c"])


def test_nothing_is_handed_over_beyond_the_room(hand: Hand) -> None:
    hand.define("chain", ("a", []), ("b", ["a"]), ("c", ["a"]))
    run_id = hand.start("chain", {})
    hand.work("chain")
    assert len(handed(hand, run_id, room=1)) == 1
    assert len(due(hand, "chain", 0)) == 1


def test_the_delay_of_a_step_counts_from_when_it_is_ready(hand: Hand) -> None:
    hand.define("slow")
    hand.add("slow", "a", [], start_delay=60)
    run_id = hand.start("slow", {})
    (row,) = hand.rows(
        "select visible_at, (select created_at from holdfast.runs) as created_at"
        " from holdfast.tasks where run_id = %s and kind = 'step'",
        run_id,
    )
    assert isinstance(row["visible_at"], datetime)
    assert (row["visible_at"] - row["created_at"]).total_seconds() == 60
