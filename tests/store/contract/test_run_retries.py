"""Runs that fail and are retried by their policy: an end, and an attempt that begins later."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import (
    ClaimedTask,
    Event,
    Finish,
    Fork,
    LimitRule,
    NewEvent,
    Reschedule,
    RunFilter,
)
from holdfast.values.ids import keyed_run_id

from .actors import SECOND, ManualWorker, details, get, log, log_types, signal, start, step
from .commands import FAILURE, child, command, started_child

AGAIN = {"calls": ["ship"], "seen": 3, "after": ["refund"]}


def step_failed(key: str = "ship") -> Event:
    said = {"name": key, "args": 1, "attempt": 1, "error": json.loads(FAILURE)}
    return Event("StepFailed", key, json.dumps(said), 0)


async def fail(
    worker: ManualWorker,
    task: ClaimedTask,
    *events: Event,
    number: int = 1,
    delay: float = 60.0,
    first: UUID | None = None,
    again: Any = None,
    **options: Any,
) -> UUID:
    """Let a run fail so that its policy retries it; return the id of the next attempt."""
    new_id = options.pop("new_id", None) or uuid4()
    attempt = {"number": number, "attempts": 5, "delay": delay, "run_id": str(first or task.run_id)}
    said = {
        "run_id": str(new_id),
        "input": None,
        "version": 1,
        "signals": [],
        "attempt": attempt,
        "error": json.loads(FAILURE),
        "again": AGAIN if again is None else again,
    }
    options = {"has_children": True, **options}
    answer = await worker.commit(
        task,
        *events,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        **options,
    )
    assert answer.refused == {}
    return new_id


SALE = (step("charge"), step_failed(), step("refund"))


async def test_the_next_attempt_is_the_run_later(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(
        store,
        key="k",
        input='{"b":1e300,"a":2}',
        priority=0,
        tags=("a", "b"),
        headers={"traceparent": "t"},
        retention_seconds=86_400.0,
        timeout_seconds=600.0,
    )
    old = await get(store, run_id)
    await clock.advance(5)
    task = await ann.take()
    new_id = await fail(ann, task, *SALE)
    ended, new, now = await get(store, run_id), await get(store, new_id), await store.now()
    assert (ended.status, ended.error) == ("continued", None)
    assert json.loads(ended.output or "") == {"run_id": str(new_id)}
    assert (new.status, new.state, new.started_at) == ("running", "waiting", None)
    assert (new.key, new.tags, new.priority) == ("k", ("a", "b"), 0)
    assert (new.name, new.version, new.queue, new.input) == (
        old.name,
        old.version,
        old.queue,
        old.input,
    )
    assert new.headers == {"traceparent": "t"}
    assert new.retention_seconds == 86_400.0
    assert (new.created_at, new.deadline_at) == (old.created_at + 1, old.deadline_at)
    assert new.due_at == now + 60 * SECOND
    assert await ann.claims() == []
    await clock.advance(60)
    again = await ann.take()
    assert (again.run_id, again.run_key, again.started_at) == (new_id, "k", task.started_at)
    assert again.first_claimed_at == await store.now()


async def test_its_log_is_that_of_a_retry(store: Store, ann: ManualWorker) -> None:
    """The same events as `runs retry` copies, and who failed before it."""
    run_id, twin = await start(store), await start(store)
    first, second = await ann.first(), await ann.first()
    assert {first.run_id, second.run_id} == {run_id, twin}
    new_id = await fail(ann, first, *SALE)
    end = Event("WorkflowFailed", None, json.dumps(AGAIN), 0)
    await ann.commit(second, *SALE, end, then=Finish("failed", error=FAILURE))
    retry = Fork(run_id=second.run_id, new_run_id=uuid4(), retry=True)
    assert (await store.fork_run(retry))[0] == "forked"
    *copied, forked = await log(store, new_id)
    *by_hand, told = await log(store, retry.new_run_id)
    assert [(each.type, each.key, each.details) for each in copied] == [
        (each.type, each.key, each.details) for each in by_hand
    ]
    assert [each.type for each in copied] == ["WorkflowStarted", "StepCompleted"]
    said, by_hand_said = details(forked), details(told)
    assert (said["again"], said["idx"]) == (by_hand_said["again"], by_hand_said["idx"])
    assert (said["seed"], said["run_id"]) == (str(first.run_id), str(first.run_id))
    assert said["attempt"] == {
        "number": 1,
        "attempts": 5,
        "delay": 60.0,
        "run_id": str(first.run_id),
    }
    assert said["error"] == json.loads(FAILURE)
    assert "attempt" not in by_hand_said


async def test_an_error_of_the_code_alone_keeps_the_whole_log(
    store: Store, ann: ManualWorker
) -> None:
    await start(store)
    new_id = await fail(ann, await ann.take(), *SALE, again={"calls": [], "seen": 0})
    assert await log_types(store, new_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "StepFailed",
        "StepCompleted",
        "WorkflowForked",
    ]


async def test_attempts_follow_each_other(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """With the clock of the first, and its deadline."""
    first = await start(store, timeout_seconds=600.0)
    began = await ann.take()
    second = await fail(ann, began, *SALE)
    await clock.advance(60)
    third = await fail(ann, await ann.take(), step_failed(), number=2, first=first, delay=0.0)
    assert await store.newest_runs([first]) == {first: third}
    run, now = await get(store, third), await store.now()
    assert (run.state, run.due_at) == ("queued", now)
    assert run.deadline_at == (await get(store, first)).deadline_at
    assert (await ann.take()).started_at == began.started_at
    marks = [details(each) for each in await log(store, third) if each.type == "WorkflowForked"]
    assert [(mark["run_id"], mark["seed"]) for mark in marks] == [
        (str(first), str(first)),
        (str(second), str(first)),
    ]


async def test_a_parent_hears_of_the_last_attempt_only(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    parent_id, _ = await started_child(store, ann)
    new_id = await fail(ann, await ann.take(), *SALE)
    assert await log_types(store, parent_id) == ["WorkflowStarted", "ChildStarted"]
    await clock.advance(60)
    last = await ann.take()
    assert (last.run_id, last.parent_run_id) == (new_id, parent_id)
    end = Event("WorkflowFailed", None, json.dumps(AGAIN), 0)
    await ann.commit(
        last, end, then=Finish("failed", error=FAILURE), touches=(parent_id,), has_children=True
    )
    told = (await log(store, parent_id))[-1]
    assert (told.type, told.key, details(told)["child_run_id"]) == (
        "ChildFailed",
        "child",
        str(new_id),
    )


async def test_children_are_closed_and_started_again(store: Store, ann: ManualWorker) -> None:
    run_id, child_id = await start(store), uuid4()
    turn = await ann.take()
    await ann.command(turn, child(child_id, queue="slow"))
    new_id = await fail(ann, turn, step_failed(), expected=2)
    assert (await get(store, child_id)).status == "cancelled"
    assert await log_types(store, new_id) == ["WorkflowStarted", "WorkflowForked"]
    assert (await get(store, run_id)).status == "continued"


async def test_signals_and_subscriptions_go_along(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Unread signals stay in the log. What comes meanwhile reaches the next attempt."""
    run_id = await start(store)
    await signal(store, run_id, signal_id="s-1")
    turn = await ann.take()
    subscribed = command("EventSubscribed", "event:1", pattern="orders.#", match=None)
    new_id = await fail(ann, turn, subscribed, step_failed(), again={**AGAIN, "seen": 4})
    assert await log_types(store, new_id) == [
        "WorkflowStarted",
        "SignalReceived",
        "EventSubscribed",
        "WorkflowForked",
    ]
    assert (await signal(store, new_id, signal_id="s-1"))[0] == "duplicate"
    assert (await signal(store, new_id, signal_id="s-2"))[0] == "delivered"
    published, _ = await store.publish(NewEvent(topic="orders.1", payload="1"))
    assert published.runs == 1
    assert (await log_types(store, new_id))[-2:] == ["SignalReceived", "SignalReceived"]


