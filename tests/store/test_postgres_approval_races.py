"""Decisions that meet the end of what they decide: each held open while the other is at a lock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from contract.actors import ManualWorker, get, log_types, start
from contract.commands import approval, command, decision, ordered
from scene import Scene, finished

from holdfast.types import ANY_END, Suspend

DECIDE = ("approve", "d-1", True, "eve", None, None)
STOPS = ("terminate_runs", "time_out_runs")
ENDED = {"terminate_runs": "terminated", "time_out_runs": "timed_out"}


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        yield scene


async def hold(scene: Scene, function: str, *arguments: object) -> Any:
    """Call a function and leave its transaction open; return the transaction."""
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.call(function, *arguments)
    return transaction


async def overdue(scene: Scene, run_id: UUID) -> None:
    """Let the time of a run be over."""
    await scene.value(
        "update holdfast.runs set deadline_at = holdfast.now() - interval '1 s' where run_id = $1",
        run_id,
    )


async def stop(scene: Scene, function: str, run_id: UUID) -> None:
    """Terminate the run, or let all runs whose time is over time out."""
    if function == "terminate_runs":
        await scene.store.terminate_runs([run_id])
    else:
        await scene.store.time_out_runs()


async def left_over(scene: Scene, run_id: UUID) -> int:
    """Count what a run that is gone may have left behind."""
    return await scene.value(
        "select (select count(*) from holdfast.tasks where run_id = $1)"
        " + (select count(*) from holdfast.events where run_id = $1)",
        run_id,
    )


async def test_a_withdrawal_behind_a_decision_that_is_not_committed_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """The approval's time is over in the moment in which a person decides: one of both counts."""
    run_id = await start(scene.store)
    task = await ann.take()
    await ann.command(task, approval())
    deciding = await hold(scene, "decide_approval", run_id, *DECIDE)
    withdrawal = command("ApprovalWithdrawn", "approve")
    yielding = Suspend(awaiting=(ANY_END,))
    assert (await ann.refusal(task, withdrawal, then=yielding, expected=2)).reason == "busy"
    await deciding.commit()
    refusal = await ann.refusal(task, withdrawal, then=yielding, expected=2)
    assert refusal.reason == "conflict"
    assert [event.type for event in refusal.tail] == ["ApprovalResolved"]
    types = await log_types(scene.store, run_id)
    assert types == ["WorkflowStarted", "ApprovalRequested", "ApprovalResolved"]


@pytest.mark.parametrize("function", STOPS)
async def test_a_decision_behind_the_end_of_its_run_finds_it_closed(
    scene: Scene, ann: ManualWorker, function: str
) -> None:
    """The end stands last in the log, and nothing of the approval is left."""
    run_id = await ordered(scene.store, ann, approval())
    await overdue(scene, run_id)
    ending = await hold(scene, function, [run_id] if function == "terminate_runs" else 10)
    late = await scene.while_blocked(scene.store.decide_approval(decision(run_id)), ending.commit)
    assert (late.outcome, late.standing, late.notices) == ("closed", None, [])
    assert "ApprovalResolved" not in await log_types(scene.store, run_id)
    assert (await get(scene.store, run_id)).status == ENDED[function]
    assert await scene.store.list_approvals() == []
    assert await scene.value("select count(*) from holdfast.tasks") == 0


