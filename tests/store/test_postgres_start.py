"""Start runs from SQL, and the ids that SQL and Python must agree on."""

from __future__ import annotations

import json
from uuid import UUID

import asyncpg
import msgspec
import pytest
from contract.actors import ManualWorker, get, log_types, new_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import Scene

from holdfast.store.postgres import start_statement
from holdfast.types import DeclaredOptions
from holdfast.values.ids import keyed_run_id, uuid7

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=50))
async def test_sql_derives_the_ids_of_keyed_runs_as_python_does(
    scene: Scene, pairs: list[tuple[str, str]]
) -> None:
    """B5. The same key finds the same run from both sides."""
    found = await scene.watcher.connection.fetch(
        "select holdfast.keyed_run_id(u.name, u.key) from unnest($1::text[], $2::text[]) "
        "with ordinality as u (name, key, place) order by u.place",
        [name for name, _ in pairs],
        [key for _, key in pairs],
    )
    assert [row[0] for row in found] == [keyed_run_id(name, key) for name, key in pairs]


async def test_sql_draws_ids_that_sort_by_time(scene: Scene) -> None:
    before = uuid7()
    drawn = [await scene.value("select holdfast.new_run_id()") for _ in range(20)]
    after = uuid7()
    assert {(run_id.version, run_id.variant) for run_id in drawn} == {(7, before.variant)}
    assert before.int >> 80 <= min(drawn).int >> 80 <= max(drawn).int >> 80 <= after.int >> 80


async def test_run_started_from_sql_is_claimed_with_its_input(scene: Scene) -> None:
    run_id = await scene.value("select holdfast.start_run('shop/order', '{\"a\": 1}')")
    task = await ManualWorker(scene.store, "ann").take(handlers=["shop/order@1"])
    assert (task.run_id, task.name, task.version) == (run_id, "shop/order", 1)
    assert (task.input, task.log_length) == ('{"a": 1}', 1)


async def test_sql_keeps_runs_as_long_as_their_code_says(scene: Scene) -> None:
    """B8. A start that says nothing obeys what a worker has declared."""
    await scene.store.declare_options([DeclaredOptions("shop/order", 1, 90.0)])
    starts = {"": 90.0, ", p_retention_seconds => 5": 5.0}
    for more, seconds in starts.items():
        run_id = await scene.value(f"select holdfast.start_run('shop/order'{more})")
        assert (await get(scene.store, run_id)).retention_seconds == seconds


PLAIN = {
    "p_run_ids": "array[gen_random_uuid(), gen_random_uuid()]",
    "p_names": "array['shop/a', 'shop/a']",
    "p_inputs": "array['1', '2']::json[]",
    "p_queues": "array['q', 'q']",
    "p_priorities": "array[0, 4]",
    "p_retentions": "array[0, 1e10]::float8[]",
}


async def start_batch(scene: Scene, values: dict[str, str]) -> object:
    call = ", ".join(f"{name} => {array}" for name, array in values.items())
    return await scene.value(f"select count(*) from holdfast.start_runs({call})")


@pytest.mark.parametrize(
    ("parameter", "array"),
    [
        ("p_run_ids", "array[gen_random_uuid(), null]"),
        ("p_run_ids", "array[gen_random_uuid()]"),
        ("p_names", "array['shop/a']"),
        ("p_names", "array['shop/a', null]"),
        ("p_names", "array['shop/a', '']"),
        ("p_inputs", """array['1', '"\\u0000"']::json[]"""),
        ("p_inputs", "array['1', '2', '3']::json[]"),
        ("p_queues", "array['q', '']"),
        ("p_queues", "array['', '']"),
        ("p_queues", "array['q', 'q', 'q']"),
        ("p_priorities", "array[0, 5]"),
        ("p_priorities", "array[-1, 4]"),
        ("p_retentions", "array[0, -1]::float8[]"),
        ("p_retentions", "array[0, 'NaN']::float8[]"),
    ],
)
async def test_a_batch_with_one_wrong_value_is_refused(
    scene: Scene, parameter: str, array: str
) -> None:
    """A batch whose runs are alike is checked as a whole, which must find the same."""
    with pytest.raises(asyncpg.PostgresError):
        await start_batch(scene, PLAIN | {parameter: array})
    assert await scene.value("select count(*) from holdfast.runs") == 0


