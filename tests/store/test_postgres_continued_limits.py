"""Runs that continue as new under a limit, while others claim: the place is never free."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from contract.actors import ManualWorker, start
from scene import Scene

from holdfast.database.connection import LOST
from holdfast.types import ClaimedTask, Event, Finish, LimitRule, TurnCommit

BUY = ("shop/buy@1",)
ONE_RUN = LimitRule(scope="workflow", name="shop/buy", kind="concurrency", most=1)


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url) as scene:
        await scene.store.set_limit(ONE_RUN)
        yield scene


@pytest.fixture
async def task(scene: Scene) -> ClaimedTask:
    """A run that ann has, and that has the place; another run waits for it."""
    await start(scene.store, name="shop/buy")
    task = await ManualWorker(scene.store, "ann").first(handlers=BUY)
    await start(scene.store, name="shop/buy")
    return task


def continued(task: ClaimedTask) -> tuple[UUID, TurnCommit]:
    """Return the id of the next run, and the part of a commit that continues as it."""
    new = uuid4()
    said = {"run_id": str(new), "input": None, "version": 1, "signals": []}
    event = Event("WorkflowContinuedAsNew", "", json.dumps(said), 0)
    then = Finish("continued", output=json.dumps({"run_id": str(new)}))
    part = TurnCommit(task.run_id, task.lease_no, task.log_length, [event], then, has_commands=True)
    return new, part


async def assert_only(scene: Scene, bob: ManualWorker, run_id: UUID) -> None:
    """Check that the next run begins, and nothing beside it."""
    assert await bob.claims(handlers=BUY) == [run_id]
    assert await bob.claims(handlers=BUY) == []
    assert [info.held for info in await scene.store.list_limits()] == [1]


async def test_a_claim_before_the_commit_of_a_continue_takes_nothing(
    scene: Scene, bob: ManualWorker, task: ClaimedTask
) -> None:
    """A9. The commit is written, and not yet to be seen."""
    session, (new, part) = await scene.session(), continued(task)
    async with session.transaction():
        await session.commit("ann", part)
        assert await bob.claims(handlers=BUY) == []
    await assert_only(scene, bob, new)


async def test_a_continue_between_two_looks_of_a_claim_frees_no_place(
    scene: Scene, bob: ManualWorker, task: ClaimedTask
) -> None:
    """A9. The claim has the limit locked, has counted the former run, and looks again."""
    session, (new, part) = await scene.session(), continued(task)
    arguments = ("cy", ["default"], list(BUY), 10, 30.0)
    async with session.transaction():
        before = await session.call("claim_tasks", *arguments)
        assert [row["run_id"] for row in before if row["run_id"] is not None] == []
        assert (await scene.store.commit("ann", uuid4(), [part])).refused == {}
        after = await session.call("claim_tasks", *arguments)
        assert [row["run_id"] for row in after if row["run_id"] is not None] == [new]
        assert await bob.claims(handlers=BUY) == []
    assert await bob.claims(handlers=BUY) == []


async def test_a_continue_that_waits_for_a_row_frees_no_place(
    scene: Scene, bob: ManualWorker, task: ClaimedTask
) -> None:
    """A9. Something else has the row of the run; others claim meanwhile."""
    session, (new, part) = await scene.session(), continued(task)
    lock = "select from holdfast.tasks where run_id = $1 for update"
    async with session.transaction():
        await session.connection.execute(lock, task.run_id)
        refused = (await scene.store.commit("ann", uuid4(), [part])).refused
        assert refused[task.run_id].reason == "busy"
        assert await bob.claims(handlers=BUY) == []
    assert (await scene.store.commit("ann", uuid4(), [part])).refused == {}
    await assert_only(scene, bob, new)


async def test_a_worker_that_is_killed_in_a_continue_keeps_the_place(
    scene: Scene, bob: ManualWorker, task: ClaimedTask
) -> None:
    """A9. Its connection is gone before the commit, or after it and before the next claim."""
    session, (_, part) = await scene.session(), continued(task)
    await session.transaction().start()
    await session.commit("ann", part)
    process = await session.connection.fetchval("select pg_backend_pid()")
    await scene.value("select pg_terminate_backend($1, 60000)", process)
    with pytest.raises(LOST):  # what the driver says may be of its own states
        await session.connection.fetchval("select 1")
    assert await bob.claims(handlers=BUY) == []
    late = "visible_at = holdfast.now() - interval '1 s'"
    await scene.value(f"update holdfast.tasks set {late} where worker = 'ann'")
    cy, dan = ManualWorker(scene.store, "cy"), ManualWorker(scene.store, "dan")
    again = await cy.take(handlers=BUY)
    assert again.run_id == task.run_id
    new, part = continued(again)
    assert (await scene.store.commit("cy", uuid4(), [part])).refused == {}
    await assert_only(scene, dan, new)  # cy is gone, too: anybody begins the next run
