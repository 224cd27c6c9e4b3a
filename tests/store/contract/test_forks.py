"""Forks and retries: a new run with a copy of another's log."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import ANY_END, ClaimedTask, Event, Finish, Fork, Notice, RetryPlan

from .actors import (
    SECOND,
    ManualWorker,
    details,
    get,
    log,
    log_types,
    signal,
    start,
    start_notice,
    step,
)
from .commands import (
    FAILURE,
    RESIZE,
    activity,
    approval,
    cancelled_activity,
    child,
    command,
    decision,
    failed,
)


async def fork(store: Store, run_id: UUID, **fields: Any) -> UUID:
    """Fork a run; return the new one's id."""
    made = Fork(run_id=run_id, new_run_id=uuid4(), **fields)
    outcome, notices = await store.fork_run(made)
    assert (outcome, notices) == ("forked", [start_notice(store)])
    return made.new_run_id


async def outcome_of(store: Store, run_id: UUID, **fields: Any) -> str:
    """Ask for a fork that is refused."""
    outcome, notices = await store.fork_run(Fork(run_id=run_id, new_run_id=uuid4(), **fields))
    assert notices == []
    return outcome


async def keys(store: Store, run_id: UUID) -> list[str | None]:
    """Return the keys of a run's events."""
    return [event.key for event in await log(store, run_id)]


def end_of_step(event_type: str, key: str) -> Event:
    """Return what a run says of a step that did not complete."""
    return Event(event_type, key, json.dumps({"name": key, "error": json.loads(FAILURE)}), 0)


async def failing(
    store: Store,
    worker: ManualWorker,
    *events: Event,
    end: Event | None = None,
    error: str | None = FAILURE,
) -> UUID:
    """Start a run that fails after these events."""
    run_id = await start(store)
    turn = await worker.take()
    await worker.commit(turn, *events, end or failed(), then=Finish("failed", error=error))
    return run_id


def timer(event_type: str, key: str) -> Event:
    """Return what a run says of a timer."""
    return Event(event_type, key, json.dumps({"timer_id": key, "fire_at": 5}), 0)


def fact(event_type: str, key: str) -> Event:
    """Return a value or a patch."""
    return Event(event_type, key, '{"value":true}', 0)


