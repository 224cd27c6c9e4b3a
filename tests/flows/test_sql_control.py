"""Runs of flows are ended, paused and lost as all other runs are."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
from hand import Hand

NULL, WRONG, MISSING = "22004", "22023", "HF003"


def outcome(hand: Hand, function: str, run_id: UUID) -> str:
    (found,) = hand.value(f"select outcomes from holdfast.{function}(array[%s::uuid])", run_id)
    return str(found)


@pytest.fixture
def pair(hand: Hand) -> UUID:
    """A run whose first step is worked on, with another waiting and a third behind both."""
    hand.define("pair", ("a", []), ("b", []), ("c", ["a", "b"]))
    run_id = hand.start("pair", {})
    assert len(hand.work("pair", 1)) == 1
    return run_id


@pytest.mark.parametrize(
    ("function", "status", "entries"),
    [
        ("cancel_runs", "cancelled", ["WorkflowCancelRequested", "WorkflowCanceled"]),
        ("terminate_runs", "terminated", ["WorkflowTerminated"]),
    ],
)
def test_a_run_that_is_stopped_ends_at_once(
    hand: Hand, pair: UUID, function: str, status: str, entries: list[str]
) -> None:
    assert outcome(hand, function, pair) == "delivered"
    assert hand.run(pair)["status"] == status
    assert hand.statuses(pair) == {"a": "started", "b": "created", "c": "created"}
    assert hand.log(pair) == ["WorkflowStarted", *entries]
    assert hand.complete(pair, "a", 1) == "lost"
    assert outcome(hand, function, pair) == "ended"
    assert hand.rows("select * from holdfast.tasks where run_id = %s", pair) == []


def test_nothing_of_a_paused_run_is_handed_out(hand: Hand, pair: UUID) -> None:
    assert outcome(hand, "pause_runs", pair) == "delivered"
    assert hand.work("pair") == []
    assert hand.complete(pair, "a", 1) == "recorded"
    assert outcome(hand, "resume_runs", pair) == "delivered"
    assert [task["step_slug"] for task in hand.work("pair")] == ["b"]
    assert outcome(hand, "pause_runs", pair) == "delivered"
    assert hand.complete(pair, "b", 2) == "recorded"
    assert hand.work("pair") == []
    assert outcome(hand, "resume_runs", pair) == "delivered"
    assert [task["step_slug"] for task in hand.work("pair")] == ["c"]


def test_nothing_of_a_paused_queue_is_handed_out(hand: Hand, pair: UUID) -> None:
    hand.rows("select * from holdfast.set_pause('queue', 'default', true)")
    assert hand.work("pair") == []
    hand.rows("select * from holdfast.set_pause('queue', 'default', false)")
    assert [task["step_slug"] for task in hand.work("pair")] == ["b"]


def test_a_start_with_a_key_finds_the_run_again(hand: Hand) -> None:
    hand.define("keyed", ("a", []))
    query = "select run_id from holdfast.start_flow('keyed', '1', key => 'k')"
    assert hand.value(query) == hand.value(query)
    assert hand.value("select count(*) from holdfast.tasks where kind = 'step'") == 1


def test_a_start_that_is_rolled_back_leaves_nothing(hand: Hand) -> None:
    hand.define("kept", ("a", []))
    with hand.connection.transaction(force_rollback=True):
        hand.start("kept", 1)
    assert hand.value("select count(*) from holdfast.tasks") == 0
    assert hand.value("select count(*) from holdfast.runs") == 0


def test_a_step_that_is_added_after_a_start_comes_into_the_next_version(hand: Hand) -> None:
    hand.define("grown", ("a", []))
    old = hand.start("grown", 1)
    hand.add("grown", "b", ["a"])
    new = hand.start("grown", 2)
    assert hand.statuses(old) == {"a": "created"}
    assert hand.statuses(new) == {"a": "created", "b": "created"}
    hand.work("grown")
    for run_id in (old, new):
        assert hand.complete(run_id, "a", "done") == "recorded"
    assert hand.run(old)["status"] == "completed"
    assert hand.run(new)["status"] == "running"


def lose(hand: Hand, run_id: UUID) -> None:
    """Let the leases of a run's tasks run out, and have a worker claim them."""
    hand.rows(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 second' "
        "where run_id = %s and worker is not null returning 1",
        run_id,
    )


