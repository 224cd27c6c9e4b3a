"""Ended runs whose retention is over are deleted, and others are not."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import Finish, Fork, NewRun, Swept
from holdfast.values.ids import keyed_run_id, retry_run_id

from .actors import SECOND, ManualWorker, get, log, signal, start, step
from .commands import FAILURE, child
from .flow_actors import Flows, StepWorker, end, mapped, single
from .test_continue import go_on
from .test_streams import chunk, write

DAY = 86_400.0
NOTHING = Swept(deleted=0, kept=0, has_more=False)


async def ended(store: Store, worker: ManualWorker, days: float = 1, **fields: Any) -> UUID:
    """Start a run that is kept for so many days, and complete it."""
    run_id = await start(store, retention_seconds=days * DAY, **fields)
    await worker.finish(await worker.take())
    return run_id


async def failed(store: Store, worker: ManualWorker, **fields: Any) -> UUID:
    """Start a run that is kept for a day, and fail it."""
    run_id = await start(store, retention_seconds=DAY, **fields)
    await worker.commit(await worker.take(), then=Finish("failed", error=FAILURE))
    return run_id


async def left(store: Store, *run_ids: UUID) -> list[UUID]:
    """Return those of some runs that are still there."""
    found = await store.get_runs(run_ids)
    return [run_id for run_id in run_ids if run_id in found]


async def test_a_run_is_deleted_when_its_retention_is_over(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B8. With its log; its id is then as if it had never been."""
    run_id = await ended(store, ann)
    await clock.advance(DAY - 1)
    assert await store.sweep_runs() == NOTHING
    await clock.advance(1)
    swept = await store.sweep_runs()
    assert (swept.deleted, swept.kept, swept.has_more) == (1, 0, False)
    assert await left(store, run_id) == []
    assert await log(store, run_id) == []
    assert (await signal(store, run_id))[0] == "missing"
    assert (await store.sweep_runs(after=swept.after)).deleted == 0


@pytest.mark.parametrize("output", ['{"run_id":"4711"}', '{"run_id":null}', '"run_id"', "[1]"])
async def test_a_run_is_deleted_whatever_its_output_names(
    store: Store, clock: Clock, ann: ManualWorker, output: str
) -> None:
    """The output of a run that continued has a `run_id`, and so may any other."""
    run_id = await start(store, retention_seconds=DAY)
    await ann.commit(await ann.take(), then=Finish("completed", output=output))
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await left(store, run_id) == []