async def test_a_fork_is_a_run_with_a_copy_of_the_log(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S4, T9. Like the origin, whose first moment it keeps; it runs from there by itself."""
    run_id = await start(
        store,
        key="k",
        priority=1,
        input='{"b":1e300,"a":2}',
        tags=("a", "b"),
        headers={"traceparent": "t"},
        retention_seconds=86_400.0,
        timeout_seconds=60.0,
    )
    began_at = await store.now()
    turn = await ann.take()
    await ann.commit(turn, step("charge", result={"z": 1, "a": 2}, at=5), step("ship"))
    await ann.finish(turn, expected=3)
    await clock.advance(50)
    new_id = await fork(store, run_id, until=2)
    origin, now = await log(store, run_id), await store.now()
    *copied, last = await log(store, new_id)
    assert copied == origin[:2]
    assert (last.type, last.key, last.at) == ("WorkflowForked", None, now)
    told = {"run_id": str(run_id), "idx": 2, "seed": str(run_id), "again": [], "after": None}
    assert details(last) == {**told, "run_key": "k"}
    new = await get(store, new_id)
    assert (new.name, new.version, new.key, new.priority) == ("order", 1, None, 1)
    assert (new.tags, new.headers, new.retention_seconds) == (
        ("a", "b"),
        {"traceparent": "t"},
        86_400.0,
    )
    assert (new.created_at, new.deadline_at, new.started_at) == (
        now,
        now + 60 * SECOND,
        None,  # no worker has claimed it
    )
    assert (new.parent_run_id, new.state, new.input) == (None, "queued", '{"b":1e300,"a":2}')
    task = await ann.take()
    assert (task.run_id, task.log_length, task.attempts) == (new_id, 3, 1)
    assert (task.lease_no, task.started_at) == (1, began_at)  # the clock of its code
    assert (await get(store, new_id)).started_at == now
    await ann.finish(task)
    assert (await get(store, new_id)).started_at == now
    assert (await get(store, run_id)).status == "completed"


async def test_a_fork_of_a_whole_log_leaves_out_its_end(store: Store, ann: ManualWorker) -> None:
    """S11. The fork does not inherit what blocked the origin; but its code is cancelled as well."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step())
    await store.pause_runs([run_id])
    await store.resume_runs([run_id])
    await signal(store, run_id, signal_id="s-1")
    await store.cancel_runs([run_id])
    await ann.suspend(turn, expected=6)
    await store.terminate_runs([run_id])
    new_id = await fork(store, run_id)
    assert await log_types(store, new_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "SignalReceived",
        "WorkflowCancelRequested",
        "WorkflowForked",
    ]
    assert details((await log(store, new_id))[-1])["idx"] == 8
    assert (await signal(store, new_id, signal_id="s-1"))[0] == "duplicate"
    assert (await store.cancel_runs([new_id])).outcomes == ["duplicate"]
    before = await fork(store, run_id, until=5)  # the cancel is entry 5
    assert "WorkflowCancelRequested" not in await log_types(store, before)
    assert (await store.cancel_runs([before])).outcomes == ["delivered"]


async def test_a_running_run_can_be_forked(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step())
    new_id = await fork(store, run_id)
    assert (await get(store, run_id)).state == "running"
    assert (await ann.take()).run_id == new_id


async def test_a_fork_of_a_fork_has_the_seed_of_the_first(store: Store, ann: ManualWorker) -> None:
    """Trap 18. Ids and chance that were drawn stay what they were, however often."""
    run_id = await start(store)
    await ann.commit(await ann.take(), step())
    first = await fork(store, run_id)
    for until, idx in ((None, 3), (1, 1)):  # also where the first fork's own event is left out
        second = await fork(store, first, until=until)
        said = details((await log(store, second))[-1])
        assert said == {
            "run_id": str(first),
            "idx": idx,
            "seed": str(run_id),
            "again": [],
            "after": None,
        }


async def test_a_copy_says_which_calls_it_lacks(store: Store, ann: ManualWorker) -> None:
    """A fork of a retry lacks what that makes again. Without its cancel it may lack any call."""
    end = failed(calls=("b",), seen=3)
    run_id = await failing(store, ann, step("a"), end_of_step("StepFailed", "b"), end=end)

    async def again(origin: UUID, until: int | None = None) -> object:
        made = await fork(store, origin, until=until)
        return details((await log(store, made))[-1])["again"]

    retry = await fork(store, run_id, retry=True)
    assert [await again(retry, until) for until in (1, 2, 3)] == [["b"], ["b"], []]
    await store.cancel_runs([retry])
    cancelled = await fork(store, retry)
    assert [await again(retry), await again(cancelled, 1)] == [[], ["b"]]
    turn = await _take_run(ann, retry)
    end = Event("WorkflowCanceled", None, None, 0)
    await ann.commit(turn, end, then=Finish("cancelled"), expected=4)
    uncancelled = await fork(store, retry, retry=True)
    assert details((await log(store, uncancelled))[-1])["again"] is None
    assert [await again(uncancelled), await again(uncancelled, 1)] == [[], None]


def cancelled_end(**fields: Any) -> Event:
    """Return the end of a run that has cleaned up."""
    return Event("WorkflowCanceled", None, json.dumps(fields) if fields else None, 0)


@pytest.mark.parametrize("failed_steps", [False, True])
@pytest.mark.parametrize("end", ["terminated", "timed_out", "poisoned", "failed before"])
async def test_a_retry_has_the_cancel_if_it_has_what_the_code_did_because_of_it(
    store: Store, clock: Clock, ann: ManualWorker, end: str, failed_steps: bool
) -> None:
    """Fault: one rug was given back and shipped. Failures of before the cancel stay."""
    run_id = await start(store, timeout_seconds=60.0)
    turn = await ann.take()
    await ann.commit(turn, step("reserve"), end_of_step("StepFailed", "pay"))
    await store.cancel_runs([run_id])
    await ann.commit(turn, step("give back"), end_of_step("StepFailed", "refund"), expected=4)
    match end:
        case "terminated":
            await store.terminate_runs([run_id])
        case "timed_out":
            await clock.advance(60)
            await store.time_out_runs()
        case "poisoned":
            text = '{"kind":"holdfast.PoisonedRun","message":"lost"}'
            finish = Finish("failed", error=text)
            await ann.commit(turn, Event("WorkflowFailed", None, None, 0), then=finish, expected=6)
        case _:
            said = failed(calls=(), seen=0, after=(), handling=())
            await ann.commit(turn, said, then=Finish("failed", error=FAILURE), expected=6)
    plan = await store.retry_plan(run_id, failed_steps=failed_steps)
    kept = ("reserve", "pay", "give back", *(() if failed_steps else ("refund",)))
    made_again = ("refund",) if failed_steps else ()
    assert plan == RetryPlan(kept=kept, failed=made_again, cancel=True)
    retry = await fork(store, run_id, retry=True, failed_steps=failed_steps)
    types = ["WorkflowStarted", "StepCompleted", "StepFailed", "WorkflowCancelRequested"]
    rest = ["StepCompleted", *(() if failed_steps else ("StepFailed",)), "WorkflowForked"]
    assert await log_types(store, retry) == [*types, *rest]
    assert details((await log(store, retry))[-1])["again"] == list(made_again)
    assert (await store.cancel_runs([retry])).outcomes == ["duplicate"]


@pytest.mark.parametrize("failed_steps", [False, True])
@pytest.mark.parametrize("seen", [0, 3, 4, 6])
async def test_a_retry_has_no_cancel_that_came_after_the_failure(
    store: Store, ann: ManualWorker, seen: int, failed_steps: bool
) -> None:
    """The cancel is entry 3: `pay` failed before it, `refund` after it."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step("reserve"), end_of_step("StepFailed", "pay"))
    await store.cancel_runs([run_id])
    calls = {3: ("pay",), 6: ("refund",)}.get(seen, ())
    after = ("give back",) if seen in (3, 4) else ()
    end = failed(calls=calls, seen=seen, after=after, handling=())
    await ann.commit(
        turn,
        step("give back"),
        end_of_step("StepFailed", "refund"),
        end,
        then=Finish("failed", error=FAILURE),
        expected=4,
    )
    plan = await store.retry_plan(run_id, failed_steps=failed_steps)
    assert plan.cancel == (seen in (0, 6))
    made_again = set(calls)
    if failed_steps:
        made_again = {"refund"} if plan.cancel else {"pay", "refund"}
    assert (set(plan.failed), plan.after) == (made_again, after)
    retry = await fork(store, run_id, retry=True, failed_steps=failed_steps)
    assert ("WorkflowCancelRequested" in await log_types(store, retry)) is plan.cancel


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("failed_steps", [False, True])
async def test_the_retry_of_a_cancelled_run_has_nothing_that_the_cancel_did(
    store: Store, ann: ManualWorker, said: bool, failed_steps: bool
) -> None:
    """Nor the end of an activity that was asked to stop, which had not failed otherwise."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, step("reserve"), activity("pack", on_cancel="wait"))
    task = (await ann.claim(handlers=RESIZE)).tasks[0]
    await store.cancel_runs([run_id])
    await ann.command(turn, cancelled_activity("pack"), expected=4)
    await ann.end(task, error=FAILURE)
    length = len(await log(store, run_id))
    end = cancelled_end(seen=4, after=["give back"], handling=[]) if said else cancelled_end()
    cleanup = [step("give back")] if said else []
    await ann.commit(turn, *cleanup, end, then=Finish("cancelled"), expected=length)
    plan = await store.retry_plan(run_id, failed_steps=failed_steps)
    after = ("give back",) if said else ()
    assert plan == RetryPlan(kept=("reserve",), failed=("pack",), after=after)
    retry = await fork(store, run_id, retry=True, failed_steps=failed_steps)
    assert await log_types(store, retry) == ["WorkflowStarted", "StepCompleted", "WorkflowForked"]


async def test_the_input_and_the_version_can_be_changed(store: Store, ann: ManualWorker) -> None:
    """T9. The input of the fork alone; the version is that of a worker that can run it."""
    run_id = await start(store, input="1")
    new_id = await fork(store, run_id, until=1, input='{"b":1,"a":1e300}', version=3)
    assert (await get(store, run_id)).input == "1"
    new = await get(store, new_id)
    assert (json.loads(new.input), new.version) == ({"b": 1, "a": 1e300}, 3)
    assert details((await log(store, new_id))[0]) == {"b": 1, "a": 1e300}
    assert (await ann.take(handlers=["order@3"])).run_id == new_id


async def test_results_can_be_changed(store: Store, ann: ManualWorker) -> None:
    """T13. Of steps and of activities; all else of the event stays."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, step("charge", result=1, at=5), activity())
    await ann.end(await ann.take(handlers=RESIZE), result="2", started_at=7)
    new_id = await fork(store, run_id, results={"charge": '{"z":1e300,"a":0}', "resize": "null"})
    charge, _, resize = (await log(store, new_id))[1:4]
    assert details(charge) == {
        "name": "charge",
        "args": 0,
        "result": {"z": 1e300, "a": 0},
        "started_at": 5,
    }
    assert details(resize) == {
        "activity_name": "resize",
        "result": None,
        "attempt": 1,
        "started_at": 7,
        "worker": "ann",
    }
    assert details((await log(store, run_id))[1])["result"] == 1


async def test_a_result_of_what_was_not_copied_is_refused(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    await ann.command(await ann.take(), step("charge"), step("ship"), activity())
    for key in ("ship", "resize", "other"):
        outcome = await outcome_of(store, run_id, until=2, results={key: "1"})
        assert outcome == "unknown_key"
    for bad in ({"results": {"charge": '{"a":'}}, {"input": "nope"}):
        with pytest.raises(PayloadError):
            await outcome_of(store, run_id, **bad)


async def test_a_fork_is_made_once(store: Store, ann: ManualWorker) -> None:
    """Trap 23. The answer was lost: the second call changes nothing."""
    run_id, new_id = await start(store), uuid4()
    made = Fork(run_id=run_id, new_run_id=new_id)
    assert (await store.fork_run(made))[0] == "forked"
    assert await store.fork_run(made) == ("exists", [])
    assert len(await log(store, new_id)) == 2


async def test_what_cannot_be_forked_is_refused(store: Store, ann: ManualWorker) -> None:
    run_id, completed = await start(store), await start(store, queue="slow")
    await ann.finish(await ann.take(queues=["slow"]))
    assert await outcome_of(store, uuid4()) == "missing"
    assert await outcome_of(store, run_id, until=0) == "bad_index"
    assert await outcome_of(store, run_id, until=2) == "bad_index"
    assert await outcome_of(store, run_id, retry=True) == "running"
    assert await outcome_of(store, completed, retry=True) == "running"


async def test_a_fork_asks_again_for_unanswered_commands(store: Store, ann: ManualWorker) -> None:
    """S7, traps 14 and 16. The origin's activities and children do not answer the fork."""
    run_id, done, lost = await start(store), uuid4(), uuid4()
    turn = await ann.take()
    await ann.command(
        turn,
        activity("done"),
        activity("open"),
        activity("dropped"),
        child(done, "child", queue="slow", priority=0),
        child(lost, "child#2", queue="slow"),
        approval("yes"),
        approval("open?"),
        command("ApprovalWithdrawn", "open?"),
        cancelled_activity("dropped"),
        step(),
    )
    tasks = {task.key: task for task in (await ann.claim(handlers=RESIZE)).tasks}
    await ann.end(tasks["done"], result="1")
    await ann.end(tasks["open"], error=FAILURE)
    await ann.finish(await ann.first(queues=["slow"]))
    await store.decide_approval(decision(run_id, key="yes"))
    new_id = await fork(store, run_id)
    events = await log(store, new_id)
    assert [(event.type, event.key) for event in events[1:-1]] == [
        ("ActivityScheduled", "done"),
        ("ChildStarted", "child"),
        ("ApprovalRequested", "yes"),
        ("StepCompleted", "charge"),
        ("ActivityCompleted", "done"),
        ("ChildCompleted", "child"),
        ("ApprovalResolved", "yes"),
    ]
    assert await store.list_approvals(run_id=new_id) == []


async def test_a_retry_continues_from_the_failure(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B2, ruling 7. Every other end is kept, and the step that failed runs again."""
    run_id = await failing(
        store,
        ann,
        step("a"),
        end_of_step("StepRetryScheduled", "b"),
        end_of_step("StepRetryScheduled", "c"),
        end_of_step("StepFailed", "b"),
        step("c"),
        timer("TimerScheduled", "t"),
        fact("ValueSet", "phase"),
        end_of_step("StepFailed", "handled"),
        step("d"),
        end=failed(calls=("b",), seen=5),
    )
    new_id = await fork(store, run_id, retry=True)
    events = await log(store, new_id)
    assert [(event.type, event.key) for event in events[1:-1]] == [
        ("StepCompleted", "a"),
        ("StepRetryScheduled", "c"),
        ("StepCompleted", "c"),
        ("StepFailed", "handled"),
        ("StepCompleted", "d"),
    ]
    told = {"run_id": str(run_id), "idx": 11, "seed": str(run_id), "again": ["b"], "after": []}
    assert details(events[-1]) == told
    assert (await get(store, run_id)).status == "failed"


async def test_a_retry_schedules_the_failed_activity_again(store: Store, ann: ManualWorker) -> None:
    """S7. With all its attempts, while those that ended keep their results."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, activity("done"), activity("broken"))
    tasks = {task.key: task for task in (await ann.claim(handlers=RESIZE)).tasks}
    await ann.end(tasks["broken"], error=FAILURE, retryable=False)
    await ann.end(tasks["done"], result="1")
    await signal(store, run_id)
    end = failed(calls=("broken",), seen=4)
    await ann.commit(turn, end, then=Finish("failed", error=FAILURE), expected=6)
    new_id = await fork(store, run_id, retry=True)
    events = await log(store, new_id)
    assert [(event.type, event.key) for event in events[1:-1]] == [
        ("ActivityScheduled", "done"),
        ("ActivityCompleted", "done"),
        ("SignalReceived", None),
    ]


@pytest.mark.parametrize("told", [True, False])
async def test_a_retry_makes_again_what_the_code_called_because_of_the_failure(
    store: Store, ann: ManualWorker, told: bool
) -> None:
    """A compensation is made again, a call beside it is kept; older releases did not tell them."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, end_of_step("StepFailed", "pay"))
    await ann.command(turn, activity("refund"), activity("beside"), activity("open"), expected=2)
    tasks = {task.key: task for task in (await ann.claim(handlers=RESIZE)).tasks}
    await ann.end(tasks["refund"], result="1")
    await ann.end(tasks["beside"], result="1")
    await signal(store, run_id, name="beside", signal_id="refund")
    after = {"after": ("refund", "mail", "mail#2", "timer")} if told else {}
    await ann.commit(
        turn,
        end_of_step("StepRetryScheduled", "mail"),
        step("mail"),
        end_of_step("StepFailed", "mail#2"),
        timer("TimerFired", "timer"),
        fact("ValueRecorded", "patch:new"),
        failed(calls=("pay",), seen=2, **after),
        then=Finish("failed", error=FAILURE),
        expected=8,
    )
    plan = await store.retry_plan(run_id)
    new_id = await fork(store, run_id, retry=True)
    kept = [(event.type, event.key) for event in (await log(store, new_id))[1:-1]]
    if not told:
        assert {"refund", "mail", "mail#2"} < {key for _, key in kept}
        assert plan == RetryPlan(kept=("refund", "beside", "mail", "mail#2"), failed=("pay",))
        return
    assert kept == [
        ("ActivityScheduled", "beside"),
        ("ActivityCompleted", "beside"),
        ("SignalReceived", "refund"),
        ("ValueRecorded", "patch:new"),
    ]
    assert plan == RetryPlan(kept=("beside",), failed=("pay",), after=("refund", "mail", "mail#2"))


async def test_a_retry_of_the_failed_steps_keeps_all_that_did_not_fail(
    store: Store, ann: ManualWorker
) -> None:
    """C20. Also if the run ended by an error of its own code; cancelled work did not fail."""
    run_id, made = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(made, "dropped", queue="slow"))
    cancel = command("ChildCancelRequested", "dropped", child_run_id=str(made), reason=None)
    await ann.command(turn, cancel, expected=2, touches=(made,))  # it ends at once
    await ann.commit(
        turn,
        end_of_step("StepFailed", "a"),
        step("undo-a"),
        step("b"),
        fact("ValueSet", "phase"),
        end_of_step("StepFailed", "c"),
        failed(calls=(), handling=("undo-a",)),
        then=Finish("failed", error=FAILURE),
        expected=4,
    )
    assert (await store.retry_plan(run_id)).failed == ()
    assert await store.retry_plan(run_id, failed_steps=True) == RetryPlan(
        kept=("dropped", "b"), failed=("a", "c"), after=("undo-a",)
    )
    new_id = await fork(store, run_id, retry=True, failed_steps=True)
    assert [(event.type, event.key) for event in (await log(store, new_id))[1:-1]] == [
        ("ChildStarted", "dropped"),
        ("ChildCancelRequested", "dropped"),
        ("ChildFailed", "dropped"),
        ("StepCompleted", "b"),
        ("ValueSet", "phase"),
    ]


async def test_only_a_run_that_can_be_retried_has_a_plan(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step())
    assert await store.retry_plan(run_id) == RetryPlan()
    await ann.finish(turn, expected=2)
    assert await store.retry_plan(run_id) == await store.retry_plan(uuid4()) == RetryPlan()


async def test_a_retry_without_the_cancel_begins_timers_again(
    store: Store, ann: ManualWorker
) -> None:
    """Those that the cancel stopped, in any task; it stopped all that wait."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(
        turn,
        timer("TimerScheduled", "sleep"),
        timer("TimerScheduled", "sleep/timer"),
        timer("TimerScheduled", "a/b/timer"),
        timer("TimerFired", "sleep"),
    )
    await store.cancel_runs([run_id])
    end = Event("WorkflowCanceled", None, None, 0)
    await ann.commit(turn, end, then=Finish("cancelled"), expected=6)
    new_id = await fork(store, run_id, retry=True)
    assert (await keys(store, new_id))[1:-1] == ["sleep", "sleep"]


async def test_a_retry_keeps_timers_that_do_not_surround_the_failure(
    store: Store, ann: ManualWorker
) -> None:
    """One that had fired is over; one around the failed call starts again."""
    run_id = await failing(
        store,
        ann,
        timer("TimerScheduled", "sleep"),
        timer("TimerFired", "sleep"),
        timer("TimerScheduled", "timer"),
        timer("TimerScheduled", "ship/timer"),
        timer("TimerScheduled", "ship#2/timer"),
        end_of_step("StepFailed", "ship/pack/fold"),
        timer("TimerFired", "ship#2/timer"),
        timer("TimerFired", "ship/pack/timer"),
        timer("TimerFired", "timer#2"),
        end=failed(calls=("ship/pack/fold",), seen=7),
    )
    new_id = await fork(store, run_id, retry=True)
    assert [(event.type, event.key) for event in (await log(store, new_id))[1:-1]] == [
        ("TimerScheduled", "sleep"),
        ("TimerFired", "sleep"),
        ("TimerScheduled", "ship#2/timer"),
        ("TimerFired", "ship#2/timer"),
    ]


async def test_a_retry_repeats_calls_that_the_failure_cancelled(
    store: Store, ann: ManualWorker
) -> None:
    """A child that was cancelled because its neighbour failed; not one of before."""
    run_id = await start(store)
    turn = await ann.take()
    before, beside = uuid4(), uuid4()
    orders = (child(before, "before", queue="slow"), child(beside, "beside", queue="slow"))
    await ann.command(turn, *orders)
    cancel = [
        command("ChildCancelRequested", key, child_run_id=str(each), reason=None)
        for key, each in (("before", before), ("beside", beside))
    ]
    await ann.command(turn, cancel[0], expected=3, touches=(before,))  # it ends at once
    failure = end_of_step("StepFailed", "ship")
    await ann.command(turn, failure, cancel[1], expected=5, touches=(beside,))
    end = failed(calls=("ship",), seen=6)
    await ann.commit(turn, end, then=Finish("failed", error=FAILURE), expected=8)
    assert [e.type for e in await log(store, run_id)].count("ChildFailed") == 2
    new_id = await fork(store, run_id, retry=True)
    assert [(event.type, event.key) for event in (await log(store, new_id))[1:-1]] == [
        ("ChildStarted", "before"),
        ("ChildCancelRequested", "before"),
        ("ChildFailed", "before"),
    ]


async def test_a_retry_counts_events_in_the_order_in_which_the_code_saw_them(
    store: Store, ann: ManualWorker
) -> None:
    """The child ended while the step's failure was on its way, and was taken back behind it."""
    run_id, made = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(made, queue="slow"))
    beside = await ann.take(queues=["slow"])
    await ann.commit(beside, failed(), then=Finish("failed", error=FAILURE), touches=(run_id,))
    assert (await log(store, run_id))[-1].type == "ChildFailed"
    await ann.commit(
        turn,
        with_mark(end_of_step("StepFailed", "ship"), 2),
        command("ChildCancelRequested", "child", child_run_id=str(made), reason=None),
        failed(calls=("ship",), seen=3),
        then=Finish("failed", error=FAILURE),
        expected=3,
        touches=(made,),
        has_children=True,
    )
    new_id = await fork(store, run_id, retry=True)
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]


