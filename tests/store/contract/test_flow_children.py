"""Runs of flows as children: started by a run's commit, stopped with it, heard of when they end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ANY_END, Event, Notice, RunFilter

from .actors import SECOND, ManualWorker, details, get, log, log_types, start
from .commands import child, command
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single


def child_flow(run_id: UUID, call: str = "trip", **fields: Any) -> Event:
    """Return a ChildStarted of the flow."""
    return child(run_id, call, **{"workflow_name": NAME, "kind": "flow", **fields})


async def with_child(store: Store, ann: ManualWorker, **fields: Any) -> tuple[UUID, UUID]:
    """Start a run that awaits a run of the flow; return the ids of both."""
    parent_id, child_id = await start(store), uuid4()
    await ann.command(await ann.take(), child_flow(child_id, **fields), awaiting=(ANY_END,))
    return parent_id, child_id


async def last(store: Store, run_id: UUID) -> tuple[str, str | None, Any]:
    """Return the last entry of a log."""
    event = (await log(store, run_id))[-1]
    return event.type, event.key, details(event)


async def test_a_flow_is_a_run_with_a_parent(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    """With all that was asked for, and at once with the tasks of its root steps."""
    await flows.define(single("a"))
    parent_id, child_id = await start(store), uuid4()
    event = child_flow(
        child_id,
        queue="gpu",
        priority=0,
        timeout=60.0,
        retention=86_400.0,
        tags=["a", "b"],
        headers={"tenant": "acme"},
    )
    answer = await ann.command(await ann.take(), event)
    assert answer.notices == [Notice("work", "gpu")]
    run, now = await get(store, child_id), await store.now()
    assert (run.kind, run.name, run.version) == ("flow", "trip", 1)
    assert (run.queue, run.priority) == ("gpu", 0)
    assert (run.parent_run_id, run.parent_key) == (parent_id, "trip")
    assert json.loads(run.input) == {"b": 1e300, "a": 2}
    assert (run.key, run.tags, run.retention_seconds) == (None, ("a", "b"), 86_400.0)
    assert run.headers == {"tenant": "acme"}
    assert (run.created_at, run.deadline_at) == (now, now + 60 * SECOND)
    assert (await worker.one()).run_id == child_id
    page = await store.list_runs(RunFilter(parent_run_id=parent_id))
    assert [found.run_id for found in page.runs] == [child_id]


async def test_the_output_of_a_flow_wakes_its_parent(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"), single("b", "a"))
    parent_id, child_id = await with_child(store, ann)
    await worker.complete(await worker.one(), 1)
    assert await ann.claims() == []
    ended = await worker.report(end(await worker.one(), 2))
    assert ended.notices == [Notice("work", "default")]
    wanted = {"child_run_id": str(child_id), "output": {"b": 2}}
    assert await last(store, parent_id) == ("ChildCompleted", "trip", wanted)
    assert await ann.claims() == [parent_id]


async def test_the_holder_of_the_parent_is_told(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"))
    parent_id, child_id = await start(store), uuid4()
    await ann.command(await ann.take(), child_flow(child_id))
    ended = await worker.report(end(await worker.one(), 2))
    assert ended.notices == [Notice("worker/ann", str(parent_id))]


async def test_a_flow_that_completes_at_once_is_heard_of_at_once(
    flows: Flows, store: Store, ann: ManualWorker
) -> None:
    """In the commit that starts it: the parent, which suspends in it, is due again."""
    await flows.define()
    parent_id, child_id = await with_child(store, ann)
    assert await last(store, parent_id) == (
        "ChildCompleted",
        "trip",
        {"child_run_id": str(child_id), "output": {}},
    )
    assert await ann.claims() == [parent_id]


async def test_a_flow_that_fails_at_once_is_heard_of_at_once(
    flows: Flows, store: Store, ann: ManualWorker
) -> None:
    await flows.define(single("a", required='{"b":2}', when_unmet="fail"))
    parent_id, child_id = await with_child(store, ann)
    kind, key, told = await last(store, parent_id)
    assert (kind, key, told["status"]) == ("ChildFailed", "trip", "failed")
    assert "Condition not met" in json.dumps(told["error"])
    assert (await get(store, child_id)).status == "failed"


async def test_a_failure_of_a_flow_is_told(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"), max_attempts=1)
    parent_id, child_id = await with_child(store, ann)
    await worker.fail(await worker.one())
    kind, key, told = await last(store, parent_id)
    assert (kind, key, told["status"]) == ("ChildFailed", "trip", "failed")
    assert told["child_run_id"] == str(child_id)
    assert (told["error"]["step"], told["error"]["cause"]) == ("a", json.loads(NO_LUCK))
    assert await ann.claims() == [parent_id]


@pytest.mark.parametrize("how", ["cancelled", "terminated", "timed_out"])
async def test_a_flow_that_is_ended_from_outside_is_told(
    flows: Flows, store: Store, clock: Clock, ann: ManualWorker, worker: StepWorker, how: str
) -> None:
    await flows.define(single("a"))
    parent_id, child_id = await with_child(store, ann, timeout=5.0)
    if how == "cancelled":
        await store.cancel_runs([child_id])
    elif how == "terminated":
        await store.terminate_runs([child_id])
    else:
        await clock.advance(5)
        assert (await store.time_out_runs())[0] == 1
    told = {"child_run_id": str(child_id), "status": how, "error": None}
    assert await last(store, parent_id) == ("ChildFailed", "trip", told)
    assert await worker.take() == {}
    assert await ann.claims() == [parent_id]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("shop/other", 1, {"kind": "holdfast.errors.UnknownFlow"}),
        (NAME, 2, {"kind": "holdfast.errors.UnknownFlow"}),
        (NAME, 1, {"kind": "holdfast.errors.InvalidInput"}),
    ],
)
async def test_a_start_that_is_refused_is_the_failure_of_the_call(
    flows: Flows, store: Store, ann: ManualWorker, name: str, version: int, error: dict[str, str]
) -> None:
    """A flow that is not there, and an input over which its root cannot map: the commit stands."""
    await flows.define(mapped("a"))
    parent_id, refused_id, begun_id = await start(store), uuid4(), uuid4()
    await ann.command(
        await ann.take(),
        child_flow(refused_id, "bad", workflow_name=name, version=version, input={"a": 1}),
        child_flow(begun_id, "good", input=[1]),
        awaiting=(ANY_END,),
    )
    kind, key, told = await last(store, parent_id)
    assert (kind, key, told["status"]) == ("ChildFailed", "bad", "refused")
    assert told["child_run_id"] == str(refused_id)
    assert told["error"].items() >= error.items()
    assert refused_id not in await store.get_runs([refused_id])
    assert (await get(store, begun_id)).status == "running"
    assert await ann.claims() == [parent_id]


async def test_a_refusal_in_the_commit_that_ends_the_parent_is_told_to_nobody(
    flows: Flows, store: Store, ann: ManualWorker
) -> None:
    parent_id = await start(store)
    await ann.finish_with(await ann.take(), child_flow(uuid4(), parent_close="abandon"))
    assert await log_types(store, parent_id) == [
        "WorkflowStarted",
        "ChildStarted",
        "WorkflowCompleted",
    ]


async def test_a_flow_that_was_deleted_is_not_taken_for_a_workflow(
    flows: Flows, store: Store, ann: ManualWorker
) -> None:
    """A name without a kind is that of a flow if there is one, else of a workflow."""
    await flows.define(single("a"))
    parent_id, known, unknown = await start(store), uuid4(), uuid4()
    await ann.command(
        await ann.take(),
        child_flow(known, "known", kind=None),
        child_flow(unknown, "unknown", kind=None, version=2),
        child(uuid4(), "gone", workflow_name="shop/gone", kind="flow"),
    )
    assert (await get(store, known)).kind == "flow"
    assert (await get(store, unknown)).kind == "workflow"
    assert (await last(store, parent_id))[:2] == ("ChildFailed", "gone")


async def test_a_second_call_of_the_same_child_starts_nothing(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    """Of this parent it is used, of another it is refused."""
    await flows.define(single("a"))
    parent_id, child_id = await with_child(store, ann)
    stranger_id = await start(store)
    task = await ann.take()
    await ann.command(task, child_flow(child_id, "mine"), awaiting=(ANY_END,))
    kind, key, told = await last(store, stranger_id)
    assert (kind, key, told["error"]["kind"]) == (
        "ChildFailed",
        "mine",
        "holdfast.errors.RunExists",
    )
    assert len(await worker.take()) == 1
    assert (await get(store, child_id)).parent_run_id == parent_id


async def test_workflows_and_flows_are_started_by_one_commit(
    flows: Flows, store: Store, ann: ManualWorker, bob: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"))
    parent_id, ids = await start(store), [uuid4() for _ in range(4)]
    orders = [
        (child if number % 2 else child_flow)(run_id, f"call#{number}", parent_close="abandon")
        for number, run_id in enumerate(ids)
    ]
    answer = await ann.command(await ann.take(), *orders)
    assert answer.notices == [Notice("work", "default")]
    assert set(await bob.claims()) == {ids[1], ids[3]}
    claimed = (await worker.claims()).tasks
    assert {task.run_id for task in claimed} == {ids[0], ids[2]}
    assert len(await log(store, parent_id)) == 5


@pytest.mark.parametrize(
    ("policy", "status"),
    [("cancel", "cancelled"), ("terminate", "terminated"), ("abandon", "running")],
)
@pytest.mark.parametrize("how", ["commit", "terminate"])
async def test_the_close_policy_decides_what_the_end_of_the_parent_means(
    flows: Flows,
    store: Store,
    ann: ManualWorker,
    worker: StepWorker,
    policy: str,
    status: str,
    how: str,
) -> None:
    await flows.define(single("a"))
    parent_id, child_id = await start(store), uuid4()
    parent = await ann.take()
    await ann.command(parent, child_flow(child_id, parent_close=policy))
    task = await worker.one()
    if how == "commit":
        await ann.finish(parent, expected=2, has_children=True)
    else:
        await store.terminate_runs([parent_id])
    assert (await get(store, child_id)).status == status
    assert await worker.complete(task, 1) == ("recorded" if status == "running" else "lost")
    assert (await log_types(store, parent_id))[-1].startswith("Workflow")


async def test_a_child_that_is_started_by_the_end_of_its_parent_follows_the_policy(
    flows: Flows, store: Store, ann: ManualWorker
) -> None:
    await flows.define(single("a"))
    await start(store)
    ids = {policy: uuid4() for policy in ("cancel", "terminate", "abandon")}
    await ann.finish_with(
        await ann.take(),
        *(child_flow(run_id, policy, parent_close=policy) for policy, run_id in ids.items()),
    )
    assert {policy: (await get(store, run_id)).status for policy, run_id in ids.items()} == {
        "cancel": "cancelled",
        "terminate": "terminated",
        "abandon": "running",
    }


async def test_a_parent_cancels_the_flow_that_it_awaits(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    """It ends at once, and its end is told like any other."""
    await flows.define(single("a"))
    parent_id, child_id = await start(store), uuid4()
    parent = await ann.take()
    await ann.command(parent, child_flow(child_id))
    cancel = command("ChildCancelRequested", "trip", child_run_id=str(child_id), reason="late")
    await ann.command(parent, cancel, expected=2, awaiting=(ANY_END,), touches=(child_id,))
    told = {"child_run_id": str(child_id), "status": "cancelled", "error": None}
    assert await last(store, parent_id) == ("ChildFailed", "trip", told)
    assert await log_types(store, child_id) == [
        "WorkflowStarted",
        "WorkflowCancelRequested",
        "WorkflowCanceled",
    ]
    assert await worker.take() == {}
    assert await ann.claims() == [parent_id]


async def test_two_flows_of_one_parent_may_end_in_one_call(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(single("a"))
    parent_id, ids = await start(store), sorted(uuid4() for _ in range(2))
    orders = [child_flow(run_id, f"call{number}") for number, run_id in enumerate(ids)]
    await ann.command(await ann.take(), *orders, awaiting=(ANY_END,))
    tasks: Sequence[Any] = (await worker.claims()).tasks
    await worker.report(*[end(task, 1) for task in tasks])
    events = (await log(store, parent_id))[-2:]
    assert [(event.type, event.key) for event in events] == [
        ("ChildCompleted", "call0"),
        ("ChildCompleted", "call1"),
    ]


async def test_a_map_of_a_child_ends_on_the_path_that_takes_no_turn(
    flows: Flows, store: Store, ann: ManualWorker, worker: StepWorker
) -> None:
    await flows.define(mapped("a"))
    parent_id, child_id = await with_child(store, ann, input=list(range(20)))
    for task in (await worker.claims()).tasks:
        await worker.complete(task, task.key)
    assert (await last(store, parent_id))[2] == {
        "child_run_id": str(child_id),
        "output": {"a": [f"a:{number}" for number in range(20)]},
    }


async def test_a_flow_that_is_younger_than_its_start_is_a_child(
    flows: Flows, store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Fault: if the commit had another start refused, this one was taken for that of another."""
    await flows.define(single("a"))
    await clock.advance(-10)
    parent_id, other = await start(store), await start(store, queue="slow")
    calls = child_flow(uuid4()), child(other, "other")
    await ann.command(await ann.take(), *calls, awaiting=(ANY_END,))
    told = [event.key for event in await log(store, parent_id) if event.type == "ChildFailed"]
    assert told == ["other"]
