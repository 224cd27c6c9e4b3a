"""Workflows, and the registry of all definitions of a program."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar, Never, TypeAlias, TypeVar, cast, overload

import msgspec

from holdfast.definitions.activities import Activity
from holdfast.definitions.caller import current_caller, refuse_in_workflow
from holdfast.definitions.consumers import Consumer
from holdfast.definitions.flow_parameters import annotation_of
from holdfast.definitions.flows import Flow
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.middleware import CallNext, Layers, surround
from holdfast.definitions.options import option
from holdfast.definitions.recorded import check_retry, check_run_retry
from holdfast.definitions.schedules import Schedule
from holdfast.definitions.signatures import Declared, read_signature, refuse_method
from holdfast.definitions.start_rules import RuleOptions, rules_of
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.definitions.steps import Step
from holdfast.errors import ConfigurationError, InvalidInput, UnknownWorkflow
from holdfast.retry import Retry
from holdfast.types import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    AlertRule,
    DeclaredRules,
    LimitRule,
    LimitScope,
    NewSubscription,
    QueueSettings,
    RunKind,
    RunTarget,
)
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_app_name, check_workflow_name, full_name
from holdfast.values.numbers import true_or_false

Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

_IN_A_MODULE = "define it in a module, where each worker finds it when it starts"
_SHAPE = "it takes the context and at most one input, so write (ctx) or (ctx, input)"


class Workflow(Startable[In_contra, Out_co]):
    """A registered async function: `async def name(ctx)` or `async def name(ctx, input)`.

    `full_name` is `app/name`, `handler` is `app/name@version`. Times are in seconds, None for
    never. The input is None if the function has no parameter for it; if the parameter has a
    default, None means the default. Calling it in another workflow starts a child run and waits
    for its output.
    """

    kind: ClassVar[RunKind] = "workflow"

    def __init__(
        self,
        fn: Callable[..., Coroutine[object, None, Out_co]],
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
        timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        pinned: bool = False,
        retry: Retry | None = None,
        rules: RuleOptions | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Wrap `fn`; `registry` has the definitions of its program, by default none.

        Raises ConfigurationError if it cannot be a workflow, saying why.
        """
        self.__doc__, self.fn = fn.__doc__, fn
        self.written: Callable[..., object] = fn  # the app's own function, which errors point at
        self.name = check_workflow_name(fn.__name__ if name is None else name)
        of = f"workflow {self.name}"
        self._set_options(of, version, priority, queue, retention)
        with option(of, "timeout"):
            self.timeout_seconds = None if timeout is None else seconds(timeout)
        self.pinned = true_or_false(pinned, f"{of}: pinned")
        self.retry = check_run_retry(retry, of)
        self.registry = registry or Registry(self.name)
        self.full_name = full_name(self.registry.name, self.name)
        self.handler, parameter = f"{self.full_name}@{version}", _input_parameter(fn, self.name)
        _check_context(fn, self.name)
        what = f"input of {self.name}"
        self._input = None if parameter is None else Declared(fn, parameter.name, what)
        self._default = _default(parameter)
        self._output = Declared(fn, "return", f"output of {self.name}")
        self.rules = rules_of(of, self.input_annotation, rules or {})

    def __repr__(self) -> str:
        return f"<Workflow {self.handler}>"

    @property
    def step_retry(self) -> Retry:
        """The retry policy for ordinary functions that the workflow calls as steps."""
        return self.registry.retry

    @overload
    def __call__(self: Workflow[None, Out_co], /) -> Coroutine[object, None, Out_co]: ...
    @overload
    def __call__(self, input: In_contra, /) -> Coroutine[object, None, Out_co]: ...
    def __call__(self, *args: object) -> Coroutine[object, None, Out_co]:
        """Start a child run of the workflow that is running here, and wait for its output.

        Raises ConfigurationError outside of a workflow: there, a client starts runs.
        """
        caller = current_caller()
        if caller is not None:
            return caller.call_startable(self, args, {})
        raise ConfigurationError(
            f"workflow {self.name} was called outside of a workflow: start a run with "
            "`await client.start(…)`, or call only its code with `.fn(…)`"
        )

    def invoke(self, ctx: object, text: str) -> Coroutine[object, None, Out_co]:
        """Call the function with its context and with its input, decoded from JSON text.

        Raises InvalidInput if the input does not fit.
        """
        value = self.decode_input(text)
        args = () if self._input is None else (value,)
        layers = self.registry.layers.runs
        if layers:
            return self._surrounded(surround(layers, ctx, partial(self.fn, ctx, *args)))
        return self.fn(ctx, *args)

    @staticmethod
    async def _surrounded(call: CallNext) -> Out_co:
        return cast("Out_co", await call())

    @property
    def input_annotation(self) -> object:
        """The declared type of the input; Any if none is declared, NoneType if there is none."""
        return type(None) if self._input is None else annotation_of(self._input)

    @property
    def output_annotation(self) -> object:
        """The declared type of the output; Any if none is declared."""
        return annotation_of(self._output)

    def encode_input(self, value: object = None) -> str:
        """Encode an input, so that a bad one is refused before a run exists.

        Raises InvalidInput if it does not fit the declared type, PayloadError if it cannot be
        stored.
        """
        if self._input is None:
            if value is not None:
                raise self._surplus()
            return "null"
        return self._input.encode(self._default if value is None else value)

    def decode_input(self, text: str) -> object:
        """Decode an input into the declared type. Raises InvalidInput if it does not fit."""
        if self._input is None:
            if text.strip() != "null":
                raise self._surplus()
            return None
        if self._default is not None and text.strip() == "null":
            text = self.encode_input()
        return self._input.decode(text)

    def _surplus(self) -> InvalidInput:
        return InvalidInput(f"workflow {self.name} takes no input")

    def encode_output(self, value: object) -> str:
        """Encode an output. Raises PayloadError, and InvalidInput for an output of another type."""
        return self._output.encode_and_restore(value)[0]

    def decode_output(self, text: str | bytes | msgspec.Raw) -> Out_co:
        """Decode an output into the declared type. Raises InvalidInput if it does not fit."""
        output: Out_co = self._output.decode(text)
        return output

    def of_version(self, version: int) -> AnyWorkflow | None:
        """Return another version in the same program, None if it has none."""
        return self.registry.workflows.get((self.name, version))


