"""`@app.job`: a step or an activity that runs can be started of, without a workflow around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, Union, Unpack, cast, overload

import msgspec

from holdfast.codec import encode
from holdfast.definitions.activities import Activity
from holdfast.definitions.caller import current_caller
from holdfast.definitions.limiting import Limiting
from holdfast.definitions.limits import Concurrency, Rates
from holdfast.definitions.signatures import Signature
from holdfast.definitions.start_rules import RuleOptions
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.retry import Retry
from holdfast.types import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.values.durations import Duration

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Job(Workflow[Mapping[str, object], R_co], Generic[P, R_co]):
    """A step or an activity that is a workflow as well: its runs make one call of it.

    `definition` is the step or the activity. Calling a job in a workflow calls that, durably; if
    the job has limits, it starts a child run, which they concern. Anywhere else the call is an
    ordinary one. The input of a run is an object of the arguments by name. Those that the caller
    leaves out are not in it: the function's own defaults count.
    """

    def __init__(
        self, definition: Step[P, R_co] | Activity[P, R_co], registry: Registry, **options: Any
    ) -> None:
        """Make a workflow of a step or an activity; `options` are those of `Workflow`.

        Raises ConfigurationError for parameters that cannot be the fields of an object.
        """
        self.definition = definition
        why = "the input of its runs is an object of the arguments by name"
        self._arguments = arguments = arguments_of(definition, f"{definition} cannot be a job", why)

        async def call(ctx: object, arguments: msgspec.Struct) -> R_co:
            return await definition(**given_arguments(arguments))  # type: ignore[call-arg]

        call.__doc__ = definition.__doc__
        call.__annotations__ = {"arguments": arguments}
        super().__init__(call, name=definition.name, registry=registry, **options)
        self._default: object = ()  # what null stands for: no arguments
        self._output, self.written = definition.result, definition.fn

    def __repr__(self) -> str:
        return f"<Job {self.handler}>"

    def __call__(  # type: ignore[override]  # a call of the function, not a child run
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R_co]:
        """Call the step or the activity; in a workflow, start a child run if the job has limits."""
        caller = current_caller()
        if caller is None or not self.registry.limits.get(("workflow", self.full_name)):
            return self.definition(*args, **kwargs)
        given = self.definition.signature.by_name(args, kwargs)
        return caller.call_startable(self, (self._arguments(**given),), {})

    def encode_input(self, value: object = None) -> str:
        """Encode arguments: a tuple of them in their order, or an object of them by name.

        Raises InvalidInput for arguments that the function does not take, PayloadError for ones
        that cannot be stored.
        """
        if value is None or isinstance(value, tuple):
            args = cast("tuple[object, ...]", value or ())
            try:
                bound = self.definition.signature.by_name(args)
            except TypeError as error:
                raise InvalidInput(f"input of {error}") from None
            value = self._arguments(**bound)
        try:
            return super().encode_input(value)
        except InvalidInput:
            names = self._arguments.__struct_fields__
            order = ", ".join(names) + ("," if len(names) == 1 else "")
            self._refuse_unnamed(encode(value), f", or a tuple of them in their order: ({order})")
            raise

    def decode_input(self, text: str) -> object:
        """Decode arguments from an object of them by name. Raises InvalidInput for others."""
        try:
            return super().decode_input(text)
        except InvalidInput:
            self._refuse_unnamed(text)
            raise

    def _refuse_unnamed(self, text: str, other_way: str = "") -> None:
        """Say how arguments are given, if JSON text is not an object of them."""
        if not text.lstrip().startswith("{"):
            named = ", ".join(f'"{name}": …' for name in self._arguments.__struct_fields__)
            raise InvalidInput(
                f"input of {self.name}: the arguments of a job are stored by name: give "
                f"{{{named}}}{other_way}"
            ) from None


def input_of(definition: object, args: tuple[Any, ...], input: object) -> object:
    """Return the input of a start that was called with some `args`: all of a job, or the only one.

    Raises TypeError for several of a workflow, and for arguments beside an `input`.
    """
    if input is not None:
        raise TypeError("a start takes either arguments or input=…, not both")
    if isinstance(definition, Job):
        return args
    if len(args) == 1:
        return args[0]
    what, way = "of a workflow", "make them the fields of a dataclass"
    if isinstance(definition, str):
        what = "by name"
        way = 'give the arguments of a job as an object, such as {"to": …, "text": …}'
    raise TypeError(f"a start {what} takes one input, not {len(args)}: {way}")


class Named(Protocol):
    """What has a name and a signature."""

    name: str
    signature: Signature


def arguments_of(definition: Named, what: str, why: str) -> type[msgspec.Struct]:
    """Return a type of arguments by name: a field for each parameter, left out if it is optional.

    `what` cannot be, for the reason `why`, if a parameter has no name. Raises ConfigurationError.
    """
    fields: list[Any] = []
    for each in definition.signature.parameters:
        if each.kind not in _NAMED or each.name in ("self", "cls"):
            raise ConfigurationError(
                f"{what}: {why}, which {each} cannot be part of: make it a function whose "
                "parameters have names"
            )
        kind = definition.signature.annotation(each.name)
        if each.default is each.empty:
            fields.append((each.name, kind))
        else:
            fields.append((each.name, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    return msgspec.defstruct(definition.name, fields, kw_only=True, forbid_unknown_fields=True)


def given_arguments(arguments: msgspec.Struct) -> dict[str, Any]:
    """Return the arguments that a caller has given, by name."""
    fields = ((name, getattr(arguments, name)) for name in arguments.__struct_fields__)
    return {name: value for name, value in fields if value is not msgspec.UNSET}


class JobDecorator(Protocol):
    """The decorator that `app.job(…)` returns: it makes the function a job."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Job[P, R]: ...


