"""Children that a run has let go, and that outlive it: its retry takes them over."""

from __future__ import annotations

import json
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import (
    ANY_END,
    ClaimedTask,
    DeclaredRules,
    Event,
    Finish,
    Fork,
    RetryPlan,
    RunFilter,
    StartRules,
    TurnCommit,
)
from holdfast.values.ids import keyed_run_id

from .actors import ManualWorker, details, get, log, log_types, start, step
from .commands import FAILURE, child, command, failed
from .test_run_retries import fail as fail_again

FAILED = Finish("failed", error=FAILURE)
SLOW = {"queues": ["slow"]}
TAKEN = ["WorkflowStarted", "ChildStarted", "WorkflowForked"]


async def let_go(
    store: Store, worker: ManualWorker, *events: Event, end: Event | None = None, **fields: Any
) -> tuple[UUID, ClaimedTask]:
    """Start a run that starts a child, and fails; return its id and the child, which runs."""
    run_id, child_id = await start(store), uuid4()
    turn = await worker.take()
    order = child(child_id, **{"queue": "slow", "parent_close": "abandon", **fields})
    await worker.command(turn, order)
    task = await worker.take(**SLOW)
    await fail(worker, turn, *events, end=end, expected=2)
    return run_id, task


async def fail(
    worker: ManualWorker, turn: ClaimedTask, *events: Event, end: Event | None = None, **more: Any
) -> None:
    """Let a run fail."""
    said = end or failed()
    answer = await worker.commit(turn, *events, said, then=FAILED, has_children=True, **more)
    assert answer.refused == {}


async def retry(store: Store, run_id: UUID, **fields: Any) -> UUID:
    """Retry a run; return the new one's id."""
    made = Fork(run_id=run_id, new_run_id=uuid4(), retry=True, **fields)
    assert (await store.fork_run(made))[0] == "forked"
    return made.new_run_id


def to_parent(key: str, run_id: UUID) -> Event:
    """Return a signal to a parent."""
    sent = {"run_id": str(run_id), "signal_name": "here", "input": key, "signal_id": f"c/{key}"}
    return command("SignalSent", key, **sent)


async def test_a_child_that_runs_is_that_of_the_retry(store: Store, ann: ManualWorker) -> None:
    """It is not started again; the retry is woken by its end."""
    run_id, task = await let_go(store, ann)
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == TAKEN
    started = (await log(store, new_id))[1]
    assert (started.key, details(started)["child_run_id"]) == ("child", str(task.run_id))
    assert (await get(store, task.run_id)).parent_run_id == new_id
    for parent_id, children in ((new_id, [task.run_id]), (run_id, [])):
        page = await store.list_runs(RunFilter(parent_run_id=parent_id))
        assert [run.run_id for run in page.runs] == children
    await ann.suspend(await ann.take(), awaiting=(ANY_END,))
    await ann.finish(task, "7")
    assert await log_types(store, run_id) == ["WorkflowStarted", "ChildStarted", "WorkflowFailed"]
    told = (await log(store, new_id))[-1]
    assert (told.type, told.key) == ("ChildCompleted", "child")
    assert details(told) == {"child_run_id": str(task.run_id), "output": 7}
    assert await ann.claims() == [new_id]


async def test_a_retry_is_told_of_a_child_that_ended_meanwhile(
    store: Store, ann: ManualWorker
) -> None:
    run_id, task = await let_go(store, ann)
    await ann.finish(task, '{"b":1e300,"a":2}')
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == [*TAKEN, "ChildCompleted"]
    told = (await log(store, new_id))[-1].details or ""
    assert '"output":{"b":1e300,"a":2}' in told.replace('": ', '":').replace(', "', ',"')
    last = await retry_of_failed(store, ann, new_id)
    assert await log_types(store, last) == [*TAKEN, "ChildCompleted", "WorkflowForked"]


