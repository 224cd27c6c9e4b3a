"""The deletion of runs in the database: no table is left out, and races are decided."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from contract.actors import ManualWorker, log, new_run, start, step
from scene import Scene

from holdfast.database.scripts import load_scripts
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.types import ExportedRuns, Finish, FlowShape, Fork, NewRun, StepShape
from holdfast.values.ids import keyed_run_id, retry_run_id

# Tables that name runs, and keep what they tell of them after the runs are gone.
NAMING = {
    "freed_singletons",
    "limit_holders",  # of leases: gone with them
    "schedule_buckets",
    "singleton_waits",
    "subscriptions",  # of ended runs: sweep_topics deletes them, also if the runs are gone
    "start_keys",
    "step_results",  # that no log needs any more: workers delete them, see `Cleaning`
}
DUE = "update holdfast.runs set delete_after = now() - interval '1 s' where status <> 'running'"


async def ended(scene: Scene, ann: ManualWorker, **fields: object) -> UUID:
    """Return a run that has ended, and may be deleted."""
    run_id = await start(scene.store, **fields)
    await ann.finish(await ann.take())
    await scene.value(DUE)
    return run_id


async def test_each_table_with_a_run_id_is_cleared(scene: Scene) -> None:
    """B8. A new table with a column run_id must be added to _delete_runs, or to NAMING."""
    tables = await scene.value(
        """
        select array_agg(c.table_name::text order by c.table_name)
        from information_schema.columns c
        join information_schema.tables t using (table_schema, table_name)
        where c.table_schema = 'holdfast' and c.column_name = 'run_id'
            and t.table_type = 'BASE TABLE'
        """
    )
    texts = [
        f.text for f in load_scripts().functions if "function holdfast._delete_runs(" in f.text
    ]
    body = texts[0].partition("function holdfast._delete_runs(")[2].partition("end $$;")[0]
    assert sorted(re.findall(r"delete from holdfast\.(\w+)", body)) == sorted(set(tables) - NAMING)


async def test_a_start_with_the_key_of_a_run_that_is_being_deleted_starts_a_new_run(
    scene: Scene, ann: ManualWorker
) -> None:
    """B5, B8. It waits for the deletion, and does not find a run that is about to go."""
    await ended(scene, ann, run_id=keyed_run_id("order", "k"), key="k")
    session = await scene.session()
    deleting = session.transaction()
    await deleting.start()
    [swept] = await session.call("sweep_runs")
    assert swept["deleted"] == 1
    run = NewRun(run_id=keyed_run_id("order", "k"), name="order", key="k", input="1")
    [started], _ = await scene.while_blocked(scene.store.start_runs([run]), deleting.commit)
    assert (started.created, started.status) == (True, "running")
    assert len(await log(scene.store, run.run_id)) == 1


async def test_starts_of_many_wait_for_the_deletion_as_well(
    scene: Scene, ann: ManualWorker
) -> None:
    """B5, B8. None of them is lost."""
    await ended(scene, ann, run_id=keyed_run_id("order", "k"), key="k")
    session = await scene.session()
    deleting = session.transaction()
    await deleting.start()
    await session.call("sweep_runs")
    keyed = NewRun(run_id=keyed_run_id("order", "k"), name="order", key="k", input="1")
    call = scene.store.start_runs([keyed, new_run()])
    started, _ = await scene.while_blocked(call, deleting.commit)
    assert [(each.created, each.status) for each in started] == [(True, "running")] * 2


async def test_a_run_that_a_start_has_found_is_not_deleted_before_its_commit(
    scene: Scene, ann: ManualWorker
) -> None:
    """B5, B8. The sweeper passes over it, and does not wait."""
    run_id = await ended(scene, ann, run_id=keyed_run_id("order", "k"), key="k")
    session = await scene.session()
    async with session.transaction():
        found = await session.call("start_runs", [run_id, uuid4()], ["order", "order"])
        assert [row["status"] for row in found] == ["completed", "running"]
        assert (await scene.store.sweep_runs()).deleted == 0
    assert (await scene.store.sweep_runs()).deleted == 1


async def test_a_fork_under_way_keeps_its_origin(scene: Scene, ann: ManualWorker) -> None:
    """B8. The fork's log is whole: nothing of the origin goes while it is copied."""
    run_id = await start(scene.store)
    task = await ann.take()
    await ann.commit(task, step(), then=Finish("completed", output="1"))
    await scene.value(DUE)
    session, new_id = await scene.session(), uuid4()
    async with session.transaction():
        [forked] = await session.call("fork_run", run_id, new_id)
        assert forked["outcome"] == "forked"
        assert (await scene.store.sweep_runs()).deleted == 0
    assert (await scene.store.sweep_runs()).deleted == 1
    assert len(await log(scene.store, new_id)) == 3


