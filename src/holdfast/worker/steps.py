"""Attempts of steps: what they share with activities, and when to try again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

from holdfast.definitions.attempts import StepContext
from holdfast.definitions.middleware import Layer
from holdfast.runtime.code.calls import Call, RunInfo
from holdfast.worker.attempts import Execution, Launcher
from holdfast.worker.clock import Clock

StepExecution: TypeAlias = Execution[StepContext]
Report: TypeAlias = Callable[[StepExecution], None]


class StepRunner:
    """Start attempts of steps, with middleware around them."""

    def __init__(self, launcher: Launcher, clock: Clock, layers: list[Layer]) -> None:
        self._launcher, self._clock, self._layers = launcher, clock, layers

    def start(self, call: Call, info: RunInfo, report: Report) -> StepExecution:
        """Start an attempt. `report` is called with it when it has ended, never before return."""
        step, context = call.step, StepContext(info, call)
        execution = Execution(step, context, self._clock.now(), step.timeout_seconds, report)
        self._launcher.launch(execution, call.arguments, self._layers)
        return execution

    def retry_at(self, execution: StepExecution) -> int | None:
        """Return when to try again after a failure, None for not at all."""
        retry, attempt = execution.function.retry, execution.context.attempt
        if not (execution.retryable and retry.lasts(attempt)):
            return None
        seconds = execution.delay
        if seconds is None:
            seconds = retry.delay_seconds(attempt, random.random)
        return self._clock.now() + int(seconds * 1e6)
