"""Maps that tolerate failures of elements, and that begin only some of their elements at once."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.types import Event, Finish, FlowShape, Otherwise

from .actors import ManualWorker, get
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single


@pytest.mark.parametrize(
    ("options", "size", "fails"),
    [
        ({"tolerated_count": 2}, 3, False),
        ({"tolerated_count": 1}, 3, True),
        ({"tolerated_percent": 50}, 4, False),
        ({"tolerated_percent": 50}, 3, True),
        ({"tolerated_count": 2, "tolerated_percent": 10}, 4, True),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_map_tolerates_as_many_failures_as_it_says(
    flows: Flows, worker: StepWorker, options: dict[str, int], size: int, fails: bool, at_once: bool
) -> None:
    """Two elements fail. What completes the map may be a failure, or a result."""
    run_id = await flows.run_of(
        mapped("m", max_attempts=1, **options), single("s", "m"), given=list(range(size))
    )
    tasks = list((await worker.take()).values())
    ends = [end(tasks[0], error=NO_LUCK), end(tasks[-1], error=NO_LUCK)]
    ends[1:1] = [end(task, "x") for task in tasks[1:-1]]
    for batch in [ends] if at_once else [[each] for each in ends]:
        await worker.report(*batch)
    state = (await flows.steps(run_id))["m"]
    if fails:
        tolerated = 0 if size == 4 else 1
        assert (state.status, state.failed_tasks) == ("failed", tolerated + 1)
        error = await flows.error(run_id)
        assert (error["step"], error["task_index"]) == ("m", (size - 1) * tolerated)
        said = (
            f"{tolerated + 1} of {size} elements failed, {tolerated} {'is' if tolerated else 'are'}"
        )
        assert error["message"].endswith(f": no luck; {said} tolerated")
        return
    outputs = [None, *["x"] * (size - 2), None]
    assert (state.status, state.failed_tasks) == ("completed", 2)
    assert json.loads(state.output or "") == outputs
    given = json.loads((await worker.one()).payload or "")
    assert given["m"] == outputs
    assert {key: error["cause"]["message"] for key, error in given["$failed"]["m"].items()} == {
        "0": "no luck",
        str(size - 1): "no luck",
    }


@pytest.mark.parametrize("exhausted", ["fail", "skip"])
@pytest.mark.parametrize("batches", [(5,), (2, 3), (3, 2), (1,) * 5], ids=str)
@pytest.mark.parametrize("concurrency", [None, 5])
async def test_failures_count_alike_in_whatever_batches_they_come(
    flows: Flows,
    worker: StepWorker,
    batches: tuple[int, ...],
    exhausted: Otherwise,
    concurrency: int | None,
) -> None:
    """Two of seven are tolerated: the third ends the map, and no other counts."""
    run_id = await flows.run_of(
        mapped(
            "m",
            max_attempts=1,
            tolerated_count=2,
            when_exhausted=exhausted,
            concurrency=concurrency,
        ),
        given=list(range(7)),
    )
    tasks = iter((await worker.take()).values())
    for size in batches:
        await worker.report(*[end(next(tasks), error=NO_LUCK) for _ in range(size)])
    state = (await flows.steps(run_id))["m"]
    ended = ("failed", 5) if exhausted == "fail" else ("skipped", None)
    assert (state.status, state.remaining_tasks, state.failed_tasks) == (*ended, 3)
    assert await worker.take() == {}
    if exhausted == "fail":
        told = (await flows.error(run_id))["message"]
        assert told.endswith("no luck; 3 of 7 elements failed, 2 are tolerated")
        again = uuid4()
        assert (await flows.store.retry_flow(run_id, again))[0] == "started"
        assert (await flows.steps(again))["m"].failed_tasks == 0
        assert len(await worker.take()) == (concurrency or 7)


async def test_a_retry_of_a_run_repeats_what_failed_only_if_the_map_failed(
    flows: Flows, worker: StepWorker
) -> None:
    """A map that completed with failures keeps them."""
    run_id = await flows.run_of(
        mapped("m", max_attempts=1, tolerated_count=1, concurrency=2),
        single("s", "m", max_attempts=1),
        given=[0, 1, 2],
    )
    tasks = await worker.take()
    await worker.report(end(tasks["m:0"], error=NO_LUCK), end(tasks["m:1"], 1))
    await worker.fail(await worker.one())  # the second: the map fails
    again = uuid4()
    assert (await flows.store.retry_flow(run_id, again))[0] == "started"
    tasks = await worker.take()
    assert list(tasks) == ["m:0", "m:2"]
    await worker.report(end(tasks["m:0"], error=NO_LUCK), end(tasks["m:2"], 2))
    await worker.fail(await worker.one())  # the step after the map
    third = uuid4()
    assert (await flows.store.retry_flow(again, third))[0] == "started"
    step = await worker.one()
    assert json.loads(step.payload or "")["m"] == [None, 1, 2]
    assert list(json.loads(step.payload or "")["$failed"]["m"]) == ["0"]
    await worker.complete(step, 3)
    assert await flows.output(third) == {"s": 3}
    assert (await flows.steps(third))["m"].failed_tasks == 1


async def test_a_map_has_only_so_many_elements_under_way(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """One that waits for its retry keeps its place."""
    run_id = await flows.run_of(mapped("m", concurrency=3, base_delay=60), given=list(range(7)))
    tasks = await worker.take()
    assert list(tasks) == ["m:0", "m:1", "m:2"]
    [running, waiting] = (await flows.store.open_step_tasks(run_id)) if tasks else []
    assert [(each.phase, each.tasks) for each in (running, waiting)] == [
        ("running", 3),
        ("waiting", 4),
    ]
    assert await worker.fail(tasks["m:1"]) == "retried"
    assert await worker.take() == {}
    ended = await worker.report(end(tasks["m:0"]), end(tasks["m:2"]))
    assert ended.tasks == []
    tasks = await worker.take()
    assert list(tasks) == ["m:3", "m:4"]
    await worker.report(*[end(task) for task in tasks.values()])
    await clock.advance(120)
    tasks = await worker.take()
    assert sorted(tasks) == ["m:1", "m:5", "m:6"]
    await worker.report(*[end(task, 1) for task in tasks.values()])
    assert len((await flows.output(run_id))["m"]) == 7


async def test_tasks_that_are_handed_over_are_no_more_than_the_concurrency(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"), mapped("m", "a", concurrency=2))
    ended = await worker.report(end(await worker.one(), [1, 2, 3, 4, 5]), taker=worker.taker())
    assert [task.key for task in ended.tasks] == ["m:0", "m:1"]
    done: list[str] = []
    tasks = {task.key: task for task in ended.tasks}
    while tasks:
        assert len(tasks) <= 2
        key, task = tasks.popitem()
        await worker.complete(task, 1)
        done.append(key)
        tasks |= await worker.take()
    assert len(done) == 5
    assert await flows.output(run_id) == {"m": [1] * 5}


@pytest.mark.parametrize("size", [0, 2])
async def test_a_small_map_needs_no_place(flows: Flows, worker: StepWorker, size: int) -> None:
    run_id = await flows.run_of(mapped("m", concurrency=3, tolerated_percent=100), given=[1] * size)
    tasks = await worker.take()
    assert len(tasks) == size
    await worker.report(*[end(task, error=NO_LUCK, retryable=False) for task in tasks.values()])
    assert await flows.output(run_id) == {"m": [None] * size}


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_runs_that_are_elements_begin_as_others_end(
    flows: Flows, worker: StepWorker, concurrency: int
) -> None:
    run = mapped(
        "m",
        runs="shop/cook@1",
        runs_kind="workflow",
        concurrency=concurrency,
        tolerated_count=1,
        max_attempts=1,
    )
    run_id = await flows.run_of(run, given=[1, 2, 3])

    tasks = (await worker.claims(handlers=["shop/cook@1"])).tasks
    assert len(tasks) == concurrency
    await flows.store.terminate_runs([tasks[0].run_id])
    tasks = [*tasks[1:], *(await worker.claims(handlers=["shop/cook@1"])).tasks]
    assert len(tasks) == concurrency
    await flows.store.terminate_runs([tasks[0].run_id])
    assert (await get(flows.store, run_id)).status == "failed"


async def test_runs_that_are_elements_may_fail_in_one_commit(
    flows: Flows, worker: StepWorker, bob: ManualWorker
) -> None:
    run = mapped("m", runs="order@1", runs_kind="workflow", tolerated_count=2, max_attempts=1)
    run_id = await flows.run_of(run, given=[1, 2, 3, 4, 5])
    failed = Event("WorkflowFailed", None, None, 0)
    tasks = (await bob.claim()).tasks
    await bob.commit_together(
        *((task, [failed], Finish("failed", error=NO_LUCK)) for task in tasks[:4])
    )
    state = (await flows.steps(run_id))["m"]
    assert (state.status, state.failed_tasks, state.remaining_tasks) == ("failed", 3, 3)
    told = (await flows.error(run_id))["message"]
    assert told.endswith("; 3 of 5 elements failed, 2 are tolerated")


async def test_retries_with_a_jitter_are_spread(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    run_id = await flows.run_of(
        mapped("m", base_delay=100, jitter_percent=50), given=list(range(20))
    )
    tasks = await worker.take()
    await worker.report(*[end(task, error=NO_LUCK) for task in tasks.values()])
    await clock.advance(100)
    assert await worker.take() == {}
    await clock.advance(100)
    some = await worker.take(lease_seconds=1000)
    assert 0 < len(some) < 20  # the chance of all or none is 2 in a million
    await clock.advance(100)
    assert len(await worker.take()) == 20 - len(some)
    assert (await get(flows.store, run_id)).status == "running"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (single("a", tolerated_count=1), "are options of maps"),
        (mapped("a", tolerated_count=-1), "tolerated_count is 0 or more, not -1"),
        (mapped("a", tolerated_percent=101), "tolerated_percent is 0 to 100, not 101"),
        (single("a", jitter_percent=101), "jitter_percent is 0 to 100, not 101"),
        (mapped("a", concurrency=0), "concurrency is 1 or more, not 0"),
    ],
)
async def test_options_that_cannot_be_are_refused(flows: Flows, step: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await flows.store.ensure_flow(FlowShape(name=NAME, steps=(step,)), "hash")


async def test_a_retry_of_all_that_failed_repeats_what_a_run_completed_without(
    flows: Flows, worker: StepWorker
) -> None:
    """Elements that were tolerated, a step that was skipped, and all after these; no others."""
    run_id = await flows.run_of(
        mapped("m", max_attempts=1, tolerated_percent=100, concurrency=2),
        single("s", "m"),
        single("gone", max_attempts=1, when_exhausted="skip-cascade"),
        single("after", "gone"),
        single("kept"),
        given=[0, 1, 2],
    )
    while tasks := await worker.take():
        fails = {"m:0", "m:2", "gone"}
        await worker.report(
            *[
                end(task, error=NO_LUCK) if key in fails else end(task, 1)
                for key, task in tasks.items()
            ]
        )
    assert await flows.output(run_id) == {"kept": 1, "s": 1}
    again = uuid4()
    assert (await flows.store.retry_flow(run_id, again, from_step=""))[0] == "started"
    done = dict[str, str | None]()
    while tasks := await worker.take():
        done |= {key: task.payload for key, task in tasks.items()}
        await worker.report(*[end(task, 2) for task in tasks.values()])
    assert done.keys() == {"m:0", "m:2", "gone", "s", "after"}
    assert json.loads(done["s"] or "")["m"] == [2, 1, 2]
    assert await flows.output(again) == {"after": 2, "kept": 1, "s": 2}
    third = uuid4()
    assert (await flows.store.retry_flow(again, third, from_step=""))[0] == "running"
