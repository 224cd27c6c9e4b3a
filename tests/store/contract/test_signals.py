"""Signals: appended to the log, once, and heard."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from clocks import Clock, recent_events

from holdfast.errors import InvalidInput, PayloadError
from holdfast.store.port import Store
from holdfast.types import NewSignal, Notice, Suspend

from .actors import ManualWorker, details, get, log, log_types, signal, start, step


async def test_a_signal_wakes_the_run_that_awaits_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S9, B4. Its payload stands in the log, which the worker reads."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("paid", "packed"))
    await clock.advance(5)
    outcome, notices = await signal(store, run_id, payload='{"b":1,"a":2}')
    assert (outcome, notices) == ("delivered", [Notice("work", "default")])
    received = (await log(store, run_id))[-1]
    assert (received.type, received.key) == ("SignalReceived", None)
    assert received.at == await store.now()
    assert details(received) == {"signal_name": "packed", "input": {"b": 1, "a": 2}}
    assert (await get(store, run_id)).state == "queued"
    assert (await ann.take()).log_length == 3


async def test_a_signal_that_nobody_awaits_waits_in_the_log(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S9, trap 4. It neither wakes the run nor gets lost."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("paid",))
    assert await signal(store, run_id) == ("delivered", [])
    assert await ann.claims() == []
    assert (await log_types(store, run_id))[-1] == "SignalReceived"


async def test_a_signal_before_the_suspend_refuses_it(store: Store, ann: ManualWorker) -> None:
    """Trap 1. The suspend is an append, too: the worker continues with the signal."""
    run_id = await start(store)
    task = await ann.take()
    outcome, notices = await signal(store, run_id)
    assert (outcome, notices) == ("delivered", [Notice("worker/ann", str(run_id))])
    refusal = await ann.refusal(task, step(), then=Suspend(awaiting=("packed",)))
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["SignalReceived"]
    await ann.finish(task, expected=2)


async def test_a_wake_up_is_never_lost(store: Store, ann: ManualWorker) -> None:
    """Trap 1. A signal raced with a suspend is seen by the worker or wakes the run."""
    for _ in range(30):
        run_id = await start(store)
        task = await ann.take()
        turn = ann.commit(task, step(), then=Suspend(awaiting=("packed",)))
        answer, _ = await asyncio.gather(turn, signal(store, run_id))
        if answer.refused:
            assert (await get(store, run_id)).state == "running"
            await ann.finish(task, expected=2)
        else:
            await ann.finish(await ann.take())


async def test_signals_keep_their_order(store: Store, ann: ManualWorker) -> None:
    """S9. First in, first out."""
    run_id = await start(store)
    sent = [NewSignal(run_id, "packed", str(n)) for n in range(10)]
    await store.signal_runs(sent[:4])
    await store.signal_runs(sent[4:])
    events = await log(store, run_id, 1)
    assert [details(event)["input"] for event in events] == list(range(10))


async def test_parallel_signals_leave_no_gap_and_no_duplicate(store: Store) -> None:
    """Trap 14. Fifty at once: fifty entries, each at an index of its own."""
    run_id = await start(store)
    answers = await asyncio.gather(*(signal(store, run_id, payload=str(n)) for n in range(50)))
    assert {outcome for outcome, _ in answers} == {"delivered"}
    events = await log(store, run_id, 1)
    assert sorted(details(event)["input"] for event in events) == list(range(50))
    logged = [entry for entry in await recent_events(store, since=0) if entry.run_id == run_id]
    assert sorted(entry.idx for entry in logged) == list(range(51))


async def test_a_signal_id_is_delivered_once(store: Store, ann: ManualWorker) -> None:
    """T5, trap 6. However often it is sent, in one call, in many, at once, or after the end."""
    run_id, other = await start(store), await start(store)
    one = NewSignal(run_id, "packed", "1", "s-1")
    assert (await store.signal_runs([one, one])).outcomes == ["delivered", "duplicate"]
    again = await asyncio.gather(*(signal(store, run_id, signal_id="s-2") for _ in range(10)))
    assert sorted(outcome for outcome, _ in again) == ["delivered"] + ["duplicate"] * 9
    assert (await signal(store, other, signal_id="s-1"))[0] == "delivered"
    assert [event.key for event in await log(store, run_id, 1)] == ["s-1", "s-2"]
    for task in (await ann.claim()).tasks:
        await ann.finish(task)
    assert await signal(store, run_id, signal_id="s-1") == ("duplicate", [])
    assert await signal(store, run_id, signal_id="s-3") == ("ended", [])


async def test_signals_without_an_id_are_all_kept(store: Store) -> None:
    """T5."""
    run_id = await start(store)
    outcomes = [(await signal(store, run_id, payload="1"))[0] for _ in range(3)]
    assert outcomes == ["delivered"] * 3
    assert len(await log(store, run_id)) == 4


async def test_outcomes_keep_the_order_of_the_signals(store: Store, ann: ManualWorker) -> None:
    """S11. Each signal of a batch has its own outcome."""
    ended = await start(store)
    await ann.finish(await ann.take())
    running, missing = await start(store), uuid4()
    delivered = await store.signal_runs(
        [
            NewSignal(missing, "packed"),
            NewSignal(running, "packed", signal_id="s-1"),
            NewSignal(ended, "packed"),
            NewSignal(running, "packed", signal_id="s-1"),
        ]
    )
    assert delivered.outcomes == ["missing", "delivered", "ended", "duplicate"]
    assert await log_types(store, running) == ["WorkflowStarted", "SignalReceived"]


async def test_a_signal_does_not_start_a_delayed_run_early(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, delay_seconds=60.0)
    assert await signal(store, run_id) == ("delivered", [])
    assert await ann.claims() == []


@pytest.mark.parametrize("name", ["", 'with "quotes"', "back\\slash", "ünï", "n" * 129])
async def test_a_signals_name_is_one_that_programs_can_wait_for(store: Store, name: str) -> None:
    run_id = await start(store)
    with pytest.raises(InvalidInput):
        await signal(store, run_id, name)
    assert await log_types(store, run_id) == ["WorkflowStarted"]


async def test_a_payload_that_the_database_refuses_is_not_delivered(store: Store) -> None:
    """Trap 20."""
    run_id = await start(store)
    for bad in (NewSignal(run_id, "packed", '{"a":'), NewSignal(run_id, "packed", "1", "a\0b")):
        with pytest.raises(PayloadError):
            await store.signal_runs([bad])
    assert await log_types(store, run_id) == ["WorkflowStarted"]


async def test_a_delivered_payload_outlives_its_reader(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 6. The worker dies after the delivery and before it has seen the signal."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    await signal(store, run_id, payload="5", signal_id="s-1")
    await ann.take(lease_seconds=10)
    await clock.advance(10)
    await bob.take()
    types = await log_types(store, run_id)
    assert types[-2:] == ["SignalReceived", "WorkerLost"]
    assert details((await log(store, run_id))[2])["input"] == 5
    assert (await signal(store, run_id, signal_id="s-1"))[0] == "duplicate"
