"""Children that end, or signal, while a retry of their parent takes them over."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import ThoroughStore
from contract.actors import ManualWorker, log, log_types, start
from contract.commands import child, command
from contract.test_left_children import TAKEN, fail, let_go, retry, to_parent
from contract.test_run_retries import fail as fail_again
from msgspec import structs
from scene import Scene, finished, turn, yielded

from holdfast.types import ANY_END, ClaimedTask, Finish, Fork, TurnCommit

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


def ended(task: ClaimedTask) -> TurnCommit:
    """Return a part that completes a child."""
    assert task.parent_run_id is not None
    return structs.replace(finished(task), touches=(task.parent_run_id,))


def signals(task: ClaimedTask, key: str) -> TurnCommit:
    """Return a part by which a child signals its parent."""
    assert task.parent_run_id is not None
    part = turn(task, to_parent(key, task.parent_run_id))
    return structs.replace(part, has_commands=True, touches=(task.parent_run_id,))


def continued(task: ClaimedTask) -> TurnCommit:
    """Return a part by which a child continues as new."""
    assert task.parent_run_id is not None
    new_id = str(uuid4())
    said: dict[str, Any] = {"run_id": new_id, "input": None, "version": 1, "signals": []}
    order = command("WorkflowContinuedAsNew", "", **said)
    then = Finish("continued", output=json.dumps({"run_id": new_id}))
    part = turn(task, order, then=then)
    return structs.replace(part, has_commands=True, touches=(task.parent_run_id,))


async def deadlocks(scene: Scene) -> int:
    """Count the deadlocks that the server had to break in this database."""
    await scene.value("select pg_stat_clear_snapshot()")
    found: int = await scene.value(DEADLOCKS)
    return found


async def test_a_retry_waits_for_a_child_that_ends(scene: Scene, ann: ManualWorker) -> None:
    run_id, task = await let_go(scene.store, ann)
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.commit("ann", ended(task))
    new_id = await scene.while_blocked(retry(scene.store, run_id), transaction.commit)
    assert await log_types(scene.store, new_id) == [*TAKEN, "ChildCompleted"]


async def test_a_retry_waits_for_a_child_that_signals(scene: Scene, ann: ManualWorker) -> None:
    """The signal goes to a run that has ended: the retry sends it again."""
    run_id, task = await let_go(scene.store, ann)
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.commit("ann", signals(task, "a"))
    new_id = await scene.while_blocked(retry(scene.store, run_id), transaction.commit)
    assert await log_types(scene.store, new_id) == [*TAKEN, "SignalReceived"]


async def test_a_retry_waits_for_a_child_that_continued_meanwhile(
    scene: Scene, ann: ManualWorker
) -> None:
    """The turn of its next run is locked as well: a signal of that is heard, too."""
    run_id, children = await start(scene.store), [UUID(int=1), UUID(int=(1 << 128) - 1)]
    parent = await ann.take()
    orders = [
        child(each, f"child#{number}", queue="slow", parent_close="abandon")
        for number, each in enumerate(children, 2)
    ]
    await ann.command(parent, *orders)
    first, second = (await ann.claim(queues=["slow"])).tasks
    await fail(ann, parent, expected=3)
    held, continuing = await scene.session(), await scene.session()
    transactions = [held.transaction(), continuing.transaction()]
    for transaction in transactions:
        await transaction.start()
    await held.commit("ann", ended(max(first, second, key=lambda task: task.run_id)))
    part = continued(min(first, second, key=lambda task: task.run_id))
    await continuing.commit("ann", part)
    retrying = asyncio.create_task(retry(scene.store, run_id))
    await scene.until_blocked()
    await transactions[1].commit()
    signalling = continuing.transaction()
    await signalling.start()
    await continuing.commit("ann", signals(await ann.take(queues=["slow"]), "a"))
    waiters = "select count(*) from pg_stat_activity where {} = any (pg_blocking_pids(pid))"
    await transactions[0].commit()
    await scene.until(waiters.format(continuing.connection.get_server_pid()), bool)
    await signalling.commit()
    events = await log_types(scene.store, await retrying)
    assert (events.count("SignalReceived"), events.count("ChildCompleted")) == (1, 1)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_child_that_is_tagged_is_not_started_again(
    scene: Scene, ann: ManualWorker, has_ended: bool
) -> None:
    """Fault: the retry did not find it in the place to which the change of its row had moved it."""
    run_id, task = await let_go(scene.store, ann)
    if has_ended:
        await ann.finish(task)
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.call("set_tags", task.run_id, '["late"]')
    new_id = await scene.while_blocked(retry(scene.store, run_id), transaction.commit)
    assert await log_types(scene.store, new_id) == [*TAKEN, *["ChildCompleted"] * has_ended]


async def test_a_child_that_is_tagged_is_not_started_again_by_the_next_attempt(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id, child_id = await start(scene.store), uuid4()
    parent = await ann.take()
    await ann.command(parent, child(child_id, queue="slow", parent_close="abandon"))
    tagging, failing = await scene.session(), await scene.session()
    transaction = tagging.transaction()
    await transaction.start()
    await tagging.call("set_tags", child_id, '["late"]')
    new_id = uuid4()
    said: dict[str, Any] = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    attempt = {"number": 1, "attempts": 5, "delay": 60.0, "run_id": str(run_id)}
    more = {"attempt": attempt, "error": {"kind": "builtins.OSError", "message": "away"}}
    order = command("WorkflowContinuedAsNew", "", **said, **more)
    part = turn(
        parent,
        order,
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        expected=2,
    )
    part = structs.replace(part, has_commands=True, has_children=True)
    await scene.while_blocked(failing.commit("ann", part), transaction.commit)
    assert await log_types(scene.store, new_id) == TAKEN


async def test_a_child_that_ends_waits_for_the_retry(scene: Scene, ann: ManualWorker) -> None:
    """It had looked for its parent before: the retry is told, and woken."""
    run_id, task = await let_go(scene.store, ann)
    session, new_id = await scene.session(), uuid4()
    transaction = session.transaction()
    await transaction.start()
    await session.call("fork_run", run_id, new_id, None, True, None, None, None)
    answer = await scene.store.commit("ann", uuid4(), [signals(task, "a")])
    assert [refusal.reason for refusal in answer.refused.values()] == ["busy"]
    ends = scene.store.terminate_runs([task.run_id])
    await scene.while_blocked(ends, transaction.commit)
    assert await log_types(scene.store, new_id) == [*TAKEN, "ChildFailed"]
    assert await log_types(scene.store, run_id) == [*TAKEN[:-1], "WorkflowFailed"]


async def test_a_suspend_of_the_retry_meets_the_end_of_the_child(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The suspend is written but not committed when the child ends: the retry is woken."""
    run_id, task = await let_go(scene.store, ann)
    new_id = await retry(scene.store, run_id)
    taken = await ann.take()
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.commit("ann", yielded(taken, ANY_END))
    ends = scene.store.terminate_runs([task.run_id])
    await scene.while_blocked(ends, transaction.commit)
    assert (await log_types(scene.store, new_id))[-1] == "ChildFailed"
    assert await bob.claims(sticky_seconds=0.0) == [new_id]
    assert await deadlocks(scene) == 0


