"""Ended runs are read whole, deleted only when they are written, and taken back."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.retention import Archive
from holdfast.retention.archive import ArchiveObject
from holdfast.retention.deletion import sweep_batches
from holdfast.retention.reading import read_archived
from holdfast.retention.viewing import archived_store
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import Event, Finish, Fork, LeasedRun
from holdfast.values.ids import retry_run_id

from .actors import ManualWorker, get, log, start, step
from .commands import FAILURE, child, failed
from .flow_actors import Flows, StepWorker, end, mapped, single

DAY = 86_400.0


async def rich_run(store: Store, ann: ManualWorker) -> UUID:
    """Return a run that has ended, with something of all that a run can have."""
    run_id = await start(
        store,
        input='{"b": 1e300,\n "a": "line\\nbreak \u2028"}',
        retention_seconds=DAY,
        timeout_seconds=60.0,
        tags=("x", "y z"),
        headers={"tenant": "ann"},
        priority=1,
    )
    task = await ann.take()
    await ann.commit(task, step("charge", result={"z": 1.0, "é": None}))
    await ann.finish(task, output='[1e300, "\u2028", null]', expected=2)
    return run_id


def step_failed(key: str) -> Event:
    """Return the failure of a step."""
    said = {"name": key, "args": 1, "attempt": 1, "error": json.loads(FAILURE)}
    return Event("StepFailed", key, json.dumps(said), 0)


async def lines_of(store: Store, run_id: UUID) -> list[str]:
    """Return the lines of a run."""
    return [(await store.export_runs({run_id: None})).lines[run_id]]


async def test_a_run_comes_back_as_it_was(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S16. Its row, its log, and the very texts of its values."""
    run_id = await rich_run(store, ann)
    before, events = await get(store, run_id), await log(store, run_id)
    lines = await lines_of(store, run_id)
    assert await store.restore_run(lines, retention_seconds=DAY) == "exists"
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await store.restore_run(lines, retention_seconds=DAY) == "restored"
    after = await get(store, run_id)
    assert after == before
    assert await log(store, run_id) == events
    assert json.loads(after.input or "")["a"] == "line\nbreak \u2028"
    await clock.advance(DAY - 1)
    assert (await store.sweep_runs()).deleted == 0
    await clock.advance(1)
    assert (await store.sweep_runs()).deleted == 1


