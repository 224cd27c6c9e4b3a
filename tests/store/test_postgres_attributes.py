"""Attributes that are set at the moment at which their run continues, or is deleted."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from contract.actors import ManualWorker, get, start
from contract.commands import command
from scene import Scene

from holdfast.types import ClaimedTask, Finish, TurnCommit


def continued(task: ClaimedTask, new_id: UUID) -> TurnCommit:
    """Return the part that continues a run as a new one."""
    said = {"run_id": str(new_id), "input": 1, "version": 1, "signals": []}
    end = Finish("continued", output=json.dumps({"run_id": str(new_id)}))
    events = (command("WorkflowContinuedAsNew", "", **said),)
    return TurnCommit(task.run_id, task.lease_no, task.log_length, events, end, has_commands=True)


async def test_what_is_set_while_a_run_continues_is_set_for_the_new_one(
    scene: Scene, ann: ManualWorker
) -> None:
    """The call stands at the row of the run, and follows the chain when it has it."""
    run_id, new_id = await start(scene.store, attributes={"customer": "acme"}), uuid4()
    session = await scene.session()
    continuing = session.transaction()
    await continuing.start()
    await session.commit("ann", continued(await ann.take(), new_id))
    setting = scene.store.set_attributes(run_id, {"stage": "late"})
    assert await scene.while_blocked(setting, continuing.commit) == {
        "customer": "acme",
        "stage": "late",
    }
    assert (await get(scene.store, new_id)).attributes == {"customer": "acme", "stage": "late"}
    assert (await get(scene.store, run_id)).attributes == {"customer": "acme"}


async def test_a_run_continues_with_what_was_set_while_it_did(
    scene: Scene, ann: ManualWorker
) -> None:
    """The commit gives up on the row of the run, and is sent again."""
    run_id, new_id = await start(scene.store), uuid4()
    task = await ann.take()
    session = await scene.session()
    async with session.transaction():
        await session.call("set_attributes", run_id, '{"stage": "early"}')
        await session.call("set_tags", run_id, '["t"]', None, None)
        answer = await scene.store.commit("ann", uuid4(), [continued(task, new_id)])
        assert answer.refused[run_id].reason == "busy"
    answer = await scene.store.commit("ann", uuid4(), [continued(task, new_id)])
    assert answer.refused == {}
    run = await get(scene.store, new_id)
    assert (run.attributes, run.tags) == ({"stage": "early"}, ("t",))


async def test_nothing_is_left_of_what_is_set_while_a_run_is_deleted(scene: Scene) -> None:
    """The first one has the row: the other one waits, or passes over the run."""
    run_id = await start(scene.store, attributes={"customer": "acme"}, retention_seconds=0.0)
    await scene.store.terminate_runs([run_id])
    session = await scene.session()
    async with session.transaction():
        await session.call("set_attributes", run_id, '{"stage": "kept"}')
        assert (await scene.store.sweep_runs()).deleted == 0
    deleting = session.transaction()
    await deleting.start()
    await session.call("sweep_runs")
    setting = scene.store.set_attributes(run_id, {"stage": "late"})
    assert await scene.while_blocked(setting, deleting.commit) is None
    assert await scene.value("select count(*) from holdfast.attributes") == 0


async def test_what_code_sets_comes_before_or_after_what_others_set_at_once(
    scene: Scene, ann: ManualWorker
) -> None:
    """All of a call: not one attribute before it and one after it."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    setting = session.transaction()
    await setting.start()
    await session.call("set_attributes", run_id, '{"a": 1, "b": 1}')
    told = command("AttributesSet", "", attributes={"a": None, "b": 2})
    turn = TurnCommit(task.run_id, task.lease_no, task.log_length, (told,), has_commands=True)
    first = await scene.while_blocked(scene.store.commit("ann", uuid4(), [turn]), setting.commit)
    if run_id in first.refused:
        assert first.refused[run_id].reason == "busy"
        assert (await scene.store.commit("ann", uuid4(), [turn])).refused == {}
    assert (await get(scene.store, run_id)).attributes == {"b": 2}


async def test_two_who_set_at_once_keep_all_attributes_within_their_bound(scene: Scene) -> None:
    """The second one sees what the first has set."""
    run_id = await start(scene.store)
    session = await scene.session()
    setting = session.transaction()
    await setting.start()
    large = {f"a{n}": "x" * 410 for n in range(5)}
    await session.call("set_attributes", run_id, json.dumps(large))
    other = scene.store.set_attributes(run_id, {f"b{n}": "x" * 410 for n in range(5)})
    with pytest.raises(Exception, match="4,096"):
        await scene.while_blocked(other, setting.commit)
    assert (await get(scene.store, run_id)).attributes == large
