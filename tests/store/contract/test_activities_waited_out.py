"""Activities that were asked to stop, and whose end their run waits for."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from holdfast.store.port import Store
from holdfast.types import ANY_END, ClaimedTask, Notice

from .actors import Clock, ManualWorker, log, log_types, start
from .commands import FAILURE, RESIZE, activity, cancelled_activity, end_from_outside

STOPPED = {"kind": "asyncio.exceptions.CancelledError", "message": "the activity was cancelled"}


async def asked(
    store: Store, ann: ManualWorker, bob: ManualWorker, **fields: Any
) -> tuple[UUID, ClaimedTask]:
    """Ask an activity of bob's to stop; its run is suspended, and waits for the end."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity(on_cancel="wait", **fields))
    task = await bob.take(handlers=RESIZE, lease_seconds=5)
    await ann.command(turn, cancelled_activity(), expected=2, awaiting=(ANY_END,))
    assert await ann.claims() == []
    return run_id, task


async def ended(store: Store, ann: ManualWorker, run_id: UUID) -> None:
    """Check that the log ends with the stop of the activity, and that the run is due."""
    last = (await log(store, run_id))[-1]
    assert (last.type, last.key) == ("ActivityFailed", "resize")
    said = json.loads(last.details or "")
    assert said["error"] == STOPPED
    assert said["activity_name"] == "resize"
    assert await store.list_activities(run_id) == []
    assert await ann.claims() == [run_id]


async def test_one_that_no_worker_has_ends_with_the_request(
    store: Store, ann: ManualWorker
) -> None:
    """In the commit that suspends its run: the run is due at once."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity(on_cancel="wait"))
    answer = await ann.command(turn, cancelled_activity(), expected=2, awaiting=(ANY_END,))
    assert Notice("work", "default") in answer.notices
    await ended(store, ann, run_id)


@pytest.mark.parametrize("end", [{"result": "1"}, {"error": FAILURE}])
async def test_the_end_that_its_worker_reports_wakes_the_run(
    store: Store, ann: ManualWorker, bob: ManualWorker, end: dict[str, str]
) -> None:
    """It is not tried again."""
    run_id, task = await asked(store, ann, bob)
    assert (await bob.end(task, **end)).outcomes == ["recorded"]
    assert (await log_types(store, run_id))[-1] in ("ActivityCompleted", "ActivityFailed")
    assert await ann.claims() == [run_id]


async def test_a_pause_before_its_next_attempt_ends(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity(on_cancel="wait"))
    assert (await ann.end(await ann.take(handlers=RESIZE), error=FAILURE)).outcomes == ["retried"]
    await ann.command(turn, cancelled_activity(), expected=3, awaiting=(ANY_END,))
    await ended(store, ann, run_id)


async def test_its_worker_is_lost(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The next claim of its queue tells the run; the lost worker's end comes too late."""
    run_id, task = await asked(store, ann, bob)
    await clock.advance(6)
    assert (await ann.claim(handlers=RESIZE)).tasks == []
    await ended(store, ann, run_id)
    assert (await bob.end(task, result="1")).outcomes == ["lost"]


async def test_its_worker_gives_it_back(store: Store, ann: ManualWorker, bob: ManualWorker) -> None:
    run_id, task = await asked(store, ann, bob)
    assert await bob.release(task) == []
    assert (await ann.claim(handlers=RESIZE)).tasks == []
    await ended(store, ann, run_id)


async def test_its_attempt_leaves_the_end_to_others(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """After the request there is nothing that a token could complete."""
    run_id, task = await asked(store, ann, bob)
    await bob.end(task)
    await ended(store, ann, run_id)
    assert await end_from_outside(store, task, result="1") == "lost"


async def test_its_time_is_over(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id, _ = await asked(store, ann, bob, schedule_to_close=2.0)
    await clock.advance(3)
    assert (await store.time_out_activities())[0] == 1
    assert (await log_types(store, run_id))[-1] == "ActivityFailed"
    assert await ann.claims() == [run_id]


async def test_an_end_of_its_run_ends_it_without_an_entry(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id, task = await asked(store, ann, bob)
    await store.terminate_runs([run_id])
    assert (await bob.end(task, result="1")).outcomes == ["lost"]
    assert (await log_types(store, run_id))[-1] == "WorkflowTerminated"
