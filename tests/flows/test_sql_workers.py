"""Flows from SQL alone: defined, started and worked on through psql's means. P1, P4, P7."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hand import WORKER, Hand
from meeting import ASLEEP, while_blocked


def test_the_steps_of_a_flow_run_in_the_order_of_their_dependencies(hand: Hand) -> None:
    hand.define(
        "analyze_website",
        ("website", []),
        ("sentiment", ["website"]),
        ("summary", ["website"]),
        ("saveToDb", ["sentiment", "summary"]),
    )
    run_id = hand.start("analyze_website", {"url": "https://example.com"})
    assert [task["step_slug"] for task in hand.work("analyze_website")] == ["website"]
    assert hand.complete(run_id, "website", {"content": "HTML", "status": 200}) == "recorded"
    tasks = hand.work("analyze_website")
    assert [task["step_slug"] for task in tasks] == ["sentiment", "summary"]
    assert tasks[0]["input"] == {
        "run": {"url": "https://example.com"},
        "website": {"content": "HTML", "status": 200},
    }
    assert hand.complete(run_id, "sentiment", {"score": 0.85}) == "recorded"
    assert hand.work("analyze_website") == []
    assert hand.statuses(run_id) == {
        "website": "completed",
        "sentiment": "completed",
        "summary": "started",
        "saveToDb": "created",
    }
    assert hand.complete(run_id, "summary", "fine") == "recorded"
    (task,) = hand.work("analyze_website")
    assert task["input"]["sentiment"] == {"score": 0.85}
    assert task["input"]["summary"] == "fine"
    assert hand.complete(run_id, "saveToDb", {"status": "success"}) == "recorded"
    run = hand.run(run_id)
    assert (run["status"], run["output"]) == ("completed", {"saveToDb": {"status": "success"}})
    assert hand.log(run_id) == [
        "WorkflowStarted",
        "FlowStepCompleted website",
        "FlowStepCompleted sentiment",
        "FlowStepCompleted summary",
        "FlowStepCompleted saveToDb",
        "WorkflowCompleted",
    ]


def test_a_worker_that_waits_gets_what_becomes_due_meanwhile(hands: Callable[[], Hand]) -> None:
    """For the step's whole time, which begins when it is read."""
    hand, other = hands(), hands()
    hand.define("one", ("a", []))
    query = (
        "select s.* from holdfast.start_tasks('one', array(select msg_id"
        " from holdfast.read_with_poll('one', 60, 10, 60)), %s) as s"
    )
    (task,) = while_blocked(
        other, lambda: hand.rows(query, WORKER), lambda: other.start("one", None), ASLEEP
    )
    (row,) = other.rows("select * from holdfast.tasks where key = 'a'")
    assert row["run_id"] == task["run_id"]
    assert row["started_at"] > other.run(task["run_id"])["created_at"]
    assert row["visible_at"] == row["started_at"] + timedelta(seconds=62)


@pytest.mark.parametrize("of_map", [False, True], ids=["run", "element"])
def test_a_task_whose_input_jsonb_cannot_hold_fails_and_the_others_start(
    hand: Hand, of_map: bool
) -> None:
    hand.rows("select * from holdfast.create_flow('sums')")
    hand.add("sums", "sum", [], step_type="map" if of_map else "single")
    given = ("[1, 1e400000]", "[2]") if of_map else ("1e400000", "2")
    runs = [uuid4() for _ in given]
    start = "select * from holdfast.start_flows(array[%s::uuid], array['sums'], array[%s::json])"
    for run_id, value in zip(runs, given, strict=True):
        hand.rows(start, run_id, value)
    (task,) = (each for each in hand.work("sums") if each["run_id"] == runs[1])
    assert task["attempts"] == 1
    assert hand.run(runs[1])["status"] == "running"
    failed = hand.run(runs[0])
    assert failed["status"] == "failed"
    assert failed["error"]["cause"]["kind"] == "holdfast.errors.PayloadError"
    assert "jsonb cannot hold what the step is given" in failed["error"]["message"]
    assert hand.complete(runs[1], "sum", 2) == "recorded"
    assert hand.rows("select * from holdfast.tasks") == []


