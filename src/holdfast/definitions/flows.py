"""Flows: graphs of steps that the database drives, and the decorators that define their steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from inspect import isfunction
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

import msgspec

from holdfast.definitions.caller import current_caller
from holdfast.definitions.flow_conditions import check_needs_no_look
from holdfast.definitions.flow_parameters import RUN, RunInput, Source, annotation_of
from holdfast.definitions.flow_runs import RunStep
from holdfast.definitions.flow_steps import (
    FlowMapDecorator,
    FlowMapOptions,
    FlowStep,
    FlowStepDecorator,
    FlowStepOptions,
    RunMapOptions,
    RunStepOptions,
    whole_seconds,
)
from holdfast.definitions.options import check_options, limit_seconds
from holdfast.definitions.signatures import Declared
from holdfast.definitions.startable import Startable
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.flows import leaves, to_mermaid
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE, FlowShape, RunKind, StartRules
from holdfast.values.durations import Duration
from holdfast.values.names import check_app_name, check_flow_name, full_name
from holdfast.values.numbers import whole_number

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")
In = TypeVar("In")
V = TypeVar("V")

AnyFlowStep: TypeAlias = FlowStep[..., object, object]
AnyRunStep: TypeAlias = RunStep[object]
AnyStep = TypeVar("AnyStep", FlowStep[..., Any, Any], RunStep[Any])

_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Flow(Startable[In, dict[str, object]]):
    """A graph of steps. The database starts each step once the steps that it depends on have ended.

    Calling it in a workflow starts a child run and waits for its output.

    A step depends on the steps that its parameters name, or whose `output` is their default. `run`
    is the input of the flow's runs. The output of a run is a dictionary: the outputs of the steps
    on which no other depends, by name.

    `full_name` is `app/name`, `handler` is `app/name@version`. Times are in seconds, None for
    never: `retention_seconds` is how long an ended run is kept, `timeout_seconds` how long a run
    may take.

    ```python
    analyze = app.flow("analyze_website", input=Site)

    @analyze.step
    async def website(run: Site) -> Page: ...

    @analyze.step(attempts=5, timeout="30s")
    async def sentiment(page: Page = website.output) -> float: ...

    @analyze.step
    def links(website: Page) -> list[str]: ...

    @analyze.map(links)
    async def linked(url: str) -> Page: ...
    ```
    """

    kind: ClassVar[RunKind] = "flow"

    def __init__(
        self,
        name: str,
        *,
        app: str,
        input: object = Any,
        version: int = 1,
        attempts: int = 3,
        base_delay: Duration = "5s",
        timeout: Duration = "60s",
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        versions: Mapping[tuple[str, int], Flow[Any]] | None = None,
        sealed: bool = False,
    ) -> None:
        """Make a flow without steps; see `App.flow`. `versions` are the flows of its program.

        `sealed` says that payloads are encoded, and that the database cannot look into them.
        Raises ConfigurationError for options that cannot work.
        """
        # Callers without a type checker pass anything.
        if callable(name):
            raise ConfigurationError(
                "a flow is made by its name, and is not a decorator: write `flow = app.flow(…)`, "
                "then `@flow.step` above each function"
            )
        self.name = check_flow_name(name)
        self.full_name = full_name(check_app_name(app), self.name)
        of = str(self)
        self._set_options(of, version, priority, queue, retention)
        self.timeout_seconds = limit_seconds(run_timeout, of, "run_timeout")
        self._empty = FlowShape(
            name=self.full_name,
            version=version,
            queue=queue,
            max_attempts=whole_number(attempts, of, "attempts", 1),
            base_delay=_needed(whole_seconds(base_delay, of, "base_delay"), of, "base_delay"),
            timeout=_needed(whole_seconds(timeout, of, "timeout", least=1), of, "timeout"),
        )
        if isinstance(input, str):
            raise ConfigurationError(f"{of}: input is a type, not its name {input!r}")
        self._input = Declared.of_type(input, f"input of {of}")
        self._run: RunInput[In] = RunInput(self.name, annotation_of(self._input))
        self._steps: dict[str, AnyFlowStep | AnyRunStep] = {}
        self._sources: dict[str, Source[Any]] = {RUN: self._run}
        self._versions: Mapping[tuple[str, int], Flow[Any]] = {}
        if versions is not None:
            self._versions = versions
        self.rules: StartRules | None = None
        self._sealed = sealed

    def __repr__(self) -> str:
        return f"<Flow {self.handler}: {', '.join(self._steps) or 'no steps'}>"

    def __str__(self) -> str:
        return f"flow {self.name}"

    @property
    def handler(self) -> str:
        """The name by which workers claim tasks of its steps, `app/name@version`."""
        return self._empty.handler

    @property
    def run(self) -> Source[In]:
        """The input of the flow's runs: to map over, or as a default, `flow.run.output`."""
        return self._run

    @property
    def steps(self) -> Mapping[str, AnyFlowStep]:
        """The steps that workers execute, by name, in the order of definition."""
        steps = self._steps.items()
        return MappingProxyType({k: step for k, step in steps if isinstance(step, FlowStep)})

    @property
    def queues(self) -> frozenset[str]:
        """The queues of the steps that workers execute."""
        return frozenset({self.queue, *(step.queue or self.queue for step in self.steps.values())})

    @property
    def shape(self) -> FlowShape:
        """The graph with all options: what is compared with the database when a worker starts."""
        steps = tuple(step.shape for step in self._steps.values())
        return msgspec.structs.replace(self._empty, steps=steps)

    @overload
    def step(self, fn: Callable[P, Coroutine[object, None, R]], /) -> FlowStep[P, R, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> FlowStep[P, R, R]: ...
    @overload
    def step(self, /, **options: Unpack[FlowStepOptions]) -> FlowStepDecorator: ...
    def step(
        self, fn: Callable[..., object] | None = None, /, **options: Unpack[FlowStepOptions]
    ) -> object:
        """Make a step of an async or sync function, with or without options.

        Each parameter is a dependency: it has the name of a step or the default `step.output`;
        `run` is the run's input. The output of a step that was skipped is None, or the default of
        the parameter. Raises ConfigurationError for a parameter that no step can give, for types
        that do not fit, and for options that cannot work.
        """

        check_options(options, FlowStepOptions.__annotations__, f"{self}: a step")

        def define(fn: Callable[..., object]) -> AnyFlowStep:
            self._check_function(fn)
            return self._add(FlowStep(fn, self._empty, self._sources, **options))

        return define if fn is None else define(fn)

    def map(
        self, over: Source[Sequence[E]] | Source[Set[E]], /, **options: Unpack[FlowMapOptions]
    ) -> FlowMapDecorator[E]:
        """Make a step that runs once for each element of a step's output, or of the run's input.

        The function takes one element and nothing else. The output is the list of the results, in
        the order of the elements. If `over` was skipped, it is empty. Raises ConfigurationError if
        `over` does not give a list, and as `step` does.
        """
        source = self._check_source(over)
        check_options(options, FlowMapOptions.__annotations__, f"{self}: a step")

        def define(fn: Callable[..., object]) -> AnyFlowStep:
            self._check_function(fn)
            step: AnyFlowStep = FlowStep(fn, self._empty, self._sources, over=source, **options)
            return self._add(step)

        return cast("FlowMapDecorator[E]", define)

    @overload
    def run_step(
        self,
        name: str,
        definition: Startable[V, R],
        /,
        *,
        of: Source[V],
        **options: Unpack[RunStepOptions],
    ) -> RunStep[R]: ...
    @overload
    def run_step(
        self, name: str, definition: Startable[In, R], /, **options: Unpack[RunStepOptions]
    ) -> RunStep[R]: ...
    def run_step(
        self,
        name: str,
        definition: Startable[Any, Any],
        /,
        *,
        of: Source[Any] | None = None,
        **options: Unpack[RunStepOptions],
    ) -> RunStep[Any]:
        """Make a step that is a run of a workflow or of another flow.

        The run is given the output of the step `of`, or the input of the flow's run; its output is
        the step's. If it fails or takes too long, another one is started, as the options say. When
        the step is skipped or the flow's run ends, it is cancelled.

        ```python
        paid = analyze.run_step("paid", checkout, of=basket, attempts=1)
        ```

        Raises ConfigurationError as `step` does.
        """
        source = self._run if of is None else self._check_source(of)
        check_options(options, RunStepOptions.__annotations__, f"{self}: a step")
        return self._add(RunStep[Any](name, definition, self._empty, source, self._run, **options))

    def run_map(
        self,
        name: str,
        definition: Startable[V, R],
        /,
        *,
        over: Source[Sequence[V]] | Source[Set[V]],
        **options: Unpack[RunMapOptions],
    ) -> RunStep[list[R]]:
        """Make a step that is a run for each element of a step's output, or of the run's input.

        Its output is the list of their outputs, in the order of the elements. Raises
        ConfigurationError if `over` does not give a list, and as `run_step` does.
        """
        source = self._check_source(over)
        check_options(options, RunMapOptions.__annotations__, f"{self}: a step")
        return self._add(
            RunStep[Any](name, definition, self._empty, source, self._run, is_map=True, **options)
        )

    @property
    def input_annotation(self) -> object:
        """The declared type of the input of a run; Any if none is declared."""
        return annotation_of(self._input)

    @property
    def output_annotation(self) -> object:
        """The type of the output of a run: a dictionary."""
        return dict[str, Any]

    @overload
    def __call__(self: Flow[None], /) -> Coroutine[object, None, dict[str, object]]: ...
    @overload
    def __call__(self, input: In, /) -> Coroutine[object, None, dict[str, object]]: ...
    def __call__(self, *args: object) -> Coroutine[object, None, dict[str, object]]:
        """Start a child run of the workflow that is running here, and wait for its output.

        Raises ConfigurationError outside of a workflow: there, a client starts runs.
        """
        caller = current_caller()
        if caller is not None:
            return caller.call_startable(self, args, {})
        if args and isfunction(args[0]):
            raise ConfigurationError(
                f"{self} is called with a function: a flow is not a decorator; write "
                "`flow = app.flow(…)`, then `@flow.step` above each function"
            )
        raise ConfigurationError(
            f"{self} is called outside of a workflow: start a run of it with "
            "`await client.start(…)`"
        )

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, which GitHub and many editors draw."""
        return to_mermaid(self.shape)

    def encode_input(self, value: object = None) -> str:
        """Encode the input of a run.

        Raises InvalidInput if it does not fit the declared type, PayloadError if it cannot be
        stored.
        """
        return self._input.encode(value)

    def decode_input(self, text: str) -> object:
        """Decode the input of a run into the declared type. Raises InvalidInput."""
        return self._input.decode(text)

    def decode_output(self, text: str | bytes | msgspec.Raw) -> dict[str, object]:
        """Decode the output of a run: what its last steps returned, by name, without skipped ones.

        Outputs of steps that this program has not defined are plain JSON values. Raises
        InvalidInput if an output does not fit the declared type.
        """
        try:
            outputs = _split_object(text)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"output of {self}: {error}") from None
        last = [step.slug for step in leaves(self.shape) if step.slug in outputs]
        return {
            slug: self._decode_step(slug, outputs[slug])
            for slug in dict.fromkeys([*last, *outputs])
        }

    def _decode_step(self, slug: str, output: msgspec.Raw) -> object:
        step = self._steps.get(slug)
        return msgspec.json.decode(output) if step is None else step.decode_output(output)

    def of_version(self, version: int) -> Flow[Any] | None:
        """Return another version of the flow in the same program, None if it has none."""
        return self._versions.get((self.name, version))

    def _check_source(self, over: Source[Any]) -> Source[Any]:
        # Callers without a type checker pass anything.
        if not isinstance(over, Source):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"{self}: map takes a step of the flow or its run, not {over!r}: "
                "write @flow.map(step)"
            )
        if self._sources.get(over.slug) is not over:
            raise ConfigurationError(
                f"{self}: {over} is not of this flow; here there are {', '.join(self._sources)}"
            )
        return over

    def _check_function(self, fn: object) -> None:
        # Callers without a type checker pass anything.
        if not callable(fn):
            raise ConfigurationError(
                f"{self}: a step is made of a function, not of {fn!r}: write @flow.step above "
                "the function, or @flow.step(name=…) for another name"
            )

    def _add(self, step: AnyStep) -> AnyStep:
        if step.slug in self._steps:
            raise ConfigurationError(
                f"{step} is defined twice: give the new one another name, with name=…"
            )
        if self._sealed:
            check_needs_no_look(step, step.shape)
        self._steps[step.slug] = self._sources[step.slug] = step
        return step


def _needed(length: int | None, of: str, name: str) -> int:
    if length is None:  # in workflows it means no limit, which steps of flows cannot have
        raise ConfigurationError(f"{of}: {name}: a length of time is needed, not None")
    return length
