"""Flows in flows: what meets at one run is decided in turn, and nothing waits for ever."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked

Hands = Callable[[], Hand]


def shape(hand: Hand, name: str, *steps: dict[str, Any], **options: Any) -> None:
    value = {"name": name, "version": 1, "steps": steps, **options}
    row = hand.rows(
        "select * from holdfast.ensure_flow(%s, 1, 'hash', %s::jsonb)", name, json.dumps(value)
    )
    assert row[0]["status"] == "compiled"


def runs(slug: str, *deps: str, of: str = "inner", **options: Any) -> dict[str, Any]:
    return {"slug": slug, "deps": deps, "runs": f"{of}@1", "runs_kind": "flow", **options}


def children(hand: Hand, run_id: UUID) -> dict[str, UUID]:
    found = hand.rows(
        "select parent_key, run_id from holdfast.runs where parent_run_id = %s", run_id
    )
    return {row["parent_key"]: row["run_id"] for row in found}


def statuses(hand: Hand, run_id: UUID) -> dict[str, str]:
    found = hand.rows(
        "select parent_key, status from holdfast.runs where parent_run_id = %s", run_id
    )
    return {row["parent_key"]: row["status"] for row in found}


def end_all(hand: Hand, function: str, run_id: UUID) -> str:
    (found,) = hand.value(f"select outcomes from holdfast.{function}(array[%s::uuid])", run_id)
    return str(found)


@pytest.fixture
def two(hands: Hands) -> tuple[Hand, Hand, Hand]:
    """Two sessions that meet, and one that watches; `outer` has two steps that are runs."""
    ann, bob, eve = hands(), hands(), hands()
    shape(eve, "inner", {"slug": "s"}, max_attempts=1)
    shape(eve, "outer", runs("x"), runs("y"), {"slug": "z", "deps": ["x", "y"]}, max_attempts=1)
    return ann, bob, eve


@pytest.fixture
def begun(two: tuple[Hand, Hand, Hand]) -> tuple[UUID, UUID, UUID]:
    """A run of `outer`, and those of its two steps, whose tasks are begun."""
    eve = two[2]
    run_id = eve.start("outer", 1)
    found = children(eve, run_id)
    assert len(eve.work("inner")) == 2
    return run_id, found["x"], found["y"]


def test_two_runs_that_end_at_once_are_counted_in_turn(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID]
) -> None:
    (ann, bob, eve), (run_id, x, y) = two, begun
    ann.begin()
    assert ann.complete(x, "s", 1) == "recorded"
    assert while_blocked(eve, lambda: bob.complete(y, "s", 2), ann.commit) == "recorded"
    assert eve.statuses(run_id) == {"x": "completed", "y": "completed", "z": "created"}
    [task] = eve.work("outer")
    assert task["input"] == {"run": 1, "x": {"s": 1}, "y": {"s": 2}} or task["input"] == {
        "x": {"s": 1},
        "y": {"s": 2},
    }


def test_a_completion_meets_the_failure_of_its_sibling(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID]
) -> None:
    """The failure ends the flow and cancels the sibling, whose completion comes too late."""
    (ann, bob, eve), (run_id, x, y) = two, begun
    ann.begin()
    assert ann.fail(x, "s") == "recorded"
    assert while_blocked(eve, lambda: bob.complete(y, "s", 2), ann.commit) == "lost"
    assert eve.run(run_id)["status"] == "failed"
    assert statuses(eve, run_id) == {"x": "failed", "y": "cancelled"}


def test_a_failure_meets_the_completion_of_its_sibling(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID]
) -> None:
    (ann, bob, eve), (run_id, x, y) = two, begun
    ann.begin()
    assert ann.complete(y, "s", 2) == "recorded"
    assert while_blocked(eve, lambda: bob.fail(x, "s"), ann.commit) == "recorded"
    assert eve.run(run_id)["status"] == "failed"
    assert statuses(eve, run_id) == {"x": "failed", "y": "completed"}
    assert eve.statuses(run_id) == {"x": "failed", "y": "completed", "z": "created"}


@pytest.mark.parametrize(
    ("function", "status"), [("cancel_runs", "cancelled"), ("terminate_runs", "terminated")]
)
def test_a_completion_meets_the_end_of_the_outer_run(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID], function: str, status: str
) -> None:
    (ann, bob, eve), (run_id, x, _) = two, begun
    ann.begin()
    assert end_all(ann, function, run_id) == "delivered"
    assert while_blocked(eve, lambda: bob.complete(x, "s", 1), ann.commit) == "lost"
    assert eve.run(run_id)["status"] == status
    assert statuses(eve, run_id) == {"x": "cancelled", "y": "cancelled"}
    assert eve.rows("select * from holdfast.tasks") == []


@pytest.mark.parametrize("function", ["cancel_runs", "terminate_runs"])
def test_the_end_of_the_outer_run_meets_a_completion(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID], function: str
) -> None:
    (ann, bob, eve), (run_id, x, _) = two, begun
    ann.begin()
    assert ann.complete(x, "s", 1) == "recorded"
    assert while_blocked(eve, lambda: end_all(bob, function, run_id), ann.commit) == "delivered"
    assert statuses(eve, run_id) == {"x": "completed", "y": "cancelled"}
    assert eve.statuses(run_id)["x"] == "completed"
    assert eve.rows("select * from holdfast.tasks") == []


@pytest.mark.parametrize("function", ["cancel_runs", "terminate_runs"])
def test_the_ends_of_a_step_and_of_its_sibling_from_outside_meet(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID], function: str
) -> None:
    (ann, bob, eve), (run_id, x, y) = two, begun
    ann.begin()
    assert end_all(ann, function, x) == "delivered"
    assert while_blocked(eve, lambda: end_all(bob, function, y), ann.commit) in (
        "delivered",
        "ended",
    )
    assert eve.run(run_id)["status"] == "failed"
    assert eve.rows("select * from holdfast.tasks") == []


def test_the_innermost_of_three_levels_meets_the_end_of_the_outermost(hands: Hands) -> None:
    ann, bob, eve = hands(), hands(), hands()
    shape(eve, "inner", {"slug": "s"}, max_attempts=1)
    shape(eve, "middle", runs("m"), max_attempts=1)
    shape(eve, "outer", runs("x", of="middle"), runs("y", of="middle"), max_attempts=1)
    run_id = eve.start("outer", 1)
    deep = [children(eve, child)["m"] for child in children(eve, run_id).values()]
    assert len(eve.work("inner")) == 2
    ann.begin()
    assert ann.complete(deep[0], "s", 1) == "recorded"
    late = while_blocked(eve, lambda: end_all(bob, "terminate_runs", run_id), ann.commit)
    assert late == "delivered"
    assert sorted(statuses(eve, run_id).values()) == ["cancelled", "completed"]
    assert eve.complete(deep[1], "s", 1) == "lost"
    assert eve.rows("select * from holdfast.tasks") == []


def test_sql_workers_do_not_touch_the_tasks_of_runs(
    two: tuple[Hand, Hand, Hand], begun: tuple[UUID, UUID, UUID]
) -> None:
    eve, run_id = two[2], begun[0]
    assert eve.work("outer") == []
    assert eve.complete(run_id, "x", 1) == "lost"
    assert eve.fail(run_id, "x") == "lost"
    assert eve.statuses(run_id)["x"] == "started"


def test_many_sessions_end_runs_of_many_flows_without_a_deadlock(hands: Hands) -> None:
    """Completions, failures and stops at all levels at once: every run ends, no task is left."""
    eve = hands()
    shape(eve, "inner", {"slug": "s"}, max_attempts=1)
    shape(eve, "outer", runs("x"), runs("y"), runs("w", "x"), max_attempts=1)
    outer = [eve.start("outer", 1) for _ in range(25)]
    sessions = [hands() for _ in range(4)]

    def work(number: int) -> None:
        hand = sessions[number]
        for turn, run_id in enumerate(outer[number:] + outer[:number]):
            if (turn + number) % 7 == 0:
                end_all(hand, "terminate_runs" if turn % 2 else "cancel_runs", run_id)
            for task in hand.work("inner", 3):
                if (turn + number) % 5 == 0:
                    hand.fail(task["run_id"], "s")
                else:
                    hand.complete(task["run_id"], "s", turn)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    while tasks := eve.work("inner"):
        for task in tasks:
            eve.complete(task["run_id"], "s", 1)
    assert eve.rows("select * from holdfast.tasks") == []
    assert eve.value("select count(*) from holdfast.runs where status = 'running'") == 0
    doubled = "select count(*) from (select run_id from holdfast.events where event_type in "
    doubled += "('WorkflowCompleted', 'WorkflowFailed', 'WorkflowCanceled', 'WorkflowTerminated') "
    doubled += "group by run_id having count(*) > 1) as d"
    assert eve.value(doubled) == 0


def replace(hand: Hand, name: str, *steps: dict[str, Any], **options: Any) -> object:
    """Give a flow a shape under another hash, as `flows compile --replace` does."""
    value = {"name": name, "version": 1, "steps": steps, **options}
    return hand.value(
        "select status from holdfast.ensure_flow(%s, 1, %s, %s::jsonb, true)",
        name,
        uuid4().hex,
        json.dumps(value),
    )


def delete(hand: Hand, name: str) -> object:
    """Delete a flow as clients do; it ends open runs and deletes runs that have ended."""
    return hand.value("select is_done from holdfast.delete_flow(%s, true, p_force => true)", name)


@pytest.mark.parametrize(
    "change",
    [lambda hand: replace(hand, "inner", {"slug": "t"}), lambda hand: delete(hand, "inner")],
    ids=["replace", "delete"],
)
def test_a_change_of_a_flow_meets_its_parent_that_starts_one_more_run_of_it(
    hands: Hands, change: Callable[[Hand], object]
) -> None:
    """The change gives way: it does not keep starts waiting while it waits for the parent."""
    ann, bob, eve = hands(), hands(), hands()
    shape(eve, "inner", {"slug": "s"}, max_attempts=1)
    shape(eve, "outer", {"slug": "z"}, runs("x", "z"), runs("y"), max_attempts=1)
    run_id = eve.start("outer", 1)
    eve.work("outer")
    ann.begin()
    ann.rows("select holdfast._lock_turns(array[%s::uuid])", run_id)

    def end_of_z() -> None:
        assert ann.complete(run_id, "z", 1) == "recorded"
        ann.commit()

    while_blocked(eve, lambda: change(bob), end_of_z)
    ended = "select count(*) from holdfast.runs where name = 'inner' and status = 'running'"
    assert eve.value(ended) == 0
    assert eve.run(run_id)["status"] == "failed"


def test_a_run_that_begins_after_its_shape_was_replaced_is_younger_than_the_shape(
    hands: Hands,
) -> None:
    """So it is drawn by its own shape, and a retry of it keeps what it has."""
    ann, bob, eve = hands(), hands(), hands()
    shape(eve, "inner", {"slug": "s"})
    shape(eve, "outer", {"slug": "z"}, runs("x", "z"))
    eve.start("inner", 0)  # the shape before is kept for it
    run_id = eve.start("outer", 1)
    eve.work("outer")
    ann.begin()
    ann.rows("select holdfast._lock_turns(array[%s::uuid])", run_id)

    def end_of_wait() -> None:
        replace(eve, "inner", {"slug": "t"}, {"slug": "u", "deps": ["t"]})
        ann.commit()

    while_blocked(eve, lambda: bob.complete(run_id, "z", 1), end_of_wait)
    inner = eve.value("select run_id from holdfast.runs where parent_run_id = %s", run_id)
    for step in ("t", "u"):
        eve.work("inner")
        assert eve.complete(inner, step, 1) == "recorded"
    assert eve.statuses(inner) == {"t": "completed", "u": "completed"}
    again = uuid4()
    eve.rows("select * from holdfast.retry_flow(%s, %s, 'u')", inner, again)
    assert eve.statuses(again) == {"t": "completed", "u": "created"}


@contextmanager
def while_it_exists() -> Iterator[None]:
    """Carry on if the flow, or the run that had the step, is deleted (HF003)."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate != "HF003":
            raise