async def test_a_restored_run_can_be_forked(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S16. As any run that has ended."""
    run_id, new_id = await rich_run(store, ann), uuid4()
    lines = await lines_of(store, run_id)
    await clock.advance(DAY)
    await store.sweep_runs()
    await store.restore_run(lines, retention_seconds=DAY)
    assert (await store.fork_run(Fork(run_id=run_id, new_run_id=new_id)))[0] == "forked"
    assert [event.type for event in await log(store, new_id)] == [
        "WorkflowStarted",
        "StepCompleted",
        "WorkflowForked",
    ]
    await ann.finish(await ann.take())


async def test_a_restored_run_is_retried_as_before(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What its end said of the calls that a retry makes again is in the archive."""
    run_id = await start(store, retention_seconds=DAY)
    end = failed(calls=("charge",), seen=2, after=("refund",))
    turn = await ann.take()
    events = [step_failed("charge"), step("refund"), end]
    await ann.commit(turn, *events, then=Finish("failed", error=FAILURE))
    lines, before = await lines_of(store, run_id), await store.retry_plan(run_id)
    assert (before.failed, before.after) == (("charge",), ("refund",))
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    await store.restore_run(lines, retention_seconds=DAY)
    assert await store.retry_plan(run_id) == before


async def test_both_stores_write_the_same(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S16. What one has written the other reads."""
    run_id = await rich_run(store, ann)
    other = MemoryStore()
    await other.restore_run(await lines_of(store, run_id), retention_seconds=DAY)
    assert await get(other, run_id) == await get(store, run_id)
    assert await log(other, run_id) == await log(store, run_id)
    again = await lines_of(other, run_id)
    await clock.advance(DAY)
    await store.sweep_runs()
    await store.restore_run(again, retention_seconds=DAY)
    assert await get(store, run_id) == await get(other, run_id)


async def test_an_archived_run_of_a_flow_has_the_steps_that_it_had(
    store: Store, clock: Clock, flows: Flows, worker: StepWorker
) -> None:
    """Its shape was replaced before it was archived, or after, or its flow was deleted."""
    old = await flows.define(single("a"), single("b", "a", start_delay=3))
    run_id = await flows.start()
    await worker.report(end(await worker.one(), 1))
    await clock.advance(1)
    await store.terminate_runs([run_id])
    before = (await store.flow_steps([run_id]))[run_id]
    written = await lines_of(store, run_id)
    await clock.advance(1)
    new = msgspec.structs.replace(old, steps=(single("x"),))
    await store.ensure_flow(new, "new", replace=True)
    assert await lines_of(store, run_id) == written

    line = json.loads(written[0])
    del line["shape"]
    shapeless = [json.dumps(line)]  # as archives of before have it
    for lines in (written, shapeless):
        view = await archived_store(read_archived(lines, "there"), store)
        assert (await view.flow_steps([run_id]))[run_id] == before
    await store.delete_flow(old.name)
    view = await archived_store(read_archived(written, "there"), store)
    assert (await view.flow_steps([run_id]))[run_id] == before
    assert read_archived(await lines_of(view, run_id), "there").shape == old
    view = await archived_store(read_archived(shapeless, "there"), store)
    assert await view.flow_steps([run_id]) == {run_id: []}


@pytest.mark.parametrize("way", ["replaced", "replaced twice", "deleted"])
async def test_a_run_of_a_flow_comes_back_with_the_steps_that_it_had(
    store: Store, clock: Clock, flows: Flows, worker: StepWorker, way: str
) -> None:
    """Its flow has had another shape since; what other runs had stays as it is."""
    shape = await flows.define(single("a"), single("b", "a", start_delay=3))
    run_id = await flows.start()
    await worker.report(end(await worker.one(), 1))
    await store.terminate_runs([run_id])
    before = (await store.flow_steps([run_id]))[run_id]
    lines = await lines_of(store, run_id)
    await clock.advance(1)
    if way == "deleted":
        await store.delete_flow(shape.name)
    else:
        ended_at = (await get(store, run_id)).completed_at
        assert ended_at is not None
        assert await store.delete_archived([LeasedRun(run_id, ended_at, 100)]) == (1, [])
    others: dict[UUID, object] = {}
    for name in ("x", "y") if way == "replaced twice" else ("x",):
        new = msgspec.structs.replace(shape, steps=(single(name),))
        await store.ensure_flow(new, name, replace=True)
        await clock.advance(1)
        other = await flows.start()
        await store.terminate_runs([other])
        others[other] = (await store.flow_steps([other]))[other]
        await clock.advance(1)
    assert await store.restore_run(lines, retention_seconds=60) == "restored"
    assert await store.flow_steps([run_id, *others]) == {run_id: before, **others}
    assert json.loads((await lines_of(store, run_id))[0])["shape"] == json.loads(lines[0])["shape"]


async def test_runs_of_flows_come_back_with_their_results(
    store: Store, clock: Clock, flows: Flows, worker: StepWorker
) -> None:
    """S16, P5. Nulls among the results of elements are kept, and a step that returned null."""
    await flows.define(mapped("each"), single("sum", "each"), single("none", "sum"))
    run_id = await flows.start([1, 2, 3], retention_seconds=DAY)
    for key, task in (await worker.take()).items():
        await worker.report(end(task, None if key == "each:1" else key))
    await worker.report(end(await worker.one(), 3))
    await worker.report(end(await worker.one(), None))
    before = await get(store, run_id), await flows.steps(run_id), await log(store, run_id)
    lines = await lines_of(store, run_id)
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    await store.restore_run(lines, retention_seconds=DAY)
    assert (await get(store, run_id), await flows.steps(run_id), await log(store, run_id)) == before


async def test_lines_that_are_no_run_are_refused(store: Store, ann: ManualWorker) -> None:
    """Nothing is written then."""
    run_id = await start(store)
    assert (await store.export_runs({run_id: None})).lines == {}, "a run that has not ended"
    await ann.finish(await ann.take())
    for wrong in ([], ['{"run":"0198c0de-7000-7000-8000-000000000000","events":[]}']):
        with pytest.raises(InvalidInput):
            await store.restore_run(wrong, retention_seconds=DAY)
    with pytest.raises(InvalidInput, match=r"10,000,000,000"):
        await store.restore_run(await lines_of(store, run_id), retention_seconds=1e12)


async def test_leased_runs_are_given_to_one_sweeper_until_the_lease_is_over(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S16. Who dies with them leaves them to the next: they are written twice, and none is lost."""
    run_id = await rich_run(store, ann)
    await clock.advance(DAY)
    leased = await store.lease_due_runs(lease_seconds=60)
    assert [each.run_id for each in leased.runs] == [run_id]
    assert (await store.lease_due_runs()).runs == []
    await clock.advance(60)
    [again] = (await store.lease_due_runs()).runs
    assert again.run_id == run_id
    assert await store.delete_archived([again]) == (1, [])
    assert await store.get_runs([run_id]) == {}


async def test_another_run_of_the_same_id_is_not_deleted(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S16. The run was deleted and started again between the write and the deletion."""
    run_id = await rich_run(store, ann)
    await clock.advance(DAY)
    [leased] = (await store.lease_due_runs()).runs
    other = LeasedRun(run_id, leased.completed_at - 1, 1)
    assert await store.delete_archived([other]) == (0, [])
    assert run_id in await store.get_runs([run_id])


async def test_a_run_that_was_retried_meanwhile_stays(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S16, B8. The archive has it, and the database keeps it."""
    run_id = await start(store, retention_seconds=DAY)
    await ann.commit(await ann.take(), then=Finish("failed", error=FAILURE))
    await clock.advance(DAY)
    [leased] = (await store.lease_due_runs()).runs
    fork = Fork(run_id=run_id, new_run_id=retry_run_id(run_id), retry=True)
    assert (await store.fork_run(fork))[0] == "forked"
    assert await store.delete_archived([leased]) == (0, [])
    assert run_id in await store.get_runs([run_id])


@pytest.mark.parametrize("change", ["tags", "attributes"])
async def test_a_run_whose_labels_changed_after_the_export_is_written_again(
    store: Store, clock: Clock, ann: ManualWorker, tmp_path: Path, change: str
) -> None:
    """S16. Tags and attributes change after the end; the archive has the last ones."""
    archive = Archive(f"file://{tmp_path}")
    run_id, other = await rich_run(store, ann), await rich_run(store, ann)
    await store.set_attributes(run_id, {"tenant": "ann", "size": 3})
    await clock.advance(DAY)
    write = archive.write

    async def overtaken(made: ArchiveObject) -> set[UUID]:
        written = await write(made)
        if change == "tags":
            assert await store.set_tags(run_id, None, add=["late"]) == ["x", "y z", "late"]
        else:
            await store.set_attributes(run_id, {"size": 4, "tenant": None})
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "write", overtaken)
        assert sum([swept.deleted async for swept in sweep_batches(store, archive)]) == 1
    assert (await store.get_runs([run_id, other])).keys() == {run_id}
    expected = await get(store, run_id)
    await clock.advance(600)
    assert sum([swept.deleted async for swept in sweep_batches(store, archive)]) == 1
    found = (await archive.find([run_id]))[run_id].record
    assert (found.tags, found.attributes) == (expected.tags, expected.attributes)
    assert "late" in found.tags or found.attributes == {"size": 4}


async def test_a_sweep_with_an_archive_writes_before_it_deletes(
    store: Store, clock: Clock, ann: ManualWorker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S16. Parents with open children are neither written nor deleted.

    White space between the values of a JSON text may differ: a run is a line.
    """
    archive = Archive(f"file://{tmp_path_factory.mktemp('archive')}")
    runs = [await rich_run(store, ann) for _ in range(3)]
    parent = await start(store, retention_seconds=DAY)
    await ann.finish_with(await ann.take(), child(uuid4(), parent_close="abandon", retention=DAY))
    expected = {run_id: (await get(store, run_id), await log(store, run_id)) for run_id in runs}
    await clock.advance(DAY)
    batches = [swept async for swept in sweep_batches(store, archive)]
    assert sum(each.deleted for each in batches) == 3
    assert parent in await store.get_runs([parent])
    found = await archive.find([*runs, parent])
    assert found.keys() == set(runs)
    for run_id, (record, events) in expected.items():
        first, *rest = found[run_id].events
        assert (first.type, rest) == (events[0].type, events[1:])
        archived = found[run_id].record
        assert archived.archive == archive.url
        assert archived.input is not None
        for name in ("status", "output", "tags", "headers", "completed_at", "deadline_at", "key"):
            assert getattr(archived, name) == getattr(record, name), name
        assert json.loads(archived.input) == json.loads(record.input or "")
    assert [entry.run_id async for entry in archive.entries()] != []


async def test_a_long_log_is_written_and_deleted_in_parts(
    store: Store, clock: Clock, ann: ManualWorker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S16, B8. More entries than one part has."""
    archive = Archive(f"file://{tmp_path_factory.mktemp('archive')}")
    run_id = await start(store, retention_seconds=DAY)
    task = await ann.take()
    for first in range(0, 12_000, 4_000):
        numbers = range(first, first + 4_000)
        await ann.commit(
            task,
            *(Event("ValueSet", "n", f'{{"value":{number}}}', 0) for number in numbers),
            expected=first + 1,
        )
    await ann.finish(task, expected=12_001)
    events = await log(store, run_id)
    await clock.advance(DAY)
    assert sum([swept.deleted async for swept in sweep_batches(store, archive)]) == 1
    assert (await archive.find([run_id]))[run_id].events == events
    assert await log(store, run_id) == []
