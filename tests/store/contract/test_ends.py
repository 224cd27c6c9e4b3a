"""Ends from outside: cancel, terminate, deadlines."""

from __future__ import annotations

from uuid import uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import Event, Finish, NewSignal, Notice, Suspend

from .actors import SECOND, ManualWorker, details, get, log, log_types, start, step


async def test_a_cancel_of_a_run_that_nobody_had_ends_it(store: Store, ann: ManualWorker) -> None:
    """S10, S11, trap 16. There is no code to clean up, so no worker is needed."""
    run_id = await start(store, delay_seconds=60.0, waiter="client/1")
    delivered = await store.cancel_runs([run_id], reason="changed my mind")
    assert delivered.outcomes == ["delivered"]
    assert delivered.notices == [Notice("client/1", str(run_id))]
    run = await get(store, run_id)
    assert (run.status, run.started_at, run.wait) == ("cancelled", None, None)
    assert run.completed_at == await store.now()
    _, requested, ended = await log(store, run_id)
    assert (requested.type, ended.type) == ("WorkflowCancelRequested", "WorkflowCanceled")
    assert details(requested) == {"reason": "changed my mind"}
    assert await ann.claims() == []


async def test_a_cancel_wakes_a_sleeping_run_to_clean_up(store: Store, ann: ManualWorker) -> None:
    """S10, trap 16. With no worker alive it stays requested until one comes."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    delivered = await store.cancel_runs([run_id])
    assert delivered.outcomes == ["delivered"]
    assert delivered.notices == [Notice("work", "default")]
    assert (await get(store, run_id)).status == "running"
    assert (await log_types(store, run_id))[-1] == "WorkflowCancelRequested"
    assert await ann.claims() == [run_id]


async def test_a_cancel_reaches_the_holder_of_the_run(store: Store, ann: ManualWorker) -> None:
    """S10, B6, trap 16. A run inside a long step: told at once, and at its next append."""
    run_id = await start(store)
    task = await ann.take()
    delivered = await store.cancel_runs([run_id])
    assert delivered.notices == [Notice("worker/ann", str(run_id))]
    refusal = await ann.refusal(task, step())
    assert [event.type for event in refusal.tail] == ["WorkflowCancelRequested"]


async def test_a_second_cancel_changes_nothing(store: Store, ann: ManualWorker) -> None:
    """S10, trap 16."""
    run_id = await start(store)
    await ann.take()
    assert (await store.cancel_runs([run_id])).outcomes == ["delivered"]
    delivered = await store.cancel_runs([run_id])
    assert (delivered.outcomes, delivered.notices) == (["duplicate"], [])
    assert await log_types(store, run_id) == ["WorkflowStarted", "WorkflowCancelRequested"]


async def test_a_late_result_changes_nothing_after_the_end(store: Store, ann: ManualWorker) -> None:
    """B6, trap 16."""
    run_id = await start(store)
    task = await ann.take()
    await store.terminate_runs([run_id])
    ended = await get(store, run_id)
    completed = Event("WorkflowCompleted", None, None, 0)
    for event, then in ((step(), None), (completed, Finish("completed", output="1"))):
        refusal = await ann.refusal(task, event, then=then)
        assert refusal.reason == "lost"
        assert [event.type for event in refusal.tail] == ["WorkflowTerminated"]
    assert await get(store, run_id) == ended


async def test_cancels_and_terminations_answer_in_the_order_given(
    store: Store, ann: ManualWorker
) -> None:
    ended = await start(store)
    await ann.finish(await ann.take())
    first, second, missing = await start(store), await start(store), uuid4()
    asked = [missing, second, ended, first]
    expected = ["missing", "delivered", "ended", "delivered"]
    await ann.claim()
    assert (await store.cancel_runs(asked)).outcomes == expected
    assert (await store.terminate_runs(asked)).outcomes == expected


async def test_a_terminated_run_ends_without_its_code(store: Store, ann: ManualWorker) -> None:
    """S11. Its waiters are told, and so is who holds it."""
    run_id = await start(store, waiter="client/1")
    task = await ann.take()
    delivered = await store.terminate_runs([run_id], reason="runaway")
    assert delivered.outcomes == ["delivered"]
    assert sorted(delivered.notices, key=str) == [
        Notice("client/1", str(run_id)),
        Notice("worker/ann", str(run_id)),
    ]
    run = await get(store, run_id)
    assert (run.status, run.started_at) == ("terminated", task.started_at)
    last = (await log(store, run_id))[-1]
    assert (last.type, details(last)) == ("WorkflowTerminated", {"reason": "runaway"})
    assert (await ann.beat()).lost == []
    assert await ann.claims() == []


async def test_a_run_past_its_deadline_times_out(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S10. Whether it sleeps, waits to be claimed or is held by a worker."""
    held = await start(store, timeout_seconds=60.0, waiter="client/1")
    task = await ann.take(lease_seconds=3600)
    asleep = await start(store, timeout_seconds=60.0)
    await ann.suspend(await ann.take())
    fresh = await start(store, timeout_seconds=60.0, queue="nobody")
    later = await start(store, timeout_seconds=90.0, queue="nobody")
    endless = await start(store, queue="nobody")
    now = await store.now()
    assert await store.time_out_runs() == (0, now + 60 * SECOND, [])

    await clock.advance(60)
    count, next_at, notices = await store.time_out_runs()
    assert (count, next_at) == (3, now + 90 * SECOND)
    assert set(notices) == {Notice("client/1", str(held)), Notice("worker/ann", str(held))}
    for run_id in (held, asleep, fresh):
        run = await get(store, run_id)
        assert (run.status, run.completed_at) == ("timed_out", now + 60 * SECOND)
        assert (await log_types(store, run_id))[-1] == "WorkflowTimedOut"
    assert (await ann.refusal(task, step())).reason == "lost"
    for run_id in (later, endless):
        assert (await get(store, run_id)).status == "running"