def test_many_sessions_change_flows_under_runs_of_them_without_a_deadlock(hands: Hands) -> None:
    """Replacements and deletions of the inner flow, while its runs begin and end in others."""
    eve = hands()
    shape(eve, "inner", {"slug": "s"}, max_attempts=1)
    shape(eve, "outer", {"slug": "z"}, runs("x", "z"), runs("y"), runs("w", "x"), max_attempts=1)
    sessions = [hands() for _ in range(4)]

    def work(number: int) -> None:
        hand = sessions[number]
        for turn in range(25):
            hand.start("outer", turn)
            if (turn + number) % 5 == 0:
                delete(hand, "inner")
            if (turn + number) % 3 == 0:
                assert replace(hand, "inner", {"slug": "s"}, max_attempts=1) != "mismatch"
            for slug in ("outer", "inner"):
                with while_it_exists():
                    for task in hand.work(slug, 3):
                        hand.complete(task["run_id"], task["step_slug"], turn)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    replace(eve, "inner", {"slug": "s"}, max_attempts=1)
    delete(eve, "outer")
    delete(eve, "inner")
    assert eve.rows("select * from holdfast.tasks") == []
    assert eve.value("select count(*) from holdfast.runs") == 0


@pytest.fixture
def leaves(hands: Hands) -> tuple[Hand, Hand, Hand, UUID, dict[str, UUID]]:
    """A run of a flow whose two steps are runs of a workflow, which a worker has claimed."""
    ann, bob, eve = hands(), hands(), hands()
    leaf = {"of": "leaf", "runs_kind": "workflow"}
    shape(eve, "outer", runs("x", **leaf), runs("y", **leaf), max_attempts=1)
    run_id = eve.start("outer", 1)
    eve.rows(
        "select * from holdfast.claim_tasks('w', array['default'], array['leaf@1'], 9, 30::float8)"
    )
    return ann, bob, eve, run_id, children(eve, run_id)


