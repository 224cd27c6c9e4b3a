"""Attempts of steps, on the event loop and in threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.definitions.middleware import CallNext
from holdfast.definitions.steps import Step, StepContext
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call
from holdfast.worker.attempts import Launcher, StepExecution, StepRunner
from holdfast.worker.clock import EngineClock
from tests.runtime.bench import RUN_ID, START

INFO = RunInfo(RUN_ID, "flow", 1, 1, START)


async def test_a_step_cancelled_before_it_has_a_thread_never_starts() -> None:
    """Trap 16. What the run has given up has no effect later on."""
    gate, begun = threading.Event(), list[str]()

    def enter(name: str) -> None:
        begun.append(name)
        gate.wait()

    step = Step(enter)
    reported: asyncio.Queue[StepExecution] = asyncio.Queue()

    def start(runner: StepRunner, name: str) -> StepExecution:
        arguments = step.encode_arguments((name,), {})
        return runner.start(
            Call(name, step, step.name, arguments, RUN_ID), INFO, reported.put_nowait, 1
        )

    with ThreadPoolExecutor(1) as threads:
        runner = StepRunner(Launcher(threads, {}), EngineClock(), [])
        first = start(runner, "first")
        second = start(runner, "second")
        third = start(runner, "third")
        second.cancel()
        await asyncio.sleep(0)  # futures pass a cancellation on from the event loop
        gate.set()
        assert await reported.get() is first
        assert await reported.get() is third
    assert begun == ["first", "third"]


async def test_the_clock_of_a_cancelled_step_is_not_started() -> None:
    """Its thread has begun, and the event loop hears of that too late: nothing else stops it."""
    begun, gate = threading.Event(), threading.Event()

    def enter() -> None:
        begun.set()
        gate.wait()

    async def around(context: StepContext, call_next: CallNext) -> object:
        return await call_next()

    step = Step(enter, timeout="1h")
    with ThreadPoolExecutor(1) as threads:
        runner = StepRunner(Launcher(threads, {}), EngineClock(), [around])
        call = Call("enter", step, step.name, step.encode_arguments((), {}), RUN_ID)
        execution = runner.start(call, INFO, lambda _: None, 1)
        await asyncio.sleep(0)  # the middleware goes on to the thread
        begun.wait()
        ended = execution.cancel()
        gate.set()
        assert ended is not None
        await asyncio.wait([ended])
    assert execution.timer is None


@pytest.mark.parametrize("loop_ends", [True, False])
def test_a_step_that_is_cancelled_before_it_begins(loop_ends: bool) -> None:
    """None of its code sees the cancellation. It fails only while its event loop continues."""
    reported = list[StepExecution]()

    async def never() -> None:
        raise AssertionError("it never begins")

    step = Step(never)

    async def start() -> None:
        launcher = Launcher(threads, {})
        launcher.loop_end.start()
        runner = StepRunner(launcher, EngineClock(), [])
        call = Call("never", step, step.name, step.encode_arguments((), {}), RUN_ID)
        future = runner.start(call, INFO, reported.append, 1).future
        assert future is not None
        if not loop_ends:
            future.cancel()
            await asyncio.wait([future])

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(start())
    assert len(reported) == (not loop_ends)
