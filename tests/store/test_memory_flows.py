"""Results of flows that are too large, in memory: tests of SQL say the same of PostgreSQL."""

from __future__ import annotations

from typing import cast

import pytest
from clocks import Clock
from contract.actors import get
from contract.flow_actors import Flows, StepWorker, end, mapped, single

from holdfast.store.memory import MemoryStore
from holdfast.store.memory.flows import large

pytestmark = pytest.mark.usefixtures("few_bytes")


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 20 bytes be what one value takes at most."""
    monkeypatch.setattr(large, "LARGEST_BYTES", 20)


@pytest.fixture
def flows() -> Flows:
    return Flows(MemoryStore(), cast("Clock", None))


@pytest.fixture
def worker(flows: Flows) -> StepWorker:
    return StepWorker(flows.store)


async def complete(worker: StepWorker, size: int) -> None:
    """Complete all that is due with texts of this size."""
    await worker.report(*(end(task, "x" * size) for task in (await worker.claims()).tasks))


@pytest.mark.parametrize(
    ("exhausted", "rule", "ended", "status"),
    [
        ("fail", "none_failed", "failed", "failed"),
        ("fail", "all_done", "failed", "running"),
        ("skip", "none_failed", "skipped", "running"),
    ],
)
async def test_a_map_whose_results_are_too_large_for_one_value_fails(
    flows: Flows, worker: StepWorker, exhausted: str, rule: str, ended: str, status: str
) -> None:
    each = mapped("each", when_exhausted=exhausted)
    run_id = await flows.run_of(each, single("all", "each", trigger_rule=rule), given=[1, 2])
    await complete(worker, 15)
    step = (await flows.steps(run_id))["each"]
    assert (step.status, step.output) == (ended, None)
    assert "the results of its 2 elements take" in (step.error or "")
    assert (await get(flows.store, run_id)).status == status
    assert list(await worker.take()) == (["all"] if status == "running" else [])
    assert "FlowStepCompleted each" not in await flows.log(run_id)


async def test_a_map_over_results_takes_them_whatever_they_come_to(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(
        mapped("each"), mapped("size", "each"), single("all", "size"), given=[1, 2]
    )
    await complete(worker, 15)
    await complete(worker, 1)
    await complete(worker, 1)
    assert await flows.output(run_id) == {"all": "x"}


@pytest.mark.parametrize(
    ("exhausted", "ended", "status"),
    [("fail", "failed", "failed"), ("skip", "skipped", "completed")],
)
async def test_a_step_that_would_be_given_too_much_fails(
    flows: Flows, worker: StepWorker, exhausted: str, ended: str, status: str
) -> None:
    run_id = await flows.run_of(
        single("a"), single("b"), single("all", "a", "b", when_exhausted=exhausted)
    )
    await complete(worker, 15)
    step = (await flows.steps(run_id))["all"]
    assert step.status == ended
    assert "step all failed: what it is given takes 1 MiB" in (step.error or "")
    assert (await get(flows.store, run_id)).status == status


async def test_a_run_whose_output_would_be_too_large_fails(
    flows: Flows, worker: StepWorker
) -> None:
    run_id = await flows.run_of(single("a"), single("b"))
    await complete(worker, 15)
    error = await flows.error(run_id)
    assert error["kind"] == "holdfast.errors.PayloadError"
    assert "the output of the run takes 1 MiB" in error["message"]
