"""The runs that a worker holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from uuid import UUID

import msgspec
import pytest

from holdfast import App, Client, Context, Retry, RunFailed
from holdfast._version import __version__
from holdfast.definitions.steps import StepContext
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import ClaimedTask, Event, Notice, Release
from holdfast.worker.agenda import Agenda
from holdfast.worker.attempts import Execution, StepExecution, StepRunner
from holdfast.worker.claimer import Room
from holdfast.worker.clock import EngineClock
from holdfast.worker.log_reader import LogReader
from holdfast.worker.recording import Committer
from holdfast.worker.runs import Runs, TurnCache
from tests.runtime.desk import info, working

START = 1_700_000_000_000_000
RUN_ID = UUID(int=7)
LOG = [
    Event("WorkflowStarted", None, "null", START),
    Event("StepCompleted", "work", '{"name":"work","args":223132457,"result":1}', START),
]
app = App("dispatched")


@app.step
async def work() -> int:
    raise AssertionError("the test runs no step")


@app.workflow
async def flow(ctx: Context) -> list[int]:
    return [await work(), await work()]


class Desk:
    """Reads logs when it is told to, and keeps which steps were started."""

    def __init__(self) -> None:
        self.reads: list[Callable[[list[Event]], None]] = []
        self.started: list[StepExecution] = []

    def read(self, run_id: UUID, first: int, answer: Callable[[list[Event]], None]) -> None:
        self.reads.append(answer)

    def start(
        self, call: Call, info: RunInfo, report: Callable[[StepExecution], None], lease_no: int
    ) -> StepExecution:
        execution = Execution(call.step, StepContext(info, call), START, None, report)
        self.started.append(execution)
        return execution


def claimed(lease_no: int) -> ClaimedTask:
    """A claim of the run, whose log has to be read."""
    return ClaimedTask(
        RUN_ID, "", "workflow", "default", "flow", 1, 1, lease_no, len(LOG), START, None, None
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_if_the_logs_of_two_leases_are_read_at_once_the_later_lease_holds(
    order: tuple[int, int],
) -> None:
    """Trap 18. The first one ran out meanwhile; it is not driven beside the second."""
    desk, room, loop = Desk(), Room(10), asyncio.get_running_loop()
    runs = Runs(
        app,
        EngineClock(),
        cast("Committer", None),
        cast("StepRunner", desk),
        cast("LogReader", desk),
        TurnCache(10),
        list[Notice]().extend,
        agenda=Agenda(heartbeat_seconds=2, silent_seconds=8),
        release=list[Release]().append,
        room=room,
        due_at=lambda at: None,
    )
    runs.accept([claimed(1), claimed(2)])
    await asyncio.sleep(0)
    for place in order:
        loop.call_soon(desk.reads[place], LOG)
    await asyncio.sleep(0)

    assert [lease.lease_no for lease in runs.leases()] == [2]
    assert room.taken == 1
    under_way = [execution for execution in desk.started if not execution.ended]
    assert len(under_way) == 1


@dataclass
class Odd:
    """An odd number. The check of an even one raises what is not an Exception."""

    value: int

    def __post_init__(self) -> None:
        if self.value % 2 == 0:
            raise asyncio.CancelledError(self.value)


odd_app = App("odd")


@odd_app.step(retry=Retry.NEVER)
def look(odd: Odd) -> int:
    return odd.value


@odd_app.workflow
async def answer(ctx: Context, value: int) -> Odd:
    odd = Odd(1)
    odd.value = value
    return odd


@odd_app.workflow
async def ask(ctx: Context, value: int) -> int:
    odd = Odd(1)
    odd.value = value
    return await look(odd)


async def test_an_output_with_a_check_that_raises_anything_fails_one_run() -> None:
    """It must not keep those that were claimed with it from being opened."""
    store = MemoryStore()
    async with Client(store=store, app=odd_app) as client:
        handles = [await client.start(answer, value) for value in (1, 2, 3, 5)]
        async with working(odd_app, store):
            for place in (0, 2, 3):
                await handles[place].result()
            with pytest.raises(RunFailed, match="output of answer: CancelledError: 2"):
                await handles[1].result()


async def test_an_argument_with_a_check_that_raises_anything_fails_one_step() -> None:
    store = MemoryStore()
    async with Client(store=store, app=odd_app) as client:
        handles = [await client.start(ask, value) for value in (1, 2, 3, 5)]
        async with working(odd_app, store):
            assert [await handles[place].result() for place in (0, 2, 3)] == [1, 3, 5]
            with pytest.raises(RunFailed, match="CancelledError"):
                await handles[1].result()


@pytest.mark.parametrize("release", [__version__, "0.0.9"])
async def test_a_log_promises_entries_unless_a_worker_of_another_release_may_continue_it(
    release: str,
) -> None:
    """Fault: it does not write them, and a new worker took its exceptions for a bug of a deploy."""
    store, app = MemoryStore(wall_clock), App("upgraded")

    @app.workflow
    async def begun(ctx: Context) -> None:
        ctx.set_value("progress", 0)

    other = msgspec.structs.replace(info(), holdfast_version=release)
    await store.heartbeat(other, [], lease_seconds=30)
    async with working(app, store), Client(store=store) as client:
        handle = await client.start(begun)
        await handle.result("2m")
        first = (await handle.log(1))[0].event
    assert ('"caught":2' in (first.details or "")) == (release == __version__)