async def test_a_fork_waits_for_a_deletion_and_finds_no_run(
    scene: Scene, ann: ManualWorker
) -> None:
    """B8. It does not copy a part of a log."""
    run_id = await ended(scene, ann)
    session = await scene.session()
    deleting = session.transaction()
    await deleting.start()
    await session.call("sweep_runs")
    call = scene.store.fork_run(Fork(run_id=run_id, new_run_id=uuid4()))
    outcome, _ = await scene.while_blocked(call, deleting.commit)
    assert outcome == "missing"


async def test_a_retry_that_is_not_committed_keeps_its_run(scene: Scene, ann: ManualWorker) -> None:
    """B8. Before its commit by the lock, afterwards because it is there."""
    run_id = await start(scene.store)
    await ann.commit(await ann.take(), then=Finish("failed", error='{"kind":"x","message":"y"}'))
    await scene.value(DUE)
    session = await scene.session()
    async with session.transaction():
        await session.call("fork_run", run_id, retry_run_id(run_id), None, True)
        assert (await scene.store.sweep_runs()).deleted == 0
    swept = await scene.store.sweep_runs()
    assert (swept.deleted, swept.kept) == (0, 1)


async def test_two_sweepers_share_the_work(scene: Scene, ann: ManualWorker) -> None:
    """B8. Each passes over what the other deletes."""
    runs = [await ended(scene, ann) for _ in range(4)]
    session = await scene.session()
    async with session.transaction():
        [first] = await session.call("sweep_runs", 2)
        second = await scene.store.sweep_runs()
        assert (first["deleted"], second.deleted) == (2, 2)
    assert await scene.store.get_runs(runs) == {}


async def test_a_deletion_of_given_runs_waits_for_the_sweeper(
    scene: Scene, ann: ManualWorker
) -> None:
    """As delete_flow does. Both lock runs before what belongs to them: there is no deadlock."""
    runs = [await ended(scene, ann) for _ in range(3)]
    session, other = await scene.session(), await scene.session()
    sweeping = session.transaction()
    await sweeping.start()
    await session.call("sweep_runs", 2)
    [row] = await scene.while_blocked(other.call("_delete_runs", runs), sweeping.commit)
    assert row[0] == 1
    assert await scene.store.get_runs(runs) == {}


@pytest.mark.fresh_database
async def test_a_batch_reads_what_is_due_and_nothing_else(scene: Scene, ann: ManualWorker) -> None:
    """B8. However many ended runs there are that are kept."""
    await scene.value(
        """
        insert into holdfast.runs (run_id, name, version, queue, priority, status, input,
            created_at, completed_at, delete_after)
        select gen_random_uuid(), 'order', 1, 'default', 2, 'terminated', 'null', now(), now(),
            now() + n * interval '1 h' - interval '10.5 h'
        from generate_series(1, 5000) as n
        """
    )
    session = await scene.session()
    async with session.transaction():
        [swept] = await session.call("sweep_runs")
        read = await session.connection.fetchval(
            """
            select sum(seq_tup_read)::int from pg_stat_xact_user_tables
            where schemaname = 'holdfast' and relname <> 'sweeper'
            """
        )
        entries = await session.connection.fetchval(
            "select pg_stat_get_xact_tuples_returned('holdfast.runs_by_delete_after'::regclass)"
        )
    assert (swept["deleted"], read) == (10, 0)
    assert entries <= 20


@pytest.mark.parametrize(
    "call",
    [
        "begin_deletions('ann', null)",
        "begin_deletions('ann', 60, null)",
        "export_runs(null)",
        "delete_archived(null, '{}')",
        "delete_archived('{}', null)",
    ],
)
async def test_nulls_are_refused(scene: Scene, call: str) -> None:
    with pytest.raises(asyncpg.NullValueNotAllowedError):
        await scene.value(f"select count(*) from holdfast.{call}")


async def test_preview_of_fewer_than_no_runs_is_refused(scene: Scene) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="0 or more rows"):
        await scene.value("select count(*) from holdfast.preview_sweep(-1)")