async def test_a_signal_to_a_child_that_is_made_again_is_sent_again(
    store: Store, ann: ManualWorker
) -> None:
    """The child of the copy is another one; what others were told they were told once."""
    run_id, other = await start(store), await start(store, queue="slow")
    turn = await ann.take()
    made = uuid4()
    sent = [
        command("SignalSent", key, run_id=str(to), signal_name="go", input=1, signal_id=key)
        for key, to in (("signal", made), ("signal#2", other))
    ]
    await ann.command(turn, child(made, queue="slow"), *sent, touches=(made, other))
    new_id = await fork(store, run_id)
    assert (await keys(store, new_id))[1:-1] == ["signal#2"]


def recorded(kind: str, message: str = "", cause: str | None = None) -> str:
    """Return an error as a run has it."""
    fields = {"kind": kind, "message": message}
    return json.dumps(fields | ({"cause": json.loads(cause)} if cause else {}))


PAY_FAILED = recorded("holdfast.errors.StepFailed", "step pay#2 failed: OSError: no", FAILURE)
CHILD_FAILED = recorded("holdfast.errors.ChildFailed", "child visa failed: no", PAY_FAILED)
GROUP = recorded("builtins.ExceptionGroup", "two", PAY_FAILED)


@pytest.mark.parametrize(
    ("error", "events", "left_out"),
    [
        (PAY_FAILED, "visa pay#2", ["pay#2"]),
        (PAY_FAILED, "pay#2 visa", ["pay#2", "visa"]),
        (PAY_FAILED, "pay#2 mail+ visa", ["pay#2", "visa"]),
        (recorded("app.Bad", cause=PAY_FAILED), "visa pay#2", ["pay#2"]),
        (recorded("app.Bad", cause=PAY_FAILED), "pay#2 mail+", []),
        (recorded("app.Bad", "step visa failed: no"), "visa", []),
        (GROUP, "visa mail+ pay pay#2", ["pay", "pay#2"]),
        (CHILD_FAILED, "visa mail+ pay#2", ["pay#2", "visa"]),
        (FAILURE, "visa pay", []),
        ('{"kind":"x.Y"}', "visa pay", []),
        ('"not an object"', "visa pay", []),
        (None, "visa pay", []),
    ],
)
async def test_a_retry_of_a_run_that_an_older_release_ended(
    store: Store, ann: ManualWorker, error: str | None, events: str, left_out: list[str]
) -> None:
    """It did not write down what it ended by: the error says it, or the end of the log."""
    made = [
        step(name[:-1]) if name.endswith("+") else end_of_step("StepFailed", name)
        for name in events.split()
    ]
    run_id = await failing(store, ann, *made, timer("TimerScheduled", "t"), error=error)
    new_id = await fork(store, run_id, retry=True)
    copied = set((await keys(store, new_id))[1:-1])
    assert sorted({event.key for event in made} - copied) == left_out
    assert ("t" in copied) == (not left_out)