def finish(hand: Hand, run_id: UUID, parent_id: UUID) -> object:
    """End the run of a workflow as its worker's commit does; return what was refused."""
    return hand.value(
        "select refused from holdfast.commit('w', gen_random_uuid(), array[%s::uuid], array[1], "
        "array[1], array['WorkflowCompleted'], array[null::text], array[null::json], "
        "array[1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', array[%s::uuid], "
        "array['completed'], array['7'::json], array[null::json], '{}', array[%s::uuid], '{}')",
        run_id,
        run_id,
        parent_id,
    )


def test_the_end_of_the_flow_meets_the_commit_that_ends_a_run_of_it(
    leaves: tuple[Hand, Hand, Hand, UUID, dict[str, UUID]],
) -> None:
    ann, bob, eve, run_id, found = leaves
    ann.begin()
    assert finish(ann, found["x"], run_id) is None
    late = while_blocked(eve, lambda: end_all(bob, "terminate_runs", run_id), ann.commit)
    assert late == "delivered"
    assert eve.statuses(run_id) == {"x": "completed", "y": "started"}
    assert eve.run(found["x"])["status"] == "completed"


def test_the_commit_that_ends_a_run_gives_up_while_the_flow_ends_and_counts_afterwards(
    leaves: tuple[Hand, Hand, Hand, UUID, dict[str, UUID]],
) -> None:
    ann, bob, eve, run_id, found = leaves
    ann.begin()
    assert end_all(ann, "terminate_runs", run_id) == "delivered"
    with pytest.raises(psycopg.errors.LockNotAvailable):
        finish(bob, found["x"], run_id)
    ann.commit()
    assert finish(bob, found["x"], run_id) is not None  # the request to cancel came before
    assert eve.run(run_id)["status"] == "terminated"
    assert eve.log(found["x"])[-1] == "WorkflowCancelRequested"