@pytest.mark.parametrize(
    ("parameter", "array", "flaw"),
    [
        ("p_start_ats", "array[0, 9223372036854775807]", "a start is within"),
        ("p_delays", "array[0, -1]", "a delay is 0"),
        ("p_headers", """array['{}', '{"a":1}']::json[]""", "headers are"),
        ("p_waiters", "array['w', '']", "a waiter takes"),
    ],
)
async def test_a_batch_is_told_which_value_is_wrong(
    scene: Scene, parameter: str, array: str, flaw: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=flaw):
        await start_batch(scene, PLAIN | {parameter: array})


@pytest.mark.parametrize(
    ("parameter", "array"),
    [
        ("p_names", "array['shop/a', 'shop/b']"),
        ("p_inputs", "array['1', null]::json[]"),
        ("p_queues", "array['q']"),
        ("p_queues", "array['q', null]"),
        ("p_priorities", "array[null, 4]::int[]"),
        ("p_retentions", "null"),
    ],
)
async def test_a_batch_may_leave_values_out(scene: Scene, parameter: str, array: str) -> None:
    assert await start_batch(scene, PLAIN | {parameter: array}) == 2


@pytest.mark.parametrize("again", [(1, 2), (1, 1), (0, 2), (0, 1)])
async def test_a_batch_leaves_runs_that_exist_as_they_are(
    scene: Scene, again: tuple[int, int]
) -> None:
    ids = sorted(uuid7() for _ in range(3))
    first, second = ([ids[0], ids[1]], [ids[place] for place in again])
    start = (
        "select run_id, created from holdfast.start_runs($1, array['shop/a', 'shop/a'], $2,"
        " p_queues => array['q', 'q'], p_priorities => array[2, 2],"
        " p_retentions => array[5, 5])"
    )
    fetch = scene.watcher.connection.fetch
    assert [row["created"] for row in await fetch(start, first, ["1", "1"])] == [True, True]
    found = await fetch(start, second, ["2", "2"])
    assert [tuple(row) for row in found] == [(each, each == ids[2]) for each in second]
    for run_id in {*first, *second}:
        assert (await get(scene.store, run_id)).input == ("2" if run_id == ids[2] else "1")
        assert await log_types(scene.store, run_id) == ["WorkflowStarted"]
        assert (await rows_of(scene, run_id))[2] is not None


async def test_a_plain_batch_heeds_limits(scene: Scene) -> None:
    await scene.value("select holdfast.set_limit('queue', 'q', 'concurrency', 1)")
    assert await start_batch(scene, PLAIN) == 2
    assert await scene.value("select count(limit_keys) from holdfast.tasks") == 2


async def test_a_plain_batch_heeds_rules(scene: Scene) -> None:
    rules = """array['{"singleton_conflict":"return"}']::json[]"""
    await scene.value(
        f"select holdfast.declare_start_rules(array['shop/a'], array[1], {rules})::text"
    )
    assert await start_batch(scene, PLAIN) == 2
    assert await scene.value("select count(*) from holdfast.runs") == 1


async def test_key_finds_the_run_that_sql_started(scene: Scene) -> None:
    """B5."""
    start = "select holdfast.start_run('shop/order', $1, p_key => '7')"
    first = await scene.value(start, "1")
    assert await scene.value(start, "2") == first == keyed_run_id("shop/order", "7")
    assert await scene.store.find_run("shop/order", "7") == first
    assert (await get(scene.store, first)).input == "1"


