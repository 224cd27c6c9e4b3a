"""What metrics say of a worker that is late, or that drops spans."""

from __future__ import annotations

import asyncio

from holdfast import App, Context
from holdfast.store.memory import MemoryStore
from holdfast.telemetry import WorkerMetrics
from holdfast.worker import Worker
from holdfast.worker.heartbeat import LoopLag
from holdfast.worker.observing import WorkerLoad

app = App("late")


@app.workflow
async def rest(ctx: Context) -> None:
    """Do nothing."""


async def test_the_lag_of_a_loop_is_the_way_of_a_call_through_it() -> None:
    now = 10.0
    lag, loop = LoopLag(lambda: now), asyncio.get_running_loop()
    assert lag.seconds == 0
    lag.measure(loop)
    now += 3  # code blocks the loop
    assert lag.seconds == 3
    lag.measure(loop)  # the first call is still under way
    await asyncio.sleep(0)
    assert lag.seconds == 3
    now += 100
    assert lag.seconds == 3
    lag.measure(loop)
    await asyncio.sleep(0)
    assert lag.seconds == 0


async def test_a_loop_that_has_been_closed_is_not_late() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    LoopLag().measure(loop)


class LateWorker(Worker):
    @property
    def load(self) -> WorkerLoad:
        return WorkerLoad(1, 0, None, 4.5, 2.5, 7)


def test_lateness_and_dropped_spans_are_shown() -> None:
    metrics = WorkerMetrics()
    metrics.watch(LateWorker(app, MemoryStore()))
    shown = {each.name: each for each in metrics.families()}
    names = (
        "holdfast_heartbeat_late_seconds",
        "holdfast_loop_lag_seconds",
        "holdfast_spans_dropped_total",
    )
    assert [shown[name].samples[0].value for name in names] == [4.5, 2.5, 7]


def test_without_a_heartbeat_and_traces_they_are_left_out() -> None:
    metrics = WorkerMetrics()
    metrics.watch(Worker(app, MemoryStore()))
    names = {each.name for each in metrics.families()}
    assert "holdfast_worker_held" in names
    assert not {name for name in names if "late" in name or "lag" in name or "spans" in name}