@pytest.mark.parametrize("function", STOPS)
async def test_an_end_behind_a_decision_comes_after_it_in_the_log(
    scene: Scene, ann: ManualWorker, function: str
) -> None:
    """A person was told that the decision counts, so it stands in the log; then the run ends."""
    run_id = await ordered(scene.store, ann, approval())
    await overdue(scene, run_id)
    deciding = await hold(scene, "decide_approval", run_id, *DECIDE)
    if function == "time_out_runs":  # it passes over the run
        await stop(scene, function, run_id)
        assert (await get(scene.store, run_id)).status == "running"
        await deciding.commit()
        await stop(scene, function, run_id)
    else:
        await scene.while_blocked(stop(scene, function, run_id), deciding.commit)
    types = await log_types(scene.store, run_id)
    assert types[2] == "ApprovalResolved"
    assert len(types) == 4
    assert (await get(scene.store, run_id)).status == ENDED[function]
    assert await scene.value("select count(*) from holdfast.tasks") == 0


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_decision_and_a_cancel_at_once_are_both_in_the_log(
    scene: Scene, ann: ManualWorker, cancel_first: bool
) -> None:
    """The run hears of both, in the order in which they were committed, and is woken once."""
    run_id = await ordered(scene.store, ann, approval())
    if cancel_first:
        cancelling = await hold(scene, "cancel_runs", [run_id])
        decided = await scene.while_blocked(
            scene.store.decide_approval(decision(run_id)), cancelling.commit
        )
        assert decided.outcome == "decided"
    else:
        deciding = await hold(scene, "decide_approval", run_id, *DECIDE)
        await scene.while_blocked(scene.store.cancel_runs([run_id]), deciding.commit)
    types = await log_types(scene.store, run_id)
    both = ["WorkflowCancelRequested", "ApprovalResolved"]
    assert types[2:] == (both if cancel_first else both[::-1])
    assert await ann.claims() == [run_id]
    assert await scene.value("select count(*) from holdfast.tasks") == 1


async def test_a_decision_behind_the_last_commit_of_its_run_finds_it_closed_then_missing(
    scene: Scene, ann: ManualWorker
) -> None:
    """The run ends without its approval, and retention deletes it: nothing comes back."""
    run_id = await start(scene.store, retention_seconds=0)
    task = await ann.take()
    await ann.command(task, approval())
    session = await scene.session()
    ending = session.transaction()
    await ending.start()
    await session.commit("ann", finished(task, expected=2))
    late = await scene.while_blocked(scene.store.decide_approval(decision(run_id)), ending.commit)
    assert (late.outcome, late.standing) == ("closed", None)
    sweeping = await hold(scene, "sweep_runs")
    meanwhile = await scene.store.decide_approval(decision(run_id))
    assert (meanwhile.outcome, meanwhile.standing) == ("closed", None)
    await sweeping.commit()
    assert (await scene.store.decide_approval(decision(run_id))).outcome == "missing"
    assert await left_over(scene, run_id) == 0


async def test_a_run_is_deleted_whole_if_a_decision_waited_for_its_end(
    scene: Scene, ann: ManualWorker
) -> None:
    """The decision stands at the turn's lock when the run is terminated and deleted at once."""
    run_id = await ordered(scene.store, ann, approval())
    await scene.value("update holdfast.runs set retention = '0' where run_id = $1", run_id)
    session = await scene.session()
    ending = session.transaction()
    await ending.start()
    await session.call("terminate_runs", [run_id])
    await session.call("sweep_runs")
    late = await scene.while_blocked(scene.store.decide_approval(decision(run_id)), ending.commit)
    assert (late.outcome, late.standing) == ("missing", None)
    assert await left_over(scene, run_id) == 0


async def test_a_decision_whose_session_is_killed_can_be_made_again(
    scene: Scene, ann: ManualWorker
) -> None:
    """It was written, but not committed. The next one waits for it, and is the first."""
    run_id = await ordered(scene.store, ann, approval())
    session = await scene.session()
    await session.transaction().start()
    await session.call("decide_approval", run_id, *DECIDE)
    pid = session.connection.get_server_pid()
    decided = await scene.while_blocked(
        scene.store.decide_approval(decision(run_id)),
        lambda: scene.value("select pg_terminate_backend($1)", pid),
    )
    assert decided.outcome == "decided"
    types = await log_types(scene.store, run_id)
    assert types == ["WorkflowStarted", "ApprovalRequested", "ApprovalResolved"]
    assert await ann.claims() == [run_id]