async def test_a_stream_goes_on(store: Store, ann: ManualWorker) -> None:
    """What the code wrote before the failure is not written again; the rest is."""
    await start(store)
    turn = await ann.take()
    first, later = (
        command("StreamWritten", key, stream="progress", items=[key], closes=False, args=1)
        for key in ("a", "b")
    )
    again = {"calls": ["ship"], "seen": 3, "after": ["b"]}
    new_id = await fail(ann, turn, first, step_failed(), later, again=again)
    assert [(each.type, each.key) for each in await log(store, new_id)] == [
        ("WorkflowStarted", None),
        ("StreamWritten", "a"),
        ("WorkflowForked", None),
    ]


async def test_a_cancel_while_it_waits_wakes_it(store: Store, ann: ManualWorker) -> None:
    """Its code can clean up what it keeps of the attempts before."""
    await start(store)
    new_id = await fail(ann, await ann.take(), *SALE)
    await store.cancel_runs([new_id], reason="late")
    assert (await ann.take()).run_id == new_id


async def test_a_deadline_that_passes_meanwhile_ends_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await start(store, timeout_seconds=30.0)
    new_id = await fail(ann, await ann.take(), *SALE)
    await clock.advance(31)
    assert (await store.time_out_runs(limit=10))[0] == 1
    assert (await get(store, new_id)).status == "timed_out"