def claim(hand: Hand, handler: str) -> list[dict[str, object]]:
    hand.rows(
        "select * from holdfast.heartbeat('w', 'h', 1, array['default'], array[%s], 9, '1', null,"
        " 30, '{}', '{}', '{}', '{}')",
        handler,
    )
    hand.rows(
        "update holdfast.workers set heard_since = holdfast.now() - interval '1 hour' returning 1"
    )
    return hand.rows(
        "select * from holdfast.claim_tasks('w', array['default'], array[%s], 10, 30)", handler
    )


def test_a_task_that_loses_four_workers_fails_its_run(hand: Hand) -> None:
    hand.define("deadly", ("a", []))
    run_id = hand.start("deadly", 1)
    for attempt in range(4):
        (task, *_) = claim(hand, "deadly@1")
        assert (task["run_id"], task["attempts"]) == (run_id, attempt + 1)
        assert task["payload"] == {"run": 1}
        lose(hand, run_id)
    (about,) = claim(hand, "deadly@1")
    assert about["poisoned"] == [run_id]
    hand.rows("select holdfast.fail_poisoned(%s, 5)", about["poisoned"])
    run = hand.run(run_id)
    assert run["status"] == "failed"
    assert run["error"]["cause"]["kind"] == "holdfast.errors.WorkerLost"


def test_a_task_of_an_sql_worker_that_is_lost_is_due_again_and_fails_the_fourth_time(
    hand: Hand,
) -> None:
    hand.define("left", ("a", []))
    run_id = hand.start("left", 1)
    requeue = "select holdfast.requeue_stalled_tasks()"
    for attempt in range(4):
        (task,) = hand.work("left")
        assert (task["attempts"], task["lease_no"]) == (attempt + 1, attempt + 1)
        assert hand.value(requeue) == 0
        lose(hand, run_id)
        assert hand.work("left") == []
        assert hand.value(requeue) == (1 if attempt < 3 else 0)
        late = "select holdfast.complete_task(%s, 'a', 0, '1', %s)"
        assert hand.value(late, run_id, task["lease_no"]) == "lost"
    run = hand.run(run_id)
    assert run["status"] == "failed"
    assert run["error"]["cause"]["kind"] == "holdfast.errors.WorkerLost"


def test_a_lost_task_of_a_run_that_another_session_has_is_left_for_the_next_call(
    hand: Hand, database_url: str
) -> None:
    hand.define("busy", ("a", []))
    run_id = hand.start("busy", 1)
    hand.work("busy")
    lose(hand, run_id)
    requeue = "select holdfast.requeue_stalled_tasks()"
    with psycopg.connect(database_url) as other:
        other.execute("select 1 from holdfast.tasks where key = '' for update")
        assert hand.value(requeue) == 0
    assert hand.value(requeue) == 1


def test_sql_workers_find_runs_with_a_queue_of_their_own_beside_many_other_tasks(
    hand: Hand,
) -> None:
    hand.define("far", ("a", []))
    hand.rows(
        "insert into holdfast.tasks (run_id, kind, queue, handler, priority, visible_at)"
        " select gen_random_uuid(), 'workflow', 'crowd', 'other/wait@1', 2, 'infinity'"
        " from generate_series(1, 20000) returning 1"
    )
    hand.connection.execute("analyze holdfast.tasks")
    hand.rows(
        "select * from holdfast.start_flows(array[holdfast.new_run_id()], array['far'],"
        " array['1']::json[], p_queues => array['zeta'])"
    )
    with hand.connection.transaction():
        before = hand.value("select holdfast._pages_of_tasks()")
        assert len(hand.rows("select * from holdfast.read_tasks('far', 60, 5)")) == 1
        read = hand.value("select holdfast._pages_of_tasks()") - before
    assert read < 200