def test_an_unread_task_whose_input_jsonb_cannot_hold_fails_too(hand: Hand) -> None:
    """A worker that knows the numbers need not read the tasks."""
    hand.define("sums", ("sum", []))
    runs = [uuid4() for _ in range(2)]
    start = "select * from holdfast.start_flows(array[%s::uuid], array['sums'], array[%s::json])"
    for run_id, value in zip(runs, ("1e400000", "2"), strict=True):
        hand.rows(start, run_id, value)
    numbers = [hand.value("select holdfast.message_id(%s, 'sum')", run_id) for run_id in runs]
    (task,) = hand.rows("select * from holdfast.start_tasks('sums', %s, %s)", numbers, WORKER)
    assert task["run_id"] == runs[1]
    assert hand.run(runs[0])["error"]["cause"]["kind"] == "holdfast.errors.PayloadError"


def test_a_repeated_completion_changes_nothing(hand: Hand) -> None:
    hand.define("pair", ("a", []), ("b", []))
    run_id = hand.start("pair", None)
    hand.work("pair")
    assert [hand.complete(run_id, "a", n) for n in range(3)] == ["recorded", "lost", "lost"]
    assert hand.complete(run_id, "b", 9) == "recorded"
    assert hand.run(run_id)["output"] == {"a": 0, "b": 9}


def test_a_map_has_a_task_for_each_element_and_its_results_in_order(hand: Hand) -> None:
    hand.define("sizes", ("words", []))
    hand.add("sizes", "size", ["words"], step_type="map")
    hand.add("sizes", "double", ["size"], step_type="map")
    hand.add("sizes", "total", ["double"])
    run_id = hand.start("sizes", "a bb ccc")
    hand.work("sizes")
    hand.complete(run_id, "words", ["a", "bb", "ccc"])
    tasks = hand.work("sizes")
    assert [(task["task_index"], task["input"]) for task in tasks] == [
        (0, "a"),
        (1, "bb"),
        (2, "ccc"),
    ]
    for task in reversed(tasks):
        hand.complete(run_id, "size", len(task["input"]), task["task_index"])
    tasks = hand.work("sizes")
    assert [task["input"] for task in tasks] == [1, 2, 3]
    for task in tasks:
        hand.complete(run_id, "double", 2 * task["input"], task["task_index"])
    (task,) = hand.work("sizes")
    assert task["input"]["double"] == [2, 4, 6]
    hand.complete(run_id, "total", 12)
    assert hand.run(run_id)["output"] == {"total": 12}


LARGE = 16_000_000  # bytes: nearly what one step may return
IS_LARGE = "pg_column_size(output) > 1000"


def enlarge(hand: Hand, table: str, ended: str) -> None:
    """Give rows a large output. All but one copy it, as compressed: that is ten times as fast."""
    first = f"(select min(ctid) from holdfast.{table} where {ended})"
    large = f"to_json(repeat('x', {LARGE - 2}))"
    copied = f"(select output from holdfast.{table} where {ended} and {IS_LARGE})"
    for output, rows in ((large, f"ctid = {first}"), (copied, f"{ended} and not {IS_LARGE}")):
        query = f"update holdfast.{table} set output = {output} where {rows}"
        hand.connection.execute(query.encode())


def complete_with_much(
    hand: Hand, run_id: UUID, step: str, elements: int = 19, *, last: bool = True
) -> None:
    """Complete a map with much from all elements but the `last` one, if that as well."""
    query = "select holdfast.complete_task(%s, %s, n, '1') from generate_series(1, %s) as n"
    recorded = hand.rows(query, run_id, step, elements - 1)
    assert [list(row.values()) for row in recorded] == [["recorded"]] * (elements - 1)
    enlarge(hand, "step_tasks", f"step_slug = '{step}'")
    if last:
        assert hand.complete(run_id, step, 2) == "recorded"