async def test_large_runs_are_exported_in_parts_of_limited_size(
    scene: Scene, ann: ManualWorker
) -> None:
    """S16. However large values are; nothing is left out, and nothing is there twice."""
    shape = FlowShape(
        name="shop/trip",
        steps=(StepShape(slug="a", kind="map"), StepShape(slug="b"), StepShape(slug="c")),
    )
    await scene.store.ensure_flow(shape, "hash")
    small, large = new_run(), new_run()
    trip = NewRun(run_id=uuid4(), name="shop/trip", input="[1]")
    await scene.store.start_runs([small, large])
    await scene.store.start_flows([trip])
    run_ids = [small.run_id, large.run_id, trip.run_id]
    await scene.store.terminate_runs(run_ids)
    text = "(select to_json(string_agg(md5(i::text || n), '')) from generate_series(1, 100) as i)"
    await scene.value(
        f"""
        with entries as (
            insert into holdfast.events (run_id, idx, event_type, at, details)
            select $1, 10 + n, 'ValueSet', now(), {text} from generate_series(1, 40) as n
        )
        insert into holdfast.step_tasks (
            run_id, step_slug, task_index, output, attempts, completed_at)
        select $2, s, n, {text}, 1, now()
        from unnest(array['a', 'b']) as s, generate_series(0, 30) as n
        """,
        large.run_id,
        trip.run_id,
    )

    async def export(rows: int, size: int) -> dict[UUID, list[Any]]:
        found: dict[UUID, list[Any]] = {run_id: [] for run_id in run_ids}
        afters: dict[UUID, str | None] = dict.fromkeys(run_ids)
        while afters:
            lines = await scene.watcher.call(
                "export_runs", list(afters), list(afters.values()), rows, size
            )
            assert sum(len(row["line"] or "") for row in lines) < 2 * size + 10_000
            for row in lines:
                if row["line"] is not None:
                    found[row["run_id"]].append(json.loads(row["line"]))
            afters = {
                row["run_id"]: row["after"] for row in lines if row["after"] or row["line"] is None
            }
        return found

    def joined(lines: list[Any], part: str) -> list[Any]:
        return [each for line in lines for each in line.get(part, [])]

    whole = await export(1_000_000, 1_000_000_000)
    assert [len(whole[run_id]) for run_id in run_ids] == [1, 1, 1]
    for rows, size in ((7, 1_000_000), (5000, 10_000), (3, 1)):
        paged = await export(rows, size)
        for run_id in run_ids:
            assert paged[run_id][0]["run"] == whole[run_id][0]["run"]
            for part in ("events", "states", "elements"):
                assert joined(paged[run_id], part) == joined(whole[run_id], part)
    counts = [len(joined(whole[trip.run_id], part)) for part in ("events", "states", "elements")]
    assert counts[2] == 62
    assert min(counts) > 0
    assert len(joined(whole[large.run_id], "events")) >= 41


async def test_start_with_the_key_of_a_run_that_is_deleted_in_part_starts_another(
    scene: Scene, ann: ManualWorker
) -> None:
    """B8. What is left of it must not pass for the run that was asked for."""
    for key, others in (("one", []), ("many", [new_run()])):
        run = new_run(run_id=keyed_run_id("order", key), key=key)
        await scene.store.start_runs([run])
        task = await ann.take()
        await ann.commit(task, *(step(f"s{n}") for n in range(20)), then=Finish("completed", "1"))
        await scene.value(DUE)
        assert (await scene.store.sweep_runs(rows=5)).deleted == 0
        started, _ = await scene.store.start_runs([run, *others])
        assert (started[0].run_id, started[0].created) == (run.run_id, True)
        [event] = (await scene.store.read_events([(run.run_id, 0)]))[run.run_id]
        assert event.type == "WorkflowStarted"
        assert run.run_id in [task.run_id for task in (await ann.claim()).tasks]
        await scene.store.terminate_runs([run.run_id, *(each.run_id for each in others)])


async def test_start_of_a_flow_that_is_deleted_in_part_starts_another(scene: Scene) -> None:
    """B8."""
    await scene.store.ensure_flow(FlowShape(name="shop/trip", steps=(StepShape(slug="a"),)), "hash")
    run = NewRun(run_id=keyed_run_id("shop/trip", "k"), name="shop/trip", key="k", input="1")
    await scene.store.start_flows([run])
    await scene.store.terminate_runs([run.run_id])
    await scene.value(DUE)
    await scene.value("update holdfast.runs set delete_after = '-infinity' returning 1")
    [started], _ = await scene.store.start_flows([run])
    assert (started.created, started.status) == (True, "running")


