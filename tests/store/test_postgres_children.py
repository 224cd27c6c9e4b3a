"""Parents and children that meet inside the database, held at the worst moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import TypeAlias
from uuid import UUID, uuid4

import pytest
from clocks import ThoroughStore
from contract.actors import ManualWorker, details, get, log, log_types, new_run, signal, start
from contract.commands import child, command, started_child
from msgspec import structs
from scene import DEADLINE_SECONDS, Scene, finished, turn, yielded

from holdfast.types import (
    ANY_END,
    ClaimedTask,
    Delivered,
    Event,
    Finish,
    RunFilter,
    Suspend,
    TurnCommit,
)
from holdfast.values.ids import keyed_run_id

LOW, HIGH = UUID(int=1), UUID(int=(1 << 128) - 1)
Change: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Delivered]]
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=ThoroughStore) as scene:
        yield scene


def ended(task: ClaimedTask) -> TurnCommit:
    """Return a part that completes a child."""
    assert task.parent_run_id is not None
    return structs.replace(finished(task), touches=(task.parent_run_id,))


def ordering(
    task: ClaimedTask, *events: Event, expected: int | None = None, touches: Sequence[UUID] = ()
) -> TurnCommit:
    """Return a part that orders something, and waits."""
    index = task.log_length if expected is None else expected
    then = Suspend(awaiting=(ANY_END,))
    return TurnCommit(
        task.run_id, task.lease_no, index, events, then, has_commands=True, touches=tuple(touches)
    )


LEFT_BEHIND = """
    select count(*) from holdfast.tasks t join holdfast.runs r using (run_id)
    where r.status <> 'running'
"""


async def deadlocks(scene: Scene) -> int:
    """Count the deadlocks that the server had to break in this database."""
    await scene.value("select pg_stat_clear_snapshot()")
    found: int = await scene.value(DEADLOCKS)
    return found


async def family(
    scene: Scene,
    worker: ManualWorker,
    parent_id: UUID,
    child_id: UUID,
    *,
    close: str = "cancel",
    holder: ManualWorker | None = None,
) -> tuple[ClaimedTask, ClaimedTask]:
    """Start a run with a child; return both, leased, the child by `holder` if one is given."""
    await start(scene.store, run_id=parent_id)
    parent = await worker.take()
    await worker.command(parent, child(child_id, parent_close=close))
    return parent, await (holder or worker).take()


async def test_a_child_that_ends_while_its_parent_suspends_wakes_the_parent(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Traps 1 and 31. The suspend is written but not committed when the child ends."""
    parent, task = await family(scene, ann, uuid4(), uuid4())
    session = await scene.session()
    async with session.transaction():
        await session.commit("ann", yielded(parent, ANY_END, expected=2))
        refused = (await scene.store.commit("ann", uuid4(), [ended(task)])).refused
        assert refused[task.run_id].reason == "busy"
    answer = await scene.store.commit("ann", uuid4(), [ended(task)])
    assert "work" in [notice.topic for notice in answer.notices]
    assert await bob.claims(sticky_seconds=0.0) == [parent.run_id]


async def test_a_suspend_behind_the_uncommitted_end_of_a_child_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """Traps 1, 4 and 31. The worker continues with the end."""
    parent, task = await family(scene, ann, uuid4(), uuid4())
    session = await scene.session()
    async with session.transaction():
        await session.commit("ann", ended(task))
        part = yielded(parent, ANY_END, expected=2)
        refused = (await scene.store.commit("ann", uuid4(), [part])).refused
        assert refused[parent.run_id].reason == "busy"
    [refusal] = (await scene.store.commit("ann", uuid4(), [part])).refused.values()
    assert (refusal.reason, [e.type for e in refusal.tail]) == ("conflict", ["ChildCompleted"])


