"""Forks of runs of flows: new runs that begin with what others have, with other values."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from holdfast.errors import InvalidInput, PayloadError
from holdfast.types import FlowFork

from .actors import SECOND, get, new_run
from .flow_actors import Flows, StepWorker, end, mapped, single

LINE = (single("a"), single("b", "a"), single("c", "b"))


async def fork(flows: Flows, run_id: UUID, from_step: str | None = None, **changes: Any) -> UUID:
    """Fork a run; `given` is its input, the other changes are results of steps."""
    value: dict[str, Any] = {"run_id": run_id, "new_run_id": uuid4(), "from_step": from_step}
    if "given" in changes:
        value["input"] = json.dumps(changes.pop("given"))
    results = {slug: json.dumps(result) for slug, result in changes.items()}
    outcome, _ = await flows.store.fork_flow(FlowFork(**value, results=results))
    assert outcome == "forked"
    new: UUID = value["new_run_id"]
    return new


async def finish(flows: Flows, worker: StepWorker) -> None:
    """Complete all tasks with their keys."""
    while tasks := await worker.take():
        for task in tasks.values():
            await worker.complete(task, task.key)


async def test_a_fork_keeps_what_a_run_has_and_does_the_rest(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(*LINE, given=[1])
    await worker.complete(await worker.one(), "from a")
    second = await fork(flows, first)
    assert await flows.statuses(second) == {"a": "completed", "b": "created", "c": "created"}
    tasks = (await worker.claims()).tasks
    assert {(task.run_id, task.key) for task in tasks} == {(first, "b"), (second, "b")}
    assert {task.payload for task in tasks} == {'{"run":[1],"a":"from a"}'}
    assert await flows.log(second) == ["WorkflowStarted", "WorkflowForked"]


async def test_a_fork_of_a_completed_run_has_its_output(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(*LINE)
    await finish(flows, worker)
    assert await flows.output(await fork(flows, first)) == {"c": "c"}


async def test_another_output_of_a_step_runs_all_behind_it_again(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(*LINE, single("d", "a"))
    await finish(flows, worker)
    second = await fork(flows, first, b={"other": 1})
    assert await flows.statuses(second) == {
        "a": "completed",
        "b": "completed",
        "c": "created",
        "d": "completed",
    }
    task = await worker.one()
    assert (task.key, task.payload) == ("c", '{"run":null,"b":{"other": 1}}')
    await worker.complete(task, "again")
    assert await flows.output(second) == {"c": "again", "d": "d"}
    assert await flows.output(first) == {"c": "c", "d": "d"}


async def test_an_output_stands_for_a_step_that_failed(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(*LINE)
    await worker.complete(await worker.one(), 1)
    await worker.fail(await worker.one(), retryable=False)
    second = await fork(flows, first, b="by hand")
    task = await worker.one()
    assert (task.key, task.payload) == ("c", '{"run":null,"b":"by hand"}')
    b = (await flows.steps(second))["b"]
    assert (b.status, b.output, b.error, b.attempts) == ("completed", '"by hand"', None, None)


async def test_the_output_of_the_last_step_ends_the_fork(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(single("a"), single("b", "a"))
    await worker.complete(await worker.one())
    assert await flows.output(await fork(flows, first, b=None)) == {"b": None}


async def test_with_another_input_every_step_runs_again_but_those_given(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(single("a"), single("b", "a"), single("c"), single("d", "b", "c"))
    await finish(flows, worker)
    second = await fork(flows, first, given="new", c="given")
    assert (await get(flows.store, second)).input == '"new"'
    for key, payload in (
        ("a", '{"run":"new"}'),
        ("b", '{"run":"new","a":"a"}'),
        ("d", '{"run":"new","b":"b","c":"given"}'),
    ):
        task = await worker.one()
        assert (task.key, task.payload) == (key, payload)
        await worker.complete(task, key)
    assert await flows.output(second) == {"d": "d"}


@pytest.mark.parametrize("middle", [("b", "a"), ("b", "a", "x")])
async def test_a_given_step_ends_when_all_before_it_has_ended(
    flows: Flows, worker: StepWorker, middle: tuple[str, ...]
) -> None:
    slug, *deps = middle
    first = await flows.run_of(single("a"), single("x"), single(slug, *deps), single("c", "b"))
    second = await fork(flows, first, given=2, b="given")
    await flows.store.terminate_runs([first])
    tasks = await worker.take()
    assert sorted(tasks) == ["a", "x"]
    await worker.complete(tasks["x"])
    assert await worker.take() == {}
    await worker.complete(tasks["a"])
    task = await worker.one()
    assert (task.key, task.payload) == ("c", '{"run":2,"b":"given"}')
    await worker.complete(task, "end")
    assert (await flows.output(second))["c"] == "end"
    assert "FlowStepCompleted b" not in await flows.log(second)


async def test_a_given_step_at_the_end_leaves_time_for_those_before_it(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(single("a"), single("b", "a"))
    await flows.store.terminate_runs([first])
    second = await fork(flows, first, b=1)
    await worker.complete(await worker.one(), "a")
    assert await flows.output(second) == {"b": 1}


async def test_a_map_is_given_all_its_elements(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(mapped("m"), mapped("n", "m"), given=[1, 2, 3])
    tasks = await worker.take()
    await worker.report(end(tasks["m:0"], 10), end(tasks["m:1"], 20))
    await flows.store.terminate_runs([first])
    second = await fork(flows, first, m=[7, "x"])
    m = (await flows.steps(second))["m"]
    assert (m.status, m.initial_tasks, m.remaining_tasks) == ("completed", 2, 0)
    assert json.loads(m.output or "") == [7, "x"]
    tasks = await worker.take()
    assert {key: task.payload for key, task in tasks.items()} == {"n:0": "7", "n:1": '"x"'}
    await worker.report(end(tasks["n:0"], 1), end(tasks["n:1"], 2))
    assert await flows.output(second) == {"n": [1, 2]}
    assert await flows.output(await fork(flows, second, m=[], n=[5])) == {"n": [5]}
    assert await flows.output(await fork(flows, second, m=[])) == {"n": []}


async def test_a_map_over_another_output_keeps_no_element(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(single("a"), mapped("m", "a"))
    await worker.complete(await worker.one(), [1, 2])
    await worker.complete((await worker.take())["m:0"], 10)
    await flows.store.terminate_runs([first])
    assert sorted(await worker.take()) == []
    kept = await fork(flows, first)
    assert sorted(await worker.take()) == ["m:1"]
    await flows.store.terminate_runs([kept])
    await fork(flows, first, a=[3, 4, 5])
    assert {key: task.payload for key, task in (await worker.take()).items()} == {
        "m:0": "3",
        "m:1": "4",
        "m:2": "5",
    }


async def test_a_step_of_a_fork_runs_again_with_all_behind_it(
    flows: Flows, worker: StepWorker
) -> None:
    first = await flows.run_of(*LINE)
    await finish(flows, worker)
    await fork(flows, first, "b", a=1)
    task = await worker.one()
    assert (task.key, task.payload) == ("b", '{"run":null,"a":1}')


async def test_a_given_output_ends_what_a_skip_took_along(flows: Flows, worker: StepWorker) -> None:
    """b is skipped with all after it; e depends on c alone, f on c and d."""
    first = await flows.run_of(
        single("b", required='{"go":true}', when_unmet="skip-cascade"),
        single("c", "b"),
        single("d", "b"),
        single("e", "c"),
        single("f", "c", "d"),
        given={},
    )
    assert set((await flows.statuses(first)).values()) == {"skipped"}
    for changes in ({}, {"given": {}}):
        second = await fork(flows, first, c=1, **changes)
        await worker.complete(await worker.one(), "e")
        assert await flows.output(second) == {"e": "e"}
        statuses = await flows.statuses(second)
        assert (statuses["b"], statuses["c"], statuses["f"]) == ("skipped", "completed", "skipped")
    third = await fork(flows, first, b=1)
    assert sorted(await worker.take()) == ["c", "d"]
    assert (await flows.statuses(third))["b"] == "completed"


async def test_a_fork_has_the_properties_of_the_run_but_not_its_key(flows: Flows) -> None:
    await flows.define(single("a"))
    properties = {"queue": "gpu", "priority": 1, "tags": ("t",), "headers": {"by": "ann"}}
    first = await flows.start([1], key="k", timeout_seconds=60.0, **properties)
    second = await fork(flows, first, given=[2])
    old, new = await get(flows.store, first), await get(flows.store, second)
    for name in ("kind", "full_name", "version", *properties):
        assert getattr(old, name) == getattr(new, name), name
    assert (new.key, new.parent_run_id, new.input) == (None, None, "[2]")
    assert new.deadline_at == new.created_at + 60 * SECOND
    [details] = await flows.details(second, "WorkflowForked")
    assert details == {"run_id": str(first), "idx": 1, "seed": str(first), "run_key": "k"}


async def test_what_cannot_be_forked_has_an_outcome(flows: Flows) -> None:
    run_id, new = await flows.run_of(single("a"), mapped("m", "a")), uuid4()

    async def ask(**fields: Any) -> str:
        value = FlowFork(**{"run_id": run_id, "new_run_id": new, **fields})
        outcome, notices = await flows.store.fork_flow(value)
        assert (outcome == "forked") == bool(notices)
        return outcome

    assert await ask(run_id=uuid4()) == "missing"
    assert await ask(new_run_id=run_id) == "exists"
    assert await ask(results={"b": "1"}) == "unknown_key"
    assert await ask(results={"": "1", "a": "1"}) == "unknown_key"
    assert await ask(from_step="b") == "unknown_key"
    assert await ask(from_step="") == "unknown_key"
    for wrong in ("null", "{}", '"[]"'):
        with pytest.raises(InvalidInput, match="step m is a map"):
            await ask(results={"m": wrong})
    with pytest.raises((InvalidInput, PayloadError)):
        await ask(results={"a": "{"})
    assert await flows.store.get_runs([new]) == {}
    assert await ask() == "forked"
    assert await ask() == "exists"
    workflow = new_run()
    await flows.store.start_runs([workflow])
    with pytest.raises(InvalidInput, match="not one of a flow"):
        await ask(run_id=workflow.run_id, new_run_id=uuid4())


async def test_an_input_over_which_the_flow_cannot_map_is_refused(flows: Flows) -> None:
    run_id = await flows.run_of(mapped("m"), given=[1])
    with pytest.raises(InvalidInput, match="maps over the input"):
        await fork(flows, run_id, given={})


async def test_a_fork_of_a_replaced_shape_keeps_only_what_is_given(
    flows: Flows, worker: StepWorker
) -> None:
    old = await flows.define(single("a"), single("b", "a"))
    first = await flows.start()
    await worker.complete(await worker.one(), 1)
    new = msgspec.structs.replace(old, steps=(single("a"), single("c"), single("d", "a", "c")))
    await flows.store.ensure_flow(new, "new", replace=True)
    await fork(flows, first, c=3)
    await worker.complete(await worker.one(), 2)
    assert (await worker.one()).payload == '{"run":null,"a":2,"c":3}'


async def test_a_retry_of_a_fork_keeps_what_was_given(flows: Flows, worker: StepWorker) -> None:
    first = await flows.run_of(*LINE)
    second = await fork(flows, first, b="given", a="too")
    await flows.store.terminate_runs([first, second])
    third = uuid4()
    assert (await flows.store.retry_flow(second, third))[0] == "started"
    task = await worker.one()
    assert (task.run_id, task.key, task.payload) == (third, "c", '{"run":null,"b":"given"}')
