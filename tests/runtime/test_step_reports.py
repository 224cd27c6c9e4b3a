"""How ends of flows' steps are gathered into calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.types import ClaimedTask, StepTaskEnd, StepTaskOutcome, StepTasksEnded, Taker
from holdfast.worker.claimer import Room
from holdfast.worker.clock import EngineClock
from holdfast.worker.step_tasks import StepReporter

ENDS = 80


class Counting(MemoryStore):
    """Keeps how many ends came in each call, and answers with tasks that became ready."""

    def __init__(self, *, brings: bool) -> None:
        super().__init__()
        self.calls: list[int] = []
        self._brings = brings

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        self.calls.append(len(ends))
        await asyncio.sleep(0)
        return StepTasksEnded(0, ["recorded"] * len(ends), [], [TASK] if self._brings else [])


TASK = ClaimedTask(
    run_id=uuid4(),
    key="next",
    kind="step",
    queue="default",
    name="app/flow",
    version=1,
    attempts=1,
    lease_no=1,
    log_length=0,
    started_at=0,
    input=None,
    payload=None,
)


@pytest.mark.parametrize(("brings", "second"), [(False, [ENDS]), (True, [ENDS // 2] * 2)])
async def test_ends_are_sent_in_two_calls_if_the_worker_waits_for_the_next_steps(
    brings: bool, second: list[int]
) -> None:
    store = Counting(brings=brings)
    reporter = StepReporter(
        store,
        "ann",
        EngineClock(),
        lambda notices: None,
        Room(ENDS).lending,
        lambda count: None,
        lambda tasks: None,
    )
    for _ in range(2):
        await report(reporter, ENDS)
    assert store.calls == [ENDS, *second]


async def report(reporter: StepReporter, count: int) -> None:
    """Report so many ends at one moment, and wait for their answers."""
    answers: list[StepTaskOutcome] = []
    for _ in range(count):
        end = StepTaskEnd(
            run_id=uuid4(), key="a", lease_no=1, output="1", error=None, retryable=False
        )
        reporter.submit(end, answers.append)
    await reporter.flush()
    assert answers == ["recorded"] * count