async def test_a_retry_after_an_error_of_the_runs_code_repeats_no_call(
    store: Store, ann: ManualWorker
) -> None:
    """T9. A new version may know better."""
    run_id = await failing(store, ann, step("a"), step("b"))
    new_id = await fork(store, run_id, retry=True, version=2)
    assert await log_types(store, new_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "StepCompleted",
        "WorkflowForked",
    ]
    assert details((await log(store, new_id))[-1])["idx"] == 4
    assert (await get(store, new_id)).version == 2


@pytest.mark.parametrize("end", ["cancelled", "terminated", "timed_out"])
async def test_a_stopped_run_can_be_retried(
    store: Store, clock: Clock, ann: ManualWorker, end: str
) -> None:
    """S10. Everything is kept but the end and what led to it."""
    run_id = await start(store, timeout_seconds=60.0)
    turn = await ann.take()
    await ann.commit(turn, step("a"), end_of_step("StepFailed", "b"), step("c"))
    if end == "cancelled":
        await store.cancel_runs([run_id])
        await ann.commit(turn, failed("WorkflowCanceled"), then=Finish("cancelled"), expected=5)
    elif end == "terminated":
        await store.terminate_runs([run_id])
    else:
        await clock.advance(60)
        await store.time_out_runs()
    new_id = await fork(store, run_id, retry=True)
    assert (await keys(store, new_id))[1:-1] == ["a", "b", "c"]
    now = await store.now()
    assert (await get(store, new_id)).deadline_at == now + 60 * SECOND