async def test_open_runs_stay(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """B8. Retention counts from the end, however long the run took."""
    long = await ended(store, ann, 2000)
    running = await start(store, retention_seconds=0.0)
    await clock.advance(1000 * DAY)
    assert await store.sweep_runs() == NOTHING
    assert await left(store, long, running) == [long, running]
    await ann.finish(await ann.take())
    assert (await store.sweep_runs()).deleted == 1
    assert await left(store, long, running) == [long]


async def test_a_batch_has_a_size_and_the_next_continues(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B8. Bounded by runs and by rows; what came due first goes first."""
    runs = [await ended(store, ann, days) for days in (3, 1, 2)]
    await clock.advance(3 * DAY)
    first = await store.sweep_runs(limit=1)
    assert (first.deleted, first.has_more) == (1, True)
    assert await left(store, *runs) == [runs[0], runs[2]]
    second = await store.sweep_runs(rows=4, after=first.after)
    assert (second.deleted, second.has_more) == (1, True)
    third = await store.sweep_runs(after=second.after)
    assert (third.deleted, third.has_more) == (1, False)
    for wrong in ({"limit": 0}, {"rows": 0}):
        with pytest.raises(InvalidInput, match="1 run and 1 row or more"):
            await store.sweep_runs(**wrong)


async def test_a_parent_stays_until_its_children_have_ended(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """B8. It is looked at again an hour later: what is kept costs little."""
    parent_id = await start(store, retention_seconds=DAY)
    child_id = uuid4()
    await ann.finish_with(await ann.take(), child(child_id, parent_close="abandon", retention=DAY))
    await clock.advance(DAY)
    swept = await store.sweep_runs()
    assert (swept.deleted, swept.kept) == (0, 1)
    assert await store.sweep_runs() == NOTHING
    await ann.finish(await ann.take())
    assert await store.sweep_runs() == NOTHING
    await clock.advance(3600)
    assert (await store.sweep_runs()).deleted == 1
    assert await left(store, parent_id, child_id) == [child_id]
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1


async def test_an_ended_child_may_go_before_its_parent(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The parent has its output in its own log."""
    parent_id, child_id = await start(store), uuid4()
    await ann.command(await ann.take(), child(child_id, retention=DAY), awaiting=())
    await bob.finish(await bob.take())
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await left(store, parent_id, child_id) == [parent_id]


async def test_a_continued_run_stays_while_its_successor_is_there(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """By its key callers find the run that it continued as. Then the whole chain goes at once."""
    first, second, third = await start(store, key="k", retention_seconds=DAY), uuid4(), uuid4()
    await go_on(ann, await ann.take(), second)
    await clock.advance(DAY)
    assert (await store.sweep_runs()).kept == 1
    await go_on(ann, await ann.take(), third)
    await ann.finish(await ann.take())
    await clock.advance(DAY - 1)
    assert (await store.sweep_runs()).kept == 1
    assert (await store.newest_runs([first]))[first] == third
    await clock.advance(3600)
    assert (await store.sweep_runs()).deleted == 3
    assert await left(store, first, second, third) == []


async def test_those_between_the_first_and_the_newest_of_a_chain_go(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Callers find the newest run past them: a loop that never ends does not keep all its runs."""
    first = await start(store, key="k", retention_seconds=DAY)
    chain = [first, *(uuid4() for _ in range(6))]
    for new_id in chain[1:]:
        await go_on(ann, await ann.take(), new_id)
        await clock.advance(DAY / 2)
    for _ in range(3):
        await store.sweep_runs()
        await clock.advance(3601)
    there = await left(store, *chain)
    assert there[0] == first
    assert there[1:] == chain[-len(there) + 1 :]  # the newest ones
    assert len(there) <= 4
    assert (await store.newest_runs([first]))[first] == chain[-1]
    assert (await signal(store, chain[1]))[0] == "missing"
    await ann.finish(await ann.take())
    await clock.advance(2 * DAY)
    assert (await store.sweep_runs()).deleted == len(there)
    assert await left(store, *chain) == []


async def test_a_run_with_a_stream_is_not_passed_over(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    first, second, third = await start(store, key="k", retention_seconds=DAY), uuid4(), uuid4()
    task = await ann.take()
    assert await write(store, chunk(task, "a")) == [1]
    await go_on(ann, task, second)
    await go_on(ann, await ann.take(), third)
    await clock.advance(2 * DAY)
    assert (await store.sweep_runs()).kept == 2
    await clock.advance(3601)
    assert (await store.sweep_runs()).deleted == 0
    assert await left(store, first, second, third) == [first, second, third]


async def test_a_retried_run_stays_while_its_retry_is_there(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The retry of a run is found by an id that follows from the run's."""
    run_id = await failed(store, ann)
    retry_id = retry_run_id(run_id)
    forked = await store.fork_run(Fork(run_id=run_id, new_run_id=retry_id, retry=True))
    assert forked[0] == "forked"
    await clock.advance(DAY)
    swept = await store.sweep_runs()
    assert (swept.deleted, swept.kept) == (0, 1)
    await ann.finish(await ann.take())
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 2
    assert await left(store, run_id, retry_id) == []


async def test_a_key_starts_a_new_run_after_the_deletion(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B5, B8. A key holds as long as its run is kept."""
    run = NewRun(
        run_id=keyed_run_id("order", "k"), name="order", key="k", input="1", retention_seconds=DAY
    )
    await store.start_runs([run])
    await ann.finish(await ann.take())
    [again], _ = await store.start_runs([run])
    assert (again.created, again.status) == (False, "completed")
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    [new], _ = await store.start_runs([run])
    assert (new.created, new.status) == (True, "running")
    assert len(await log(store, run.run_id)) == 1


async def test_runs_of_flows_go_with_their_states_and_results(
    store: Store, clock: Clock, flows: Flows, worker: StepWorker
) -> None:
    """B8, P11. The shape stays: it is not the run's."""
    await flows.define(mapped("each"), single("sum", "each"))
    run_id = await flows.start([1, 2, 3], retention_seconds=DAY)
    for task in (await worker.take()).values():
        await worker.report(end(task, 1))
    await worker.report(end(await worker.one(), 3))
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await left(store, run_id) == []
    assert (await flows.store.flow_steps([run_id])).get(run_id, []) == []
    assert await flows.store.get_flow("shop/trip") is not None


async def test_a_sweep_continues_where_it_was_although_a_run_was_kept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What is kept is looked at again an hour later; what came due after it is deleted now."""
    kept_id = await failed(store, ann)
    await clock.advance(60)
    run_id = await ended(store, ann)
    retry = Fork(run_id=kept_id, new_run_id=retry_run_id(kept_id), retry=True)
    await store.fork_run(retry)
    await clock.advance(DAY)
    first = await store.sweep_runs(limit=1)
    assert (first.deleted, first.kept, first.has_more) == (0, 1, True)
    assert (await store.sweep_runs(limit=1, after=first.after)).deleted == 1
    assert await left(store, kept_id, run_id) == [kept_id]


async def test_a_run_with_more_rows_than_a_batch_goes_all_the_same(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B8. In several calls where one would be too much work."""
    run_id = await start(store, retention_seconds=DAY)
    task = await ann.take()
    await ann.commit(task, *(step(f"s{number}") for number in range(20)))
    await ann.finish(task, expected=21)
    await clock.advance(DAY)
    calls = 1
    while (swept := await store.sweep_runs(rows=5)).has_more:
        assert calls < 10
        calls += 1
    assert await left(store, run_id) == []
    assert await log(store, run_id) == []
    assert swept.kept == 0


async def test_a_preview_says_what_would_go_and_what_is_kept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B8. By workflow; it changes nothing."""
    await failed(store, ann)
    retried = await failed(store, ann)
    await store.fork_run(Fork(run_id=retried, new_run_id=retry_run_id(retried), retry=True))
    oldest = await store.now() + round(DAY) * SECOND
    await clock.advance(DAY + 1)
    [share] = await store.preview_sweep()
    assert (share.name, share.due, share.oldest) == ("order", 2, oldest)
    assert (share.kept, share.kept_for_retry) == (1, 1)
    assert [each.due for each in await store.preview_sweep(limit=1)] == [1]
    assert (await store.sweep_runs()).deleted == 1


async def test_of_two_reasons_a_preview_gives_the_one_whose_end_is_known(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B8. Nobody knows when a child ends; a run of the same key goes when its retention is over."""
    run_id, child_id = await start(store, key="k", retention_seconds=DAY), uuid4()
    orphan = child(child_id, parent_close="abandon", queue="mail", retention=DAY)
    await ann.finish_with(await ann.take(), orphan)
    await start(store, run_id=retry_run_id(run_id), key="k", retention_seconds=DAY)
    await clock.advance(DAY)
    [share] = await store.preview_sweep()
    assert (share.kept, share.kept_for_child) == (1, 1)
    await ann.finish(await ann.take())
    [share] = await store.preview_sweep()
    assert (share.kept, share.kept_for_retry) == (1, 1)


async def test_one_process_sweeps_at_a_time(store: Store, clock: Clock) -> None:
    """B8. Another takes over if it does not say that it is done."""

    async def begin(holder: str) -> str:
        return await store.begin_deletions(holder, interval_seconds=300, lease_seconds=60)

    assert [await begin("ann"), await begin("bob")] == ["begun", "busy"]
    assert (await store.get_sweeper()).holder == "ann"
    await clock.advance(60)
    assert (await store.get_sweeper()).holder is None
    assert await begin("bob") == "begun"
    await store.end_deletions("bob", deleted=7, has_more=True)
    assert await begin("ann") == "begun"
    await store.end_deletions("ann", deleted=3, has_more=False, error="no luck")
    now = await store.now()
    assert [await begin("ann"), await begin("bob")] == ["done", "done"]
    state = await store.get_sweeper()
    assert (state.holder, state.ended_at, state.deleted) == (None, now, 10)
    assert (state.failed_at, state.error) == (now, "no luck")
    await clock.advance(150)
    assert await begin("bob") == "begun"


async def test_the_sweepers_state_counts_what_is_due(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """For doctor: at most as many as it is asked to count."""
    assert ((await store.get_sweeper()).due, (await store.get_sweeper()).oldest) == (0, None)
    for _ in range(3):
        await ended(store, ann)
    due_at = await store.now() + round(DAY) * SECOND
    await clock.advance(DAY + 5)
    state = await store.get_sweeper()
    assert (state.due, state.oldest) == (3, due_at)
    assert (await store.get_sweeper(limit=2)).due == 2


async def test_nothing_is_swept_past_the_archive(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S16. A process that does not know the archive must not delete what is not in it."""
    await ended(store, ann)
    await clock.advance(DAY)
    begun = await store.begin_deletions("ann", interval_seconds=0, archive="file:///a")
    assert begun == "begun"
    await store.end_deletions("ann", deleted=0, has_more=False)
    assert await store.begin_deletions("bob", interval_seconds=0) == "archive"
    assert await store.begin_deletions("bob", interval_seconds=0, archive="file:///b") == "archive"
    with pytest.raises(InvalidInput, match="archived before they are deleted, in file:///a"):
        await store.sweep_runs()


async def test_late_writes_to_a_deleted_run_change_nothing(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S11, S12. A worker that was gone for longer than the retention."""
    run_id = await start(store, retention_seconds=1.0)
    stale = await ann.take(lease_seconds=10)
    await clock.advance(10)
    task = await bob.take()
    await bob.finish(task)
    await clock.advance(1)
    assert (await store.sweep_runs()).deleted == 1
    assert (await ann.refusal(stale)).reason == "lost"
    assert await log(store, run_id) == []
    assert json.loads("[]") == await ann.claims()
    assert (await store.cancel_runs([run_id])).outcomes == ["missing"]
    assert (await store.fork_run(Fork(run_id=run_id, new_run_id=uuid4())))[0] == "missing"


async def test_the_end_of_a_child_of_a_deleted_parent_is_told_to_nobody(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """A continued child is a child as well: its parent waits for the last of its chain."""
    parent_id = await start(store, retention_seconds=DAY)
    first, second = uuid4(), uuid4()
    await ann.finish_with(await ann.take(), child(first, parent_close="abandon", retention=DAY))
    await go_on(bob, await bob.take(), second)
    await clock.advance(DAY)
    assert (await store.sweep_runs()).kept == 2
    await bob.finish(await bob.take())
    await clock.advance(DAY)
    swept = await store.sweep_runs()
    assert (swept.deleted, swept.kept) == (3, 0)
    assert await left(store, parent_id, first, second) == []
    assert await get(store, await ended(store, ann))
