"""Runs that continue as new: an end, and a run that takes its place."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Finish, Notice

from .actors import SECOND, ManualWorker, details, get, log, log_types, signal, start
from .commands import child, command, started_child


async def go_on(worker: ManualWorker, task: ClaimedTask, new_id: UUID, **fields: Any) -> None:
    """Commit a continue that must succeed."""
    said = {"run_id": str(new_id), "input": [1], "version": 1, "signals": [], **fields}
    answer = await worker.commit(
        task,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        has_children=True,
    )
    assert answer.refused == {}
    assert Notice("work", "default") in answer.notices


async def test_a_run_goes_on_as_a_new_one(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S4, B5, T9. Like the old one, with a log of its own, perhaps of another version."""
    run_id, new_id = (
        await start(
            store,
            key="k",
            priority=0,
            tags=("a", "b"),
            headers={"traceparent": "t"},
            retention_seconds=86_400.0,
            timeout_seconds=60.0,
        ),
        uuid4(),
    )
    await clock.advance(50)
    await go_on(ann, await ann.take(), new_id, version=2, input={"b": 1e300, "a": 2})
    old, new, now = await get(store, run_id), await get(store, new_id), await store.now()
    assert (old.status, old.wait) == ("continued", None)
    assert json.loads(old.output or "") == {"run_id": str(new_id)}
    assert (await log_types(store, run_id))[-1] == "WorkflowContinuedAsNew"
    assert (new.name, new.version, new.queue, new.priority) == ("order", 2, "default", 0)
    assert (new.key, new.tags, new.headers) == (None, ("a", "b"), {"traceparent": "t"})
    assert new.retention_seconds == 86_400.0
    assert (new.created_at, new.deadline_at, new.started_at) == (now, now + 60 * SECOND, None)
    assert json.loads(new.input) == {"b": 1e300, "a": 2}
    assert await ann.claims() == []
    task = await ann.take(handlers=["order@2"])
    assert (task.log_length, task.attempts, task.started_at) == (1, 1, now)
    assert task.input is None, "its log is read, which says that it continues another run"
    [begun] = await log(store, new_id)
    assert (begun.key, details(begun)) == (str(run_id), {"b": 1e300, "a": 2})


async def test_unread_signals_are_carried_along(store: Store, ann: ManualWorker) -> None:
    """S9, T5, trap 4. With their ids: a repeated delivery stays a duplicate."""
    run_id, new_id = await start(store), uuid4()
    carried = [
        {"signal_name": "packed", "input": 1e300, "key": "s-1"},
        {"signal_name": "packed", "input": None, "key": None},
        {"signal_name": "rename", "input": 2, "key": "u-1", "update": True, "reply_to": "c/1"},
    ]
    await go_on(ann, await ann.take(), new_id, signals=carried)
    _, *events = await log(store, new_id)
    assert [(event.type, event.key) for event in events] == [
        ("SignalReceived", "s-1"),
        ("SignalReceived", None),
        ("SignalReceived", "u-1"),
    ]
    assert [details(event) for event in events] == [
        {"signal_name": "packed", "input": 1e300},
        {"signal_name": "packed", "input": None},
        {"signal_name": "rename", "input": 2, "update": True, "reply_to": "c/1"},
    ]
    assert (await signal(store, new_id, signal_id="s-1"))[0] == "duplicate"
    assert (await signal(store, run_id, signal_id="s-9"))[0] == "ended"
    assert (await ann.take()).log_length == 4


async def test_the_newest_run_of_a_chain_is_found(store: Store, ann: ManualWorker) -> None:
    """T13."""
    first, second, third = await start(store), uuid4(), uuid4()
    for new_id in (second, third):
        await go_on(ann, await ann.take(), new_id)
    assert await store.newest_runs([first, second, third, uuid4()]) == {
        first: third,
        second: third,
        third: third,
    }
    await ann.finish(await ann.take())
    assert await store.newest_runs([first]) == {first: third}


async def test_who_waits_for_the_end_hears_of_the_continue(store: Store, ann: ManualWorker) -> None:
    run_id, new_id = await start(store, waiter="client/1"), uuid4()
    turn = await ann.take()
    said = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    answer = await ann.commit(
        turn,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
    )
    assert Notice("client/1", str(run_id)) in answer.notices


async def test_a_parent_hears_of_its_child_when_the_last_of_the_chain_ends(
    store: Store, ann: ManualWorker
) -> None:
    """S4. Under the key of its call, with the id of the run that ended."""
    parent_id, child_id = await started_child(store, ann)
    new_id = uuid4()
    await go_on(ann, await ann.take(), new_id)
    assert await log_types(store, parent_id) == ["WorkflowStarted", "ChildStarted"]
    new = await get(store, new_id)
    assert (new.parent_run_id, new.parent_key) == (parent_id, "child")
    assert (await get(store, child_id)).parent_run_id == parent_id
    task = await ann.take()
    assert task.parent_run_id == parent_id
    await ann.finish(task, "5")
    told = (await log(store, parent_id))[-1]
    assert (told.type, told.key) == ("ChildCompleted", "child")
    assert details(told) == {"child_run_id": str(new_id), "output": 5}
    assert await ann.claims() == [parent_id]


async def test_a_parent_stops_and_signals_what_its_child_has_become(
    store: Store, ann: ManualWorker
) -> None:
    """S10, trap 16. The id that it knows is that of the run it started."""
    parent_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id))
    new_id = uuid4()
    await go_on(ann, await ann.take(), new_id)
    sent = {"signal_name": "packed", "input": 1, "signal_id": "s-1"}
    await ann.command(
        turn,
        command("SignalSent", "signal", run_id=str(child_id), **sent),
        command("ChildCancelRequested", "child", child_run_id=str(child_id), reason="late"),
        expected=2,
        touches=(child_id,),
    )
    assert await log_types(store, new_id) == [
        "WorkflowStarted",
        "SignalReceived",
        "WorkflowCancelRequested",
        "WorkflowCanceled",
    ]
    assert (await get(store, new_id)).status == "cancelled"
    assert (await log_types(store, parent_id))[-1] == "ChildFailed"


async def test_the_close_policy_holds_for_what_a_child_has_become(
    store: Store, ann: ManualWorker
) -> None:
    """S10."""
    parent_id, _ = await started_child(store, ann, parent_close="terminate")
    new_id = uuid4()
    await go_on(ann, await ann.take(), new_id)
    await store.terminate_runs([parent_id])
    assert (await get(store, new_id)).status == "terminated"


async def test_children_are_closed_when_their_parent_goes_on(
    store: Store, ann: ManualWorker
) -> None:
    """S10. Their ends would reach no run: the new run's log is empty."""
    parent_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow"))
    said = {"run_id": str(uuid4()), "input": None, "version": 1, "signals": []}
    await ann.commit(
        turn,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": said["run_id"]})),
        expected=2,
        has_children=True,
    )
    assert (await get(store, parent_id)).status == "continued"
    assert (await get(store, child_id)).status == "cancelled"


async def test_a_repeated_continue_starts_one_run(store: Store, ann: ManualWorker) -> None:
    """Trap 23."""
    await start(store)
    turn, new_id, token = await ann.take(), uuid4(), UUID(int=5)
    said = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    for _ in range(2):
        answer = await ann.commit(
            turn,
            command("WorkflowContinuedAsNew", "", **said),
            then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
            token=token,
        )
        assert answer.refused == {}
    assert await log_types(store, new_id) == ["WorkflowStarted"]