@pytest.mark.parametrize("again", [False, True], ids=["in part", "started again"])
async def test_a_run_that_another_sweeper_deletes_while_it_is_read_is_not_written(
    scene: Scene, ann: ManualWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """S16, B8. A sweeper that is slower than its lease has read half of a run that is archived.

    The copy of the other one is whole: the archive must not get another that is not.
    """
    run_id = keyed_run_id("order", "k")
    await ended(scene, ann, run_id=run_id, key="k")
    await scene.value(
        """
        insert into holdfast.events (run_id, idx, event_type, at)
        select $1, e.idx + n, 'ValueSet', now()
        from (select max(idx) as idx from holdfast.events where run_id = $1) as e
        cross join generate_series(1, 12000) as n
        """,
        run_id,
    )
    [leased] = (await scene.store.lease_due_runs()).runs
    await scene.value(DUE)
    archive, export = Archive(f"file://{tmp_path}"), scene.store.export_runs

    async def overtaken(afters: dict[UUID, str | None]) -> ExportedRuns:
        if again and set(afters.values()) == {None}:
            while (await scene.store.delete_archived([leased]))[1]:
                pass
            await start(scene.store, run_id=run_id, key="k")
        exported = await export(afters)
        await scene.store.delete_archived([leased], rows=4_000)
        return exported

    monkeypatch.setattr(scene.store, "export_runs", overtaken)
    for _ in range(2):  # the second pass deletes what is left of it
        async for _ in sweep_batches(scene.store, archive):
            pass
    assert await archive.find([run_id]) == {}
    assert (run_id in await scene.store.get_runs([run_id])) is again


async def test_a_retry_of_a_flow_that_waited_sees_the_run_as_it_is(scene: Scene) -> None:
    """B8. While it waited for a change of the flow, the run was deleted and started again."""
    shape = FlowShape(name="shop/trip", steps=(StepShape(slug="pay"),))
    await scene.store.ensure_flow(shape, "hash")
    run_id = keyed_run_id("shop/trip", "k")
    run = NewRun(run_id=run_id, name="shop/trip", key="k", input="1")
    await scene.store.start_flows([run])
    await scene.store.terminate_runs([run_id])
    await scene.value(DUE)
    session = await scene.session()
    changing = session.transaction()
    await changing.start()
    await session.call("_block_starts", "shop/trip")
    await session.call("sweep_runs")
    await session.connection.execute(
        "select from holdfast.start_flows(array[$1::uuid], array['shop/trip'])", run_id
    )
    call = scene.store.retry_flow(run_id, uuid4())
    outcome, _ = await scene.while_blocked(call, changing.commit)
    assert outcome == "running"


async def test_a_run_of_which_a_part_is_deleted_is_not_kept(
    scene: Scene, ann: ManualWorker
) -> None:
    """B8. Its retry came back from the archive: what is left of the run is not the run."""
    run_id = await start(scene.store)
    task = await ann.take()
    failure = Finish("failed", error='{"kind":"x","message":"y"}')
    await ann.commit(task, *(step(f"s{n}") for n in range(20)), then=failure)
    await scene.value(DUE)
    assert (await scene.store.sweep_runs(rows=5)).deleted == 0
    await start(scene.store, run_id=retry_run_id(run_id))
    while (await scene.store.sweep_runs(rows=5)).has_more:
        pass
    assert run_id not in await scene.store.get_runs([run_id])


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "killed"])
async def test_a_clock_that_goes_back_does_not_stop_the_sweeper(scene: Scene, ends: bool) -> None:
    """B8. The last pass ended, or its sweeper died, at a moment that has not come yet."""
    assert await scene.store.begin_deletions("ann", interval_seconds=60) == "begun"
    if ends:
        await scene.store.end_deletions("ann", deleted=0, has_more=False)
    assert await scene.store.begin_deletions("ben", interval_seconds=60) != "begun"
    await scene.value(
        """
        update holdfast.sweeper set begun_at = begun_at + interval '1 hour',
            ended_at = ended_at + interval '1 hour', held_until = held_until + interval '1 hour'
        """
    )
    assert await scene.store.begin_deletions("ben", interval_seconds=60) == "begun"
