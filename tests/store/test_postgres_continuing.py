"""A run continues as new while another one tells it something: the next one hears of it.

The other run has read which one is the newest, and waits for the lock of that one. Commits lock
what they touch before, so the tests leave that out: it is the moment after it.
"""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

from contract.actors import ManualWorker, log, start
from contract.commands import child, command
from contract.test_topics import asks, events_of, wait
from msgspec.structs import replace
from scene import Scene, turn

from holdfast.types import ClaimedTask, Event, Finish, NewEvent, TurnCommit


def continuing(task: ClaimedTask, new_id: UUID) -> TurnCommit:
    """Return a part that continues a run as a new one."""
    told = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    continued = Event("WorkflowContinuedAsNew", None, json.dumps(told), 0)
    end = Finish("continued", json.dumps({"run_id": str(new_id)}))
    return replace(turn(task, continued, then=end), has_commands=True)


async def while_it_continues(
    scene: Scene, ann: ManualWorker, teller: ClaimedTask, task: ClaimedTask, telling: Event
) -> UUID:
    """Commit what a run tells another, which continues as new meanwhile; return the new run."""
    session, new_id = await scene.session(), uuid4()
    transaction = session.transaction()
    await transaction.start()
    await session.commit("ann", continuing(task, new_id))
    answer = await scene.while_blocked(ann.commit(teller, telling), transaction.commit)
    assert (answer.refused, [*answer.undelivered]) == ({}, [])
    return new_id


async def test_a_signal_of_another_run_reaches_the_next_one(scene: Scene) -> None:
    ann = ManualWorker(scene.store, "ann")
    receiver = await start(scene.store)
    task = await ann.take()
    await start(scene.store)
    telling = command(
        "SignalSent", "tell", run_id=str(receiver), signal_name="go", input=1, signal_id="s-1"
    )
    new_id = await while_it_continues(scene, ann, await ann.take(), task, telling)
    received = [
        each.key for each in await log(scene.store, new_id) if each.type == "SignalReceived"
    ]
    assert received == ["s-1"]


async def test_a_cancel_of_a_child_reaches_the_next_one(scene: Scene) -> None:
    ann = ManualWorker(scene.store, "ann")
    await start(scene.store)
    parent, child_id = await ann.take(), uuid4()
    await ann.commit(parent, child(child_id), touches=(child_id,), has_children=True)
    task = await ann.take()
    stop = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason=None)
    new_id = await while_it_continues(scene, ann, replace(parent, log_length=2), task, stop)
    assert "WorkflowCancelRequested" in [each.type for each in await log(scene.store, new_id)]


async def test_an_event_reaches_the_run_after_the_next_one(scene: Scene) -> None:
    """The publish waits for another run first, then for the next one, which continues as well."""
    ann, (first, then) = ManualWorker(scene.store, "ann"), (uuid4(), uuid4())
    held, run_id = sorted([await wait(ann, scene.store, asks()) for _ in range(2)])
    await scene.store.publish(NewEvent(topic="orders.1.paid", payload="1"))
    tasks = {task.run_id: task for task in (await ann.claim(limit=2)).tasks}
    holding, session = await scene.session(), await scene.session()
    hold, transaction = holding.transaction(), session.transaction()
    await hold.start()
    await holding.connection.execute(
        "select from holdfast.tasks where run_id = $1 for update", held
    )
    event = NewEvent(topic="orders.1.paid", payload="2")
    publishing = asyncio.create_task(scene.store.publish(event))
    await scene.until_blocked()
    await session.commit("ann", continuing(tasks[run_id], first))
    next_task = await ann.take()
    await transaction.start()
    await session.commit("ann", continuing(next_task, then))
    await hold.rollback()
    await scene.until_blocked()
    await transaction.commit()
    assert (await publishing)[0].runs == 2
    assert [await events_of(scene.store, each) for each in (run_id, first, then)] == [[1], [], [2]]
