"""The registry of a program's workflows and steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Never, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.durations import Duration
from holdfast.errors import ConfigurationError, UnknownWorkflow
from holdfast.names import check_app_name
from holdfast.retry import Retry
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE

if TYPE_CHECKING:
    from holdfast.runtime.context import Context

P = ParamSpec("P")
R = TypeVar("R")
In = TypeVar("In")
Out = TypeVar("Out")

AnyWorkflow: TypeAlias = Workflow[Never, object]


class StepDecorator(Protocol):
    """What `app.step(…)` returns: it makes a step of the function below it."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class WorkflowDecorator(Protocol):
    """What `app.workflow(…)` returns: it makes a workflow of the function below it."""

    @overload
    def __call__(
        self, fn: Callable[[Context, In], Coroutine[object, None, Out]], /
    ) -> Workflow[In, Out]: ...
    @overload
    def __call__(
        self, fn: Callable[[Context], Coroutine[object, None, Out]], /
    ) -> Workflow[None, Out]: ...


class App:
    """The workflows and steps of one program, and their defaults.

    `retry` holds for steps that name none of their own. With `strict`, a run is stuck on any
    difference between its code and its log, an added step included.

    ```python
    app = App("shop")

    @app.step(timeout="30s")
    async def charge(order: Order) -> Receipt: ...

    @app.workflow
    async def checkout(ctx: Context, order: Order) -> Receipt:
        return await charge(order)
    ```
    """

    def __init__(self, name: str, *, retry: Retry | None = None, strict: bool = False) -> None:
        """Make an empty app. Raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`."""
        self.name = check_app_name(name)
        self.retry = retry or Retry()
        self.strict = strict
        self._workflows: dict[tuple[str, int], AnyWorkflow] = {}

    def __repr__(self) -> str:
        return f"<App {self.name}: {', '.join(self.handlers()) or 'no workflows'}>"

    @property
    def workflows(self) -> Mapping[tuple[str, int], AnyWorkflow]:
        """All workflows by name and version."""
        return MappingProxyType(self._workflows)

    def handlers(self) -> tuple[str, ...]:
        """Return what this program can run, as `name@version`, in the order of definition."""
        return tuple(workflow.handler for workflow in self._workflows.values())

    def find(self, name: str, version: int) -> AnyWorkflow:
        """Return a workflow. Raises UnknownWorkflow where this name and version is not here."""
        try:
            return self._workflows[name, version]
        except KeyError:
            raise UnknownWorkflow(self._unknown(f"{name}@{version}")) from None

    def latest(self, name: str) -> AnyWorkflow:
        """Return the highest version of a workflow. Raises UnknownWorkflow where it has none."""
        versions = [version for known, version in self._workflows if known == name]
        if not versions:
            raise UnknownWorkflow(self._unknown(name))
        return self._workflows[name, max(versions)]

    @overload
    def step(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> StepDecorator: ...
    def step(
        self,
        fn: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> object:
        """Make a step of an async or sync function or method, with or without options.

        `name` is by default the function's, `retry` the app's; `timeout` limits each attempt.
        Raises ConfigurationError for a function or options that cannot work.
        """

        def define(fn: Callable[..., object]) -> Step[..., object]:
            return Step(fn, name=name, retry=retry or self.retry, timeout=timeout)

        return define if fn is None else define(fn)

    @overload
    def workflow(
        self, fn: Callable[[Context, In], Coroutine[object, None, Out]], /
    ) -> Workflow[In, Out]: ...
    @overload
    def workflow(
        self, fn: Callable[[Context], Coroutine[object, None, Out]], /
    ) -> Workflow[None, Out]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        fn: Callable[..., Coroutine[object, None, object]] | None = None,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> object:
        """Register a workflow: an async function of a context and at most one input.

        A new `version` serves runs started from then on; runs keep the version that they
        started with. `retention` says how long an ended run is kept, `timeout` how long
        a run may take (None: for ever), `priority` is 0 (first) to 4. Raises ConfigurationError
        for a function or options that cannot work, and for a version that is there already.
        """

        def define(fn: Callable[..., Coroutine[object, None, object]]) -> AnyWorkflow:
            workflow: AnyWorkflow = Workflow(
                fn,
                name=name,
                version=version,
                queue=queue,
                retention=retention,
                timeout=timeout,
                priority=priority,
                step_retry=self.retry,
            )
            return self._register(workflow)

        return define if fn is None else define(fn)

    def _register(self, workflow: AnyWorkflow) -> AnyWorkflow:
        place = (workflow.name, workflow.version)
        if place in self._workflows:
            raise ConfigurationError(
                f"workflow {workflow.handler} is defined twice in app {self.name}: "
                "give the new one another version or name"
            )
        self._workflows[place] = workflow
        return workflow

    def _unknown(self, wanted: str) -> str:
        known = ", ".join(self.handlers()) or "no workflows"
        return f"app {self.name} has no workflow {wanted}; it has {known}"
