"""Shapes from code: compared with what the database has, written, replaced, read. P9."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked

NULL, WRONG = "22004", "22023"
FULL: dict[str, Any] = {
    "name": "shop/sizes",
    "version": 2,
    "queue": "slow",
    "max_attempts": 4,
    "base_delay": 1,
    "timeout": 9,
    "steps": [
        {"slug": "words", "wants_run": True},
        {
            "slug": "size",
            "kind": "map",
            "deps": ["words"],
            "queue": "gpu",
            "max_attempts": 1,
            "base_delay": 0,
            "timeout": 1,
            "start_delay": 7,
            "required": '{"words": ["a"]}',
            "forbidden": "{}",
            "when_unmet": "fail",
            "when_exhausted": "skip-cascade",
        },
        {"slug": "total", "deps": ["size", "words"]},
    ],
}
ABSENT = (
    *("queue", "max_attempts", "base_delay", "timeout", "start_delay", "required", "forbidden"),
    *("runs", "runs_kind", "tolerated_count", "tolerated_percent", "concurrency", "jitter_percent"),
)


def shape(*slugs: str, **options: object) -> dict[str, Any]:
    return {"steps": [{"slug": slug} for slug in slugs], **options}


def ensure(
    hand: Hand,
    slug: str,
    content: object,
    given_hash: str | None = None,
    *,
    version: int = 1,
    replace: bool = False,
) -> dict[str, Any]:
    text = json.dumps(content)
    (row,) = hand.rows(
        "select * from holdfast.ensure_flow(%s, %s, %s, %s::jsonb, %s)",
        slug,
        version,
        given_hash or f"hash of {text}",
        text,
        replace,
    )
    return row


def status(hand: Hand, slug: str, content: object, given_hash: str | None = None) -> str:
    return str(ensure(hand, slug, content, given_hash)["status"])


def test_a_shape_is_read_as_it_was_written(hand: Hand) -> None:
    assert ensure(hand, "shop/sizes", FULL, version=2)["status"] == "compiled"
    read = hand.value("select holdfast.get_flow('sizes', 2)")
    assert read == hand.value("select holdfast.get_flow('shop/sizes')")
    assert {**read, "steps": None} == {**FULL, "steps": None}
    defaults = {"kind": "single", "when_unmet": "skip", "when_exhausted": "fail"}
    defaults["trigger_rule"] = "none_failed"
    for step, written in zip(read["steps"], FULL["steps"], strict=True):
        absent = {**dict.fromkeys(ABSENT), "deps": [], "wants_run": False, **defaults}
        assert step == {**absent, **written}
    assert ensure(hand, "shop/sizes", read, "another", version=2)["status"] == "verified"


def test_a_flow_that_does_not_exist_is_read_as_null(hand: Hand) -> None:
    ensure(hand, "shop/known", shape("a"))
    for call in ("'nobody'", "'known', 2", "'nobody', 1", "null"):
        assert hand.value(f"select holdfast.get_flow({call})") is None


def test_a_shape_with_the_same_hash_is_verified_without_a_look_at_it(hand: Hand) -> None:
    assert status(hand, "shop/once", shape("a"), "one") == "compiled"
    assert status(hand, "shop/once", shape("a"), "one") == "verified"
    assert status(hand, "shop/once", "not a shape", "one") == "verified"


def test_another_shape_of_a_version_is_returned_and_stays(hand: Hand) -> None:
    ensure(hand, "shop/grown", shape("a"))
    run_id = hand.start("shop/grown", {})
    row = ensure(hand, "shop/grown", shape("a", "b"))
    assert (row["status"], row["ended"], row["notices"]) == ("mismatch", 0, None)
    assert [step["slug"] for step in row["other"]["steps"]] == ["a"]
    assert row["other"] == hand.value("select holdfast.get_flow('grown')")
    assert hand.run(run_id)["status"] == "running"
    assert ensure(hand, "shop/grown", shape("a", "b"), version=2)["status"] == "compiled"


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "mail"},
        {"max_attempts": 9},
        {"timeout": 9},
        {"steps": [{"slug": "a"}, {"slug": "b"}]},
        {"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a"], "kind": "map"}]},
        {"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a"], "wants_run": True}]},
        {"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a"], "required": "{}"}]},
        {"steps": [{"slug": "a"}]},
        {"steps": []},
    ],
)
def test_any_other_content_is_another_shape(hand: Hand, change: dict[str, object]) -> None:
    content = {"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a"]}]}
    assert status(hand, "shop/f", content) == "compiled"
    assert status(hand, "shop/f", {**content, **change}) == "mismatch"


def test_a_replaced_shape_ends_the_open_runs_of_its_version_only(hand: Hand) -> None:
    ensure(hand, "shop/draft", shape("a"))
    ended = hand.start("shop/draft", {})
    hand.work("shop/draft")
    hand.complete(ended, "a", 1)
    old = [hand.start("shop/draft", {}) for _ in range(3)]
    ensure(hand, "shop/draft", shape("a"), version=2)
    other = hand.start("shop/draft", {})
    hand.rows(
        "insert into holdfast.waiters (run_id, topic) values (%s, 'client/1') returning 1", old[0]
    )
    row = ensure(hand, "shop/draft", shape("b"), replace=True)
    assert (row["status"], row["ended"]) == ("replaced", 3)
    assert ["client/1", str(old[0])] in row["notices"]
    assert {hand.run(run_id)["status"] for run_id in old} == {"terminated"}
    assert hand.run(ended)["status"] == "completed"
    assert hand.run(other)["status"] == "running"
    assert hand.value("select count(*) from holdfast.tasks where kind = 'step'") == 1
    assert hand.value("select holdfast.get_flow('draft', 1)")["steps"][0]["slug"] == "b"
    assert ensure(hand, "shop/draft", shape("b"), replace=True)["status"] == "verified"


def test_a_shape_from_sql_with_the_same_contents_is_that_of_the_code(hand: Hand) -> None:
    hand.rows("select * from holdfast.create_flow('shop/site', max_attempts => 7)")
    hand.add("shop/site", "page", [])
    hand.add("shop/site", "links", ["page"], when_exhausted="skip")
    hand.add("shop/site", "each", ["links"], step_type="map")
    hand.add("shop/site", "save", ["page", "each"], timeout=5)
    content = {
        "max_attempts": 7,
        "steps": [
            {"slug": "page"},
            {"slug": "links", "deps": ["page"], "when_exhausted": "skip"},
            {"slug": "each", "deps": ["links"], "kind": "map"},
            {"slug": "save", "deps": ["each", "page"], "timeout": 5},
        ],
    }
    assert status(hand, "shop/site", {**content, "steps": content["steps"][:3]}) == "mismatch"
    assert status(hand, "shop/site", content, "mine") == "verified"
    assert hand.value("select shape_hash from holdfast.flows") == "mine"
    hand.add("shop/site", "more", ["save"])
    assert hand.value("select max(version) from holdfast.flows") == 2


def test_flows_are_listed_with_their_open_runs(hand: Hand) -> None:
    hand.define("made", ("a", []), ("b", []))
    ensure(hand, "shop/coded", shape("a"))
    ensure(hand, "shop/coded", shape("a"), version=2)
    for _ in range(2):
        hand.start("shop/coded", {})
    done = hand.start("made", {})
    hand.rows("select * from holdfast.terminate_runs(array[%s::uuid])", done)
    rows = hand.rows("select * from holdfast.list_flows()")
    assert [tuple(row.values()) for row in rows] == [
        ("made", 1, 2, False, rows[0]["created_at"], 0),
        ("shop/coded", 1, 1, True, rows[1]["created_at"], 0),
        ("shop/coded", 2, 1, True, rows[2]["created_at"], 2),
    ]


def test_a_list_of_flows_looks_at_a_bounded_number_of_runs(hand: Hand) -> None:
    hand.define("crowd", ("a", []))
    hand.rows(
        "insert into holdfast.runs (run_id, kind, name, version, queue, priority, input, tags,"
        " created_at) select gen_random_uuid(), 'flow', 'crowd', 1, 'default', 2, '1', '{}', now()"
        " from generate_series(1, 10100) returning 1"
    )
    (row,) = hand.rows("select * from holdfast.list_flows()")
    assert row["open_runs"] == 10_000


REFUSED: list[tuple[object, str]] = [
    (None, WRONG),
    ([], WRONG),
    ({"steps": {}}, WRONG),
    ({"steps": [1]}, WRONG),
    ({"steps": [{}]}, NULL),
    ({"steps": [{"slug": 1}]}, WRONG),
    ({"steps": [{"slug": ""}]}, WRONG),
    ({"steps": [{"slug": "run"}]}, WRONG),
    ({"steps": [{"slug": "a:b"}]}, WRONG),
    ({"steps": [{"slug": "s" * 129}]}, WRONG),
    (shape("a", "a"), WRONG),
    ({"steps": [{"slug": "a", "deps": ["a"]}]}, WRONG),
    ({"steps": [{"slug": "a", "deps": ["b"]}, {"slug": "b"}]}, WRONG),
    ({"steps": [{"slug": "a", "deps": [""]}]}, WRONG),
    ({"steps": [{"slug": "a", "deps": [None]}]}, NULL),
    ({"steps": [{"slug": "a", "deps": [[]]}]}, WRONG),
    ({"steps": [{"slug": "a", "deps": "b"}]}, WRONG),
    ({"steps": [{"slug": "a"}, {"slug": "b", "deps": ["a", "a"]}]}, WRONG),
    (
        {"steps": [{"slug": "a"}, {"slug": "b"}, {"slug": "c", "deps": ["a", "b"], "kind": "map"}]},
        WRONG,
    ),
    ({"steps": [{"slug": "a", "kind": "end"}]}, WRONG),
    ({"steps": [{"slug": "a", "wants_run": 1}]}, WRONG),
    ({"steps": [{"slug": "a", "queue": "no queue"}]}, WRONG),
    ({"steps": [{"slug": "a", "max_attempts": 0}]}, WRONG),
    ({"max_attempts": 0}, WRONG),
    ({"steps": [{"slug": "a", "max_attempts": 1.5}]}, WRONG),
    ({"steps": [{"slug": "a", "max_attempts": 2**31}]}, WRONG),
    ({"steps": [{"slug": "a", "timeout": 0}]}, WRONG),
    ({"steps": [{"slug": "a", "start_delay": -1}]}, WRONG),
    ({"steps": [{"slug": "a", "required": {}}]}, WRONG),
    ({"steps": [{"slug": "a", "required": "[]"}]}, WRONG),
    ({"steps": [{"slug": "a", "required": "{"}]}, WRONG),
    ({"steps": [{"slug": "a", "forbidden": '{"a": "\\u0000"}'}]}, WRONG),
    ({"steps": [{"slug": "a", "when_unmet": "later"}]}, WRONG),
    ({"steps": [{"slug": "a", "color": "red"}]}, WRONG),
    ({"color": "red"}, WRONG),
    ({"queue": ""}, WRONG),
    ({"timeout": "1"}, WRONG),
    ({"base_delay": -1}, WRONG),
    ({"name": "shop/g"}, WRONG),
    ({"version": 2}, WRONG),
]


@pytest.mark.parametrize(("content", "code"), REFUSED)
def test_a_shape_that_cannot_be_is_refused_whole(hand: Hand, content: object, code: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        ensure(hand, "shop/f", content)
    assert caught.value.sqlstate == code, caught.value
    assert hand.value("select count(*) from holdfast.flows") == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("null, 1, 'h', '{}'", NULL),
        ("'a-b', 1, 'h', '{}'", WRONG),
        ("'a/b/c', 1, 'h', '{}'", WRONG),
        ("'f', null, 'h', '{}'", NULL),
        ("'f', 0, 'h', '{}'", WRONG),
        ("'f', 1, null, '{}'", NULL),
        ("'f', 1, '', '{}'", WRONG),
        ("'f', 1, 'h', null", NULL),
    ],
)
def test_what_comes_with_a_shape_is_checked(hand: Hand, arguments: str, code: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        hand.rows(f"select * from holdfast.ensure_flow({arguments})")
    assert caught.value.sqlstate == code


def test_of_twenty_workers_one_writes_the_shape(hands: Callable[[], Hand]) -> None:
    workers = [hands() for _ in range(20)]
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda hand: status(hand, "shop/new", shape("a", "b")), workers))
    assert sorted(found) == ["compiled"] + ["verified"] * 19
    assert workers[0].value("select count(*) from holdfast.steps") == 3


def test_workers_with_other_code_are_told_that_they_are_late(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    ann.begin()
    assert status(ann, "shop/new", shape("a")) == "compiled"
    found = while_blocked(watcher, lambda: ensure(bob, "shop/new", shape("b")), ann.commit)
    assert found["status"] == "mismatch"
    assert [step["slug"] for step in found["other"]["steps"]] == ["a"]


def start_in_transaction(hand: Hand, slug: str) -> UUID:
    hand.begin()
    return hand.start(slug, {})


def test_an_open_start_holds_up_nobody_but_a_replacement(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    ensure(bob, "shop/busy", shape("a"))
    run_id = start_in_transaction(ann, "busy")
    assert status(bob, "shop/busy", shape("a")) == "verified"
    assert status(bob, "shop/busy", shape("b")) == "mismatch"
    assert status(bob, "shop/busy", shape("a"), "another") == "verified"
    assert ensure(bob, "shop/busy", shape("b"), version=2)["status"] == "compiled"
    bob.start("shop/busy", {})
    row = while_blocked(
        watcher, lambda: ensure(bob, "shop/busy", shape("b"), replace=True), ann.commit
    )
    assert (row["status"], row["ended"]) == ("replaced", 1)
    assert bob.run(run_id)["status"] == "terminated"


def test_a_start_that_comes_during_a_replacement_gets_the_new_shape(
    hands: Callable[[], Hand],
) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    ensure(bob, "shop/busy", shape("a"))
    ann.begin()
    assert ensure(ann, "shop/busy", shape("b"), replace=True)["status"] == "replaced"
    run_id = while_blocked(watcher, lambda: bob.start("busy", {}), ann.commit)
    assert bob.statuses(run_id) == {"b": "created"}
    assert [task["step_slug"] for task in bob.work("busy")] == ["b"]


def test_a_replacement_that_waited_for_another_comes_after_it(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    ensure(bob, "shop/busy", shape("a"))
    run_id = bob.start("shop/busy", {})
    ann.begin()
    ann.rows("select holdfast._lock_versions('shop/busy')")

    def replace_first() -> None:
        assert ensure(ann, "shop/busy", shape("b"), replace=True)["status"] == "replaced"
        ann.commit()

    while_blocked(
        watcher, lambda: ensure(bob, "shop/busy", shape("c"), replace=True), replace_first
    )
    assert bob.statuses(run_id) == {"a": "created"}
    assert bob.statuses(bob.start("shop/busy", {})) == {"c": "created"}


def test_a_step_that_is_added_waits_for_an_open_start(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("grown", ("a", []))
    run_id = start_in_transaction(ann, "grown")
    while_blocked(watcher, lambda: bob.add("grown", "b", ["a"]), ann.commit)
    assert bob.statuses(run_id) == {"a": "created"}
    assert bob.value("select max(version) from holdfast.flows") == 2


def test_a_start_waits_for_a_step_that_is_being_added(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("grown", ("a", []))
    ann.begin()
    ann.add("grown", "b", ["a"])
    run_id = while_blocked(watcher, lambda: bob.start("grown", {}), ann.commit)
    assert bob.statuses(run_id) == {"a": "created", "b": "created"}


def test_an_open_first_start_holds_up_no_other(hands: Callable[[], Hand]) -> None:
    """If it is rolled back, the shape has had the other's run all the same."""
    ann, bob = hands(), hands()
    bob.define("new", ("a", []))
    start_in_transaction(ann, "new")
    run_id = bob.start("new", {})
    ann.connection.execute("rollback")
    bob.add("new", "b", ["a"])
    assert bob.statuses(run_id) == {"a": "created"}
    assert bob.value("select max(version) from holdfast.flows") == 2


def test_a_script_that_changes_nothing_waits_for_nobody(hands: Callable[[], Hand]) -> None:
    ann, bob = hands(), hands()
    bob.define("known", ("a", []), ("b", ["a"]))
    start_in_transaction(ann, "known")
    bob.define("known", ("a", []), ("b", ["a"]))
    ann.commit()
    start_in_transaction(ann, "known")
    bob.add("known", "c", ["b"])
    assert bob.value("select max(version) from holdfast.flows") == 2
