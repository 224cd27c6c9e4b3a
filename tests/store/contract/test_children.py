"""Child runs: started by their parent's commit, stopped with it, and heard of when they end."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ANY_END, Finish, Notice, RunFilter, Suspend, Undelivered
from holdfast.values.ids import keyed_run_id

from .actors import SECOND, ManualWorker, details, get, log, log_types, lose, start, step
from .commands import FAILURE, activity, child, command, failed, ordered, started_child


async def test_a_child_is_a_run_with_a_parent(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S4. In the parent's log if and only if it is there; with all that was asked for."""
    parent_id, child_id = await start(store), uuid4()
    await clock.advance(5)
    event = child(
        child_id,
        queue="slow",
        priority=0,
        timeout=60.0,
        retention=86_400.0,
        tags=["a", "b"],
        headers={"tenant": "acme"},
    )
    answer = await ann.command(await ann.take(), event)
    assert answer.notices == [Notice("work", "slow")]
    run, now = await get(store, child_id), await store.now()
    assert (run.name, run.version, run.queue, run.priority) == ("order", 1, "slow", 0)
    assert (run.parent_run_id, run.parent_key) == (parent_id, "child")
    assert json.loads(run.input) == {"b": 1e300, "a": 2}
    assert (run.key, run.tags, run.retention_seconds) == (None, ("a", "b"), 86_400.0)
    assert run.headers == {"tenant": "acme"}
    assert (run.created_at, run.deadline_at, run.state) == (now, now + 60 * SECOND, "queued")
    task = await bob.take(queues=["slow"])
    assert (task.run_id, task.parent_run_id, task.log_length) == (child_id, parent_id, 1)
    assert json.loads(task.input or "") == {"b": 1e300, "a": 2}
    assert await log_types(store, parent_id) == ["WorkflowStarted", "ChildStarted"]
    assert (await get(store, parent_id)).parent_run_id is None


async def test_the_children_of_a_run_are_listed(store: Store, ann: ManualWorker) -> None:
    """T13. The tree of a run, level by level."""
    parent_id = await start(store)
    children = [uuid4() for _ in range(3)]
    orders = [child(child_id, f"child#{n}") for n, child_id in enumerate(children)]
    await ann.command(await ann.take(), *orders)
    await start(store)
    page = await store.list_runs(RunFilter(parent_run_id=parent_id))
    assert {run.run_id for run in page.runs} == set(children)
    assert {run.parent_key for run in page.runs} == {"child#0", "child#1", "child#2"}