AnyWorkflow: TypeAlias = Workflow[Never, object]
AnyActivity: TypeAlias = Activity[..., object]
AnyFlow: TypeAlias = Flow[Any]
AnyNew = TypeVar("AnyNew", AnyWorkflow, AnyFlow)


class Registry:
    """The definitions of one program.

    `retry` is the policy of steps and activities that do not have their own. `blocking_seconds` is
    how long workflow code may hold the thread of its worker.
    """

    def __init__(
        self, name: str, retry: Retry | None = None, blocking_limit: Duration = "2s"
    ) -> None:
        """Start empty. Raises InvalidName outside `[a-zA-Z0-9._-]{1,128}`."""
        self.name = check_app_name(name)
        self.retry = check_retry(retry, f"app {name}")
        with option(f"app {name}", "blocking_limit"):
            self.blocking_seconds = seconds(blocking_limit)
            if self.blocking_seconds <= 0:
                raise ConfigurationError("it must be more than 0")
        self.workflows: dict[tuple[str, int], AnyWorkflow] = {}
        self.activities: dict[str, AnyActivity] = {}
        self.flows: dict[tuple[str, int], AnyFlow] = {}
        self.schedules: dict[str, Schedule] = {}  # by full name
        self.subscriptions: list[NewSubscription] = []
        self.consumers: dict[str, Consumer] = {}  # by the queue that they receive from
        self.message_queues: dict[str, QueueSettings] = {}
        self.limits: dict[tuple[LimitScope, str], tuple[LimitRule, ...]] = {}
        self.alerts: dict[str, AlertRule] = {}
        self.steps: set[str] = set()  # their names
        self.aliases: set[str] = set()
        self.lifespans: list[Lifespan[Any]] = []
        self.layers = Layers()

    def handlers(self) -> tuple[str, ...]:
        """Return the handlers of this program, `app/name@version`, in the order of definition."""
        defined = (self.workflows, self.activities, self.flows)
        return tuple(each.handler for group in defined for each in group.values())

    def queues(self) -> tuple[str, ...]:
        """Return all queues that this program names, sorted: of definitions, limits and starts."""
        queues = {workflow.queue for workflow in self.workflows.values()}
        queues |= {activity.queue for activity in self.activities.values()}
        queues |= {name for scope, name in self.limits if scope == "queue"}
        starts = (each.new.target for each in self.schedules.values())
        targets = (*starts, *(each.target for each in self.subscriptions))
        queues |= {each.queue for each in targets if isinstance(each, RunTarget) and each.queue}
        return tuple(sorted(queues.union(*(flow.queues for flow in self.flows.values()))))

    def find(self, name: str, version: int) -> AnyWorkflow:
        """Return a workflow. Raises UnknownWorkflow if this version is not defined."""
        try:
            return self.workflows[name, version]
        except KeyError:
            raise UnknownWorkflow(self._unknown(f"{name}@{version}")) from None

    def latest(self, name: str) -> AnyWorkflow:
        """Return the highest version of a workflow. Raises UnknownWorkflow if it has none."""
        versions = [version for known, version in self.workflows if known == name]
        if not versions:
            raise UnknownWorkflow(f"{self._unknown(name)}; one of another app is APP/{name}")
        return self.workflows[name, max(versions)]

    def startable(self, name: str, version: int | None = None) -> AnyStartable:
        """Return the workflow or flow of a name, by default its highest version.

        Raises UnknownWorkflow if it is not defined.
        """
        versions = [known for flow, known in self.flows if flow == name]
        if not versions:
            return self.latest(name) if version is None else self.find(name, version)
        flow = self.flows.get((name, max(versions) if version is None else version))
        if flow is None:
            raise UnknownWorkflow(self._unknown(f"{name}@{version}"))
        return flow

    def add_workflow(self, workflow: AnyWorkflow) -> None:
        """Add a workflow. Raises ConfigurationError for a version that is defined already."""
        self._add_version(workflow, self.workflows, self.flows)

    def add_flow(self, flow: AnyFlow) -> None:
        """Add a flow. Raises ConfigurationError for a version that is defined already."""
        self._add_version(flow, self.flows, self.workflows)

    def add_step(self, step: Step[..., object]) -> Step[..., object]:
        """Add a step. Raises ConfigurationError for a name that is defined already, and for an
        alias that is the name of another step.
        """
        self._refuse_in_workflow(step)
        if step.name in self.steps:
            raise _twice(
                f"step {step.name}",
                self.name,
                "a log could not tell them apart; give the new one another name, with name=…",
            )
        self.steps.add(step.name)
        self.aliases.update(step.aliases)
        if both := self.steps & self.aliases:
            raise ConfigurationError(
                f"step {step.name}: {', '.join(sorted(both))} is the name of one step of app "
                f"{self.name} and an alias of another: a log could not tell them apart"
            )
        return step

    def add_activity(self, activity: AnyActivity) -> None:
        """Add an activity. Raises ConfigurationError for a name that is defined already."""
        self._refuse_in_workflow(activity)
        if activity.name in self.activities:
            raise _twice(f"activity {activity.name}", self.name, "give the new one another name")
        self.activities[activity.name] = activity

    def add_schedule(self, schedule: Schedule) -> Schedule:
        """Add a schedule and return it. Raises ConfigurationError for a name that is not new."""
        if schedule.full_name in self.schedules:
            raise ConfigurationError(
                f"schedule {schedule.full_name} is defined twice: give the new one another name, "
                "with name=…"
            )
        self.schedules[schedule.full_name] = schedule
        return schedule

    @staticmethod
    def _refuse_in_workflow(defined: object) -> None:
        refuse_in_workflow(f"the definition of {defined}", _IN_A_MODULE)

    def _add_version(
        self, new: AnyNew, known: dict[tuple[str, int], AnyNew], others: Iterable[tuple[str, int]]
    ) -> None:
        self._refuse_in_workflow(new)
        if (new.name, new.version) in known:
            raise _twice(
                f"{new.kind} {new.name}@{new.version}",
                self.name,
                "give the new one another version or name",
            )
        if any(new.name == name for name, _ in others):
            raise ConfigurationError(
                f"app {self.name} has a workflow and a flow with the name {new.name}: runs of the "
                "two could not be told apart; give one of them another name"
            )
        known[new.name, new.version] = new

    def _unknown(self, wanted: str) -> str:
        known = ", ".join(f"{name}@{version}" for name, version in (*self.workflows, *self.flows))
        return f"app {self.name} has no workflow {wanted}; it has {known or 'no workflows'}"