async def test_the_child_of_a_deleted_run_of_the_id_is_not_taken_over(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: a retry was told of the end of a child that a run before it had let go."""
    parent_id = keyed_run_id("order", "p")
    for output in ("1", "2"):
        await start(store, run_id=parent_id, key="p", retention_seconds=1.0)
        turn, child_id = await ann.take(), UUID(int=int(output))
        await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
        task = await ann.take(**SLOW)
        await fail(ann, turn, expected=2)
        await ann.finish(task, output)
        if output == "1":
            await clock.advance(10)
            assert (await store.sweep_runs()).deleted == 1
    told = (await log(store, await retry(store, parent_id)))[3:]
    assert [details(event) for event in told] == [{"child_run_id": str(child_id), "output": 2}]


async def test_a_retry_hears_of_its_own_child_that_was_deleted(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: it took over the child of a deleted run of the id, and was sent its signals again."""
    parent_id = keyed_run_id("order", "p")
    for keeps, child_keeps in ((1.0, 60.0), (60.0, 1.0)):
        await start(store, run_id=parent_id, key="p", retention_seconds=keeps)
        turn, child_id = await ann.take(), uuid4()
        fields: dict[str, Any] = {"queue": "slow", "parent_close": "abandon"}
        fields |= {"kind": "workflow", "retention": child_keeps}
        await ann.command(turn, child(child_id, **fields))
        task = await ann.take(**SLOW)
        await fail(ann, turn, expected=2)
        if keeps < child_keeps:
            await ann.command(task, to_parent("go", parent_id))
            await continued(ann, task, expected=2)
            task = await ann.take(**SLOW)
        await ann.finish(task)
        await clock.advance(10)
        assert (await store.sweep_runs()).deleted == 1
    told = (await log(store, await retry(store, parent_id)))[3:]
    assert [event.type for event in told] == ["ChildFailed"]
    assert details(told[0])["child_run_id"] == str(child_id)


async def retry_of_failed(store: Store, worker: ManualWorker, run_id: UUID) -> UUID:
    """Let the run that is due fail, and retry it."""
    turn = await worker.take()
    assert turn.run_id == run_id
    await fail(worker, turn)
    return await retry(store, run_id)


@pytest.mark.parametrize("how", ["failed", "cancelled", "terminated"])
async def test_it_is_told_of_each_kind_of_end(
    store: Store, ann: ManualWorker, how: Literal["failed", "cancelled", "terminated"]
) -> None:
    run_id, task = await let_go(store, ann)
    if how == "terminated":
        await store.terminate_runs([task.run_id])
    else:
        kind = {"failed": "WorkflowFailed", "cancelled": "WorkflowCanceled"}[how]
        error = FAILURE if how == "failed" else None
        then = Finish(how, error=error)
        assert (await ann.commit(task, Event(kind, None, None, 0), then=then)).refused == {}
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == [*TAKEN, "ChildFailed"]
    assert details((await log(store, new_id))[-1])["status"] == how


async def test_each_retry_takes_over_from_the_one_before(store: Store, ann: ManualWorker) -> None:
    run_id, task = await let_go(store, ann)
    run_id = await retry(store, run_id)
    for _ in range(2):
        run_id = await retry_of_failed(store, ann, run_id)
    assert (await get(store, task.run_id)).parent_run_id == run_id
    await ann.finish(task)
    assert (await log_types(store, run_id))[-1] == "ChildCompleted"


@pytest.mark.parametrize("close", ["cancel", "terminate"])
async def test_a_child_that_ends_with_its_parent_is_started_again(
    store: Store, ann: ManualWorker, close: str
) -> None:
    run_id, _ = await let_go(store, ann, parent_close=close)
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]


async def test_a_child_that_was_asked_to_stop_is_started_again(
    store: Store, ann: ManualWorker
) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
    await ann.take(**SLOW)
    stop = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason=None)
    await fail(ann, turn, stop, expected=2, touches=(child_id,))
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]
    assert (await get(store, child_id)).parent_run_id == run_id