async def test_a_fork_writes_its_own_commands(store: Store, ann: ManualWorker) -> None:
    """S4, trap 14. Its activities and children are its own."""
    run_id, child_id = await start(store), uuid4()
    await ann.command(await ann.take(), activity(), awaiting=(ANY_END,))
    new_id = await fork(store, run_id)
    await ann.command(await ann.take(), activity(), child(child_id), awaiting=(ANY_END,))
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    assert {task.run_id for task in tasks} == {run_id, new_id}
    for task in tasks:
        assert (await ann.end(task, result="1")).outcomes == ["recorded"]
    assert (await log_types(store, new_id))[-1] == "ActivityCompleted"
    assert (await get(store, child_id)).parent_run_id == new_id


async def test_a_cancelled_fork_cleans_up_after_what_its_origin_did(
    store: Store, ann: ManualWorker
) -> None:
    """S10. No worker had it, but its code has run that far."""
    new_id = await fork(store, await failing(store, ann, step()))
    answer = await store.cancel_runs([new_id])
    assert (answer.outcomes, answer.notices) == (["delivered"], [Notice("work", "default")])
    task = await ann.take()
    assert (task.run_id, (await log_types(store, new_id))[-1]) == (
        new_id,
        "WorkflowCancelRequested",
    )


async def test_a_cancelled_fork_of_a_run_that_never_began_ends_at_once(store: Store) -> None:
    origin = await start(store)
    new_id = await fork(store, origin)
    await store.cancel_runs([new_id])
    assert (await get(store, new_id)).status == "cancelled"