@pytest.mark.parametrize(
    ("exhausted", "rule", "ended", "reason"),
    [
        ("fail", "none_failed", "failed", None),
        ("fail", "all_done", "failed", None),
        ("skip", "none_failed", "skipped", "handler_failed"),
    ],
)
def test_a_map_whose_results_are_too_large_for_one_value_fails(
    hand: Hand, exhausted: str, rule: str, ended: str, reason: str | None
) -> None:
    """The step after it could not be claimed, nor anything else that the worker serves."""
    hand.rows("select * from holdfast.create_flow('big')")
    hand.add("big", "each", [], step_type="map", when_exhausted=exhausted)
    hand.add("big", "all", ["each"], trigger_rule=rule)
    run_id = hand.start("big", list(range(19)))
    hand.work("big")
    complete_with_much(hand, run_id, "each")
    each, _ = hand.rows("select * from holdfast.flow_steps(array[%s::uuid])", run_id)
    assert (each["status"], each["skip_reason"], each["output"]) == (ended, reason, None)
    assert "the results of its 19 elements take 274 MiB" in str(each["error"])
    assert hand.value("select count(*) from holdfast.step_tasks") == 0
    is_over = (exhausted, rule) == ("fail", "none_failed")
    assert hand.run(run_id)["status"] == ("failed" if is_over else "running")
    assert [task["step_slug"] for task in hand.work("big")] == ([] if is_over else ["all"])
    assert "FlowStepCompleted each" not in hand.log(run_id)


def test_a_map_over_results_takes_them_whatever_they_come_to(hand: Hand) -> None:
    """Each element is a value of its own."""
    hand.rows("select * from holdfast.create_flow('big')")
    hand.add("big", "each", [], step_type="map")
    hand.add("big", "size", ["each"], step_type="map")
    run_id = hand.start("big", list(range(19)))
    hand.work("big")
    complete_with_much(hand, run_id, "each", last=False)
    query = "select * from holdfast._large_maps(array[(%s, 'big@1', 'each', 'completed')"
    assert hand.rows(query + "::holdfast._step_end])", run_id) == []


def fill_two_maps(hand: Hand, *steps: str) -> UUID:
    """Return a run whose maps m and n have completed with less than 256 MiB each."""
    hand.rows("select * from holdfast.create_flow('two')")
    hand.add("two", "m", [], step_type="map")
    hand.add("two", "n", [], step_type="map")
    for step in steps:
        hand.add("two", "all", ["m", "n"], when_exhausted=step)
    run_id = hand.start("two", list(range(11)))
    hand.work("two")
    complete_with_much(hand, run_id, "m", 11)
    complete_with_much(hand, run_id, "n", 11)
    return run_id


@pytest.mark.parametrize(
    ("exhausted", "ended", "status"),
    [("fail", "failed", "failed"), ("skip", "skipped", "completed")],
)
def test_a_step_that_would_be_given_too_much_by_several_maps_fails(
    hand: Hand, exhausted: str, ended: str, status: str
) -> None:
    """It could not be claimed, nor anything else that the worker serves."""
    run_id = fill_two_maps(hand, exhausted)
    query = "select status, error from holdfast.step_states where step_slug = 'all'"
    (step,) = hand.rows(query)
    assert step["status"] == ended
    assert "step all failed: what it is given takes 306 MiB" in str(step["error"])
    assert hand.run(run_id)["status"] == status
    assert hand.work("two") == []


def test_a_step_after_many_large_steps_fails(hand: Hand) -> None:
    """Each of them has returned what one step may return."""
    slugs = [f"s{number}" for number in range(17)]
    hand.define("many", *((slug, []) for slug in slugs), ("all", slugs))
    run_id = hand.start("many", None)
    hand.work("many")
    for slug in slugs[:-1]:
        hand.complete(run_id, slug, 1)
    enlarge(hand, "step_states", "status = 'completed'")
    hand.complete(run_id, slugs[-1], "x" * 12_500_000)
    assert "step all failed: what it is given takes 257 MiB" in str(hand.run(run_id)["error"])


