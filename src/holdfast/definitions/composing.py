"""`app.flow(…)`: the part of an app that makes graphs of steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from holdfast.definitions.flows import Flow
from holdfast.definitions.workflows import AnyFlow, Registry
from holdfast.payloads import Payloads
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.values.durations import Duration

In = TypeVar("In")


class Composing:
    """The flows of an app."""

    registry: Registry
    payloads: Payloads | None

    @property
    def flows(self) -> Mapping[tuple[str, int], AnyFlow]:
        """All flows by name and version."""
        return MappingProxyType(self.registry.flows)

    @overload
    def flow(
        self,
        name: str,
        *,
        input: type[In],
        version: int = 1,
        attempts: int = 3,
        base_delay: Duration = "5s",
        timeout: Duration = "60s",
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> Flow[In]: ...
    @overload
    def flow(
        self,
        name: str,
        *,
        input: object = Any,
        version: int = 1,
        attempts: int = 3,
        base_delay: Duration = "5s",
        timeout: Duration = "60s",
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> Flow[Any]: ...
    def flow(
        self,
        name: str,
        *,
        input: object = Any,
        version: int = 1,
        attempts: int = 3,
        base_delay: Duration = "5s",
        timeout: Duration = "60s",
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> object:
        """Register a flow, a graph of steps. Its steps are defined with `@flow.step`.

        `input` is the type of the input of its runs; without one it is any JSON value. What is
        started from then on is a run of the highest `version`; a run keeps the version that it was
        started with. A step has `attempts` attempts of at most `timeout` each. Attempt n + 1 begins
        `base_delay * 2**n` after attempt n has failed. These times are whole seconds. `retention`
        is how long an ended run is kept, `run_timeout` how long a run may take (None: no limit),
        `priority` is 0 (first) to 4. Raises ConfigurationError for options that cannot work, and
        for a version or a workflow of this name that the app has already.
        """
        flow: AnyFlow = Flow(
            name,
            app=self.registry.name,
            input=input,
            version=version,
            attempts=attempts,
            base_delay=base_delay,
            timeout=timeout,
            queue=queue,
            retention=retention,
            run_timeout=run_timeout,
            priority=priority,
            versions=self.registry.flows,
            sealed=self.payloads is not None and self.payloads.hides,
        )
        self.registry.add_flow(flow)
        return flow
