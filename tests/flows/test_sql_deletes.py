"""Flows are deleted with all that belongs to them. P11."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import UUID

import psycopg
import pytest
from hand import Hand
from meeting import while_blocked

from holdfast import Client
from holdfast.errors import FlowInUse, UnknownFlow
from holdfast.store.postgres import PostgresStore, flows

IN_USE, MISSING = "HF005", "HF003"
TABLES = ("runs", "events", "tasks", "step_states", "step_tasks", "flows", "steps", "deps")


def delete(hand: Hand, slug: str, **options: object) -> int | None:
    named = "".join(f", {name} => %s" for name in options)
    found = hand.value(f"select runs from holdfast.delete_flow(%s{named})", slug, *options.values())
    assert found is None or isinstance(found, int)
    return found


def count(hand: Hand) -> dict[str, int]:
    return {name: hand.value(f"select count(*) from holdfast.{name}") for name in TABLES}


@pytest.fixture
def busy(hand: Hand) -> Hand:
    """A flow of two versions with a map, and with runs that have ended, another flow beside it."""
    fill(hand)
    return hand


def fill(hand: Hand) -> None:
    hand.define("other", ("a", []))
    hand.start("other", {})
    hand.define("shop/sizes", ("words", []))
    hand.add("shop/sizes", "size", ["words"], step_type="map")
    for _ in range(3):
        run_id = hand.start("sizes", {})
        hand.work("sizes")
        hand.complete(run_id, "words", [1, 2])
        hand.work("sizes")
        for index in range(2):
            hand.complete(run_id, "size", index, index)
    hand.add("shop/sizes", "total", ["size"])
    assert delete(hand, "other", p_terminate=True) == 1
    hand.define("other", ("a", []))
    hand.start("other", {})


def test_nothing_of_a_flow_is_left(busy: Hand) -> None:
    before = count(busy)
    assert delete(busy, "sizes") == 3
    assert count(busy) == {
        "runs": 1,
        "events": 1,
        "tasks": 2,
        "step_states": 0,
        "step_tasks": 0,
        "flows": 1,
        "steps": 2,
        "deps": 1,
    }
    assert (before["step_tasks"], before["flows"]) == (6, 3)
    assert delete(busy, "sizes") is None
    with pytest.raises(psycopg.Error) as caught:
        busy.start("shop/sizes", {})
    assert caught.value.sqlstate == MISSING


def test_a_flow_with_open_runs_is_deleted_only_if_they_are_to_be_ended(busy: Hand) -> None:
    open_runs = [busy.start("sizes", {}) for _ in range(2)]
    before = count(busy)
    with pytest.raises(
        psycopg.Error, match="runs of flow shop/sizes that have not ended: 2"
    ) as caught:
        delete(busy, "sizes")
    assert caught.value.sqlstate == IN_USE
    assert count(busy) == before
    assert delete(busy, "sizes", p_terminate=True) == 5
    assert busy.value("select count(*) from holdfast.runs where run_id = any (%s)", open_runs) == 0


def test_a_flow_that_does_not_exist_has_no_number(hand: Hand) -> None:
    assert delete(hand, "nobody") is None
    hand.define("made", ("a", []))
    assert delete(hand, "made") == 0


def parts(hand: Hand, limit: int) -> list[tuple[int, bool]]:
    """Delete a flow in parts, and return what each call says."""
    slug, before, said = "sizes", None, list[tuple[int, bool]]()
    while not said or not said[-1][1]:
        (row,) = hand.rows(
            "select * from holdfast.delete_flow(%s, true, %s, %s)", slug, limit, before
        )
        slug, before = row["flow_slug"], row["before"]
        said.append((row["runs"], row["is_done"]))
    return said


def test_many_runs_are_deleted_in_parts(busy: Hand) -> None:
    for _ in range(3):
        busy.start("sizes", {})
    assert parts(busy, 2) == [(0, False), (2, False), (2, False), (2, False), (0, True)]
    assert count(busy)["runs"] == 1


def test_a_call_without_a_limit_ends_and_deletes_a_thousand_runs(hand: Hand) -> None:
    hand.define("many", ("a", []))
    hand.rows(
        "select holdfast.start_flows(array_agg(gen_random_uuid()), array_agg('many'::text)) "
        "from generate_series(1, 1001)"
    )
    delete_some = "select runs, is_done from holdfast.delete_flow('many', true)"
    said = [tuple(hand.rows(delete_some)[0].values()) for _ in range(3)]
    assert said == [(0, False), (1000, False), (1, True)]
    assert (count(hand)["runs"], delete(hand, "many", p_limit=None)) == (0, None)


def test_a_flow_that_is_defined_again_meanwhile_keeps_its_runs(busy: Hand) -> None:
    (row,) = busy.rows("select * from holdfast.delete_flow('sizes', true, 2)")
    assert (row["runs"], row["is_done"]) == (2, False)
    busy.define("shop/sizes", ("words", []))
    open_run, done = busy.start("sizes", {}), busy.start("sizes", {})
    busy.rows("select * from holdfast.terminate_runs(array[%s::uuid])", done)
    (row,) = busy.rows(
        "select * from holdfast.delete_flow(%s, true, 2, %s)", row["flow_slug"], row["before"]
    )
    assert (row["runs"], row["is_done"]) == (1, True)
    assert busy.run(open_run)["status"] == "running"
    assert busy.run(done)["status"] == "terminated"


def test_a_deletion_waits_for_an_open_start_and_finds_its_run(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("shop/f", ("a", []))
    ann.begin()
    ann.start("f", {})
    with pytest.raises(psycopg.Error) as caught:
        while_blocked(watcher, lambda: delete(bob, "f"), ann.commit)
    assert caught.value.sqlstate == IN_USE
    ann.begin()
    ann.start("f", {})
    assert while_blocked(watcher, lambda: delete(bob, "f", p_terminate=True), ann.commit) == 2
    assert bob.value("select count(*) from holdfast.runs") == 0


def test_a_start_that_comes_during_a_deletion_is_refused(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("shop/f", ("a", []))
    ann.begin()
    assert delete(ann, "f") == 0
    with pytest.raises(psycopg.Error) as caught:
        while_blocked(watcher, lambda: bob.start("f", {}), ann.commit)
    assert caught.value.sqlstate == MISSING


def test_a_retry_that_comes_during_a_deletion_finds_nothing(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    bob.define("f", ("a", []))
    run_id = bob.start("f", {})
    bob.rows("select * from holdfast.terminate_runs(array[%s::uuid])", run_id)
    ann.begin()
    assert delete(ann, "f") == 1
    outcome = while_blocked(
        watcher,
        lambda: bob.value(
            "select outcome from holdfast.retry_flow(%s, holdfast.new_run_id())", run_id
        ),
        ann.commit,
    )
    assert outcome == "missing"


def working(hand: Hand) -> UUID:
    """Return a run whose only step is worked on."""
    hand.define("f", ("a", []))
    run_id = hand.start("f", {})
    hand.work("f")
    return run_id


def test_a_run_that_completes_during_a_deletion_is_deleted(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    run_id = working(bob)
    ann.begin()
    assert ann.complete(run_id, "a", 1) == "recorded"
    assert while_blocked(watcher, lambda: delete(bob, "f", p_terminate=True), ann.commit) == 1
    assert bob.value("select count(*) from holdfast.events") == 0


def test_a_result_that_comes_during_a_deletion_is_lost(hands: Callable[[], Hand]) -> None:
    ann, bob, watcher = hands(), hands(), hands()
    run_id = working(bob)
    ann.begin()
    assert delete(ann, "f", p_terminate=True) == 1
    assert while_blocked(watcher, lambda: complete(bob, run_id), ann.commit) == "lost"
    for table in ("tasks", "events", "step_states"):
        assert bob.value(f"select count(*) from holdfast.{table}") == 0


def complete(hand: Hand, run_id: UUID) -> str:
    return str(
        hand.value(
            "select outcomes[1] from holdfast.end_step_tasks(null, array[%s::uuid], array['a'],"
            " array[1], array['1']::json[]) limit 1",
            run_id,
        )
    )


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database_url)
    await store.open()
    yield store
    await store.close()


async def test_the_client_deletes_in_parts_and_counts_them(
    busy: Hand, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "_DELETED_AT_ONCE", 2)
    busy.start("sizes", {})
    async with Client(store=store) as client:
        with pytest.raises(FlowInUse, match="runs of flow shop/sizes that have not ended: 1"):
            await client.flows.delete("sizes")
        assert await client.flows.delete("sizes", terminate=True) == 4
        with pytest.raises(UnknownFlow):
            await client.flows.delete("sizes")
    assert count(busy)["runs"] == 1