def test_a_run_whose_output_would_be_too_large_fails(hand: Hand) -> None:
    """The end of the last element was undone, again and again."""
    run = hand.run(fill_two_maps(hand))
    assert (run["status"], run["error"]["kind"]) == ("failed", "holdfast.errors.PayloadError")
    assert "the output of the run takes 306 MiB" in run["error"]["message"]


def test_what_steps_are_given_is_measured_once(hand: Hand) -> None:
    """Not in each round of a cascade: it may be much."""
    hand.define("deep", ("a", []), ("b", []), ("both", ["a", "b"]))
    for step, before in (("m", "a"), ("n", "m"), ("o", "n")):
        hand.add("deep", step, [before], step_type="map")
    run_id = hand.start("deep", None)
    hand.work("deep")
    hand.complete(run_id, "b", 1)
    hand.begin()
    hand.connection.execute("create table public.measured (step text)")
    hand.connection.execute(
        "create or replace function holdfast._overfull_steps(p_steps holdfast._flow_step[])"
        " returns table (step holdfast._flow_step, run_id uuid, handler text, step_slug text,"
        " outcome text, is_soft boolean, bytes bigint) language plpgsql as"
        " 'begin insert into public.measured select u.step_slug from unnest(p_steps) as u; end'"
    )
    hand.complete(run_id, "a", [])
    measured = [row["step"] for row in hand.rows("select step from public.measured")]
    hand.connection.execute("rollback")
    assert measured == ["both"]


def test_a_condition_about_more_than_jsonb_holds_cannot_be_judged(hand: Hand) -> None:
    """The end of the last element was undone, again and again."""
    hand.define("big", ("list", []))
    hand.add("big", "each", ["list"], step_type="map")
    hand.add("big", "all", ["each"], required_input_pattern='{"run": "x"}')
    run_id = hand.start("big", "x" * 12_500_000)
    hand.work("big")
    hand.complete(run_id, "list", list(range(17)))
    hand.work("big")
    complete_with_much(hand, run_id, "each", 17)
    assert hand.run(run_id)["error"]["message"] == "Condition cannot be judged"


def test_a_condition_that_is_not_about_the_input_is_judged_without_it(hand: Hand) -> None:
    """Each such step parsed it, however large it was; jsonb cannot hold this one."""
    steps = [
        {"slug": "a"},
        {"slug": "b", "deps": ["a"], "required": '{"a": 1}'},
        {"slug": "c", "deps": ["b"], "forbidden": '{"run": 1}'},
    ]
    shape = json.dumps({"name": "plain", "version": 1, "steps": steps})
    hand.rows("select * from holdfast.ensure_flow('plain', 1, 'hash', %s)", shape)
    run_id = uuid4()
    start = "select * from holdfast.start_flows(array[%s], array['plain'], array['1e400000'::json])"
    hand.rows(start, run_id)
    for step in ("a", "b"):
        hand.work("plain")
        assert hand.complete(run_id, step, 1) == "recorded"
    error = hand.run(run_id)["error"]
    assert (error["step"], error["message"]) == ("c", "Condition cannot be judged")


def test_empty_maps_complete_at_once_to_the_end_of_the_run(hand: Hand) -> None:
    hand.define("none", ("list", []))
    hand.add("none", "each", ["list"], step_type="map")
    hand.add("none", "again", ["each"], step_type="map")
    run_id = hand.start("none", 1)
    hand.work("none")
    hand.complete(run_id, "list", [])
    assert hand.run(run_id)["output"] == {"again": []}