async def test_time_outs_are_taken_in_bounded_bites(store: Store, clock: Clock) -> None:
    """T7. What is left is due, and says so."""
    for _ in range(5):
        await start(store, timeout_seconds=60.0)
    await clock.advance(61)
    count, next_at, _ = await store.time_out_runs(limit=3)
    assert count == 3
    assert next_at is not None
    assert next_at <= await store.now()
    assert (await store.time_out_runs(limit=3))[:2] == (2, None)


async def test_a_run_that_ended_in_time_does_not_time_out(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S11."""
    run_id = await start(store, timeout_seconds=60.0)
    await ann.finish(await ann.take())
    await clock.advance(3600)
    assert await store.time_out_runs() == (0, None, [])
    assert (await get(store, run_id)).status == "completed"


async def test_who_waits_for_the_answer_of_a_run_that_is_terminated_is_told(
    store: Store, ann: ManualWorker
) -> None:
    """The code that would answer does not run again; whom it had answered is left alone."""
    asker, asked = await start(store), await start(store)
    for name in ("one", "two", "three"):
        call = NewSignal(asked, "add", "1", name, update=True, reply_to=f"run/{asker}")
        assert (await store.signal_runs([call])).outcomes == ["delivered"]
    for topic in ("reply/1", "run/nobody"):
        await store.signal_runs([NewSignal(asked, "add", "1", topic, update=True, reply_to=topic)])
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    answered = Event("UpdateCompleted", "one", '{"update_name":"add","result":1}', 0)
    begun = Event("UpdateAccepted", "two", '{"update_name":"add"}', 0)
    await ann.commit(tasks[asked], answered, begun, then=Suspend(None, ("update:",)))
    await ann.commit(tasks[asker], then=Suspend(None, ("update-reply",)))
    await store.terminate_runs([asked])
    told = [each for each in await log(store, asker) if each.type == "SignalReceived"]
    assert [details(each)["input"] for each in told] == [
        {
            "update_id": update_id,
            "error": {
                "kind": "holdfast.errors.RunEnded",
                "message": f"run {asked} has ended (terminated)",
            },
            "rejected": rejected,
        }
        for update_id, rejected in (("two", False), ("three", True))
    ]
    assert await ann.claims() == [asker]