async def test_it_can_begin_at_once_with_the_same_deadline(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await start(store, timeout_seconds=100.0)
    new_id = await fail(ann, await ann.take(), *SALE)
    before = await get(store, new_id)
    told = await store.reschedule_runs([new_id], Reschedule(start_at=await store.now()))
    assert told.outcomes == ["delivered"]
    assert (await get(store, new_id)).deadline_at == before.deadline_at
    assert (await ann.take()).run_id == new_id


async def test_a_retry_by_hand_of_an_attempt_that_was_retried_is_refused(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    new_id = await fail(ann, await ann.take(), *SALE)
    for each in (run_id, new_id):
        retry = Fork(run_id=each, new_run_id=uuid4(), retry=True)
        assert (await store.fork_run(retry))[0] == "running"


async def test_a_retry_by_hand_has_no_attempt_before_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Its log has those of its origin. It may have to wait for its start, too."""
    await start(store)
    new_id = await fail(ann, await ann.take(), *SALE)
    await clock.advance(60)
    again = await ann.take()
    last = await get(store, new_id)
    assert last.last_failure is not None
    assert last.last_failure.number == 1
    end = Event("WorkflowFailed", None, json.dumps(AGAIN), 0)
    await ann.commit(again, end, then=Finish("failed", error=FAILURE), has_children=True)
    retry = Fork(run_id=new_id, new_run_id=uuid4(), retry=True)
    assert (await store.fork_run(retry))[0] == "forked"
    start_at = await store.now() + 60 * SECOND
    await store.reschedule_runs([retry.new_run_id], Reschedule(start_at=start_at))
    by_hand = await get(store, retry.new_run_id)
    assert (by_hand.due_at, by_hand.last_failure) == (start_at, None)


async def test_it_keeps_its_place_of_a_limit(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """Also of one with a key, which is a part of the input."""
    key = "input.customer"
    await store.set_limit(
        LimitRule(scope="workflow", name="shop/buy", kind="concurrency", most=1, key=key)
    )
    buy, buys = {"name": "shop/buy", "input": '{"customer":7}'}, ("shop/buy@1",)
    await start(store, **buy)
    task = await ann.take(handlers=buys)
    other = await start(store, **buy)
    new_id = await fail(ann, task, *SALE)
    assert await ann.claims(handlers=buys) == []
    await clock.advance(60)
    task = await ann.take(handlers=buys)
    assert task.run_id == new_id
    await ann.finish(task)
    assert await ann.claims(handlers=buys) == [other]


async def test_a_run_of_a_key_is_found_in_all_attempts(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, run_id=keyed_run_id("order", "k"), key="k")
    new_id = await fail(ann, await ann.take(), *SALE)
    page = await store.list_runs(RunFilter(names=("order",), key="k"))
    assert [run.run_id for run in page.runs] == [new_id, run_id]


async def test_a_repeated_commit_starts_one_attempt(store: Store, ann: ManualWorker) -> None:
    """Its answer was lost."""
    await start(store)
    turn, new_id = await ann.take(), uuid4()
    for _ in range(2):
        await fail(ann, turn, *SALE, new_id=new_id, token=UUID(int=5))
    assert await log_types(store, new_id) == ["WorkflowStarted", "StepCompleted", "WorkflowForked"]