class Jobs(Limiting):
    """The jobs of an app."""

    retry: Retry

    @overload
    def job(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, fn: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        **rules: Unpack[RuleOptions],
    ) -> JobDecorator: ...
    def job(
        self,
        fn: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        retention: Duration | None = "30d",
        run_timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        concurrency: Concurrency | None = None,
        rate: Rates | None = None,
        **rules: Unpack[RuleOptions],
    ) -> object:
        """Make a job of an async or sync function: runs are started of it, and workflows call it.

        A start takes the function's arguments: `await client.start(job, *args)`. In a workflow it
        is a step; above `@app.activity` it is that activity, whose queue its runs have by default.
        With `concurrency` or `rate` it is a child run there, so that they hold for all its calls.
        `name`, `retry` and `timeout` are those of `app.step`, and are given there to what is a step
        or an activity already. The other options are those of `app.workflow`: `run_timeout` limits
        the whole run, with all attempts. Raises ConfigurationError for a function or options that
        cannot work, and for a name that the app has already.

        ```python
        @app.job(queue="mail", retry=Retry(attempts=5), concurrency=10)
        def send_mail(to: str, text: str) -> str: ...

        await client.start(send_mail, "ann", "hello", delay="5m")
        ```
        """

        def define(fn: Callable[..., object]) -> Job[..., object]:
            definition: Step[..., Any] | Activity[..., Any]
            step: Step[..., Any] | None = None
            if isinstance(fn, Step | Activity):
                definition = cast("Step[..., Any] | Activity[..., Any]", fn)
                _refuse(definition, {"name": name, "retry": retry, "timeout": timeout})
            else:
                definition = step = Step(
                    fn, name=name, retry=self.retry if retry is None else retry, timeout=timeout
                )
            job: Job[..., object] = Job(
                definition,
                self.registry,
                queue=getattr(definition, "queue", DEFAULT_QUEUE) if queue is None else queue,
                retention=retention,
                timeout=run_timeout,
                priority=priority,
                rules=rules,
            )
            if step is not None:
                self.registry.add_step(step)
            self.registry.add_workflow(job)
            self._limit_workflow(job, concurrency, rate)
            return job

        return define if fn is None else define(fn)


def _refuse(definition: Step[..., Any] | Activity[..., Any], given: Mapping[str, object]) -> None:
    """Raise ConfigurationError for options that what is made a job has of its own."""
    if names := [name for name, value in given.items() if value is not None]:
        raise ConfigurationError(
            f"job {definition.name}: {', '.join(names)} belongs to the {definition.kind}: give it "
            f"to @app.{definition.kind}"
        )
