"""Giving back what a held worker has: what is recorded in every order of what was in flight."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client, Outgoing
from holdfast.store.memory import MemoryStore
from holdfast.types import Event, MessageReturn, NewRun, NewSignal, Release, TurnCommit
from holdfast.worker.giving_back import GivenUp, MessageEnds, give_back, give_back_messages

WORKER = "held"
FIRST = Event("StepCompleted", "first", '{"step":"first","result":1}', 1)
SECOND = Event("StepCompleted", "second", '{"step":"second","result":2}', 2)


@pytest.mark.parametrize("in_flight", [[], [FIRST], [FIRST, SECOND]], ids=["none", "one", "all"])
@pytest.mark.parametrize("signalled", [False, True])
async def test_each_result_is_recorded_once(in_flight: Sequence[Event], signalled: bool) -> None:
    """What was in flight may have landed, and others may have written meanwhile."""
    store = MemoryStore()
    await store.start_runs([NewRun(run_id=(run_id := uuid4()), name="app/held")])
    claims = await store.claim_tasks(
        WORKER, ["default"], ["app/held@1"], 1, lease_seconds=30, ahead_seconds=0, sticky_seconds=0
    )
    lease_no = claims.tasks[0].lease_no
    if in_flight:
        sent = TurnCommit(run_id, lease_no, 1, in_flight)
        assert not (await store.commit(WORKER, uuid4(), [sent])).refused
    if signalled:
        await store.signal_runs([NewSignal(run_id, "go", "null")])
    results = TurnCommit(run_id, lease_no, 1, [FIRST, SECOND], after_others=True)

    await give_back(store, WORKER, [GivenUp(Release(run_id, "", lease_no), results)])

    steps = [event.key for event in await _log(store, run_id) if event.type == "StepCompleted"]
    assert steps == ["first", "second"]
    assert (await store.get_runs([run_id]))[run_id].state == "queued"


async def test_results_of_a_lease_that_is_lost_are_left_to_its_holder() -> None:
    store = MemoryStore()
    await store.start_runs([NewRun(run_id=(run_id := uuid4()), name="app/held")])
    results = TurnCommit(run_id, 1, 1, [FIRST], after_others=True)
    await give_back(store, WORKER, [GivenUp(Release(run_id, "", 1), results)])
    assert [event.type for event in await _log(store, run_id)] == ["WorkflowStarted"]


async def _log(store: MemoryStore, run_id: UUID) -> list[Event]:
    return (await store.read_events([(run_id, 0)]))[run_id]


async def test_messages_that_have_ended_are_acknowledged_and_the_others_given_back() -> None:
    """Neither counts: each has one receive alone."""
    store = MemoryStore()
    async with Client(store=store) as client:
        await client.queues.create("post", max_receives=1)
        await client.queues.send_many("post", [Outgoing(number) for number in range(3)])
        first, second, third = await client.queues.receive("post", 3)
        receipts = [each.receipt for each in (first, second, third)]
        returns = [MessageReturn(each, counted=False) for each in receipts[1:]]
        await give_back_messages(store, MessageEnds(receipts[:1], returns))
        left = await client.queues.receive("post", 10)
        assert [each.payload for each in left] == [1, 2]
