"""How far runs of flows are: states of runs, and what their steps wait for."""

from __future__ import annotations

import json

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import LimitRule, OpenStepTasks, Release, RunFilter, State

from .actors import SECOND, get, start
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single


async def _listed(store: Store, *states: State) -> list[State]:
    return [run.state for run in (await store.list_runs(RunFilter(states=states))).runs]


async def test_a_flow_is_queued_running_or_waiting_as_its_tasks_are(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(single("site", base_delay=5))
    store = flows.store
    assert (await get(store, run_id)).state == "queued"
    assert await _listed(store, "queued") == ["queued"]
    task = await worker.one()
    assert (await get(store, run_id)).state == "running"
    assert await _listed(store, "running") == ["running"]
    assert await _listed(store, "queued", "waiting", "paused") == []
    await worker.fail(task)
    assert (await get(store, run_id)).state == "waiting"
    assert await _listed(store, "waiting") == ["waiting"]
    await clock.advance(11)
    assert await _listed(store, "queued") == ["queued"]
    await worker.complete(await worker.one())
    assert (await get(store, run_id)).state == "completed"
    assert await _listed(store, "queued", "waiting", "running", "paused") == []


async def test_a_paused_flow_is_paused_when_no_worker_has_a_step_of_it(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("site"), single("links"))
    task = (await worker.take(1)).popitem()[1]
    await flows.store.pause_runs([run_id])
    assert (await get(flows.store, run_id)).state == "running"
    await worker.release(task)
    assert (await get(flows.store, run_id)).state == "paused"
    assert await _listed(flows.store, "paused") == ["paused"]
    assert await _listed(flows.store, "queued", "waiting", "running") == []


async def test_a_list_by_state_has_a_flow_once_however_many_of_its_tasks_are_in_it(
    flows: Flows, worker: StepWorker
) -> None:
    await flows.run_of(mapped("page"), given=list(range(6)))
    await worker.take(3)
    assert await _listed(flows.store, "queued", "running") == ["running"]
    assert await _listed(flows.store, "queued") == []


async def test_a_run_says_of_which_kind_it_is(flows: Flows) -> None:
    run_id = await flows.run_of(single("site"))
    other = await start(flows.store)
    assert (await get(flows.store, run_id)).kind == "flow"
    assert (await get(flows.store, other)).kind == "workflow"
    page = await flows.store.list_runs(RunFilter())
    assert {run.run_id: run.kind for run in page.runs} == {run_id: "flow", other: "workflow"}


async def test_open_tasks_tell_who_has_them_and_what_they_wait_for(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(
        single("site", queue="gpu"), single("mail", base_delay=5), single("later", start_delay=60)
    )
    began = await flows.store.now()
    mail = (await worker.take())["mail"]
    await worker.fail(mail)
    site, retried, later = await flows.store.open_step_tasks(run_id)
    assert (site.step, site.phase, site.queue, site.worker) == ("site", "running", "gpu", "ann")
    assert (site.tasks, site.attempts, site.error, site.index) == (1, 1, None, None)
    assert site.started_at is not None
    assert (retried.step, retried.phase, retried.worker) == ("mail", "retrying", None)
    assert json.loads(retried.error or "") == json.loads(NO_LUCK)
    assert retried.visible_at >= began + 10 * SECOND
    assert (later.step, later.phase, later.attempts) == ("later", "delayed", 0)
    assert later.started_at is None
    await clock.advance(11)
    _, due, _ = await flows.store.open_step_tasks(run_id)
    assert (due.phase, due.attempts, due.error) == ("due", 1, retried.error)


async def test_open_tasks_of_a_map_are_counted_together(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    run_id = await flows.run_of(mapped("page"), given=list(range(10)))
    mine = await worker.take(4)
    theirs = await other.take(2)
    await worker.report(*(end(mine.popitem()[1], error=NO_LUCK) for _ in range(2)))
    await other.complete(theirs.popitem()[1])
    found = await flows.store.open_step_tasks(run_id)
    assert [(each.phase, each.worker, each.tasks) for each in found] == [
        ("due", None, 4),
        ("retrying", None, 2),
        ("running", "ann", 2),
        ("running", "bob", 1),
    ]
    assert found[1].index is not None


async def test_a_workflow_and_a_flow_that_has_ended_have_no_open_tasks(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("site"))
    await worker.complete(await worker.one())
    assert await flows.store.open_step_tasks(run_id) == []
    assert await flows.store.open_step_tasks(await start(flows.store)) == []


async def test_steps_are_read_without_their_outputs_if_these_are_not_wanted(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(mapped("page"), single("save", "page"), given=[1, 2])
    for task in (await worker.take()).values():
        await worker.complete(task, "p")
    page, _ = (await flows.store.flow_steps([run_id]))[run_id]
    assert page.output == '["p","p"]'
    page, save = (await flows.store.flow_steps([run_id], outputs=False))[run_id]
    assert (page.status, page.output, page.remaining_tasks) == ("completed", None, 0)
    assert save.status == "created"


async def test_a_task_that_was_released_is_due(flows: Flows, worker: StepWorker) -> None:
    run_id = await flows.run_of(single("site"))
    task = await worker.one()
    await flows.store.release_tasks("ann", [Release(run_id, "site", task.lease_no)])
    (found,) = await flows.store.open_step_tasks(run_id)
    assert isinstance(found, OpenStepTasks)
    assert (found.phase, found.worker) == ("due", None)


async def test_only_open_tasks_of_steps_count_as_unserved(flows: Flows, worker: StepWorker) -> None:
    await flows.run_of(single("site", queue="gpu"), mapped("page"), given=[1, 2, 3])
    assert sorted(await flows.store.unserved()) == [
        ("default", f"{NAME}@1", 3),
        ("gpu", f"{NAME}@1", 1),
    ]
    for task in (await worker.take()).values():
        await worker.complete(task)
    assert await flows.store.unserved() == []


async def test_the_turns_of_open_flows_wait_for_no_worker(flows: Flows, worker: StepWorker) -> None:
    await flows.run_of(single("site", queue="gpu"))
    assert await flows.store.unserved() == [("gpu", f"{NAME}@1", 1)]
    await worker.one()
    assert await flows.store.unserved() == [("gpu", f"{NAME}@1", 1)]


async def test_a_step_that_could_not_be_begun_says_why_until_an_attempt_ends(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"))
    task = await worker.one()
    await worker.release(task, stuck="it does not fit")
    (held,) = await flows.store.open_step_tasks(run_id)
    assert (held.worker, held.attempts, held.stuck) == (None, 0, "it does not fit")
    assert await worker.fail(await worker.one()) == "retried"
    (again,) = await flows.store.open_step_tasks(run_id)
    assert (again.phase, again.attempts, again.stuck) == ("retrying", 1, None)


async def test_a_step_that_waits_for_a_limit_is_due_and_its_limit_is_known(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """Of a map, the element that is due longest is explained: all have the same limits."""
    store = flows.store
    limit = LimitRule(scope="queue", name="default", kind="concurrency", most=1)
    await store.set_limit(limit)
    first = await flows.run_of(mapped("page"), mapped("site"), given=[1, 2, 3])
    began = await store.now()
    await clock.advance(1)
    second = await flows.start([1, 2])
    task = await worker.one()
    assert task.run_id == first
    await clock.advance(1)
    for run_id in (first, second):
        open_tasks = await store.open_step_tasks(run_id)
        due = {each.step: each for each in open_tasks if each.worker is None}
        assert {each.phase for each in due.values()} == {"due"}
        waits = await store.explain_limits(run_id)
        assert [each.task_key.partition(":")[0] for each in waits] == ["page", "site"]
        assert due.keys() == {"page", "site"}
        assert {(each.held, each.free, each.rule.name) for each in waits} == {(1, 0, "default")}
    tasks = await store.open_step_tasks(first)
    assert {each.visible_at for each in tasks if each.worker is None} == {began}


async def test_elements_behind_the_concurrency_of_their_map_wait_also_with_a_limit(
    flows: Flows, worker: StepWorker
) -> None:
    store = flows.store
    await store.set_limit(LimitRule(scope="queue", name="default", kind="concurrency", most=1))
    run_id = await flows.run_of(mapped("page", concurrency=2), given=[1, 2, 3])
    await worker.one()
    found = {each.phase: each.tasks for each in await store.open_step_tasks(run_id)}
    assert found == {"running": 1, "due": 1, "waiting": 1}
