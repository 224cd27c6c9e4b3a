"""Steps of flows: the options of all, what they say of the shape, and those that are functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import (
    Any,
    ClassVar,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

import msgspec

from holdfast.definitions.flow_conditions import check_pattern, may_cascade, may_skip
from holdfast.definitions.flow_maps import map_output, read_map_options, tolerates
from holdfast.definitions.flow_parameters import (
    RUN,
    ElementParameter,
    SingleParameters,
    Source,
    annotation_of,
)
from holdfast.definitions.flow_rules import check_dependencies, check_rule
from holdfast.definitions.options import option
from holdfast.definitions.recorded import Recorded
from holdfast.definitions.signatures import read_signature
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.retry import Retry
from holdfast.types import FlowShape, Otherwise, StepShape, TriggerRule
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_flow_step_name, check_queue_name, split_name
from holdfast.values.numbers import MAX_INTEGER, whole_number

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)
Out_co = TypeVar("Out_co", covariant=True)


_split_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class RunStepOptions(TypedDict, total=False):
    """Options of a flow's step, also of one that is a run: there each attempt is a run.

    Those that are left out are the flow's. Durations are seconds, a text such as `"5m"`, or a
    `timedelta`; they are whole seconds.
    """

    attempts: int | None
    """How often it is tried, the first time included."""
    base_delay: Duration | None
    """Attempt n + 1 begins `base_delay * 2**n` after attempt n has failed."""
    jitter: float
    """That pause is up to so many times itself shorter or longer: 0 to 1, in hundredths."""
    timeout: Duration | None
    """How long one attempt may take; a run by default as long as its workflow or flow says."""
    start_delay: Duration | None
    """How long a task waits before its first attempt."""
    queue: str | None
    """The queue whose workers run it; of a run by default that of its workflow or flow."""
    when: Mapping[str, object] | None
    """What the dependencies must contain, by name; of a step without any, the run's input."""
    unless: Mapping[str, object] | None
    """What they must not contain."""
    on_unmet: Otherwise
    """What happens if a condition does not hold: skip, skip-cascade or fail."""
    on_exhausted: Otherwise
    """What happens after the last attempt has failed: fail, skip or skip-cascade."""


class FlowStepOptions(RunStepOptions, total=False):
    """Options of a flow's step that is a function."""

    name: str | None
    """By default the function's."""
    should_retry: Callable[[Exception], bool | Awaitable[bool]] | None
    """Called with the error of an attempt, on its worker, or awaited; False: no further attempt."""
    trigger_rule: TriggerRule
    """When it runs: none_failed, all_done, one_failed, or always, at the end of the run."""


class MapOptions(TypedDict, total=False):
    """Options of a map besides those of a step."""

    tolerate: int | str | None
    """How many elements may fail, as a number or as `"10%"`; they are None in the output."""
    concurrency: int | None
    """How many elements are under way at once, those that wait for a retry included."""


class FlowMapOptions(FlowStepOptions, MapOptions, total=False):
    """Options of a map whose elements are given to a function."""


class RunMapOptions(RunStepOptions, MapOptions, total=False):
    """Options of a map whose elements are runs."""


