"""Trees of runs: what becomes of children when their parent ends, or asks them to stop."""

from __future__ import annotations

from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ANY_END, Finish, Notice

from .actors import ManualWorker, details, get, log, log_types, start
from .commands import activity, child, command, failed, started_child


@pytest.mark.parametrize(
    ("policy", "status"),
    [("terminate", "terminated"), ("cancel", "cancelled"), ("abandon", "running")],
)
@pytest.mark.parametrize("end", ["finish", "terminate", "time_out", "cancel", "poison"])
async def test_open_children_follow_the_close_policy(
    store: Store,
    clock: Clock,
    ann: ManualWorker,
    bob: ManualWorker,
    policy: str,
    status: str,
    end: str,
) -> None:
    """S10. However the parent ends; a child that no worker had ends at once."""
    parent_id, child_id = await start(store, timeout_seconds=60.0), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, parent_close=policy, queue="slow"))
    if end == "finish":
        await ann.finish(turn, expected=2, has_children=True)
    elif end == "terminate":
        await store.terminate_runs([parent_id])
    elif end == "time_out":
        await clock.advance(60)
        await store.time_out_runs()
    elif end == "cancel":
        await store.cancel_runs([parent_id])
        cancel = failed("WorkflowCanceled")
        await ann.commit(turn, cancel, then=Finish("cancelled"), expected=3, has_children=True)
    else:
        await clock.advance(31)
        # Progress was made under the first lease: the attempts of the second count.
        await bob.take(lease_seconds=10)
        await clock.advance(10)
        assert (await bob.claim(max_attempts=1)).tasks == []
    assert (await get(store, parent_id)).status != "running"
    assert (await get(store, child_id)).status == status
    assert (await log_types(store, parent_id))[-1].startswith("Workflow")  # it is told nothing


async def test_a_child_that_a_worker_had_is_asked_to_stop(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S10, B6, trap 16. Its code cleans up; its end is told to nobody."""
    parent_id, child_id = await started_child(store, ann)
    task = await bob.take()
    answer = await store.terminate_runs([parent_id])
    assert Notice("worker/bob", str(child_id)) in answer.notices
    assert (await log_types(store, child_id))[-1] == "WorkflowCancelRequested"
    done = failed("WorkflowCanceled")
    late = await bob.commit(task, done, then=Finish("cancelled"), expected=2)
    assert (late.refused, late.notices) == ({}, [])
    assert (await log_types(store, parent_id))[-1] == "WorkflowTerminated"


async def test_ends_go_down_the_whole_tree(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S10, S11. Grandchildren, their activities; each level follows its own policy."""
    parent_id, child_id = await started_child(store, ann, parent_close="terminate")
    grandchild, abandoned = uuid4(), uuid4()
    await ann.command(
        await ann.take(),
        child(grandchild, "near", parent_close="terminate"),
        child(abandoned, "far", parent_close="abandon", queue="slow"),
        activity(),
        awaiting=(ANY_END,),
    )
    task = await bob.take()
    resize = await bob.take(handlers=["resize@0"])
    answer = await store.terminate_runs([parent_id], reason="enough")
    assert set(answer.notices) == {
        Notice("worker/bob", str(grandchild)),
        Notice("worker/bob", f"{child_id} {resize.key}"),
    }
    for run_id in (parent_id, child_id, grandchild):
        assert (await get(store, run_id)).status == "terminated"
    assert details((await log(store, parent_id))[-1]) == {"reason": "enough"}
    assert details((await log(store, grandchild))[-1]) == {"reason": "its parent ended"}
    assert (await bob.refusal(task)).reason == "lost"
    assert (await bob.end(resize, result="1")).outcomes == ["lost"]
    assert await ann.claims(queues=["slow"]) == [abandoned]


async def test_children_of_a_cancelled_tree_end_at_once_where_no_worker_had_them(
    store: Store, ann: ManualWorker
) -> None:
    """S10. A parent that no worker had has no children: the cancel of a waiting child does it."""
    parent_id, child_id = await started_child(store, ann)
    grandchild = uuid4()
    await ann.command(await ann.take(), child(grandchild, queue="slow"), awaiting=(ANY_END,))
    assert (await store.cancel_runs([parent_id])).outcomes == ["delivered"]
    assert (await get(store, child_id)).status == "running"  # the parent's code comes first
    turn = await ann.take()
    await ann.commit(turn, failed("WorkflowCanceled"), then=Finish("cancelled"), has_children=True)
    assert (await log_types(store, child_id))[-1] == "WorkflowCancelRequested"
    task = await ann.take()
    await ann.commit(task, failed("WorkflowCanceled"), then=Finish("cancelled"), has_children=True)
    assert (await get(store, grandchild)).status == "cancelled"


async def test_a_parent_asks_its_child_to_stop(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S10, trap 16. Twice is once; the end comes back as a failure of the call."""
    parent_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id))
    task = await bob.take()
    asked = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason="late")
    answer = await ann.command(turn, asked, expected=2, touches=(child_id,), awaiting=(ANY_END,))
    assert answer.notices == [Notice("worker/bob", str(child_id))]
    event = (await log(store, child_id))[-1]
    assert (event.type, details(event)) == ("WorkflowCancelRequested", {"reason": "late"})
    assert (await store.cancel_runs([child_id])).outcomes == ["duplicate"]
    await bob.commit(task, failed("WorkflowCanceled"), then=Finish("cancelled"), expected=2)
    assert details((await log(store, parent_id))[-1])["status"] == "cancelled"
    again = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason=None)
    await ann.command(await ann.take(), again, touches=(child_id,))
    assert (await log_types(store, child_id))[-1] == "WorkflowCanceled"
