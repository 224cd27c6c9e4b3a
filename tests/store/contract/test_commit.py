"""Committing turns."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.events import in_transaction
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Committed, Event, Finish, Suspend, TurnCommit

from .actors import (
    SECOND,
    ManualWorker,
    details,
    get,
    log,
    log_types,
    new_run,
    signal,
    start,
    step,
    told,
)

YIELDED = Event("WorkflowTaskYielded", None, None, 0)


async def test_a_commit_appends_in_order_and_keeps_the_lease(
    store: Store, ann: ManualWorker
) -> None:
    """S2, S4. Events come back as they were written."""
    run_id = await start(store)
    task = await ann.take()
    events = [step("a", result=[1, {"x": 1e300}], at=11), Event("TimerFired", "t", None, 12)]
    answer = await ann.commit(task, *events)
    assert (answer.now, answer.refused, answer.notices) == (await store.now(), {}, [])
    assert (await log(store, run_id))[1:] == events
    assert (await get(store, run_id)).state == "running"
    assert not (await ann.commit(task, step("b"), expected=3)).refused
    assert [event.key for event in await log(store, run_id, 3)] == ["b"]


async def test_an_append_at_a_taken_index_is_told_what_stands_there(
    store: Store, ann: ManualWorker
) -> None:
    """T1, S5, trap 1. The conflict carries the tail, and nothing of the turn is written."""
    run_id = await start(store)
    task = await ann.take()
    await signal(store, run_id, payload="5", signal_id="s-1")
    await signal(store, run_id, name="paid")
    before = await get(store, run_id)
    for then in (None, Suspend(), Finish("completed", output="1")):
        refusal = await ann.refusal(task, step("a"), step("b"), then=then)
        assert refusal.reason == "conflict"
        assert refusal.tail == await log(store, run_id, 1)
    assert [event.type for event in refusal.tail] == ["SignalReceived", "SignalReceived"]
    assert await get(store, run_id) == before
    assert not (await ann.commit(task, step("a"), expected=3)).refused


async def test_a_tail_starts_at_the_expected_index(store: Store, ann: ManualWorker) -> None:
    """T1."""
    run_id = await start(store, input="7")
    task = await ann.take()
    await ann.commit(task, step("a"), step("b"))
    refusal = await ann.refusal(task, step("c"), expected=2)
    assert [event.key for event in refusal.tail] == ["b"]
    refusal = await ann.refusal(task, step("c"), expected=0)
    assert refusal.tail == await log(store, run_id)
    assert refusal.tail[0].details == "7"


async def test_an_append_beyond_the_end_of_the_log_leaves_no_gap(
    store: Store, ann: ManualWorker
) -> None:
    """T1. The append is two-sided: index n only where n-1 stands."""
    run_id = await start(store)
    task = await ann.take()
    for then in (None, Suspend(), Finish("completed", output="1")):
        refusal = await ann.refusal(task, step(), then=then, expected=2)
        assert (refusal.reason, refusal.tail) == ("conflict", [])
    assert await log_types(store, run_id) == ["WorkflowStarted"]


@pytest.mark.parametrize("after_others", [False, True])
@pytest.mark.parametrize("then", [None, Finish("completed", output="1")], ids=["step", "end"])
async def test_a_part_that_follows_another_entry_than_the_log_has_is_refused(
    store: Store, ann: ManualWorker, after_others: bool, then: Finish | None
) -> None:
    """As after a failover that lost entries, of which others wrote as many. Nothing is told."""
    run_id = await start(store)
    task = await ann.take()
    known = SECOND
    await ann.commit(task, msgspec.structs.replace(step("a"), at=known))
    await signal(store, run_id)
    length = len(before := await log(store, run_id))
    part = TurnCommit(run_id, task.lease_no, length, [step("b")], then, after_others=after_others)

    async def commit(expected: int, last_at: int) -> Committed:
        asked = msgspec.structs.replace(part, expected=expected, last_at=last_at)
        return await store.commit("ann", uuid4(), [asked])

    for expected, last_at in ((length, known), (length - 1, known + 1), (length + 1, known)):
        refusal = (await commit(expected, last_at)).refused[run_id]
        assert (refusal.reason, refusal.tail) == ("conflict", [])
    assert await log(store, run_id) == before
    answer = await commit(length - 1, known)
    if after_others:
        assert answer.ahead[run_id].tail == before[-1:]
    else:
        assert answer.refused[run_id].tail == before[-1:]
        assert not (await commit(length, before[-1].at)).refused
    assert [event.key for event in await log(store, run_id, length)][:1] == ["b"]


async def test_two_engines_that_advance_one_run_do_not_corrupt_it(
    store: Store, ann: ManualWorker
) -> None:
    """S5, T1. Of twenty appends at one index one wins, and all others see it."""
    run_id = await start(store)
    task = await ann.take()
    events = [step(f"s{n}") for n in range(20)]
    answers = await asyncio.gather(*(ann.commit(task, event) for event in events))
    [winner] = [n for n, answer in enumerate(answers) if not answer.refused]
    for answer in answers:
        assert all(refusal.tail[0] == events[winner] for refusal in answer.refused.values())
    assert await log(store, run_id, 1) == [events[winner]]


async def test_a_suspend_gives_the_lease_back_until_its_moment(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S8, trap 15. The moment is the one recorded, not one counted from the commit."""
    run_id = await start(store)
    fire_at = await store.now() + 90 * SECOND
    task = await ann.take()
    await clock.advance(30)
    await ann.suspend(task, until=fire_at)
    run = await get(store, run_id)
    assert run.wait is not None
    assert (run.state, run.wait.visible_at, run.wait.worker) == ("waiting", fire_at, None)
    await clock.advance(59)
    claims = await ann.claim()
    assert (claims.tasks, claims.next_due_at) == ([], fire_at)
    await clock.advance(1)
    assert await ann.claims() == [run_id]


