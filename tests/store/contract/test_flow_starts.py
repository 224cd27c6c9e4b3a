"""Runs of flows that start later, and what readers of their logs are told."""

from __future__ import annotations

from clocks import Clock

from holdfast.types import StepShape

from .actors import SECOND, get
from .flow_actors import Flows, StepWorker, mapped, single


async def test_the_steps_of_a_run_wait_for_its_start(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    await flows.define(single("a"), single("slow", start_delay=30), timeout=100)
    run_id = await flows.start(delay_seconds=60.0, timeout_seconds=5.0)
    run = await get(flows.store, run_id)
    assert run.status == "running"
    assert run.deadline_at == run.created_at + 65 * SECOND
    assert (await worker.claims()).tasks == []
    await clock.advance(61)
    assert await worker.complete(await worker.one()) == "recorded"
    await clock.advance(30)
    assert list(await worker.take()) == ["slow"]


async def test_a_run_may_start_at_a_moment(flows: Flows, worker: StepWorker, clock: Clock) -> None:
    await flows.define(mapped("each"), single("never", required='{"a": 1}'), single("b", "never"))
    await flows.start([1, 2], start_at=await flows.store.now() + 60 * SECOND)
    assert (await worker.claims()).tasks == []
    await clock.advance(61)
    assert set(await worker.take()) == {"each:0", "each:1", "b"}


async def test_elements_of_a_delayed_run_wait_for_others_to_end(flows: Flows) -> None:
    await flows.define(mapped("each", concurrency=1))
    run_id = await flows.start([1, 2, 3], delay_seconds=60.0)
    tasks = await flows.store.open_step_tasks(run_id)
    assert [(each.phase, each.tasks) for each in tasks] == [("delayed", 1), ("waiting", 2)]


async def test_a_start_in_the_past_is_one_now(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"))
    await flows.start(start_at=await flows.store.now() - 60 * SECOND)
    assert list(await worker.take()) == ["a"]


async def test_the_log_has_the_outputs_of_steps_and_the_sizes_of_maps(
    flows: Flows, worker: StepWorker
) -> None:
    each = StepShape(slug="each", kind="map", deps=("words",))
    empty = StepShape(slug="empty", kind="map", deps=("none",))
    run_id = await flows.run_of(single("none"), single("words"), each, empty)
    tasks = await worker.take()
    await worker.complete(tasks["none"], [])
    await worker.complete(tasks["words"], ["a", {"b": 1}])
    for task in (await worker.take()).values():
        await worker.complete(task)
    assert await flows.details(run_id, "FlowStepCompleted") == [
        {"output": []},
        {"tasks": 0},
        {"output": ["a", {"b": 1}]},
        {"tasks": 2},
    ]