@pytest.mark.parametrize("output", ["text", None, {"a": 1}])
def test_a_map_over_what_is_no_array_fails_the_run(hand: Hand, output: object) -> None:
    hand.define("bad", ("list", []), ("other", []))
    hand.add("bad", "each", ["list"], step_type="map")
    run_id = hand.start("bad", 1)
    hand.work("bad")
    hand.complete(run_id, "list", output)
    run = hand.run(run_id)
    assert run["status"] == "failed"
    assert "TYPE_VIOLATION" in run["error"]["message"]
    assert hand.statuses(run_id) == {"list": "failed", "other": "started", "each": "created"}
    assert hand.complete(run_id, "other", 1) == "lost"


def test_a_failed_attempt_is_tried_again_and_the_last_one_fails_the_run(hand: Hand) -> None:
    hand.define("once")
    hand.add("once", "a", [], max_attempts=2, base_delay=0)
    run_id = hand.start("once", {})
    hand.work("once")
    assert hand.fail(run_id, "a", "first") == "retried"
    assert hand.work("once")[0]["attempts"] == 2
    assert hand.fail(run_id, "a", "second") == "recorded"
    run = hand.run(run_id)
    assert (run["status"], run["error"]["step"]) == ("failed", "a")
    assert hand.log(run_id) == [
        "WorkflowStarted",
        "FlowStepRetryScheduled a",
        "FlowStepFailed a",
        "WorkflowFailed",
    ]


@pytest.mark.parametrize(
    ("policy", "statuses", "output"),
    [
        ("skip", {"a": "skipped", "b": "completed"}, {"b": "b"}),
        ("skip-cascade", {"a": "skipped", "b": "skipped"}, {}),
    ],
)
def test_a_step_that_is_exhausted_may_be_skipped(
    hand: Hand, policy: str, statuses: dict[str, str], output: dict[str, str]
) -> None:
    hand.define("soft")
    hand.add("soft", "a", [], max_attempts=1, when_exhausted=policy)
    hand.add("soft", "b", ["a"])
    run_id = hand.start("soft", {})
    hand.work("soft")
    hand.fail(run_id, "a")
    for task in hand.work("soft"):
        assert task["input"] == {"run": {}}
        hand.complete(run_id, task["step_slug"], "b")
    assert hand.statuses(run_id) == statuses
    assert hand.run(run_id)["output"] == output


def test_a_condition_that_does_not_hold_skips_its_step(hand: Hand) -> None:
    hand.define("premium")
    hand.add("premium", "gift", [], required_input_pattern='{"plan": "gold"}')
    hand.add("premium", "bill", [])
    run_id = hand.start("premium", {"plan": "iron"})
    assert [task["step_slug"] for task in hand.work("premium")] == ["bill"]
    hand.complete(run_id, "bill", 1)
    assert hand.run(run_id)["output"] == {"bill": 1}
    assert hand.statuses(run_id)["gift"] == "skipped"


def test_a_task_that_is_handed_over_has_what_a_claimed_one_has(hand: Hand) -> None:
    hand.define("chain", ("a", []), ("b", ["a"]))
    run_id = uuid4()
    hand.rows(
        "select * from holdfast.start_flows(array[%s::uuid], array['chain'], array['1']::json[],"
        " array['k'], array['far'], p_headers => array['{\"by\": \"ann\"}']::json[])",
        run_id,
    )
    (task,) = hand.work("chain")
    _, handed = hand.rows(
        "select * from holdfast.end_step_tasks(%s, array[%s::uuid], array['a'], array[1],"
        " array['2']::json[], p_room => 1, p_queues => array['far'],"
        " p_handlers => array['chain@1'])",
        str(WORKER),
        run_id,
    )
    assert {name: value for name, value in handed.items() if value is not None} == {
        "run_id": run_id,
        "key": "b",
        "handler": "chain@1",
        "attempts": 1,
        "lease_no": 1,
        "input": '{"run":1,"a":2}',
        "queue": "far",
        "run_key": "k",
        "headers": {"by": "ann"},
    }
    assert task["step_slug"] == "a"


