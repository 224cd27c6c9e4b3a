"""Attempts of steps: what the execution shares with activities, and when to try again."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from holdfast.definitions.middleware import Layer
from holdfast.runtime.attempts.execution import Execution, Launcher
from holdfast.runtime.attempts.step_context import StepContext
from holdfast.runtime.clock import Clock
from holdfast.runtime.code.calls import Call, RunInfo

Report: TypeAlias = "Callable[[StepExecution], None]"


class StepExecution(Execution):
    """One attempt of a step."""

    __slots__ = ("_clock", "call")

    def __init__(self, call: Call, info: RunInfo, clock: Clock, report: Report) -> None:
        step = call.step
        context = StepContext(info, call)
        super().__init__(step, context, clock.now(), step.timeout_seconds, partial(report, self))
        self.call, self._clock = call, clock

    def retry_at(self) -> int | None:
        """Return when the step is to be tried again after this failure, None for not at all."""
        retry, attempt = self.call.step.retry, self.context.attempt
        if not (self.retryable and retry.lasts(attempt)):
            return None
        return self._clock.now() + int(retry.delay_seconds(attempt, random.random) * 1e6)


class StepRunner:
    """Start attempts of steps, with middleware around them."""

    def __init__(self, launcher: Launcher, clock: Clock, layers: list[Layer]) -> None:
        self._launcher, self._clock, self._layers = launcher, clock, layers

    def start(self, call: Call, info: RunInfo, report: Report) -> StepExecution:
        """Start an attempt. `report` is called with it when it has ended, never before return."""
        execution = StepExecution(call, info, self._clock, report)
        self._launcher.launch(execution, call.arguments, self._layers)
        return execution