class FlowStep(Recorded[P, R_co], Source[Out_co]):
    """A step of a flow: a function that runs on a worker after the steps that it depends on.

    A map step runs once for each element of a list, and its output is the list of the results.
    Flows call their steps themselves. For tests, `await step(…)` is an ordinary call of the
    function, also if it is a sync one. `flow` is the flow's name, `deps` are the names of the steps
    that it depends on. `queue` is None for the queue of the run, `timeout_seconds` limits one
    attempt.
    """

    kind: ClassVar[str] = "step"

    def __init__(
        self,
        fn: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        flow: FlowShape,
        sources: Mapping[str, Source[Any]],
        *,
        over: Source[Any] | None = None,
        **options: Unpack[FlowMapOptions],
    ) -> None:
        """Wrap `fn` as a step of `flow`, which depends on some of the sources, or maps over one.

        Raises ConfigurationError for a function or options that cannot work.
        """
        if isinstance(fn, Recorded):
            raise ConfigurationError(f"{fn} cannot be a step of a flow too: decorate the function")
        self.flow = split_name(flow.name)[1]
        self._sources, self._over = sources, over
        self.trigger_rule: TriggerRule = options.get("trigger_rule", "none_failed")
        super().__init__(fn, name=options.get("name"))
        of = str(self)
        try:  # the database has the rest of the policy
            self.retry = Retry(should_retry=options.get("should_retry"))
        except ConfigurationError as error:
            raise ConfigurationError(f"{of}: {error}") from None
        outputs = {dep: sources[dep].annotation for dep in self.deps}
        shape = read_shape(
            self.name,
            options,
            of,
            is_map=self.is_map,
            given=sources[RUN].annotation,
            outputs=outputs,
        )
        self.timeout_seconds = float(flow.timeout if shape.timeout is None else shape.timeout)
        self.queue = shape.queue
        check_rule(
            self.trigger_rule,
            of,
            is_map=self.is_map,
            has_condition=(options.get("when"), options.get("unless")) != (None, None),
            fails_unmet=shape.when_unmet == "fail",
        )
        others = (each.trigger_rule for slug, each in sources.items() if slug != RUN)
        rules = {dep: sources[dep].trigger_rule for dep in self.deps}
        check_dependencies(self.trigger_rule, of, rules, others)
        self.shape = msgspec.structs.replace(
            shape, wants_run=self._parameters.wants_run, trigger_rule=self.trigger_rule
        )
        self.may_be_skipped = may_skip(self.shape)
        self.may_cascade = may_cascade(self.shape, [sources[dep] for dep in self.deps])

    def __str__(self) -> str:
        return f"step {self.slug} of flow {self.flow}"

    @property
    def slug(self) -> str:
        """The step's name, as the database has it."""
        return self.name

    @property
    def deps(self) -> tuple[str, ...]:
        """The names of the steps that it depends on."""
        return self._parameters.deps

    @property
    def is_map(self) -> bool:
        """True if it runs once for each element of a list."""
        return self._over is not None

    @property
    def annotation(self) -> object:
        """The declared type of its output; Any if none is declared."""
        returned = annotation_of(self.result)
        return map_output(returned, self.shape) if self.is_map else returned

    def decode_output(self, text: str | bytes | msgspec.Raw) -> Out_co:
        """Decode its output, of a map the list of its results. Raises InvalidInput."""
        if not self.is_map:
            return cast("Out_co", self.decode_result(text))
        return cast("Out_co", decode_each(text, self.decode_result, self.shape, str(self)))

    def _check_name(self, fn: object, name: str | None) -> str:
        found = name if name is not None else getattr(fn, "__name__", None)
        if found in (None, "<lambda>"):
            raise ConfigurationError(
                f"flow {self.flow}: {fn!r} has no name of its own: give the step one with name=…"
            )
        with option(f"flow {self.flow}", "step"):
            return check_flow_step_name(found)

    def _read_parameters(self, fn: Callable[..., object]) -> None:
        of = str(self)
        if next(iter(read_signature(fn).parameters), None) == "self":
            raise ConfigurationError(
                f"{of} is a method, and the worker that runs it has no such instance: make it a "
                "function"
            )
        self._parameters: SingleParameters | ElementParameter
        if self._over is None:
            self._parameters = SingleParameters(fn, of, self._sources, self.trigger_rule)
        else:
            self._parameters = ElementParameter(fn, of, self._over)
        self.decode_arguments, self.misfits = self._parameters.decode, self._parameters.misfits
        self.encode_arguments = self._parameters.encode


