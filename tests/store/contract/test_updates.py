"""Updates: signals that are answered."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

from holdfast.store.port import Store
from holdfast.types import ANY_END, Event, NewSignal, Notice, update_topic

from .actors import ManualWorker, details, log, log_types, signal, start


def update(run_id: UUID, update_id: str = "u-1", **fields: object) -> NewSignal:
    """Return an update `rename`."""
    return NewSignal(run_id, "rename", '{"to":1e300}', update_id, True, "client/1", **fields)


def answer(event_type: str, update_id: str = "u-1", **fields: object) -> Event:
    """Return what a run says of an update."""
    said = json.dumps({"update_name": "rename", **fields})
    return Event(event_type, update_id, said, 0)


async def test_an_update_wakes_the_run_that_handles_it(store: Store, ann: ManualWorker) -> None:
    """S9, B4. It says who is to be answered."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=(update_topic("rename"), ANY_END))
    delivered = await store.signal_runs([update(run_id)])
    assert delivered.outcomes == ["delivered"]
    assert delivered.notices == [Notice("work", "default")]
    event = (await log(store, run_id))[-1]
    assert (event.type, event.key) == ("SignalReceived", "u-1")
    assert details(event) == {
        "signal_name": "rename",
        "input": {"to": 1e300},
        "update": True,
        "reply_to": "client/1",
    }
    assert await ann.claims() == [run_id]


async def test_an_update_is_no_signal_of_its_name(store: Store, ann: ManualWorker) -> None:
    """S9, trap 4. It waits in the log for a handler; and a signal does not wake that one."""
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("rename",))
    assert (await store.signal_runs([update(run_id)])).notices == []
    other = await start(store)
    await ann.suspend(await ann.take(), awaiting=(update_topic("rename"),))
    assert await signal(store, other, "rename") == ("delivered", [])
    assert await ann.claims() == []


async def test_an_update_is_delivered_once(store: Store, ann: ManualWorker) -> None:
    """T5, traps 6 and 23. Also beside a signal of the same id."""
    run_id = await start(store)
    delivered = await store.signal_runs([update(run_id), update(run_id)])
    assert delivered.outcomes == ["delivered", "duplicate"]
    assert (await signal(store, run_id, signal_id="u-1"))[0] == "duplicate"
    assert (await store.signal_runs([update(uuid4())])).outcomes == ["missing"]
    assert len(await log(store, run_id)) == 2


async def test_the_reply_to_an_update_is_found(store: Store, ann: ManualWorker) -> None:
    """T5. Whether it was carried out or refused; also after the run's end."""
    run_id = await start(store)
    await store.signal_runs([update(run_id), update(run_id, "u-2"), update(run_id, "u-3")])
    turn = await ann.take()
    await ann.commit(
        turn,
        answer("UpdateRejected", "u-2", error={"kind": "x.Y", "message": ""}),
        answer("UpdateAccepted", "u-1"),
    )
    assert await store.find_reply(run_id, "u-1") is None
    refused = await store.find_reply(run_id, "u-2")
    assert refused is not None
    assert (refused.type, details(refused)["error"]["kind"]) == ("UpdateRejected", "x.Y")
    await ann.commit(turn, answer("UpdateCompleted", result={"z": 1, "a": 2}), expected=6)
    await ann.finish(turn, expected=7)
    done = await store.find_reply(run_id, "u-1")
    assert done is not None
    assert (done.type, details(done)["result"]) == ("UpdateCompleted", {"z": 1, "a": 2})
    assert await store.find_reply(run_id, "u-3") is None
    assert await store.find_reply(uuid4(), "u-1") is None


async def test_an_update_and_a_signal_are_found_by_their_ids(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    await store.signal_runs([update(run_id)])
    await signal(store, run_id, "packed", signal_id="s-1")
    turn = await ann.take()
    await ann.commit(turn, answer("UpdateAccepted", "u-1"), answer("UpdateCompleted", result=1))
    for signal_id, name in (("u-1", "rename"), ("s-1", "packed")):
        found = await store.find_signal(run_id, signal_id)
        assert found is not None
        assert (found.type, details(found)["signal_name"]) == ("SignalReceived", name)
    assert await store.find_signal(run_id, "s-2") is None
    assert await store.find_signal(uuid4(), "u-1") is None


async def test_an_update_after_the_end_is_not_delivered(store: Store, ann: ManualWorker) -> None:
    """S11."""
    run_id = await start(store)
    await ann.finish(await ann.take())
    assert (await store.signal_runs([update(run_id)])).outcomes == ["ended"]
    assert (await log_types(store, run_id))[-1] == "WorkflowCompleted"
