"""The app: the decorators that make a program's functions durable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import MappingProxyType
from typing import ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.definitions.activities import Activity, ActivityDecorator
from holdfast.definitions.agents import Offering
from holdfast.definitions.alerts import Alerting
from holdfast.definitions.batches import Batch, BatchActivity, BatchDecorator
from holdfast.definitions.composing import Composing
from holdfast.definitions.consuming import Consuming
from holdfast.definitions.entities import Entities
from holdfast.definitions.jobs import Jobs
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.limits import Concurrency, Rates
from holdfast.definitions.middleware import Middleware
from holdfast.definitions.options import names_options, option
from holdfast.definitions.run_context import RunContext
from holdfast.definitions.scheduling import Scheduling
from holdfast.definitions.start_rules import RuleOptions
from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.steps import Step, StepDecorator
from holdfast.definitions.subscribing import Subscribing
from holdfast.definitions.transactions import Transacting
from holdfast.definitions.workflows import AnyActivity, AnyWorkflow, Registry, Workflow
from holdfast.details import OnCancel
from holdfast.objects import check_objects_url
from holdfast.payloads import Codecs, LargePayloads, large_payloads_of, payloads_of
from holdfast.retry import Retry
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.values.durations import Duration
from holdfast.values.names import check_build
from holdfast.values.numbers import true_or_false

__all__ = ["AnyWorkflow", "App"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ctx = TypeVar("Ctx", bound=RunContext)
In = TypeVar("In")
Out = TypeVar("Out")


class WorkflowDecorator(Protocol):
    """The decorator that `app.workflow(…)` returns: it makes the function a workflow."""

    @overload
    def __call__(
        self, fn: Callable[[Ctx, In], Coroutine[object, None, Out]], /
    ) -> Workflow[In, Out]: ...
    @overload
    def __call__(
        self, fn: Callable[[Ctx], Coroutine[object, None, Out]], /
    ) -> Workflow[None, Out]: ...


@names_options(rules=RuleOptions)
class App(
    Composing, Scheduling, Subscribing, Consuming, Alerting, Jobs, Entities, Transacting, Offering
):
    """The workflows, steps, activities and flows of one program, and their defaults.

    Its name is a namespace: apps that share a database do not run each other's runs. `retry` is the
    policy of steps and activities that have none of their own. As long as the log of a run has
    calls that its changed code has not made, the run starts nothing new and does not end: it is
    stuck. With `careful` False it continues. With `strict`, a run is stuck on any difference
    between its code and its log, an added step included. `blocking_limit` is how long workflow code
    may run without waiting: it holds its worker's thread meanwhile. After that the run is stuck.
    `archive` is where workers write ended runs before they delete them: `s3://bucket/prefix` or
    `file:///folder`. `build` names the code, as a commit's hash does: pinned runs stay with it.

    ```python
    app = App("shop")

    @app.step(timeout="30s")
    async def charge(order: Order) -> Receipt: ...

    @app.workflow
    async def checkout(ctx: Context, order: Order) -> Receipt:
        return await charge(order)
    ```
    """

    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        strict: bool = False,
        careful: bool = True,
        blocking_limit: Duration = "2s",
        archive: str | None = None,
        build: str | None = None,
        payload_codec: Codecs | None = None,
        max_payload_bytes: int | None = None,
        large_payloads: LargePayloads | None = None,
    ) -> None:
        """Make an empty app. Raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`.

        Payloads of its runs are encoded by `payload_codec`, one or several, before they are stored.
        `max_payload_bytes` is what each may take then, by default 16 MiB, as much as the database
        takes. Those above the size that `large_payloads` says are objects outside of the database.
        Raises ConfigurationError for an archive that does not name a place for objects.
        """
        self.payloads = payloads_of(
            payload_codec, max_payload_bytes, large_payloads_of(large_payloads)
        )
        self.registry = Registry(name, retry, blocking_limit)
        self.build = None if build is None else check_build(build)
        self.name, self.retry = self.registry.name, self.registry.retry
        self.strict = true_or_false(strict, f"app {name}: strict")
        self.careful = true_or_false(careful, f"app {name}: careful")
        with option(f"app {name}", "archive"):
            self.archive = None if archive is None else check_objects_url(archive)

    def __repr__(self) -> str:
        return f"<App {self.name}: {', '.join(self.handlers()) or 'no workflows'}>"

    @property
    def workflows(self) -> Mapping[tuple[str, int], AnyWorkflow]:
        """All workflows by name and version."""
        return MappingProxyType(self.registry.workflows)

    @property
    def activities(self) -> Mapping[str, AnyActivity]:
        """All activities by name."""
        return MappingProxyType(self.registry.activities)

    def queues(self) -> tuple[str, ...]:
        """Return the queues that its workers serve by default, sorted.

        These are the queues that the app names: for its workflows, activities and flows, by
        `app.queue(…)`, and for what its schedules and subscriptions start.
        """
        return self.registry.queues()

    def handlers(self) -> tuple[str, ...]:
        """Return what this program can run, as `app/name@version`; activities have version 0.

        With a build, pinned workflows stand there twice: also as `app/name@version+build`.
        """
        handlers = self.registry.handlers()
        if self.build is None:
            return handlers
        return handlers + tuple(f"{each}+{self.build}" for each in self.pinned())

    def pinned(self) -> tuple[str, ...]:
        """Return the workflows whose runs stay with their build, as `app/name@version`."""
        return tuple(each.handler for each in self.workflows.values() if each.pinned)

    def find(self, name: str, version: int) -> AnyWorkflow:
        """Return a workflow. Raises UnknownWorkflow if the app does not have this version."""
        return self.registry.find(name, version)

    def latest(self, name: str) -> AnyWorkflow:
        """Return the highest version of a workflow. Raises UnknownWorkflow if it has none."""
        return self.registry.latest(name)

    def startable(self, name: str, version: int | None = None) -> AnyStartable:
        """Return the workflow or flow of a name, by default the highest version.

        Raises UnknownWorkflow if the app does not have it.
        """
        return self.registry.startable(name, version)

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
        aliases: Sequence[str] = (),
    ) -> StepDecorator: ...
    def step(
        self,
        fn: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        aliases: Sequence[str] = (),
    ) -> object:
        """Make a step of an async or sync function or method, with or without options.

        `name` is by default the function's, `retry` the app's; `timeout` limits each attempt.
        `aliases` are names that the step had before, the oldest first: runs may have recorded
        results under them, and the first one is in the idempotency keys.
        Raises ConfigurationError for a function or options that cannot work, and for a name that
        the app has already.
        """

        def define(fn: Callable[..., object]) -> Step[..., object]:
            return self.registry.add_step(
                Step(
                    fn,
                    name=name,
                    retry=self.retry if retry is None else retry,
                    timeout=timeout,
                    aliases=aliases,
                )
            )

        return define if fn is None else define(fn)

    @overload
    def activity(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Activity[P, R]: ...
    @overload
    def activity(self, fn: Callable[P, R], /) -> Activity[P, R]: ...
    @overload
    def activity(
        self,
        /,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_cancel: OnCancel = "try",
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
    ) -> ActivityDecorator: ...
    @overload
    def activity(
        self,
        /,
        *,
        batch: Batch,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_cancel: OnCancel = "try",
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
    ) -> BatchDecorator: ...
    def activity(
        self,
        fn: Callable[..., object] | None = None,
        /,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_cancel: OnCancel = "try",
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        batch: Batch | None = None,
    ) -> object:
        """Register an activity: an async or sync function that any worker of `queue` may run.

        `name` is by default the function's, `retry` the app's. `start_to_close` limits each
        attempt, `schedule_to_close` all attempts and the pauses between them, `heartbeat_timeout`
        the time between two heartbeats of an attempt. `on_cancel` says what becomes of a call when
        the code that awaits it is cancelled: it is told (`"try"`), also waited for (`"wait"`), or
        neither (`"abandon"`). `concurrency` limits the attempts that run at once in all workers,
        `rate` those that begin in a period. With a `batch`, the function takes a list of inputs and
        returns a list of results; workflows call it with one input. Raises ConfigurationError for a
        function or options that cannot work, and for a name that the app has already.
        """

        def define(fn: Callable[..., object]) -> AnyActivity:
            make: Callable[..., AnyActivity] = Activity
            if batch is not None:
                make = partial(BatchActivity[..., object], batch=batch)
            activity = make(
                fn,
                name=name,
                queue=queue,
                retry=self.retry if retry is None else retry,
                start_to_close=start_to_close,
                schedule_to_close=schedule_to_close,
                heartbeat_timeout=heartbeat_timeout,
                on_cancel=on_cancel,
                app=self.name,
            )
            self.registry.add_activity(activity)
            self._limit_activity(activity, concurrency, rate)
            return activity

        return define if fn is None else define(fn)

    @overload
    def workflow(
        self, fn: Callable[[Ctx, In], Coroutine[object, None, Out]], /
    ) -> Workflow[In, Out]: ...
    @overload
    def workflow(
        self, fn: Callable[[Ctx], Coroutine[object, None, Out]], /
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
        pinned: bool = False,
        retry: Retry | None = None,
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        **rules: Unpack[RuleOptions],
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
        pinned: bool = False,
        retry: Retry | None = None,
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        **rules: Unpack[RuleOptions],
    ) -> object:
        """Register a workflow: an async function of a context and at most one input.

        A new `version` runs what is started from then on; a run keeps the version that it was
        started with. `retention` is how long an ended run is kept, `timeout` how long a run may
        take (None: no limit), `priority` is 0 (first) to 4. Runs that are `pinned`
        stay with workers of the app's `build` that they were started for. `retry` is the policy by
        which a run that fails is retried by itself, by default not at all. `concurrency` limits the
        runs that have begun and not ended, in all workers; `rate` limits those that begin in a
        period. `rules` hold for its starts: a `singleton`, a `debounce`, a `throttle`. Raises
        ConfigurationError for options that cannot work, and for a version that the app has already.
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
                pinned=pinned,
                retry=retry,
                rules=rules,
                registry=self.registry,
            )
            self.registry.add_workflow(workflow)
            self._limit_workflow(workflow, concurrency, rate)
            return workflow

        return define if fn is None else define(fn)

    @overload
    def lifespan(self, fn: Callable[[], AsyncIterator[T]], /) -> Lifespan[T]: ...
    @overload
    def lifespan(self, fn: Callable[[], AbstractAsyncContextManager[T]], /) -> Lifespan[T]: ...
    def lifespan(
        self, fn: Callable[[], AsyncIterator[T]] | Callable[[], AbstractAsyncContextManager[T]], /
    ) -> Lifespan[T]:
        """Make a resource of an async generator function: each worker opens it once, and shares it.

        In steps and activities, `get()` of the result returns what the function yields.
        A worker opens resources in the order of definition, and closes them in reverse.
        """
        lifespan = Lifespan(fn)
        self.registry.lifespans.append(lifespan)
        return lifespan

    def add_middleware(self, middleware: Middleware) -> None:
        """Surround the app's runs, steps and activities; the first one added is outermost."""
        self.registry.layers.add(middleware)
