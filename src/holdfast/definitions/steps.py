"""Steps: functions whose results are recorded once, and what their code knows of its attempt."""

from __future__ import annotations

import contextvars
import types
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from holdfast.definitions.caller import Caller
from holdfast.definitions.options import limit_seconds, option
from holdfast.definitions.recorded import AttemptContext, Recorded, check_retry
from holdfast.definitions.signatures import Signature
from holdfast.errors import ConfigurationError
from holdfast.retry import Retry
from holdfast.store.port.transactions import ConnectionKind
from holdfast.types import Writer, read_tick
from holdfast.values.durations import Duration
from holdfast.values.ids import sent_id
from holdfast.values.names import check_step_name

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Step(Recorded[P, R_co]):
    """A function whose result is recorded once per call in a run.

    Calling it inside a workflow is durable. Anywhere else (in tests, in another step) the call is
    an ordinary one. A method works too: its instance is not recorded, so the same instance must be
    reachable when the run is replayed.
    """

    kind: ClassVar[str] = "step"
    any_aliases: ClassVar[bool] = False
    """True if a step of this program has aliases; otherwise they need not be looked for."""
    connects: ConnectionKind | None = None
    """The kind of connection that the code of a transactional step gets; None for any other."""
    is_apart: bool = False
    """True if the record of a transactional step follows its commit."""
    place: str | None = None
    """Where the result of a transaction is kept; None for other steps, empty in holdfast's own."""
    is_sent_once: bool = False
    """True if a retry of a run sends this call of an entity under its `first_id`."""

    def __init__(
        self,
        fn: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Wrap `fn`; its own name, `Retry()` and no timeout are the defaults.

        `aliases` are names that the step had before: its results may be recorded under them. Raises
        ConfigurationError for a function that cannot be a step, naming what to change.
        """
        super().__init__(fn, name=name, retry=retry, timeout=timeout)
        self.aliases = self._check_aliases(aliases)
        if self.aliases:
            Step.any_aliases = True
        self._method_signature: Signature | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        # As current_caller() does, but without a call: a replay comes here for each step.
        caller: Caller | None = getattr(_get_running_loop(), "caller", None)
        if caller is not None:
            return caller.call_step(self, self.name, args, kwargs)
        return self.call_plain(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Step[P, R_co]: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], R_co], instance: S, owner: type) -> Step[Q, R_co]: ...
    def __get__(self, instance: object, owner: type) -> object:
        if instance is None:
            return self
        if self._method_signature is None:
            self._method_signature = Signature(self.fn, self.name, bound=True)
        bound = self._copy()
        bound.fn = types.MethodType(self.fn, instance)
        bound._use_signature(self._method_signature)
        return bound

    def _check_aliases(self, aliases: Sequence[str]) -> tuple[str, ...]:
        with option(str(self), "aliases"):
            # Callers without a type checker pass anything.
            if isinstance(aliases, str) or not isinstance(aliases, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"a list of names is needed, not {aliases!r}")
            names = tuple(dict.fromkeys(map(check_step_name, aliases)))
            if self.name in names:
                raise ConfigurationError(f"{self.name!r} is its current name")
        return names

    def with_options(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Step[P, R_co]:
        """Return the same step under another name, or with other limits, for some calls."""
        changed = self._copy()
        if name is not None:
            with option(str(self), "name"):
                changed.name = check_step_name(name)
            changed.aliases = ()  # they are aliases of its other name
        if retry is not None:
            changed.retry = check_retry(retry, self)
        if timeout is not None:
            changed.timeout_seconds = limit_seconds(timeout, str(self), "timeout")
        return changed


class StepDecorator(Protocol):
    """The decorator that `app.step(…)` returns: it makes the function a step."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class StepRun(Protocol):
    """The run that calls a step."""

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        ...

    @property
    def name(self) -> str:
        """The workflow's name."""
        ...

    @property
    def version(self) -> int:
        """The workflow's version."""
        ...

    @property
    def key(self) -> str | None:
        """The key that the run was started with, None without one."""
        ...

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers that the run was started with, None without any."""
        ...


class StepCall(Protocol):
    """One call of a step in a run."""

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        ...

    @property
    def name(self) -> str:
        """The step's name."""
        ...

    @property
    def id(self) -> str:
        """The id of the call, the same at each attempt."""
        ...

    @property
    def origins(self) -> Sequence[tuple[UUID, int, bool]]:
        """The runs that this one retries, the newest first, with True if they may have made it."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        ...

    streams: int | None
    """The number of the lease under which the attempt has opened a stream, None if it has not."""


_step: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar(
    "holdfast_step", default=None
)


class StepContext(AttemptContext):
    """One attempt of a step, as its own code sees it.

    `idempotency_key` belongs to this call alone and is the same at each attempt: send it along to
    other systems. `attempt` counts from 1.
    """

    variable = _step

    __slots__ = ("_call", "_lease_no", "_run")

    def __init__(self, run: StepRun, call: StepCall, lease_no: int = 0) -> None:
        self.attempt, self._cancelled, self.streams = call.attempt, None, None
        self._run, self._call, self._lease_no = run, call, lease_no

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._run.run_id

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one."""
        return self._run.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        return MappingProxyType(self._run.headers or {})

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule that started the run, in UTC; None if no schedule did."""
        return read_tick(self.headers)

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._run.name

    @property
    def version(self) -> int:
        """The workflow's version."""
        return self._run.version

    @property
    def step(self) -> str:
        """The step's name."""
        return self._call.name

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        return self._call.key

    @property
    def idempotency_key(self) -> str:
        """The same text at each attempt of this call, and at no attempt of another call."""
        return self._call.id

    @property
    def writer(self) -> tuple[UUID, str, Writer] | None:
        """The run, the key of its turn, and the attempt, for streams."""
        return self.run_id, "", Writer(self.key, self._lease_no, self.attempt)

    def note_streams(self) -> None:
        """Let the step's record say that this attempt has opened a stream."""
        self._call.streams = self._lease_no


def first_id(step: StepContext, began: int) -> str:
    """Return the `sent_id` of a call by the first run that may have made it.

    That is the step's own run, which `began` at that moment, or a run that it retries: one may have
    sent the call and ended before the log said so.
    """
    call = step._call  # pyright: ignore[reportPrivateUsage]
    made = [(run_id, at) for run_id, at, may_have in call.origins if may_have]
    run_id, at = made[-1] if made else (step.run_id, began)
    return sent_id(run_id, call.key, at)


def former_keys(step: Step[..., object], key: str, name: str) -> Iterator[str]:
    """Yield the keys of a call under the step's aliases; none if it has an `id` or another name."""
    scope, slash, leaf = key.rpartition("/")
    own, mark, number = leaf.partition("#")
    if own == name == step.name:
        yield from (f"{scope}{slash}{alias}{mark}{number}" for alias in step.aliases)


def running_step() -> StepContext | None:
    """Return the context of the step that is running, None outside of a step."""
    return _step.get()


def current_step() -> StepContext:
    """Return the context of the step that is running.

    ```python
    @app.step
    def charge(order: Order) -> Receipt:
        return gateway.charge(order.total, idempotency_key=current_step().idempotency_key)
    ```

    Raises LookupError outside of a step, also if a step is called as a plain function.
    """
    context = _step.get()
    if context is None:
        raise LookupError(
            "no step of a run is running here: call current_step() in the code of a step that a "
            "workflow has called (an activity has current_activity()), and pass the result to your "
            "own threads. A step that is called as a plain function has none: test it through a "
            "workflow, in holdfast.testing.Environment"
        )
    return context