def test_tasks_that_were_read_are_started_without_a_look_at_all_others(hand: Hand) -> None:
    hand.define("wide")
    hand.add("wide", "each", [], step_type="map")
    hand.start("wide", list(range(5000)))
    hand.connection.execute("vacuum analyze holdfast.tasks")
    with hand.connection.transaction():
        rows = hand.rows("select * from holdfast.read_tasks('wide', 60, 5)")
        before = hand.value("select holdfast._pages_of_tasks()")
        started = start(hand, "wide", [row["msg_id"] for row in rows])
        pages = hand.value("select holdfast._pages_of_tasks()") - before
    assert [task["msg_id"] for task in started] == sorted(row["msg_id"] for row in rows)
    assert pages < 100


@pytest.mark.parametrize("gone", [False, True])
def test_a_start_does_not_look_at_tasks_that_wait_for_a_delay(hand: Hand, gone: bool) -> None:
    """Neither if all numbers are found, nor if another worker has one of the tasks by then."""
    hand.define("late")
    hand.add("late", "each", [], step_type="map")
    hand.start("late", list(range(5000)))
    rows = hand.rows("select * from holdfast.read_tasks('late', 60, 5)")
    ids = [row["msg_id"] for row in rows]
    hand.rows(
        "update holdfast.tasks set visible_at = holdfast.now() + interval '1 h' "
        "where kind = 'step' and message_id is null returning 1"
    )
    hand.connection.execute("vacuum analyze holdfast.tasks")
    if gone:
        assert len(start(hand, "late", ids[:1])) == 1
    with hand.connection.transaction():
        before = hand.value(READ)
        started = start(hand, "late", ids)
        read = hand.value(READ) - before
    assert len(started) == (4 if gone else 5)
    assert read < 100


READ = """
    select coalesce(sum(seq_tup_read), 0)::bigint
        + coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::bigint
    from pg_stat_xact_user_tables t join pg_index i on i.indrelid = t.relid
    where t.schemaname = 'holdfast' and t.relname = 'tasks'
"""


def test_tasks_that_were_not_read_or_whose_time_is_over_are_started_too(hand: Hand) -> None:
    hand.define("pair", ("a", []), ("b", []))
    hand.start("pair", {})
    ids = hand.value(
        "select array_agg(holdfast.message_id(run_id, key)) from holdfast.tasks where kind = 'step'"
    )
    (row,) = hand.rows("select * from holdfast.read_tasks('pair', 0, 1)")
    assert row["msg_id"] in ids
    assert [task["attempts"] for task in start(hand, "pair", ids)] == [1, 1]
    assert start(hand, "pair", ids) == []


def start(hand: Hand, flow: str, ids: list[int]) -> list[dict[str, Any]]:
    return hand.rows(
        "select * from holdfast.start_tasks(%s, %s, %s) order by msg_id", flow, ids, WORKER
    )


def test_details_have_the_fields_that_the_page_gives(hand: Hand) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/events.md").read_text(encoding="utf-8")
    shown = {
        kind: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", details)))
        for kind, details in re.findall(r"^\| (FlowStep\w+) \| [^|]* \| ([^|]*) \|", page, re.M)
    }
    shown["FlowStepCompleted"] = {"tasks"}
    hand.define("seen")
    hand.add("seen", "each", [], step_type="map", max_attempts=2, base_delay=0)
    hand.add("seen", "never", [], required_input_pattern='{"a": 1}')
    hand.add("seen", "last", ["each"], max_attempts=1)
    run_id = hand.start("seen", [1])
    hand.work("seen")
    hand.fail(run_id, "each")
    hand.work("seen")
    hand.complete(run_id, "each", 1)
    hand.work("seen")
    hand.fail(run_id, "last")
    rows = hand.rows(
        "select event_type, details from holdfast.read_events(array[%s::uuid], array[0])"
        " where event_type like 'FlowStep%%'",
        run_id,
    )
    assert {row["event_type"]: set(row["details"] or ()) for row in rows} == shown