async def test_run_started_by_a_trigger_lives_and_dies_with_the_transaction(scene: Scene) -> None:
    """Starts work inside any transaction, triggers included."""
    await scene.watcher.connection.execute(
        """
        create table orders (id int);
        create function order_placed() returns trigger language plpgsql as $$
        begin
            perform holdfast.start_run('shop/order', to_json(new.id), p_key => new.id::text);
            return new;
        end $$;
        create trigger placed after insert on orders
            for each row execute function order_placed();
        """
    )
    session = await scene.session()
    undone = session.transaction()
    await undone.start()
    await session.connection.execute("insert into orders values (1)")
    await undone.rollback()
    await session.connection.execute("insert into orders values (2)")
    assert await scene.store.find_run("shop/order", "1") is None
    run_id = await scene.store.find_run("shop/order", "2")
    assert await ManualWorker(scene.store, "ann").claims(handlers=["shop/order@1"]) == [run_id]


async def test_statement_carries_everything_that_a_run_says(scene: Scene) -> None:
    """The call for drivers of the caller's own stores what the store itself would."""
    run = new_run(
        version=3,
        key="k",
        queue="gpu",
        priority=0,
        input='{"b": 1, "a": 1e300}',
        start_at=4_000_000_000_123_456,
        timeout_seconds=60.5,
        retention_seconds=86_400.0,
        tags=("red", 'quo"ted', "ünï"),
        headers={"traceparent": "00-ab"},
    )
    session = await scene.session()
    statement = start_statement([run, new_run()])
    rows = await session.connection.fetch(statement.text, *statement.arguments)
    assert [(row["created"], row["status"]) for row in rows] == [(True, "running")] * 2
    stored = await get(scene.store, run.run_id)
    fields = ("version", "key", "queue", "priority", "input", "tags", "headers")
    assert [getattr(stored, name) for name in fields] == [getattr(run, name) for name in fields]
    assert stored.retention_seconds == run.retention_seconds
    assert stored.wait is not None
    assert stored.wait.visible_at == run.start_at
    assert stored.deadline_at == 4_000_000_060_623_456


async def test_function_starts_runs_with_what_is_left_out(scene: Scene) -> None:
    """From psql only ids and names are needed."""
    run_ids = [uuid7(), uuid7()]
    [first, _] = await scene.watcher.call("start_runs", run_ids, ["order", "order"])
    assert tuple(first) == (run_ids[0], True, "running", False, None, None)
    run = await get(scene.store, run_ids[0])
    assert (run.queue, run.priority, run.version, run.input) == ("default", 2, 1, "null")
    assert json.loads(run.input) is None


async def test_a_run_is_the_same_whether_it_is_started_alone_or_with_others(scene: Scene) -> None:
    """Each of both ways has a function of its own."""
    every = new_run(
        version=3,
        key="k",
        queue="gpu",
        priority=0,
        input='{"b": 1}',
        delay_seconds=60.0,
        timeout_seconds=60.5,
        retention_seconds=86_400.0,
        tags=("red",),
        headers={"traceparent": "00-ab"},
        waiter="client/1",
    )
    plain = new_run(queue="gpu", priority=0, retention_seconds=86_400.0)
    for run in (every, plain, new_run()):
        alone = msgspec.structs.replace(run, run_id=uuid7())
        first, second = (msgspec.structs.replace(run, run_id=uuid7()) for _ in range(2))
        await scene.watcher.connection.execute("set holdfast.fake_now = '2030-01-01'")
        for runs in ([alone], [first, second]):
            statement = start_statement(runs)
            await scene.watcher.connection.fetch(statement.text, *statement.arguments)
        rows = [await rows_of(scene, each.run_id) for each in (alone, first, second)]
        assert rows[0] == rows[1] == rows[2]


async def rows_of(scene: Scene, run_id: UUID) -> list[object]:
    """Return what stands of a run in each table, but for its id."""
    return [
        await scene.value(
            f"select to_jsonb(t) - 'run_id' from holdfast.{table} t where run_id = $1", run_id
        )
        for table in ("runs", "events", "tasks", "waiters")
    ]
