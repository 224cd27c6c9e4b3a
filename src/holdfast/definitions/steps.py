"""Steps: functions whose results are recorded once."""

from __future__ import annotations

import functools
import inspect
import types
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from holdfast.definitions.declared import Declared
from holdfast.definitions.signatures import Arguments, Signature
from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError
from holdfast.names import check_step_name
from holdfast.retry import Retry

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class StepLoop(Protocol):
    """An event loop on which calling a step is durable."""

    def call_step(
        self, step: Step[..., R], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[object, None, R]: ...


class Step(Generic[P, R_co]):
    """A function whose result is recorded once per call in a run.

    Calling it inside a workflow is durable; anywhere else (in tests, in another step) it is a
    plain call of the function. A method works too: its instance is not recorded, so the same
    must be reachable when the run replays, and the step is called on the live one.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Wrap `fn`; its own name, `Retry()` and no timeout are the defaults.

        Raises ConfigurationError for a function that cannot be a step, naming what to change.
        """
        functools.update_wrapper(self, fn)
        self.fn: Callable[..., object] = fn
        self.name = _step_name(fn, name)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.retry = retry or Retry()
        self.timeout_seconds = _timeout(timeout)
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigurationError(f"step {self.name} is a generator: return a list instead")
        self._signature = Signature(fn, self.name)
        self._method_signature: Signature | None = None
        self._result = Declared(fn, "return", f"result of {self.name}")

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        loop = _get_running_loop()
        if hasattr(loop, "call_step"):
            return cast("StepLoop", loop).call_step(self, args, kwargs)
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
        bound._signature = self._method_signature
        return bound

    def call_plain(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        """Call the function itself, without recording anything."""
        if self.is_async:
            return cast("Coroutine[object, None, R_co]", self.fn(*args, **kwargs))
        return self._call_inline(args, kwargs)

    async def _call_inline(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> R_co:
        return cast("R_co", self.fn(*args, **kwargs))

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
            changed.name = check_step_name(name)
        if retry is not None:
            changed.retry = retry
        if timeout is not None:
            changed.timeout_seconds = _timeout(timeout)
        return changed

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode arguments; equal ones give equal text, however the caller wrote them.

        Raises TypeError where the function does not take them, and PayloadError where they
        cannot be stored.
        """
        return self._signature.encode(args, kwargs)

    def decode_arguments(self, text: str) -> Arguments:
        """Decode arguments into the declared types. Raises InvalidInput where they do not fit."""
        return self._signature.decode(text)

    def encode_result(self, value: object) -> str:
        """Encode a result. Raises PayloadError (InvalidInput where the type is another)."""
        return self._result.encode(value)

    def decode_result(self, text: str | bytes | msgspec.Raw) -> R_co:
        """Decode a result into the declared type. Raises InvalidInput where it does not fit."""
        return cast("R_co", self._result.decode(text))

    def _copy(self) -> Step[P, R_co]:
        copied: Step[P, R_co] = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


def _step_name(fn: object, name: str | None) -> str:
    found = name if name is not None else getattr(fn, "__name__", None)
    if found is None:
        raise ConfigurationError(f"{fn!r} has no name of its own: give the step one with name=…")
    return check_step_name(found)


def _timeout(timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    length = seconds(timeout)
    if length == 0:
        raise ConfigurationError("a timeout of 0 s lets nothing run: leave it out for no timeout")
    return length