def test_a_late_completion_of_a_lease_that_is_lost_changes_nothing(hand: Hand) -> None:
    hand.define("late", ("a", []))
    run_id = hand.start("late", 1)
    claim(hand, "late@1")
    lose(hand, run_id)
    claim(hand, "late@1")
    end = (
        "select outcomes[1] from holdfast.end_step_tasks("
        "'w', array[%s::uuid], array['a'], array[%s], array['1']::json[]) limit 1"
    )
    assert hand.value(end, run_id, 1) == "lost"
    assert hand.value(end, run_id, 2) == "recorded"


@pytest.mark.parametrize("is_retry", [True, False])
def test_a_run_of_a_flow_is_not_forked(hand: Hand, pair: UUID, is_retry: bool) -> None:
    outcome(hand, "terminate_runs", pair)
    with pytest.raises(psycopg.Error, match="is one of a flow") as caught:
        hand.rows(
            "select * from holdfast.fork_run(%s, holdfast.new_run_id(), p_retry => %s)",
            pair,
            is_retry,
        )
    assert caught.value.sqlstate == WRONG


REFUSED = [
    ("create_flow(null)", NULL),
    ("create_flow('')", WRONG),
    ("create_flow('a-b')", WRONG),
    ("create_flow('x', max_attempts => 0)", WRONG),
    ("add_step('known', 'b', max_attempts => 0)", WRONG),
    ("create_flow('x', timeout => 0)", WRONG),
    ("add_step('nobody', 'a')", MISSING),
    ("add_step('known', null)", NULL),
    ("add_step('known', 'run')", WRONG),
    ("add_step('known', 'a:b')", WRONG),
    ("add_step('known', repeat('s', 129))", WRONG),
    ("add_step('known', 'b', array['missing'])", MISSING),
    ("add_step('known', 'b', array[''])", MISSING),
    ("add_step('known', 'b', array['b'])", MISSING),
    ("add_step('known', 'b', array[null]::text[])", NULL),
    ("add_step('known', 'b', step_type => 'loop')", WRONG),
    ("add_step('known', 'b', step_type => null)", WRONG),
    ("add_step('known', 'b', array['a', 'c'], step_type => 'map')", WRONG),
    ("add_step('known', 'b', required_input_pattern => '[]')", WRONG),
    ("add_step('known', 'b', when_unmet => 'later')", WRONG),
    ("start_flow('nobody', '1')", MISSING),
    ("start_flow('known@9', '1')", MISSING),
    ("start_flow('known@x', '1')", WRONG),
    ("start_flow('known@1@2', '1')", WRONG),
    ("start_flow('known@9999999999', '1')", WRONG),
    ("start_flow(null, '1')", NULL),
    ("start_flow('mapped', '{}')", WRONG),
    ("start_flow('mapped', null)", WRONG),
    ("read_tasks('nobody', 1, 1)", MISSING),
    ("read_tasks('known', -1, 1)", WRONG),
    ("read_tasks('known', 1, -1)", WRONG),
    ("start_tasks('known', array[1], null)", NULL),
    ("complete_task(gen_random_uuid(), 'a', 0, '1')", MISSING),
    ("complete_task(null, 'a', 0, '1')", NULL),
    ("fail_task(gen_random_uuid(), 'a', 0, 'no')", MISSING),
]


@pytest.mark.parametrize(("call", "code"), REFUSED)
def test_what_cannot_be_is_refused_by_name(hand: Hand, call: str, code: str) -> None:
    hand.define("known", ("a", []), ("c", []))
    hand.define("mapped")
    hand.add("mapped", "each", [], step_type="map")
    with pytest.raises(psycopg.Error) as caught:
        hand.rows(f"select * from holdfast.{call}")
    assert caught.value.sqlstate == code