async def test_a_child_that_was_started_because_of_the_failure_is_started_again(
    store: Store, ann: ManualWorker
) -> None:
    end = failed(calls=("ship",), seen=1, after=("child",))
    run_id, task = await let_go(store, ann, end=end)
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]
    assert (await get(store, task.run_id)).parent_run_id == run_id


async def test_a_child_whose_failure_ended_the_run_is_started_again(
    store: Store, ann: ManualWorker
) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
    task = await ann.take(**SLOW)
    end = Event("WorkflowFailed", None, None, 0)
    assert (await ann.commit(task, end, then=FAILED)).refused == {}
    await fail(ann, turn, end=failed(calls=("child",), seen=3), expected=3)
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]


async def test_a_fork_starts_its_own(store: Store, ann: ManualWorker) -> None:
    run_id, task = await let_go(store, ann)
    made = Fork(run_id=run_id, new_run_id=uuid4())
    assert (await store.fork_run(made))[0] == "forked"
    assert await log_types(store, made.new_run_id) == ["WorkflowStarted", "WorkflowForked"]
    assert (await get(store, task.run_id)).parent_run_id == run_id
    new_id = await retry(store, run_id)
    assert (await get(store, task.run_id)).parent_run_id == new_id


async def test_a_child_that_continued_as_new_is_taken_over(store: Store, ann: ManualWorker) -> None:
    run_id, task = await let_go(store, ann)
    await continued(ann, task)
    task = await ann.take(**SLOW)
    new_id = await retry(store, run_id)
    await continued(ann, task)
    last = await ann.take(**SLOW)
    assert last.parent_run_id == run_id  # as its code knows it
    assert await log_types(store, new_id) == TAKEN
    await ann.finish(last)
    told = (await log(store, new_id))[-1]
    assert (told.type, told.key) == ("ChildCompleted", "child")
    assert details(told)["child_run_id"] == str(last.run_id)


async def test_the_end_of_a_child_that_continued_as_new_is_told_once(
    store: Store, ann: ManualWorker
) -> None:
    run_id, task = await let_go(store, ann)
    await continued(ann, task)
    await ann.finish(await ann.take(**SLOW))
    assert await log_types(store, await retry(store, run_id)) == [*TAKEN, "ChildCompleted"]


async def continued(worker: ManualWorker, task: ClaimedTask, **more: Any) -> None:
    """Let a run continue as new."""
    new_id = str(uuid4())
    said: dict[str, Any] = {"run_id": new_id, "input": None, "version": 1, "signals": []}
    order = command("WorkflowContinuedAsNew", "", **said)
    then = Finish("continued", output=json.dumps({"run_id": new_id}))
    assert (await worker.commit(task, order, then=then, **more)).refused == {}


