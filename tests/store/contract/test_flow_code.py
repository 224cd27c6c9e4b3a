"""Flows that are defined in Python: their shapes in stores, and what stores hand to their steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clocks import Clock

from holdfast import App
from holdfast.codec import encode_error
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.flows import canonical_shape, differences, shape_hash
from holdfast.types import ClaimedTask, ErrorInfo

from .actors import get
from .flow_actors import Flows, StepWorker, end

BROKEN = ErrorInfo("builtins.OSError", "no luck")


@dataclass
class Site:
    url: str
    pages: int


@dataclass
class Page:
    url: str


trip = App("shop").flow("trip", input=Site, queue="gpu", attempts=2, base_delay="1s", timeout=9)


@trip.step(when={"pages": 2.0, "url": "u"}, unless={"b": {"long": 1e3, "a": [True, "ä"]}})
async def pages(run: Site) -> list[Page] | None:
    return [Page(f"{run.url}/{number}") for number in range(run.pages)]


@trip.step(on_exhausted="skip", attempts=2)
def rating(pages: list[Page] | None) -> float: ...


@trip.step
def checked(pages: list[Page] | None = None) -> list[Page]:
    return pages or []


@trip.map(checked, start_delay=2, queue="default")
def lengths(page: Page) -> int:
    return len(page.url)


@trip.step
def total(
    lengths: list[int], run: Site, stars: float | None = rating.output, bonus: Any = pages.output
) -> tuple[int, str, bool]:
    return sum(lengths), run.url, stars is None and len(bonus) == 2


numbers = App("shop").flow("numbers", input=list[int])


@numbers.map(numbers.run)
def double(number: int) -> int:
    return 2 * number


async def attempt(worker: StepWorker, task: ClaimedTask) -> None:
    """Run an attempt of a step with what the store has handed out, and report its result."""
    step = (trip if task.name == "shop/trip" else numbers).steps[task.key.partition(":")[0]]
    args, kwargs = step.decode_arguments(task.payload or "")
    result = await step.call_plain(*args, **kwargs)
    await worker.report(end(task, output=step.encode_result(result)))


async def test_a_store_gives_back_the_shape_of_the_code(flows: Flows) -> None:
    """P9."""
    for flow in (trip, numbers):
        shape = flow.shape
        for status in ("compiled", "verified"):
            found = await flows.store.ensure_flow(shape, shape_hash(shape))
            assert found.status == status
        read = await flows.store.get_flow(flow.full_name, flow.version)
        assert read is not None
        assert read.handler == flow.handler
        assert differences(shape, read) == []
        assert canonical_shape(read) == canonical_shape(shape)
        assert [step.slug for step in read.steps] == list(flow.steps)


async def test_a_mismatch_has_words_for_each_difference(flows: Flows) -> None:
    """P9."""
    other = App("shop").flow("trip", timeout=9)

    @other.step(timeout=60)
    def pages(run: Any) -> None: ...

    await flows.store.ensure_flow(trip.shape, shape_hash(trip.shape))
    found = await flows.store.ensure_flow(other.shape, shape_hash(other.shape))
    assert found.status == "mismatch"
    assert found.found is not None
    assert differences(other.shape, found.found)[:3] == [
        "the flow: queue default in the code, gpu in the database",
        "the flow: attempts 3 in the code, 2 in the database",
        "the flow: base_delay 5 s in the code, 1 s in the database",
    ]


async def test_the_code_of_steps_is_given_what_it_declares(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """P4. Inputs, outputs, elements, errors of earlier attempts and skipped dependencies."""
    await flows.store.ensure_flow(trip.shape, shape_hash(trip.shape))
    given = json.loads(trip.encode_input(Site("u", 2)))
    run_id = await flows.start(given, queue="gpu")
    await attempt(worker, await worker.one())
    claimed = await worker.take()
    context = FlowStepContext(claimed["rating"], rating)
    assert (context.attempt, context.last_error, context.flow) == (1, None, "trip")
    await worker.fail(claimed["rating"], error=encode_error(BROKEN))
    await attempt(worker, claimed["checked"])
    await clock.advance(2)
    claimed = await worker.take()
    assert sorted(claimed) == ["lengths:0", "lengths:1", "rating"]
    context = FlowStepContext(claimed["rating"], rating)
    assert (context.attempt, context.last_error) == (2, BROKEN)
    assert FlowStepContext(claimed["lengths:1"], lengths).index == 1
    await worker.fail(claimed["rating"], error=encode_error(BROKEN))
    await attempt(worker, claimed["lengths:0"])
    await attempt(worker, claimed["lengths:1"])
    task = await worker.one()
    assert FlowStepContext(task, total).skipped(rating)
    assert not FlowStepContext(task, total).skipped("lengths")
    await attempt(worker, task)
    run = await get(flows.store, run_id)
    assert trip.decode_output(run.output or "") == {"total": (6, "u", True)}


async def test_a_root_map_is_given_the_elements_of_the_input(
    flows: Flows, worker: StepWorker
) -> None:
    """P5."""
    await flows.store.ensure_flow(numbers.shape, shape_hash(numbers.shape))
    run_id = await flows.start([3, 4], name=numbers.full_name)
    for task in (await worker.take(handlers=(numbers.handler,))).values():
        await attempt(worker, task)
    run = await get(flows.store, run_id)
    assert numbers.decode_output(run.output or "") == {"double": [6, 8]}
