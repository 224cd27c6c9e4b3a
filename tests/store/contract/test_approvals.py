"""Approvals: asked for by a run, decided once."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import ANY_END, Finish, Notice, Suspend

from .actors import ManualWorker, details, get, log, log_types, start, step
from .commands import FAILURE, approval, command, decision, failed, ordered


async def test_open_approvals_are_listed(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """T4. The oldest first, with all that the form needs; also while the run is leased."""
    fields = [{"name": "n", "type": "number", "required": True, "default": 1e300}]
    run_id = await ordered(store, ann, approval(fields=fields, timeout_at=5))
    await clock.advance(1)
    other = await start(store, queue="slow")
    await ann.command(await ann.take(queues=["slow"]), approval("b"), approval("a"))
    found = await store.list_approvals()
    assert [(a.run_id, a.key) for a in found] == [(run_id, "approve"), (other, "a"), (other, "b")]
    assert (found[0].workflow, found[0].queue) == ("order", "default")
    assert found[0].requested_at == await store.now() - 1_000_000
    assert json.loads(found[0].payload) == {
        "title": "Pay?",
        "description": "",
        "fields": fields,
        "timeout_at": 5,
    }
    assert [a.key for a in await store.list_approvals(run_id=other)] == ["a", "b"]
    assert [a.key for a in await store.list_approvals(limit=1)] == ["approve"]


async def test_an_approval_is_nothing_that_workers_claim(store: Store, ann: ManualWorker) -> None:
    """B7. Nor is it shown as work that nobody serves."""
    await ordered(store, ann, approval())
    claim = await ann.claim(handlers=["", "order@1"])
    assert (claim.tasks, claim.next_due_at) == ([], None)
    await ann.beat()
    assert await store.unserved() == []


async def test_a_decision_is_recorded_and_wakes_the_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """T4. Who, why, and what the form says, as it is."""
    run_id = await ordered(store, ann, approval())
    await clock.advance(5)
    said = decision(run_id, approved=False, by="eve", feedback="no", values='{"b":1e300,"a":2}')
    decided = await store.decide_approval(said)
    assert (decided.outcome, decided.notices) == ("decided", [Notice("work", "default")])
    event = (await log(store, run_id))[-1]
    assert (event.type, event.key, event.at) == ("ApprovalResolved", "approve", await store.now())
    assert details(event) == {
        "approved": False,
        "by": "eve",
        "feedback": "no",
        "decision_id": "d-1",
        "values": {"b": 1e300, "a": 2},
    }
    assert decided.standing is not None
    assert details(decided.standing) == details(event)
    assert await store.list_approvals() == []
    assert await ann.claims() == [run_id]


async def test_the_first_decision_wins(store: Store, ann: ManualWorker) -> None:
    """T4, trap 23. The same decision again is a no-op, another one hears which stands."""
    run_id = await ordered(store, ann, approval())
    assert (await store.decide_approval(decision(run_id, by="ann"))).outcome == "decided"
    again = await store.decide_approval(decision(run_id, approved=False))
    other = await store.decide_approval(decision(run_id, "d-2", approved=False))
    assert (again.outcome, again.notices) == ("duplicate", [])
    assert (other.outcome, other.notices) == ("conflict", [])
    for answer in (again, other):
        assert answer.standing is not None
        assert details(answer.standing)["by"] == "ann"
    assert len(await log(store, run_id)) == 3


async def test_decisions_at_once_give_one(store: Store, ann: ManualWorker) -> None:
    """T4, traps 7 and 14. Ten people at once: one entry in the log."""
    run_id = await ordered(store, ann, approval())
    answers = await asyncio.gather(
        *(store.decide_approval(decision(run_id, f"d-{n}")) for n in range(10))
    )
    assert sorted(answer.outcome for answer in answers) == ["conflict"] * 9 + ["decided"]
    types = await log_types(store, run_id)
    assert types == ["WorkflowStarted", "ApprovalRequested", "ApprovalResolved"]


async def test_a_decision_before_the_suspend_refuses_it(store: Store, ann: ManualWorker) -> None:
    """Trap 1."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, approval())
    decided = await store.decide_approval(decision(run_id))
    assert decided.notices == [Notice("worker/ann", str(run_id))]
    refusal = await ann.refusal(turn, step(), then=Suspend(awaiting=(ANY_END,)), expected=2)
    assert [event.type for event in refusal.tail] == ["ApprovalResolved"]


async def test_an_approval_that_is_withdrawn_is_closed(store: Store, ann: ManualWorker) -> None:
    """T4, trap 5. It timed out: a late decision is told so, and changes nothing."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, approval())
    await ann.command(turn, command("ApprovalWithdrawn", "approve"), expected=2)
    assert await store.list_approvals() == []
    late = await store.decide_approval(decision(run_id))
    assert (late.outcome, late.standing, late.notices) == ("closed", None, [])
    assert (await log_types(store, run_id))[-1] == "ApprovalWithdrawn"


async def test_after_the_end_of_the_run_decisions_are_told_what_stands(
    store: Store, ann: ManualWorker
) -> None:
    """T4, S11."""
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, approval(), approval("second"))
    await store.decide_approval(decision(run_id))
    await ann.commit(turn, failed(), then=Finish("failed", error=FAILURE), expected=4)
    assert await store.list_approvals() == []
    assert (await store.decide_approval(decision(run_id))).outcome == "duplicate"
    assert (await store.decide_approval(decision(run_id, "d-2"))).outcome == "conflict"
    closed = await store.decide_approval(decision(run_id, key="second"))
    assert (closed.outcome, closed.standing) == ("closed", None)


async def test_what_was_never_asked_for_is_missing(store: Store, ann: ManualWorker) -> None:
    """T4. Neither an unknown run, nor an unknown key, nor a turn is an approval."""
    run_id = await ordered(store, ann, approval())
    for asked in (decision(uuid4()), decision(run_id, key="other"), decision(run_id, key="")):
        answer = await store.decide_approval(asked)
        assert (answer.outcome, answer.standing, answer.notices) == ("missing", None, [])
    assert (await get(store, run_id)).state == "waiting"


async def test_values_that_the_database_refuses_decide_nothing(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 20."""
    run_id = await ordered(store, ann, approval())
    for bad in (decision(run_id, values='{"a":'), decision(run_id, "a\0b")):
        with pytest.raises(PayloadError):
            await store.decide_approval(bad)
    assert len(await store.list_approvals()) == 1