async def test_the_next_attempt_of_a_run_takes_its_child_over(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
    again: dict[str, Any] = {"calls": [], "seen": 2, "after": []}
    new_id = await fail_again(ann, turn, expected=2, again=again)
    assert await log_types(store, new_id) == TAKEN
    assert (await get(store, child_id)).parent_run_id == new_id
    task = await ann.take(**SLOW)
    assert task.parent_run_id == run_id
    await ann.command(task, to_parent("signal", run_id), touches=(run_id,), expected=1)
    await ann.finish(task, expected=2)
    assert (await log_types(store, new_id))[-2:] == ["SignalReceived", "ChildCompleted"]


async def test_an_attempt_and_a_child_that_end_in_one_commit(
    store: Store, ann: ManualWorker
) -> None:
    run_id, child_id, new_id = await start(store), uuid4(), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
    task = await ann.take(**SLOW)
    said: dict[str, Any] = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    attempt = {"number": 1, "attempts": 5, "delay": 0.0, "run_id": str(run_id)}
    more: dict[str, Any] = {
        "attempt": attempt,
        "error": json.loads(FAILURE),
        "again": {"calls": [], "seen": 2},
    }
    order = command("WorkflowContinuedAsNew", "", **said, **more)
    continues = Finish("continued", output=json.dumps({"run_id": str(new_id)}))
    completes = Finish("completed", output="7")
    end = Event("WorkflowCompleted", None, None, 0)
    parts = [
        TurnCommit(
            each.run_id, each.lease_no, expected, (event,), then, True, touches, has_children
        )
        for each, expected, event, then, touches, has_children in (
            (turn, 2, order, continues, (), True),
            (task, 1, end, completes, (run_id,), False),
        )
    ]
    assert (await store.commit("ann", uuid4(), parts)).refused == {}
    assert await log_types(store, new_id) == [*TAKEN, "ChildCompleted"]


async def test_a_childs_code_knows_the_parent_that_started_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Also in the next attempts of the child: its log has arguments made of that id."""
    run_id, task = await let_go(store, ann)
    run_id, first = await retry_of_failed(store, ann, await retry(store, run_id)), run_id
    last = await fail_again(ann, task, delay=0.0)
    again = await ann.take(**SLOW)
    assert (again.run_id, again.parent_run_id) == (last, first)
    assert (await get(store, last)).parent_run_id == run_id
    await ann.finish(again)
    assert (await log_types(store, run_id))[-1] == "ChildCompleted"


async def test_signals_to_the_failed_parent_reach_the_retry(
    store: Store, ann: ManualWorker
) -> None:
    """Those from before the failure, meanwhile and later: each once, in their order."""
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon"))
    task = await ann.take(**SLOW)
    other = await start(store, queue="other")
    await ann.command(task, to_parent("a", run_id), to_parent("o", other), touches=(run_id, other))
    await fail(ann, turn, expected=3)
    await ann.command(task, to_parent("b", run_id), touches=(run_id,), expected=3)
    new_id = await retry(store, run_id)
    await ann.command(task, to_parent("c", run_id), touches=(run_id,), expected=4)
    last = await retry_of_failed(store, ann, new_id)
    await ann.command(
        task, to_parent("d", run_id), to_parent("e", new_id), touches=(run_id, new_id), expected=5
    )
    events = [each for each in await log(store, last) if each.type == "SignalReceived"]
    assert [each.key for each in events] == ["c/a", "c/b", "c/c", "c/d", "c/e"]
    assert [each.key for each in await log(store, other)][1:] == ["c/o"]
    await ann.finish(task, expected=7)
    assert (await log_types(store, last))[-1] == "ChildCompleted"


async def test_signals_to_an_attempt_that_was_deleted_reach_the_next(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: no run was found. The child knows the second attempt, which a sweep passes over."""
    await start(store, retention_seconds=1.0)
    second = await fail_again(ann, await ann.take(), delay=0.0)
    turn, child_id = await ann.take(), uuid4()
    await ann.command(turn, child(child_id, queue="slow", parent_close="abandon", retention=9.0))
    task, length = await ann.take(**SLOW), len(await log(store, second))
    again: dict[str, Any] = {"calls": [], "seen": length, "after": []}
    third = await fail_again(ann, turn, expected=length, again=again)
    for _ in range(2):
        await clock.advance(2)
        await store.sweep_runs()
    assert second not in await store.get_runs([second])
    await ann.command(task, to_parent("a", second), touches=(second,))
    assert (await log(store, third))[-1].key == "c/a"


async def test_other_runs_signals_to_the_failed_run_are_not_delivered(
    store: Store, ann: ManualWorker
) -> None:
    run_id, _ = await let_go(store, ann)
    new_id = await retry(store, run_id)
    await start(store, queue="other")
    turn = await ann.take(queues=["other"])
    await ann.command(turn, to_parent("a", run_id), touches=(run_id,))
    assert await log_types(store, new_id) == TAKEN


async def test_a_retry_cancels_the_child(store: Store, ann: ManualWorker) -> None:
    run_id, task = await let_go(store, ann)
    new_id = await retry(store, run_id)
    child_id = task.run_id
    stop = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason="late")
    turn = await ann.take()
    await ann.command(turn, stop, touches=(child_id,))
    assert (await log_types(store, child_id))[-1] == "WorkflowCancelRequested"
    assert (await log_types(store, new_id))[-1] == "ChildCancelRequested"