async def test_a_fork_has_its_entries_in_the_order_in_which_the_code_saw_them(
    store: Store, ann: ManualWorker
) -> None:
    """Its entries get new numbers, so a mark that counts those of the origin would mislead."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step("a"), Event("WorkflowTaskYielded", None, None, 0))
    await signal(store, run_id, name="first")
    await signal(store, run_id, name="second")
    marked = [with_mark(step("b"), 3), with_mark(step("c", result=2), 4), step("d")]
    await ann.commit(turn, *marked, expected=5)

    new_run_id = await fork(store, run_id, results={"c": "3"})
    assert [seen(event) for event in await log(store, new_run_id)] == [
        "WorkflowStarted",
        "a",
        "b",
        "first",
        "c",
        "second",
        "d",
        "WorkflowForked",
    ]
    copied = await log(store, new_run_id)
    assert copied[2].details == step("b").details
    assert details(copied[4])["result"] == 3


def with_mark(event: Event, seen: int) -> Event:
    """Return an entry that the code saw when it had seen so many of the log."""
    text = event.details or ""
    return Event(event.type, event.key, f'{{"seen":{seen},{text[1:]}', event.at)


def seen(event: Event) -> str:
    """Name an entry by its key, its signal, or its type."""
    if event.type == "SignalReceived":
        return str(details(event)["signal_name"])
    return event.key or event.type


async def test_a_fork_of_a_fork_keeps_the_clock_and_has_its_own_first_claim(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id, began_at = await start(store), await store.now()
    turn = await ann.take()
    await ann.commit(turn, step())
    await ann.finish(turn, expected=2)
    for _ in range(2):
        await clock.advance(10)
        run_id = await fork(store, run_id)
        assert (await get(store, run_id)).started_at is None
    await clock.advance(10)
    task = await _take_run(ann, run_id)
    claimed_at = await store.now()
    assert (task.started_at, task.first_claimed_at) == (began_at, claimed_at)
    assert (await get(store, run_id)).started_at == claimed_at


async def _take_run(ann: ManualWorker, run_id: UUID) -> ClaimedTask:
    return next(each for each in (await ann.claim()).tasks if each.run_id == run_id)


async def test_a_fork_that_no_worker_has_claimed_is_asked_to_cancel(
    store: Store, ann: ManualWorker
) -> None:
    """Its code may have something to clean up: what it did is in the log."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.commit(turn, step())
    new_id = await fork(store, run_id)
    await store.cancel_runs([new_id])
    assert (await get(store, new_id)).status == "running"
    assert (await log(store, new_id))[-1].type == "WorkflowCancelRequested"