@pytest.mark.parametrize(("parent_id", "child_id"), [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize("parent_first", [True, False])
async def test_batches_of_a_parent_and_of_its_child_wait_for_each_other(
    scene: Scene,
    ann: ManualWorker,
    bob: ManualWorker,
    parent_id: UUID,
    child_id: UUID,
    parent_first: bool,
) -> None:
    """Trap 31. Either may be first and have the lower id; nothing is told twice."""
    parent, task = await family(scene, ann, parent_id, child_id)
    other = await start(scene.store)
    beside = await bob.take()
    batches = {True: [yielded(parent, ANY_END, expected=2)], False: [ended(task)]}
    session = await scene.session()
    async with session.transaction():
        await session.commit("ann", *batches[parent_first])
        late = await scene.store.commit("ann", uuid4(), batches[not parent_first])
        assert [refusal.reason for refusal in late.refused.values()] == ["busy"]
        assert not (await bob.commit(beside)).refused
    await scene.store.commit("ann", uuid4(), batches[not parent_first])
    types = await log_types(scene.store, parent_id)
    assert types.count("ChildCompleted") == 1
    assert (await get(scene.store, child_id)).status == "completed"
    assert await scene.idx(other) == [0, 1]
    assert await deadlocks(scene) == 0


async def test_batches_that_are_each_others_parents_do_not_deadlock(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 31. Each batch suspends three runs, and ends children of the other one's."""
    for _ in range(15):
        of_ann = [await family(scene, ann, uuid4(), uuid4(), holder=bob) for _ in range(3)]
        of_bob = [await family(scene, bob, uuid4(), uuid4(), holder=ann) for _ in range(3)]
        await asyncio.gather(
            finish_both(ann, [p for p, _ in of_ann], [c for _, c in of_bob]),
            finish_both(bob, [p for p, _ in of_bob], [c for _, c in of_ann]),
        )
        for parent, _ in (*of_ann, *of_bob):
            types = await log_types(scene.store, parent.run_id)
            assert types.count("ChildCompleted") == 1
        await scene.store.terminate_runs([parent.run_id for parent, _ in (*of_ann, *of_bob)])
    assert await deadlocks(scene) == 0


async def finish_both(
    worker: ManualWorker, parents: list[ClaimedTask], children: list[ClaimedTask]
) -> None:
    """Suspend runs and end others in one commit; the ends are tried until they are done."""
    parts = [
        *(yielded(parent, ANY_END, expected=2) for parent in parents),
        *(ended(task) for task in children),
    ]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while parts:
            refused = (await worker.store.commit(worker.worker_id, uuid4(), parts)).refused
            assert {refusal.reason for refusal in refused.values()} <= {"busy", "conflict"}
            parts = [part for part in parts if part.run_id in refused and part.touches]


async def test_a_key_raced_by_two_parents_names_the_child_of_one(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 14. The other one hears that the key is taken."""
    child_id = keyed_run_id("order", "7")
    await scene.store.start_runs([new_run(), new_run()])
    first, second = (await ann.claim()).tasks
    session = await scene.session()
    parts = [ordering(task, child(child_id, key="7")) for task in (first, second)]
    async with session.transaction():
        await session.commit("ann", parts[0])
        late = await scene.store.commit("ann", uuid4(), [parts[1]])
        assert late.refused[second.run_id].reason == "busy"
    assert not (await scene.store.commit("ann", uuid4(), [parts[1]])).refused
    assert (await get(scene.store, child_id)).parent_run_id == first.run_id
    assert "ChildFailed" not in await log_types(scene.store, first.run_id)
    told = (await log(scene.store, second.run_id))[-1]
    assert (told.type, details(told)["status"]) == ("ChildFailed", "refused")


async def test_a_commit_whose_answer_was_lost_writes_no_command_twice(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 23. Its repetition finds its own events."""
    target = await start(scene.store)
    target_task = await ann.take()
    await ann.suspend(target_task)
    run_id, child_id, token = await start(scene.store), uuid4(), uuid4()
    sent = {"run_id": str(target), "signal_name": "packed", "input": 1, "signal_id": None}
    part = ordering(
        await ann.take(),
        child(child_id),
        command("SignalSent", "signal", **sent),
        touches=(target,),
    )
    for _ in range(2):
        assert not (await scene.store.commit("ann", token, [part])).refused
    assert (await log_types(scene.store, target)).count("SignalReceived") == 1
    assert await scene.idx(run_id) == [0, 1, 2]
    assert await scene.idx(child_id) == [0]


async def test_a_grandchild_started_during_the_termination_of_the_tree_ends_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """S10. Its start is not committed when the tree's runs are gathered."""
    parent_id, grandchild_id = uuid4(), uuid4()
    parent, task = await family(scene, ann, parent_id, uuid4(), close="terminate")
    await ann.suspend(parent, expected=2)
    session = await scene.session()
    starting = session.transaction()
    await starting.start()
    await session.commit("ann", ordering(task, child(grandchild_id, parent_close="terminate")))
    await scene.while_blocked(scene.store.terminate_runs([parent_id]), starting.commit)
    statuses = {(await get(scene.store, run_id)).status for run_id in (task.run_id, grandchild_id)}
    assert statuses == {"terminated"}
    assert await scene.value("select count(*) from holdfast.tasks") == 0


async def test_a_child_that_ends_while_it_is_cancelled_tells_its_end_once(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 16. The request comes too late, and changes nothing."""
    parent, task = await family(scene, ann, uuid4(), uuid4())
    session = await scene.session()
    ending = session.transaction()
    await ending.start()
    await session.commit("ann", ended(task))
    answer = await scene.while_blocked(scene.store.cancel_runs([task.run_id]), ending.commit)
    assert answer.outcomes == ["ended"]
    assert await log_types(scene.store, task.run_id) == ["WorkflowStarted", "WorkflowCompleted"]
    assert (await log_types(scene.store, parent.run_id))[2:] == ["ChildCompleted"]


async def test_commands_for_a_child_reach_its_newest_run(scene: Scene, ann: ManualWorker) -> None:
    """S9. The parent knows the id that it started; what runs now is another."""
    run_id, child_id = await started_child(scene.store, ann, awaiting=("stop",))
    successor = uuid4()
    told = f'{{"run_id":"{successor}","input":1,"version":1,"signals":[]}}'
    last = Event("WorkflowContinuedAsNew", None, told, 0)
    then = Finish("continued", json.dumps({"run_id": str(successor)}))
    assert not (await ann.commit(await ann.take(), last, then=then)).refused
    await signal(scene.store, run_id, "stop")
    parent = next(task for task in (await ann.claim()).tasks if task.run_id == run_id)
    cancel = command("ChildCancelRequested", "child", child_run_id=str(child_id), reason="late")
    await ann.command(parent, cancel, touches=(child_id,))
    assert "WorkflowCancelRequested" in await log_types(scene.store, successor)
    assert await log_types(scene.store, child_id) == ["WorkflowStarted", "WorkflowContinuedAsNew"]


async def test_crowded_trees_do_not_deadlock(scene: Scene) -> None:
    """Trap 31, S10. Starts, ends, cancels and terminations in the same trees by many at once."""
    parents = [uuid4() for _ in range(6)]
    await scene.store.start_runs([new_run(run_id=run_id) for run_id in parents])
    crowd = [ManualWorker(scene.store, f"worker-{number}") for number in range(3)]

    async def work(worker: ManualWorker) -> None:
        for _ in range(12):
            claim = await worker.claim(limit=8, lease_seconds=0.0, max_attempts=1000)
            # A lease of no length may be over before the claim's last search: it finds it again.
            latest = {task.run_id: task for task in claim.tasks}.values()
            parts = [
                ordering(task, *(child(uuid4(), f"child-{uuid4()}") for _ in range(2)))
                if task.parent_run_id is None
                else ended(task)
                for task in latest
            ]
            if parts:
                answer = await scene.store.commit(worker.worker_id, uuid4(), parts)
                assert {r.reason for r in answer.refused.values()} <= {"busy", "conflict", "lost"}

    async def stop(change: Change) -> None:
        for parent_id in parents[:4]:
            page = await scene.store.list_runs(RunFilter(parent_run_id=parent_id))
            await change([*(run.run_id for run in page.runs), parents[0]])

    stops = stop(scene.store.cancel_runs), stop(scene.store.terminate_runs)
    await asyncio.gather(*(work(worker) for worker in crowd), *stops)
    assert await deadlocks(scene) == 0
    await scene.store.terminate_runs(parents)
    for run_id in parents:
        places = await scene.idx(run_id)
        assert places == list(range(len(places)))
    assert await scene.value(LEFT_BEHIND) == 0


@pytest.mark.parametrize(("parent_id", "child_id"), [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize("ending", ["child", "parent"])
async def test_time_outs_do_not_deadlock_with_bulk_signals_to_the_family(
    scene: Scene, ann: ManualWorker, parent_id: UUID, child_id: UUID, ending: str
) -> None:
    """Trap 31. The signals hold the lower row, and the end needs both."""
    timed_out = parent_id if ending == "parent" else child_id
    await family(scene, ann, parent_id, child_id, close="terminate")
    await scene.value(
        "update holdfast.runs set deadline_at = holdfast.now() where run_id = $1", timed_out
    )
    await between_two_signals(scene, scene.store.time_out_runs())
    while (await scene.store.time_out_runs())[1] is not None:
        await asyncio.sleep(0.01)
    assert (await get(scene.store, timed_out)).status == "timed_out"
    assert await scene.value(LEFT_BEHIND) == 0


@pytest.mark.parametrize(("parent_id", "child_id"), [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize("poisoned", ["child", "parent"])
async def test_the_claim_that_fails_a_run_does_not_deadlock_with_bulk_signals(
    scene: Scene,
    ann: ManualWorker,
    bob: ManualWorker,
    parent_id: UUID,
    child_id: UUID,
    poisoned: str,
) -> None:
    """Traps 10 and 31. The signals hold the lower row, and the end needs both."""
    await family(scene, ann, parent_id, child_id, close="terminate")
    run_id = parent_id if poisoned == "parent" else child_id
    await scene.value(
        "update holdfast.tasks t set visible_at = holdfast.now(), attempts = 5, claimed_idx = ("
        "select count(*) from holdfast.events e where e.run_id = t.run_id) where run_id = $1",
        run_id,
    )
    await between_two_signals(scene, bob.claim())
    while (await get(scene.store, run_id)).status == "running":
        assert (await bob.claim()).tasks == []
    assert (await get(scene.store, run_id)).status == "failed"
    assert [kind for kind in await log_types(scene.store, run_id) if kind == "WorkerLost"] == [
        "WorkerLost"
    ]
    assert await scene.value(LEFT_BEHIND) == 0


async def between_two_signals(scene: Scene, call: Coroutine[object, object, object]) -> None:
    """Make a call while another one has signalled the run LOW and not yet the run HIGH."""
    session = await scene.session()
    async with session.transaction():
        await session.call("signal_runs", [LOW], ["packed"], ["1"], [None])
        calling = asyncio.create_task(call)
        await scene.until_blocked_or(calling)
        await session.call("signal_runs", [HIGH], ["packed"], ["1"], [None])
    await calling
    assert await deadlocks(scene) == 0


async def test_a_time_out_passes_by_a_run_that_a_session_holds(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 31. The runs beside it end at their time."""
    parent, task = await family(scene, ann, LOW, HIGH)
    other = await start(scene.store)
    await scene.value("update holdfast.runs set deadline_at = holdfast.now()")
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [parent.run_id])
        assert (await scene.store.time_out_runs())[0] == 1
    assert (await get(scene.store, other)).status == "timed_out"
    assert (await scene.store.time_out_runs())[0] == 2
    assert (await get(scene.store, task.run_id)).status == "timed_out"


async def test_a_poisoned_run_that_made_progress_after_all_is_claimed_again(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Trap 10. A late checkpoint lands between the claim and the end."""
    run_id = await start(scene.store)
    task = await ann.take()
    await scene.value("update holdfast.tasks set visible_at = holdfast.now(), attempts = 5")
    session = await scene.session()
    async with session.transaction():
        await session.commit("ann", turn(task))
        failing = asyncio.create_task(
            scene.store.claim_tasks("bob", ["default"], ["order@1"], 1, lease_seconds=30.0)
        )
        await scene.until_blocked()
    assert (await failing).tasks == []
    again = await bob.take()
    assert (again.run_id, again.attempts) == (run_id, 1)
    assert await log_types(scene.store, run_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "WorkerLost",
    ]