async def test_a_suspend_until_a_moment_that_has_passed_is_due_at_once(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    await ann.suspend(await ann.take(), until=await store.now())
    assert await ann.claims() == [run_id]


async def test_a_finish_ends_the_run_with_its_output(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S1, S4. The log's last entry shows the output, which is stored once."""
    run_id = await start(store)
    task = await ann.take()
    await clock.advance(2)
    await ann.finish(task, output='{"z":1,"a":2}')
    run = await get(store, run_id)
    assert (run.status, run.state, run.wait) == ("completed", "completed", None)
    assert (run.output, run.error) == ('{"z":1,"a":2}', None)
    assert (run.started_at, run.completed_at) == (task.started_at, await store.now())
    last = (await log(store, run_id))[-1]
    assert (last.type, last.details) == ("WorkflowCompleted", run.output)


async def test_a_failed_run_keeps_its_error(store: Store, ann: ManualWorker) -> None:
    """S6."""
    run_id = await start(store)
    error = '{"kind":"builtins.ValueError","message":"no"}'
    failed = Event("WorkflowFailed", None, None, 0)
    await ann.commit(await ann.take(), failed, then=Finish("failed", error=error))
    run = await get(store, run_id)
    assert (run.status, run.output, run.error) == ("failed", None, error)
    assert (await log(store, run_id))[-1].details == error


async def test_nothing_follows_the_end(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """S11, trap 16. No claim, no event, no signal, no cancel, no second end."""
    run_id = await start(store, timeout_seconds=60.0)
    task = await ann.take()
    await ann.finish(task)
    ended = await get(store, run_id)
    types = await log_types(store, run_id)
    await clock.advance(3600)
    for expected in (1, 2, 3):
        assert (await ann.refusal(task, step(), expected=expected)).reason == "lost"
    refusal = await ann.refusal(task, step(), then=Finish("completed"), expected=2)
    assert refusal.reason == "lost"
    assert await ann.claims() == []
    assert await ann.release(task) == []
    assert (await signal(store, run_id))[0] == "ended"
    assert (await store.cancel_runs([run_id])).outcomes == ["ended"]
    assert (await store.terminate_runs([run_id])).outcomes == ["ended"]
    assert (await store.time_out_runs())[0] == 0
    assert await log_types(store, run_id) == types
    assert await get(store, run_id) == ended


async def test_one_runs_refusal_is_nothing_to_the_others_of_its_batch(
    store: Store, ann: ManualWorker
) -> None:
    """S5, trap 10. All or nothing per run, not per call."""
    await store.start_runs([new_run() for _ in range(6)])
    tasks = (await ann.claim()).tasks
    await signal(store, tasks[2].run_id)
    thens = [None, Suspend(), Suspend(), Finish("completed", output="1"), None, Suspend()]
    turns = [
        TurnCommit(task.run_id, task.lease_no, task.log_length, [step(), YIELDED], then)
        for task, then in zip(tasks, thens, strict=True)
    ]
    await store.terminate_runs([tasks[4].run_id])
    answer = await store.commit("ann", uuid4(), turns)
    reasons = {run_id: refusal.reason for run_id, refusal in answer.refused.items()}
    assert reasons == {tasks[2].run_id: "conflict", tasks[4].run_id: "lost"}
    states = [(await get(store, task.run_id)).state for task in tasks]
    assert states == ["running", "waiting", "running", "completed", "terminated", "waiting"]
    lengths = [len(await log(store, task.run_id)) for task in tasks]
    assert lengths == [3, 3, 2, 3, 2, 3]


BAD_PARTS = {
    "malformed JSON": ([step("a"), Event("StepCompleted", "b", '{"result":', 0)], None),
    "no JSON number": ([Event("StepCompleted", "b", '{"result":NaN}', 0)], None),
    "NUL in a key": ([Event("StepCompleted", "a\0b", None, 0)], None),
    "half a character": ([Event("StepCompleted", "\ud800", None, 0)], None),
    "output of a failure": ([step("a")], Finish("failed", output="1")),
}


@pytest.mark.parametrize(("events", "then"), BAD_PARTS.values(), ids=BAD_PARTS.keys())
async def test_a_value_that_the_database_refuses_fails_its_own_run_only(
    store: Store, ann: ManualWorker, events: list[Event], then: Finish | None
) -> None:
    """Trap 20. The batch that it was in commits, and its own run may still continue."""
    await store.start_runs([new_run() for _ in range(5)])
    tasks = (await ann.claim()).tasks
    bad = tasks[3]
    turns = [TurnCommit(t.run_id, t.lease_no, 1, [step()], Suspend()) for t in tasks if t != bad]
    turns.insert(3, TurnCommit(bad.run_id, bad.lease_no, 1, events, then))
    answer = await store.commit("ann", uuid4(), turns)
    assert list(answer.refused) == [bad.run_id]
    assert answer.refused[bad.run_id].reason == "invalid"
    assert answer.refused[bad.run_id].message
    assert [len(await log(store, t.run_id)) for t in tasks] == [2, 2, 2, 1, 2]
    await ann.finish(bad)


async def test_a_run_twice_in_one_commit_is_refused(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    task = await ann.take()
    turn = TurnCommit(run_id, task.lease_no, 1, [step()])
    with pytest.raises(ValueError):
        await store.commit("ann", uuid4(), [turn, turn])
    assert await log_types(store, run_id) == ["WorkflowStarted"]


async def test_a_turn_without_an_event_is_refused(store: Store, ann: ManualWorker) -> None:
    """Trap 1. A suspend that appended nothing could overtake a signal."""
    await start(store)
    task = await ann.take()
    with pytest.raises(ValueError):
        await store.commit(
            "ann", uuid4(), [TurnCommit(task.run_id, task.lease_no, 1, [], Suspend())]
        )
    await ann.finish(task)


async def test_a_commit_of_an_unknown_run_is_lost(store: Store) -> None:
    turn = TurnCommit(uuid4(), 1, 1, [step()])
    refusal = (await store.commit("ann", uuid4(), [turn])).refused[turn.run_id]
    assert (refusal.reason, refusal.tail) == ("lost", [])


@pytest.mark.parametrize("then", [None, Suspend(), Finish("completed", output="1")])
async def test_a_repeated_commit_recognises_what_its_first_try_wrote(
    store: Store, ann: ManualWorker, then: Suspend | Finish | None
) -> None:
    """Trap 23. The answer was lost; the repetition is told that all is well."""
    run_id = await start(store)
    task, token = await ann.take(), uuid4()
    last = Event("WorkflowCompleted", None, None, 0) if isinstance(then, Finish) else YIELDED
    for _ in range(3):
        assert not (await ann.commit(task, step(), last, then=then, token=token)).refused
    assert [event.type for event in await log(store, run_id, 1)] == ["StepCompleted", last.type]


async def test_a_repeated_commit_undoes_nothing_that_came_between(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 23. The suspend is not applied again to a run that has gone on since."""
    run_id = await start(store)
    task, token = await ann.take(), uuid4()
    then = Suspend(awaiting=("packed",))
    assert not (await ann.commit(task, YIELDED, then=then, token=token)).refused
    await signal(store, run_id)
    current = await ann.take()
    assert not (await ann.commit(task, YIELDED, then=then, token=token)).refused
    assert (await get(store, run_id)).state == "running"
    await ann.finish(current)


async def test_a_repeated_commit_repeats_only_what_was_refused(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 23. Each run of the batch answers for itself."""
    await store.start_runs([new_run(), new_run()])
    tasks = (await ann.claim()).tasks
    turns = [TurnCommit(t.run_id, t.lease_no, 1, [step()], Suspend()) for t in tasks]
    await signal(store, tasks[1].run_id)
    token = uuid4()
    for _ in range(2):
        answer = await store.commit("ann", token, turns)
        assert list(answer.refused) == [tasks[1].run_id]
    lengths = [len(await log(store, task.run_id)) for task in tasks]
    assert lengths == [2, 2]


async def test_another_calls_token_is_no_excuse(store: Store, ann: ManualWorker) -> None:
    """Trap 23. Equal events of another call are a conflict all the same."""
    await start(store)
    task = await ann.take()
    await ann.commit(task, step())
    assert (await ann.refusal(task, step())).reason == "conflict"


async def test_the_end_tells_who_waits_for_it_once(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, waiter="client/1")
    assert await store.wait_for_end("client/2", [run_id]) == {}
    answer = await ann.finish(await ann.take())
    assert sorted(answer.notices, key=str) == [told("client/1", run_id), told("client/2", run_id)]


async def test_a_cleaned_up_run_ends_cancelled(store: Store, ann: ManualWorker) -> None:
    """S10. WorkflowCancelRequested, then WorkflowCanceled when the code has cleaned up."""
    run_id = await start(store)
    task = await ann.take()
    await store.cancel_runs([run_id])
    ended = Event("WorkflowCanceled", None, None, 0)
    answer = await ann.commit(task, step(), ended, then=Finish("cancelled"), expected=2)
    assert not answer.refused
    assert (await get(store, run_id)).status == "cancelled"
    types = await log_types(store, run_id)
    assert types[1::2] == ["WorkflowCancelRequested", "WorkflowCanceled"]


async def test_values_that_runs_set_can_be_observed(store: Store, ann: ManualWorker) -> None:
    """T3. The newest value of each name."""
    run_id, other = await start(store), await start(store)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}

    def value(name: str, text: str) -> Event:
        return Event("ValueSet", name, f'{{"value": {text}}}', 0)

    await ann.commit(tasks[run_id], value("a", "1"), value("b", '"x"'), value("a", '{"n": 2}'))
    values = await store.get_values([run_id, other, uuid4()])
    found = {name: details(value(name, text))["value"] for name, text in values[run_id].items()}
    assert found == {"a": {"n": 2}, "b": "x"}
    assert not values.get(other)


async def test_a_part_may_stand_behind_what_can_wait(store: Store, ann: ManualWorker) -> None:
    """Trap 7. It is told what stands ahead of it; the next part follows on."""
    run_id = await start(store)
    task = await ann.take()
    await signal(store, run_id, payload="5", signal_id="s-1")
    await signal(store, run_id, name="paid")
    answer = await behind(ann, task, step("a"), step("b"))
    assert not answer.refused
    assert answer.ahead[run_id].tail == (await log(store, run_id))[1:3]
    kinds = ["WorkflowStarted", "SignalReceived", "SignalReceived", "StepCompleted"]
    assert await log_types(store, run_id) == [*kinds, "StepCompleted"]
    assert not (await ann.commit(task, step("c"), expected=5)).refused


@pytest.mark.parametrize("by_transaction", [False, True])
async def test_only_results_of_transactions_stand_ahead_of_a_part(
    store: Store, ann: ManualWorker, by_transaction: bool
) -> None:
    """Any other result of a step may be the part itself, whose commit was not answered."""
    await start(store)
    task = await ann.take()
    there = in_transaction(step("a")) if by_transaction else step("a")
    assert not (await ann.commit(task, there)).refused
    answer = await behind(ann, task, step("a"), step("b"))
    assert [each.reason for each in answer.refused.values()] == ["conflict"] * (not by_transaction)
    assert len(answer.ahead) == by_transaction


async def test_a_part_that_finds_nothing_ahead_of_it_is_written_where_it_belongs(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    answer = await behind(ann, await ann.take(), step("a"), then=Finish("completed", output="1"))
    assert not answer.refused
    assert not answer.ahead
    assert (await get(store, run_id)).state == "completed"


@pytest.mark.parametrize("control", ["cancel", "pause"])
async def test_no_part_stands_behind_what_cannot_wait(
    store: Store, ann: ManualWorker, control: str
) -> None:
    """Trap 16. Who asked for it was told that it holds."""
    run_id = await start(store)
    task = await ann.take()
    await signal(store, run_id)
    await (store.cancel_runs([run_id]) if control == "cancel" else store.pause_runs([run_id]))
    answer = await behind(ann, task, step("a"))
    assert not answer.ahead
    assert answer.refused[run_id].reason == "conflict"
    assert answer.refused[run_id].tail == (await log(store, run_id))[1:]
    assert len(await log(store, run_id)) == 3


async def test_a_part_behind_others_is_fenced_by_its_lease(store: Store, ann: ManualWorker) -> None:
    """Trap 8."""
    run_id = await start(store)
    task = await ann.take()
    await signal(store, run_id)
    before = await log(store, run_id)
    stale = msgspec.structs.replace(task, lease_no=task.lease_no + 1)
    answer = await behind(ann, stale, step("a"))
    assert answer.refused[run_id].reason == "lost"
    assert await log(store, run_id) == before


async def test_a_part_behind_others_is_written_once_however_often_it_is_sent(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 23. The repetition is told what stood ahead of the first try, and nothing more."""
    run_id = await start(store)
    task = await ann.take()
    await signal(store, run_id)
    token = uuid4()
    first = await behind(ann, task, step("a"), step("b"), token=token)
    await signal(store, run_id, name="later")
    again = await behind(ann, task, step("a"), step("b"), token=token)
    assert not again.refused
    assert again.ahead == first.ahead
    assert len(await log(store, run_id)) == 5


async def test_parts_behind_others_share_a_call_with_those_that_are_not(
    store: Store, ann: ManualWorker
) -> None:
    """Each is answered for itself, and each event lands in its place."""
    tasks = []
    for _ in range(4):
        await start(store)
        tasks.append(await ann.take())
    for task in tasks[:3]:
        await signal(store, task.run_id)
    parts = [
        TurnCommit(
            task.run_id, task.lease_no, 1, [step("a"), step("b")], after_others=place % 2 == 0
        )
        for place, task in enumerate(tasks)
    ]
    answer = await store.commit("ann", uuid4(), parts)
    assert set(answer.ahead) == {tasks[0].run_id, tasks[2].run_id}
    assert {run: refusal.reason for run, refusal in answer.refused.items()} == {
        tasks[1].run_id: "conflict"
    }
    assert [len(await log(store, task.run_id)) for task in tasks] == [4, 2, 4, 3]


async def behind(
    worker: ManualWorker,
    task: ClaimedTask,
    *events: Event,
    then: Finish | None = None,
    token: UUID | None = None,
) -> Committed:
    """Commit a part that may stand behind others, from where the task was claimed on."""
    part = TurnCommit(
        task.run_id, task.lease_no, task.log_length, events, then=then, after_others=True
    )
    return await worker.store.commit(worker.worker_id, token or uuid4(), [part])


@pytest.mark.parametrize("odd", ["", "x", "\x1f", "\x1e", "a\x1fb", '{"', "\\", "null"])
async def test_many_parts_keep_each_value_whatever_is_in_it(
    store: Store, ann: ManualWorker, odd: str
) -> None:
    """Long arrays are sent as one text each: no value may be cut or taken for null."""
    written: dict[UUID, Event] = {}
    parts: list[TurnCommit] = []
    for n in range(9):
        run_id = await start(store)
        task = await ann.take()
        text = None if n == 3 else f'{{"name":"a","args":0,"result":["\\u001f\\\\",{n}]}}'
        written[run_id] = Event("ValueSet", None if n == 2 else f"{odd}{n % 2 or ''}", text, n)
        parts.append(TurnCommit(run_id, task.lease_no, 1, [written[run_id]]))
    assert not (await store.commit(ann.worker_id, uuid4(), parts)).refused
    for run_id, event in written.items():
        assert await log(store, run_id, 1) == [event]


@pytest.mark.parametrize("odd", ["", "x", "\x1f", "\x1e", "null"])
@pytest.mark.parametrize("further", [0, 1, 9])
async def test_many_parts_keep_further_events_and_ends_whatever_is_in_them(
    store: Store, ann: ManualWorker, odd: str, further: int
) -> None:
    """Their arrays are sent as texts too, and may have no element, or a single empty one."""
    written: dict[UUID, list[Event]] = {}
    parts: list[TurnCommit] = []
    for n in range(9):
        run_id = await start(store)
        task = await ann.take()
        events = [Event("ValueSet", "k", "{}", n)]
        if n < further:
            events.append(Event("ValueSet", odd or ("" if n == 0 else None), '{"a":"\\u001f"}', n))
        then = None
        if n % 3 == 1:
            then = Finish("completed", "null" if n == 1 else f'["{n}"]')
            events.append(Event("WorkflowCompleted", None, then.output, n))
        elif n % 3 == 2:
            then = Finish("failed", error='{"kind":"k","message":"\\u001e"}')
            events.append(Event("WorkflowFailed", None, then.error, n))
        written[run_id] = events
        parts.append(TurnCommit(run_id, task.lease_no, 1, events, then))
    assert not (await store.commit(ann.worker_id, uuid4(), parts)).refused
    for part in parts:
        assert await log(store, part.run_id, 1) == written[part.run_id]
    runs = await store.get_runs([part.run_id for part in parts])
    ends = [part.then for part in parts if isinstance(part.then, Finish)]
    kept = [run for run in (runs[part.run_id] for part in parts) if run.status != "running"]
    assert [(run.status, run.output) for run in kept] == [(end.status, end.output) for end in ends]
    assert [run.error is None for run in kept] == [end.error is None for end in ends]


async def test_one_part_of_many_that_is_refused_leaves_the_others(
    store: Store, ann: ManualWorker
) -> None:
    """A value that is not JSON is found, also if it was sent among many."""
    parts: list[TurnCommit] = []
    for n in range(9):
        run_id, task = await start(store), await ann.take()
        text = "{bad" if n == 4 else "{}"
        parts.append(TurnCommit(run_id, task.lease_no, 1, [Event("ValueSet", "k", text, n)]))
    refused = (await store.commit(ann.worker_id, uuid4(), parts)).refused
    assert {run_id: refusal.reason for run_id, refusal in refused.items()} == {
        parts[4].run_id: "invalid"
    }
    assert [event.key for event in await log(store, parts[8].run_id, 1)] == ["k"]