async def test_a_signal_to_a_child_that_is_taken_over_is_not_sent_again(
    store: Store, ann: ManualWorker
) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    sent = {"signal_name": "go", "input": 1, "signal_id": "s"}
    go = command("SignalSent", "signal", run_id=str(child_id), **sent)
    order = child(child_id, queue="slow", parent_close="abandon")
    await ann.command(turn, order, go, step(), touches=(child_id,))
    await fail(ann, turn, expected=4)
    assert await store.retry_plan(run_id) == RetryPlan(kept=("child", "signal", "charge"))
    new_id = await retry(store, run_id)
    types = ["WorkflowStarted", "ChildStarted", "SignalSent", "StepCompleted", "WorkflowForked"]
    assert await log_types(store, new_id) == types


async def test_the_retry_of_a_run_that_ended_without_its_code_takes_over(
    store: Store, ann: ManualWorker
) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    order = child(child_id, queue="slow", parent_close="abandon")
    await ann.command(turn, order, awaiting=(ANY_END,))
    await store.terminate_runs([run_id])
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == TAKEN
    await ann.finish(await ann.take(**SLOW))
    assert (await log_types(store, new_id))[-1] == "ChildCompleted"


async def test_a_retry_that_has_ended_is_not_told(store: Store, ann: ManualWorker) -> None:
    run_id, task = await let_go(store, ann)
    new_id = await retry(store, run_id)
    await ann.finish_with(await ann.take())
    await ann.finish(task)
    assert await log_types(store, new_id) == [*TAKEN, "WorkflowCompleted"]


async def test_a_child_that_was_deleted_is_not_started_again(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The retry is told that nobody knows how it ended."""
    run_id, task = await let_go(store, ann, kind="workflow", retention=1.0)
    await ann.finish(task)
    await clock.advance(2)
    assert (await store.sweep_runs()).deleted == 1
    assert await store.retry_plan(run_id) == RetryPlan(kept=("child",))
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == [*TAKEN, "ChildFailed"]
    assert details((await log(store, new_id))[-1]) == {
        "child_run_id": str(task.run_id),
        "status": "deleted",
        "error": {
            "kind": "holdfast.errors.RunNotFound",
            "message": f"run {task.run_id} was deleted before this retry",
        },
    }
    last = await retry_of_failed(store, ann, new_id)
    assert await log_types(store, last) == [*TAKEN, "ChildFailed", "WorkflowForked"]


async def test_a_child_that_was_deleted_is_not_started_again_while_its_first_run_is_kept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: a sweep keeps a run that continued as new for an hour, and the next is deleted."""
    run_id, task = await let_go(store, ann, kind="workflow", retention=10.0)
    await continued(ann, task)
    last = await ann.take(**SLOW)
    await clock.advance(11)
    assert (await store.sweep_runs()).deleted == 0
    await ann.finish(last)
    await clock.advance(11)
    assert (await store.sweep_runs()).deleted == 1
    assert task.run_id in await store.get_runs([task.run_id])
    assert await store.retry_plan(run_id) == RetryPlan(kept=("child",))
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == [*TAKEN, "ChildFailed"]
    assert details((await log(store, new_id))[-1])["status"] == "deleted"


async def test_a_child_that_a_rule_may_have_refused_is_started_again(
    store: Store, ann: ManualWorker
) -> None:
    """The run ended with the commit that asked for it, and was not told of the refusal."""
    rules = StartRules(throttle_limit=1, throttle_period_seconds=10.0, throttle_excess="refuse")
    await store.declare_start_rules([DeclaredRules("pack", 1, rules)])
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    pack = {"workflow_name": "pack", "queue": "slow", "kind": "workflow"}
    await ann.command(turn, child(uuid4(), "first", **pack))
    refused = child(child_id, parent_close="abandon", **pack)
    await fail(ann, turn, refused, expected=2)
    assert child_id not in await store.get_runs([child_id])
    new_id = await retry(store, run_id)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]
