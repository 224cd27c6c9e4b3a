"""A run's driver between its turn, its steps and the store's answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from holdfast import Context
from holdfast.definitions.steps import StepContext
from holdfast.definitions.workflows import Workflow
from holdfast.events import RESUMED, SIGNAL_RECEIVED, STEP_COMPLETED, WORKFLOW_STARTED
from holdfast.runtime.turn.turn import Call, RunInfo, State, Turn
from holdfast.types import Event, Finish, Notice, Refusal, TurnCommit
from holdfast.worker.attempts import Execution, StepExecution, StepRunner
from holdfast.worker.clock import Clock, EngineClock
from holdfast.worker.driver import RunDriver
from holdfast.worker.observing import Observing
from holdfast.worker.recording import Committer
from tests.runtime.bench import RUN_ID, START, work


class Scene:
    """The driver's host, its committer and its runner: they keep what they are given."""

    draining, observing = False, Observing()

    def __init__(self) -> None:
        self.clock: Clock = EngineClock()
        self.committer = cast("Committer", self)
        self.runner = cast("StepRunner", self)
        self.entered: RunDriver | None = None
        self.parts: list[tuple[TurnCommit, Callable[[Refusal | None], None]]] = []
        self.executions: dict[str, tuple[StepExecution, Callable[[StepExecution], None]]] = {}
        self.started: list[str] = []
        self.logs_wanted = 0
        self.notices: list[Notice] = []
        self.notify = self.notices.extend
        self.log = [Event(WORKFLOW_STARTED, None, "null", START)]

    def submit(self, part: TurnCommit, answer: Callable[[Refusal | None], None]) -> None:
        self.parts.append((part, answer))

    def start(
        self, call: Call, info: RunInfo, report: Callable[[StepExecution], None], lease_no: int
    ) -> StepExecution:
        execution = Execution(call.step, StepContext(info, call), START, None, report)
        self.started.append(call.key)
        self.executions[call.key] = execution, report
        return execution

    def idle(self, driver: RunDriver) -> None:
        raise AssertionError("nothing drains here")

    def suspended(self, driver: RunDriver, visible_at: int | None) -> None:
        driver.close(keep_turn=True)

    def end_recorded(self, driver: RunDriver) -> None:
        pass

    def ended(self, driver: RunDriver) -> None:
        driver.close()

    def stuck(self, driver: RunDriver, reason: str, *, quotes: bool = True) -> None:
        raise AssertionError(reason)

    def need_log(self, driver: RunDriver) -> None:
        self.logs_wanted += 1

    # What happens

    def commit(self) -> TurnCommit:
        part, answer = self.parts.pop()
        self.log += part.events
        answer(None)
        return part

    def refuse(self, tail: list[Event]) -> None:
        _, answer = self.parts.pop()
        self.log += tail
        answer(Refusal("conflict", tail))

    def complete(self, key: str, result: str) -> None:
        execution, report = self.executions.pop(key)
        execution.result = result
        report(execution)


def signal(name: str) -> Event:
    text = json.dumps({"signal_name": name, "input": None})
    return Event(SIGNAL_RECEIVED, None, text, START)


async def from_a_callback(play: Callable[[], None]) -> None:
    """Call `play` as a worker's event loop would: outside of any task."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            done.set_result(play())
        except BaseException as error:
            done.set_exception(error)

    loop.call_soon(run)
    await done


class Watched(RunDriver):
    """A step of this driver ends between two lines of the watchdog's look."""

    end_a_step: Callable[[], None] | None = None

    @property
    def executing(self) -> bool:
        executing, end_a_step = super().executing, self.end_a_step
        if end_a_step is not None:
            self.end_a_step = None
            end_a_step()
        return executing


async def test_a_step_that_ends_while_the_watchdog_looks_at_its_run_is_recorded() -> None:
    """Else the run would wait for it for ever, with a lease that is renewed."""
    await from_a_callback(_a_step_ends_during_the_look)


def _a_step_ends_during_the_look() -> None:
    async def flow(ctx: Context) -> int:
        return await work(1)

    scene = Scene()
    workflow: Workflow[Any, Any] = Workflow(flow, name="flow")
    turn = Turn(workflow, RunInfo(RUN_ID, "flow", 1, 1, START), 1, scene.log, scene.clock.now)
    driver = Watched(scene, RUN_ID, 1, turn)
    driver.begin()
    while not scene.executions:
        scene.commit()
    driver.end_a_step = lambda: scene.complete("work", "1")
    assert not driver.give_up(only_idle=True)
    assert scene.commit().then == Finish("completed", "1")


async def test_a_result_that_comes_while_the_log_is_read_is_recorded_once() -> None:
    """Traps 7, 18. Whatever comes meanwhile, one log is read, and no step of it runs again."""
    await from_a_callback(_results_while_the_log_is_read)


def _results_while_the_log_is_read() -> None:
    async def flow(ctx: Context) -> list[int]:
        await ctx.wait_for_signal("go")
        return list(await asyncio.gather(work(1), work(2)))

    scene = Scene()
    workflow: Workflow[Any, Any] = Workflow(flow, name="flow")
    info = RunInfo(RUN_ID, "flow", 1, 1, START)
    turn = Turn(workflow, info, 1, scene.log, scene.clock.now)
    RunDriver(scene, RUN_ID, 1, turn).begin()
    scene.commit()
    assert turn.state is State.SUSPENDED

    go, other = signal("go"), Event(RESUMED, None, None, START)
    scene.log.append(go)
    driver = RunDriver(scene, RUN_ID, 2, turn)
    driver.resume([go])
    scene.complete("work", "1")
    scene.refuse([other])  # a turn that was suspended has no log to build on: it asks for it
    log = list(scene.log)
    scene.complete("work#2", "2")
    driver.unread([other], len(log) - 1)
    assert scene.logs_wanted == 1

    driver.rebuild(log)
    last = scene.commit()
    while turn.state is not State.ENDED:
        last = scene.commit()
    assert last.then == Finish("completed", "[1,2]")
    assert scene.started == ["work", "work#2"]
    kept = [event.key for event in scene.log if event.type == STEP_COMPLETED]
    assert sorted(kept, key=str) == ["work", "work#2"]
