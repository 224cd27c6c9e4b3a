"""What the code of a flow's step knows of its attempt.

The code of an attempt gets its `FlowStepContext` from `current_flow_step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from holdfast.codec import decode_error
from holdfast.definitions.flow_parameters import Source
from holdfast.definitions.flow_rules import read_element_errors, read_failures
from holdfast.definitions.flow_steps import FlowStep
from holdfast.definitions.steps import StepContext, running_step
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import ClaimedTask, ErrorInfo, Writer
from holdfast.values.names import split_name

_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class FlowStepContext(StepContext):
    """One attempt of a step of a flow, as its own code sees it.

    `idempotency_key` belongs to this task alone and is the same at each attempt: send it along to
    other systems. `attempt` counts from 1. `workflow` is the flow's name, as `flow` is.
    """

    __slots__ = ("_function", "_task")

    def __init__(self, task: ClaimedTask, function: FlowStep[..., object, object]) -> None:
        self.attempt, self._cancelled, self.streams = task.attempts, None, None
        self._task, self._function = task, function

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._task.run_id

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one.

        A retry and a fork see that of the first run, as the steps of a workflow do.
        """
        return self._task.run_key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        return MappingProxyType(self._task.headers or {})

    @property
    def workflow(self) -> str:
        """The flow's name."""
        return self.flow

    @property
    def flow(self) -> str:
        """The flow's name."""
        return split_name(self._task.name)[1]

    @property
    def version(self) -> int:
        """The flow's version."""
        return self._task.version

    @property
    def step(self) -> str:
        """The step's name."""
        return self._task.key.partition(":")[0]

    @property
    def index(self) -> int | None:
        """The index of the element of a map step, from 0; None in a single step."""
        index = self._task.key.partition(":")[2]
        return int(index) if index else None

    @property
    def key(self) -> str:
        """The key of the task in its run: the step's name, of an element `name:index`."""
        return self._task.key

    @property
    def idempotency_key(self) -> str:
        """The same text at each attempt of this task, and at no attempt of another task."""
        return f"{self._task.run_id}/{self._task.key}"

    @property
    def writer(self) -> tuple[UUID, str, Writer] | None:
        """None: steps of flows have no streams."""
        return None

    @property
    def last_error(self) -> ErrorInfo | None:
        """The newest error of the attempts before this one, None without any."""
        text = self._task.heartbeat
        return None if text is None else _read_error(text)

    def skipped(self, dependency: str | Source[Any]) -> bool:
        """Return True if a dependency was skipped; False if it ran, or failed itself.

        Raises ConfigurationError for a step on which this one does not depend.
        """
        slug = dependency if isinstance(dependency, str) else dependency.slug
        deps = self._function.deps
        if slug not in deps:
            raise ConfigurationError(
                f"{self._function} does not depend on {slug}; it depends on "
                f"{', '.join(deps) or 'no step'}"
            )
        if self._function.is_map or self._task.payload is None:
            return False
        payload = _split_object(self._task.payload)
        return slug not in payload and slug not in read_failures(payload)

    def errors(self, dependency: str | Source[Any]) -> Mapping[int, ErrorInfo]:
        """Return the errors of the elements of a map that failed and were tolerated, by index.

        In its output they are None. Empty if none failed, and for other steps.
        """
        slug = dependency if isinstance(dependency, str) else dependency.slug
        if self._function.is_map or self._task.payload is None:
            return {}
        return read_element_errors(_split_object(self._task.payload), slug)


def _read_error(text: str) -> ErrorInfo | None:
    """Read the error that a task keeps for its next attempt."""
    try:
        found = _split_object(text).get("error")
        return None if found is None else decode_error(found)
    except (msgspec.MsgspecError, InvalidInput):  # from a program in another language
        return ErrorInfo("builtins.Exception", text)


def current_flow_step() -> FlowStepContext:
    """Return the context of the flow's step that is running.

    ```python
    @analyze.step
    def save(website: Page, sentiment: float | None) -> str:
        step = current_flow_step()
        return archive.put(website, sentiment, idempotency_key=step.idempotency_key)
    ```

    Raises LookupError outside of a step of a flow, also if one is called as a plain function.
    """
    context = running_step()
    if isinstance(context, FlowStepContext):
        return context
    raise LookupError(
        "no step of a flow is running here: call current_flow_step() in the code of a step that a "
        "flow runs (a step of a workflow has current_step()), and pass the result to your own "
        "threads. A step that is called as a plain function has none"
    )