async def test_a_childs_output_wakes_its_parent(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """S4. The very value, under the key of the call."""
    parent_id, child_id = await started_child(store, ann)
    answer = await bob.finish(await bob.take(), '{"z":1e300,"a":2}')
    assert answer.notices == [Notice("work", "default")]
    told = (await log(store, parent_id))[-1]
    assert (told.type, told.key, told.at) == ("ChildCompleted", "child", await store.now())
    assert details(told) == {"child_run_id": str(child_id), "output": {"z": 1e300, "a": 2}}
    assert (await ann.take()).log_length == 3


async def test_a_childs_failure_is_told_with_its_cause(store: Store, ann: ManualWorker) -> None:
    parent_id, child_id = await started_child(store, ann)
    await ann.commit(await ann.take(), failed(), then=Finish("failed", error=FAILURE))
    told = (await log(store, parent_id))[-1]
    assert (told.type, told.key) == ("ChildFailed", "child")
    assert details(told) == {
        "child_run_id": str(child_id),
        "status": "failed",
        "error": json.loads(FAILURE),
    }
    assert await ann.claims() == [parent_id]


@pytest.mark.parametrize("end", ["cancelled", "timed_out", "terminated"])
async def test_a_child_that_is_stopped_is_told_to_its_parent(
    store: Store, clock: Clock, ann: ManualWorker, end: str
) -> None:
    """S10, trap 16. However it ends, with no worker alive."""
    parent_id, child_id = await started_child(store, ann, timeout=10.0)
    if end == "cancelled":
        answer = await store.cancel_runs([child_id])
        notices = answer.notices
    elif end == "terminated":
        notices = (await store.terminate_runs([child_id])).notices
    else:
        await clock.advance(10)
        _, _, notices = await store.time_out_runs()
    assert notices == [Notice("work", "default")]
    assert (await get(store, child_id)).status == end
    told = details((await log(store, parent_id))[-1])
    assert told == {"child_run_id": str(child_id), "status": end, "error": None}
    assert await ann.claims() == [parent_id]


async def test_a_child_that_eats_its_workers_is_told_to_its_parent(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. The claim itself fails the child and wakes the parent."""
    parent_id, child_id = await started_child(store, ann)
    await lose(clock, bob)
    await clock.advance(1)
    claim = await bob.claim(max_attempts=1)
    assert claim.tasks == []
    assert set(claim.notices) == {
        Notice("work", "default"),
        Notice("worker/bob", str(child_id)),  # it may be slow, and not gone
    }
    told = details((await log(store, parent_id))[-1])
    assert (told["status"], told["error"]["kind"]) == ("failed", "holdfast.PoisonedRun")
    assert await ann.claims() == [parent_id]


async def test_a_child_ends_in_the_commit_in_which_its_parent_suspends(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 1. Suspends come before what others tell: the wake-up is not lost."""
    for _ in range(2):  # whichever of the two ids is the smaller one
        parent_id, child_id = await start(store), uuid4()
        parent = await ann.take()
        await ann.command(parent, child(child_id))
        task = await ann.take()
        answer = await ann.commit_together(
            (task, [failed("WorkflowCompleted")], Finish("completed", "1")),
            (parent, [step()], Suspend(awaiting=(ANY_END,))),
        )
        assert answer.refused == {}
        assert answer.notices == [Notice("work", "default")]
        again = await ann.take()
        assert (again.run_id, again.log_length) == (parent_id, 4)
        await ann.finish(again)


async def test_many_children_end_in_one_commit(store: Store, ann: ManualWorker) -> None:
    """Traps 14 and 31. Their ends stand in the parent's log without gap, each once."""
    parent_id = await start(store)
    orders = [child(uuid4(), f"child#{n}") for n in range(20)]
    await ann.command(await ann.take(), *orders, awaiting=(ANY_END,))
    tasks = (await ann.claim()).tasks
    ends = [(t, [failed("WorkflowCompleted")], Finish("completed", "1")) for t in tasks]
    answer = await ann.commit_together(*ends)
    assert answer.notices == [Notice("work", "default")]
    events = (await log(store, parent_id))[-20:]
    assert {event.type for event in events} == {"ChildCompleted"}
    assert {event.key for event in events} == {f"child#{n}" for n in range(20)}
    again = await ann.commit_together(*ends, token=ann.last_token)
    assert (again.refused, again.notices) == ({}, [])
    assert len(await log(store, parent_id)) == 41


async def test_children_that_end_at_once_are_all_told(store: Store, ann: ManualWorker) -> None:
    """Traps 14 and 31. Twenty commits in parallel."""
    parent_id = await start(store)
    orders = [child(uuid4(), f"child#{n}") for n in range(20)]
    await ann.command(await ann.take(), *orders, awaiting=(ANY_END,))
    tasks = (await ann.claim()).tasks
    await asyncio.gather(*(ann.finish(task, str(n)) for n, task in enumerate(tasks)))
    events = (await log(store, parent_id))[-20:]
    assert {event.key for event in events} == {f"child#{n}" for n in range(20)}
    assert {details(event)["output"] for event in events} == set(range(20))
    assert await ann.claims() == [parent_id]


async def test_a_key_names_one_child(store: Store, ann: ManualWorker) -> None:
    """B5, trap 14. Called twice by one parent it is one run, told once, to the first call."""
    parent_id, child_id = await start(store), keyed_run_id("order", "k")
    turn = await ann.take()
    first, second = child(child_id, key="k"), child(child_id, "child#2", key="k", input=5)
    await ann.command(turn, first, second, awaiting=(ANY_END,))
    run = await get(store, child_id)
    assert (run.key, run.parent_key, json.loads(run.input)["a"]) == ("k", "child", 2)
    assert await store.find_run("order", "k") == child_id
    await ann.finish(await ann.take())
    again = await ann.take()
    await ann.command(again, child(child_id, "child#3", key="k"))
    ends = [event for event in await log(store, parent_id) if event.type.startswith("ChildC")]
    assert [event.key for event in ends] == ["child"]


async def test_a_run_that_was_refused_as_a_child_is_not_asked_to_stop(
    store: Store, ann: ManualWorker
) -> None:
    """B5. A call may be given up before it is known that it failed."""
    other = await start(store, run_id=keyed_run_id("order", "k"), key="k", delay_seconds=60.0)
    await start(store)
    stop = command("ChildCancelRequested", "child", child_run_id=str(other), reason=None)
    await ann.command(await ann.take(), child(other, key="k"), stop, touches=(other,))
    assert await log_types(store, other) == ["WorkflowStarted"]


async def test_a_refused_child_is_told_before_a_signal_of_the_same_turn(
    store: Store, ann: ManualWorker
) -> None:
    """New things are made first, and other runs told at last, in whatever order a run asked."""
    run_id = await start(store)
    signal = command("SignalSent", "tell", run_id=str(run_id), signal_name="go", signal_id="1")
    task = await ann.take()
    answer = await ann.commit(task, signal, child(run_id), touches=(run_id,), has_children=True)
    assert answer.refused == {}
    assert (await log_types(store, run_id))[-2:] == ["ChildFailed", "SignalReceived"]


async def test_a_key_that_is_another_runs_is_refused(store: Store, ann: ManualWorker) -> None:
    """B5. The call fails, and nothing of the other run changes."""
    other = await start(store, run_id=keyed_run_id("order", "k"), key="k", priority=4)
    parent_id = await start(store)
    answer = await ann.command(await ann.first(), child(other, key="k"), awaiting=(ANY_END,))
    assert answer.notices == [Notice("work", "default")]
    told = (await log(store, parent_id))[-1]
    assert (told.type, told.key) == ("ChildFailed", "child")
    refusal = details(told)
    assert (refusal["child_run_id"], refusal["status"]) == (str(other), "refused")
    assert refusal["error"]["kind"] == "holdfast.errors.RunExists"
    assert str(other) in refusal["error"]["message"]
    run = await get(store, other)
    assert (run.parent_run_id, await log_types(store, other)) == (None, ["WorkflowStarted"])


async def test_a_child_of_a_deleted_run_is_not_that_of_the_next_one(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: nothing was started, and the run whose key was used again waited for ever."""
    parent_id, child_id = keyed_run_id("order", "p"), keyed_run_id("order", "k")
    for ends in (True, False):
        await start(store, run_id=parent_id, key="p", retention_seconds=1.0)
        calls = child(child_id, key="k"), child(uuid4(), "other")
        await ann.command(await ann.take(), *calls, awaiting=(ANY_END,))
        if ends:
            await store.terminate_runs([parent_id])
            await clock.advance(10)
            assert (await store.sweep_runs()).deleted == 1
    told = [event for event in await log(store, parent_id) if event.type == "ChildFailed"]
    assert [event.key for event in told] == ["child"]
    assert details(told[0])["error"]["kind"] == "holdfast.errors.RunExists"


async def test_a_run_signals_another(store: Store, ann: ManualWorker, bob: ManualWorker) -> None:
    """T5. With the id of the call, so that it is delivered once; who has ended hears nothing."""
    target, sender = await start(store, queue="slow"), await start(store)
    await bob.suspend(await bob.take(queues=["slow"]), awaiting=("packed",))
    turn = await ann.take()
    sent = command(
        "SignalSent",
        "signal",
        run_id=str(target),
        signal_name="packed",
        input={"n": 1e300},
        signal_id=f"{sender}:signal",
    )
    answer = await ann.command(turn, sent, touches=(target,))
    assert answer.notices == [Notice("work", "slow")]
    received = (await log(store, target))[-1]
    assert (received.type, received.key) == ("SignalReceived", f"{sender}:signal")
    assert details(received) == {"signal_name": "packed", "input": {"n": 1e300}}
    await ann.command(turn, sent, touches=(target,), expected=2)
    assert len(await log(store, target)) == 3
    await bob.finish(await bob.take(queues=["slow"]))
    gone = command(
        "SignalSent", "signal#2", run_id=str(target), signal_name="x", input=None, signal_id="s"
    )
    await ann.command(turn, gone, touches=(target,), expected=3)
    assert (await log_types(store, target))[-1] == "WorkflowCompleted"


async def test_a_commit_tells_which_signals_could_not_be_delivered(
    store: Store, ann: ManualWorker
) -> None:
    """To a run that has ended, and to one that does not exist. A repeated call delivers nothing."""
    ended, missing, alive = await start(store), uuid4(), uuid4()
    await ann.finish(await ann.take())
    await start(store, run_id=alive, queue="slow")
    sender = await start(store)
    signals = [
        command("SignalSent", key, run_id=str(to), signal_name=key, input=1, signal_id=key)
        for key, to in (("a", ended), ("b", alive), ("c", missing))
    ]
    task, touches, token = await ann.take(), (ended, alive, missing), uuid4()
    answer = await ann.command(task, *signals, touches=touches, token=token)
    assert list(answer.undelivered) == [
        Undelivered(sender, ended, "a", "ended"),
        Undelivered(sender, missing, "c", "missing"),
    ]
    again = await ann.command(task, *signals, touches=touches, token=token, expected=1)
    assert not again.undelivered


async def test_a_run_that_ends_leaves_the_child_that_it_starts_last(
    store: Store, ann: ManualWorker
) -> None:
    """S4, S11. Started and let go by one commit; an activity beside it is not dispatched."""
    parent_id, child_id = await start(store), uuid4()
    answer = await ann.commit(
        await ann.take(),
        child(child_id, parent_close="abandon"),
        activity(),
        failed(),
        then=Finish("failed", error=FAILURE),
        has_children=True,
    )
    assert answer.refused == {}
    assert await ann.claims() == [child_id]
    assert (await ann.claim(handlers=["resize@0"])).tasks == []
    assert (await get(store, child_id)).parent_run_id == parent_id


async def test_waiters_hear_of_a_child_as_of_any_run(store: Store, ann: ManualWorker) -> None:
    _, child_id = await started_child(store, ann)
    assert await store.wait_for_end("client/1", [child_id]) == {}
    answer = await store.terminate_runs([child_id])
    assert Notice("client/1", str(child_id)) in answer.notices


async def test_a_waiting_parent_has_activities_and_children_at_once(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 29. Both ends stand in the log in the order in which they came."""
    parent_id = await ordered(store, ann, activity(), child(uuid4()))
    await ann.end(await ann.take(handlers=["resize@0"]), result="1")
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    del tasks[parent_id]
    [task] = tasks.values()
    await ann.finish(task)
    assert (await log_types(store, parent_id))[-2:] == ["ActivityCompleted", "ChildCompleted"]
