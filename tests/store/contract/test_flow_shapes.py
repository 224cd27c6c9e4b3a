"""Shapes of flows: written once, compared, replaced, listed. P9."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.types import FlowShape, StepShape

from .flow_actors import NAME, Flows, StepWorker, mapped, single

LIST = StepShape(slug="list", queue="gpu", max_attempts=2, base_delay=1, timeout=9, start_delay=4)
EACH = StepShape(
    slug="each",
    kind="map",
    deps=("list",),
    required='{"list": [1]}',
    forbidden='{"b": 1, "aa": {"c": "ü", "d": null}}',
    when_unmet="fail",
    when_exhausted="skip-cascade",
)
SHAPE = FlowShape(name=NAME, queue="slow", max_attempts=7, steps=(LIST, EACH))


async def test_a_shape_is_written_once(flows: Flows) -> None:
    ensure = flows.store.ensure_flow
    assert (await ensure(SHAPE, "h")).status == "compiled"
    assert (await ensure(SHAPE, "h")).status == "verified"
    assert await flows.store.get_flow(NAME) == SHAPE
    assert await flows.store.get_flow("trip", 1) == SHAPE
    assert await flows.store.get_flow(NAME, 2) is None
    assert await flows.store.get_flow("other") is None


async def test_shapes_with_the_same_contents_are_the_same(flows: Flows) -> None:
    """Whatever their hashes; the order of steps and dependencies, and of keys, does not count."""
    a, b = StepShape(slug="a"), StepShape(slug="b")
    both = StepShape(slug="c", deps=("b", "a"), required='{"bb":1,"a":2}')
    ensure = flows.store.ensure_flow
    await ensure(FlowShape(name=NAME, steps=(a, b, both)), "h")
    stored = await flows.store.get_flow(NAME)
    assert stored is not None
    step = stored.steps[2]
    assert (step.deps, step.required) == (("a", "b"), '{"a": 2, "bb": 1}')
    swapped = msgspec.structs.replace(both, deps=("a", "b"), required='{"a": 2, "bb": 1}')
    same = FlowShape(name=NAME, steps=(b, a, swapped))
    assert (await ensure(same, "other")).status == "verified"
    assert await flows.store.get_flow(NAME) == stored
    assert (await ensure(FlowShape(name=NAME, steps=(a,)), "other")).status == "verified"


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "other"},
        {"max_attempts": 8},
        {"base_delay": 8},
        {"timeout": 8},
        {"steps": (LIST,)},
        {"steps": (LIST, msgspec.structs.replace(EACH, deps=()))},
        {"steps": (LIST, msgspec.structs.replace(EACH, required=None))},
        {"steps": (LIST, msgspec.structs.replace(EACH, when_unmet="skip"))},
        {"steps": (msgspec.structs.replace(LIST, wants_run=True), EACH)},
        {"steps": (msgspec.structs.replace(LIST, queue=None), EACH)},
    ],
)
async def test_another_shape_of_a_version_is_reported(flows: Flows, change: dict[str, Any]) -> None:
    await flows.store.ensure_flow(SHAPE, "h")
    other = msgspec.structs.replace(SHAPE, **change)
    answer = await flows.store.ensure_flow(other, "i")
    assert (answer.status, answer.found, answer.ended) == ("mismatch", SHAPE, 0)
    assert await flows.store.get_flow(NAME) == SHAPE


async def test_a_shape_may_be_replaced_and_its_open_runs_end(
    flows: Flows, worker: StepWorker
) -> None:
    old = await flows.define(single("a"))
    done, running = await flows.start(), await flows.start()
    tasks = {task.run_id: task for task in (await worker.claims()).tasks}
    await worker.complete(tasks[done])
    await flows.define(single("a"), version=2)
    untouched = await flows.start(version=2)
    new = msgspec.structs.replace(old, steps=(single("b"),))
    answer = await flows.store.ensure_flow(new, "new", replace=True)
    assert (answer.status, answer.ended, answer.found) == ("replaced", 1, old)
    assert [(n.topic, n.payload) for n in answer.notices] == [("worker/ann", f"{running} a")]
    runs = await flows.store.get_runs([done, running, untouched])
    assert [runs[run_id].status for run_id in (done, running, untouched)] == [
        "completed",
        "terminated",
        "running",
    ]
    await flows.start()
    assert list(await worker.take()) == ["b"]


async def test_an_ended_run_keeps_the_shape_that_it_had(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """C21. Another one of the same version has other steps, in another order."""
    old = await flows.define(single("a"), single("b", "a"), single("c", "a", "b", start_delay=3))
    first = await flows.start()
    await worker.complete((await worker.take())["a"])
    await clock.advance(1)
    runs, shapes = [first], [old]
    for slugs in (("c", "x"), ("y",)):
        steps = tuple(single(slug, *slugs[:place]) for place, slug in enumerate(slugs))
        shapes.append(msgspec.structs.replace(old, steps=steps))
        answer = await flows.store.ensure_flow(shapes[-1], slugs[0], replace=True)
        assert (answer.status, answer.found) == ("replaced", shapes[-2])
        await clock.advance(1)
        runs.append(await flows.start())
        await clock.advance(1)
    found = await flows.store.flow_steps(runs)
    for run_id, shape in zip(runs, shapes, strict=True):
        assert [(step.step, step.kind, step.deps) for step in found[run_id]] == [
            (step.slug, step.kind, step.deps) for step in shape.steps
        ]
        run = (await flows.store.get_runs([run_id]))[run_id]
        assert await flows.store.shape_of_run(run_id, NAME, 1, run.created_at) == shape
    assert await flows.store.get_flow(NAME, 1) == shapes[-1]
    assert [step.status for step in found[first]] == ["completed", "created", "created"]
    assert [step.delay_seconds for step in found[first]] == [0, 0, 3]
    await flows.store.terminate_runs(runs[-1:])
    assert (await flows.store.delete_flow(NAME)).runs == 3
    await flows.store.ensure_flow(old, "h")
    fourth = await flows.start()
    assert len((await flows.store.flow_steps([fourth]))[fourth]) == 3


async def test_all_versions_of_all_flows_are_listed(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"), mapped("b", "a"))
    now = await flows.store.now()
    await flows.define(version=2)
    await flows.define(single("a"), name="bar/trip")
    await flows.start()
    found = await flows.store.list_flows()
    assert [(f.name, f.version, f.steps, f.open_runs) for f in found] == [
        ("bar/trip", 1, 1, 0),
        (NAME, 1, 2, 1),
        (NAME, 2, 0, 0),
    ]
    assert {(f.from_code, f.created_at) for f in found} == {(True, now)}


LONGEST = "s" * 128


@pytest.mark.parametrize("slug", ["a", "_", "A_1", LONGEST])
async def test_a_slug_has_letters_digits_and_underscores(
    flows: Flows, worker: StepWorker, slug: str
) -> None:
    run_id = await flows.run_of(single(slug), mapped("last", slug))
    await worker.complete(await worker.one(), [1])
    await worker.complete(await worker.one(), 2)
    assert await flows.output(run_id) == {"last": [2]}


REFUSED: list[dict[str, Any]] = [
    {"name": "a-b"},
    {"name": "shop/1a"},
    {"name": "a/b/c"},
    {"name": ""},
    {"version": 0},
    {"queue": "no queue"},
    {"max_attempts": 0},
    {"base_delay": -1},
    {"timeout": 0},
    {"max_attempts": 2**31},
    *({"steps": (single(slug),)} for slug in ("", "run", "1a", "a:b", "a b", "ä", LONGEST + "s")),
    {"steps": (single("a"), single("a"))},
    {"steps": (single("a", "a"),)},
    {"steps": (single("a", "b"), single("b"))},
    {"steps": (single("a"), single("b", "a", "a"))},
    {"steps": (single("a"), single("b"), mapped("c", "a", "b"))},
    {"steps": (single("a", required="[]"),)},
    {"steps": (single("a", forbidden="{"),)},
    {"steps": (single("a", start_delay=-1),)},
    {"steps": (single("a", timeout=0),)},
]


@pytest.mark.parametrize("change", REFUSED)
async def test_a_shape_that_cannot_be_is_refused(flows: Flows, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await flows.store.ensure_flow(msgspec.structs.replace(SHAPE, **change), "h")
    assert await flows.store.list_flows() == []
