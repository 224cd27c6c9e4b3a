"""Attempts of steps, on the event loop and in threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.definitions.steps import Step
from holdfast.runtime.attempts.execution import Launcher
from holdfast.runtime.attempts.steps import StepExecution, StepRunner
from holdfast.runtime.clock import EngineClock
from holdfast.runtime.code.calls import Call, RunInfo
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
        return runner.start(Call(name, step, arguments, str(RUN_ID)), INFO, reported.put_nowait)

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