@pytest.mark.parametrize("low", ["child", "parent"])
async def test_an_attempt_that_fails_meets_the_end_of_its_child(
    scene: Scene, ann: ManualWorker, low: str
) -> None:
    """By the policy of its workflow: the next one has the child in any case."""
    ids = [UUID(int=1), UUID(int=(1 << 128) - 1)]
    child_id, run_id = ids if low == "child" else ids[::-1]
    await start(scene.store, run_id=run_id)
    parent = await ann.take()
    await ann.command(parent, child(child_id, queue="slow", parent_close="abandon"))
    task = await ann.take(queues=["slow"])
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.commit("ann", ended(task))
    with pytest.raises(AssertionError):  # busy
        await fail_again(ann, parent, expected=2)
    await transaction.rollback()
    new_id = await fail_again(ann, parent, expected=2, again={"calls": [], "seen": 2, "after": []})
    assert await log_types(scene.store, new_id) == TAKEN
    assert (await scene.store.commit("ann", uuid4(), [ended(task)])).refused == {}
    assert (await log_types(scene.store, new_id))[-1] == "ChildCompleted"
    assert await deadlocks(scene) == 0


async def test_children_that_end_at_any_moment_are_told_of_once(
    scene: Scene, ann: ManualWorker
) -> None:
    for seed in range(8):
        dice = random.Random(seed)
        run_id, children = await start(scene.store), [uuid4() for _ in range(12)]
        parent = await ann.take()
        orders = [
            child(each, f"child#{number}", queue="slow", parent_close="abandon")
            for number, each in enumerate(children, 2)
        ]
        await ann.command(parent, *orders)
        tasks = (await ann.claim(queues=["slow"])).tasks
        await fail(ann, parent, expected=13)

        async def end(task: ClaimedTask, delay: float) -> None:
            await asyncio.sleep(delay)
            part = ended(task)
            while (await scene.store.commit("ann", uuid4(), [part])).refused:
                pass

        async def take_over(last: UUID) -> UUID:
            for _ in range(4):
                made = Fork(run_id=last, new_run_id=uuid4(), retry=True)
                assert (await scene.store.fork_run(made))[0] == "forked"
                last = made.new_run_id
                await asyncio.sleep(0.003)
                await scene.store.terminate_runs([last])
            return await retry(scene.store, last)

        ends = (end(task, dice.random() * 0.08) for task in tasks)
        last, *_ = await asyncio.gather(take_over(run_id), *ends)
        assert isinstance(last, UUID)
        events = await log(scene.store, last)
        told = [each.key for each in events if each.type == "ChildCompleted"]
        assert sorted(filter(None, told)) == sorted(order.key or "" for order in orders)
        await scene.store.terminate_runs([last])
    assert await deadlocks(scene) == 0