class FlowStepDecorator(Protocol):
    """The decorator that `flow.step(…)` returns: it makes the function a step of the flow."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[object, None, R]], /) -> FlowStep[P, R, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> FlowStep[P, R, R]: ...


class FlowMapDecorator(Protocol[E]):
    """The decorator that `flow.map(…)` returns: it makes the function a map step of the flow."""

    @overload
    def __call__(
        self, fn: Callable[[E], Coroutine[object, None, R]], /
    ) -> FlowStep[[E], R, list[R]]: ...
    @overload
    def __call__(self, fn: Callable[[E], R], /) -> FlowStep[[E], R, list[R]]: ...


def decode_each(
    text: str | bytes | msgspec.Raw,
    decode: Callable[[msgspec.Raw], object],
    step: StepShape,
    of: str,
) -> list[object]:
    """Decode the output of the map step `of`, each result with `decode`. Raises InvalidInput.

    Elements that failed, which the map tolerates, are None.
    """
    try:
        results = _split_list(text)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"output of {of}: {error}") from None
    if tolerates(step):
        return [None if bytes(result) == b"null" else decode(result) for result in results]
    return [decode(result) for result in results]


def read_shape(
    slug: str,
    options: FlowMapOptions | RunMapOptions,
    of: str,
    *,
    is_map: bool,
    given: object,
    outputs: Mapping[str, object],
) -> StepShape:
    """Return what the options of a step say of its shape. Raises ConfigurationError.

    `given` is the type of the run's input, `outputs` are those of the steps that it depends on.
    """
    attempts, queue = options.get("attempts"), options.get("queue")
    if queue is not None:
        with option(of, "queue"):
            check_queue_name(queue)
    return StepShape(
        slug=slug,
        kind="map" if is_map else "single",
        deps=tuple(outputs),
        queue=queue,
        max_attempts=None if attempts is None else whole_number(attempts, of, "attempts", 1),
        base_delay=whole_seconds(options.get("base_delay"), of, "base_delay"),
        jitter_percent=_check_jitter(options.get("jitter", 0.0), of),
        timeout=whole_seconds(options.get("timeout"), of, "timeout", least=1),
        start_delay=whole_seconds(options.get("start_delay"), of, "start_delay"),
        required=check_pattern(options.get("when"), "when", of, given, outputs),
        forbidden=check_pattern(options.get("unless"), "unless", of, given, outputs),
        when_unmet=_check_otherwise(options.get("on_unmet", "skip"), of, "on_unmet"),
        when_exhausted=_check_otherwise(options.get("on_exhausted", "fail"), of, "on_exhausted"),
        **read_map_options(options.get("tolerate"), options.get("concurrency"), of),
    )


def _check_jitter(jitter: float, of: str) -> int | None:
    """Return a jitter in percent, None for 0. Raises ConfigurationError for another number."""
    # Callers without a type checker pass anything; a NaN is in no range.
    is_part = isinstance(jitter, int | float) and 0 <= jitter <= 1  # pyright: ignore[reportUnnecessaryIsInstance]
    percent = round(jitter * 100) if is_part else 0
    if not is_part or abs(percent - jitter * 100) > 1e-6:
        raise ConfigurationError(f"{of}: jitter: 0 to 1 in hundredths is needed, not {jitter!r}")
    return percent or None


def whole_seconds(length: Duration | None, of: str, name: str, *, least: int = 0) -> int | None:
    """Return a length of time in whole seconds. Raises ConfigurationError for a fraction."""
    if length is None:
        return None
    with option(of, name):
        found = seconds(length)
        whole = round(found)
        if abs(found - whole) > 1e-6:
            raise ConfigurationError(f"times of a flow are whole seconds, not {length!r}")
        if not least <= whole <= MAX_INTEGER:
            raise ConfigurationError(
                f"{least} to {MAX_INTEGER:,} seconds are possible, not {length!r}"
            )
    return whole


def _check_otherwise(value: Otherwise, of: str, name: str) -> Otherwise:
    """Return what is to happen otherwise. Raises ConfigurationError for another word."""
    if value not in get_args(Otherwise):
        raise ConfigurationError(
            f"{of}: {name}: fail, skip or skip-cascade is needed, not {value!r}"
        )
    return value