def test_readers_of_a_log_get_outputs_of_steps_but_not_the_results_of_maps(hand: Hand) -> None:
    hand.define("told", ("none", []), ("words", ["none"]))
    hand.add("told", "each", ["words"], step_type="map")
    hand.add("told", "empty", ["none"], step_type="map")
    run_id = hand.start("told", {})
    for step, output in (("none", []), ("words", ["a", "b"])):
        hand.work("told")
        hand.complete(run_id, step, output)
    hand.work("told")
    for index in range(2):
        hand.complete(run_id, "each", None, index)
    told = hand.rows(
        "select key, details from holdfast.read_events(array[%s::uuid], array[0])"
        " where event_type = 'FlowStepCompleted'",
        run_id,
    )
    assert {row["key"]: row["details"] for row in told} == {
        "none": {"output": []},
        "empty": {"tasks": 0},
        "words": {"output": ["a", "b"]},
        "each": {"tasks": 2},
    }
    recent = hand.rows(
        "select key, details from holdfast.recent_events(0, 100)"
        " where event_type = 'FlowStepCompleted'"
    )
    assert sorted(recent, key=str) == sorted(told, key=str)


def test_steps_that_a_limit_concerns_are_refused_and_not_lost(hand: Hand) -> None:
    """A worker in SQL cannot obey a limit. When that is gone, it is given what waited for it."""
    hand.define("limited", ("one", []))
    run_id = hand.start("limited", None)
    hand.value("select holdfast.set_limit('queue', 'elsewhere', 'concurrency', 1)")
    [message] = hand.rows("select * from holdfast.read_tasks('limited', 0, 10)")
    hand.value("select holdfast.set_limit('queue', 'default', 'concurrency', 1)")
    told = "steps of flow limited are limited, by a limit of the queue default"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=told):
        hand.rows("select * from holdfast.read_tasks('limited', 0, 10)")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=told):
        hand.rows(
            "select * from holdfast.start_tasks('limited', array[%s::bigint], %s)",
            message["msg_id"],
            WORKER,
        )
    # A holdfast worker that looks at the step lets it wait for the limit.
    hand.rows(
        "update holdfast.tasks set visible_at = 'infinity', limited_at = holdfast.now(), "
        "limit_keys = '{}' where run_id = %s and kind = 'step' returning 1",
        run_id,
    )
    hand.value("select holdfast.remove_limit('queue', 'default', 'concurrency')")
    assert [task["step_slug"] for task in hand.work("limited")] == ["one"]
    assert hand.complete(run_id, "one", 1) == "recorded"
    assert hand.run(run_id)["status"] == "completed"


LOOP = """
do $$
declare
    v_task holdfast.step_task_record;
begin
    select t.* into v_task from holdfast.start_tasks('line', array(
        select m.msg_id from holdfast.read_with_poll('line', 60, 1, 0) as m
    ), gen_random_uuid()) as t;
    perform pg_sleep(0.2);
    perform set_config('tests.now', clock_timestamp()::text, false);
    perform {end};
end $$
"""


@pytest.mark.parametrize(
    "end",
    [
        "holdfast.fail_task(v_task.run_id, 'a', 0, 'no')",
        "holdfast.complete_task(v_task.run_id, 'a', 0, '1')",
    ],
)
def test_a_worker_that_loops_in_one_statement_counts_delays_from_each_end(
    hand: Hand, end: str
) -> None:
    hand.rows("select holdfast.create_flow('line', 3, 30), holdfast.add_step('line', 'a')")
    hand.rows("select holdfast.add_step('line', 'b', array['a'], start_delay => 60)")
    hand.start("line", 1)
    hand.connection.execute(LOOP.format(end=end).encode())
    assert hand.value(
        "select t.visible_at >= current_setting('tests.now')::timestamptz + interval '60 s' "
        "from holdfast.tasks t where t.key <> ''"
    )