def _input_parameter(fn: Callable[..., object], name: str) -> inspect.Parameter | None:
    """Return the parameter for the input; refuse a function with other parameters."""
    refuse_method(fn, "workflow")
    if not inspect.iscoroutinefunction(fn):
        way_out = ", without yield" if inspect.isasyncgenfunction(fn) else ""
        raise ConfigurationError(f"workflow {name} must be an async function{way_out}")
    parameters = list(read_signature(fn).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        raise ConfigurationError(
            f"workflow {name} is a method: the worker that runs it has no object to call it on. "
            "Make it a function of the module; a step may be a method"
        )
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        raise ConfigurationError(f"workflow {name}: {_SHAPE}, without *, ** or keyword-only ones")
    if not 1 <= len(parameters) <= 2:
        raise ConfigurationError(f"workflow {name} takes {len(parameters)} parameters: {_SHAPE}")
    return parameters[1] if len(parameters) == 2 else None


def _check_context(fn: Callable[..., object], name: str) -> None:
    """Refuse a function whose first parameter is declared as data: the context comes first."""
    first = next(iter(read_signature(fn).parameters))
    try:
        declared = Declared(fn, first, f"context of {name}").annotation
    except ConfigurationError:
        return  # not a data class, or a name that only a type checker knows
    if declared is not Any:
        raise ConfigurationError(
            f"workflow {name}: the first parameter takes the context, but {first} is declared as "
            f"{getattr(declared, '__name__', declared)}: {_SHAPE}"
        )


def _default(parameter: inspect.Parameter | None) -> object:
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def newest_definitions(registry: Registry) -> list[AnyStartable]:
    """Return each workflow and flow in its highest version."""
    newest: dict[str, AnyStartable] = {}
    for each in (*registry.workflows.values(), *registry.flows.values()):
        known = newest.get(each.full_name)
        if known is None or known.version < each.version:
            newest[each.full_name] = each
    return list(newest.values())


def declared_rules(registry: Registry) -> list[DeclaredRules]:
    """Return the rules for starts of each workflow and flow, of the highest version."""
    newest = newest_definitions(registry)
    return [DeclaredRules(each.full_name, each.version, each.rules) for each in newest]


def _twice(what: str, app: str, remedy: str) -> ConfigurationError:
    """Return the error for what is defined again, as by a cell of a notebook that runs again."""
    again = "; in a notebook, run all cells again, from that with App(…) on"
    remedy += again if hasattr(sys, "ps1") else ""  # set where code is typed
    return ConfigurationError(f"{what} is defined twice in app {app}: {remedy}")
