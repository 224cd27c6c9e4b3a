"""The common base of steps and activities: a function with its values as JSON, and an attempt."""

from __future__ import annotations

import collections.abc
import contextlib
import contextvars
import functools
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, ParamSpec, Self, TypeVar, overload
from uuid import UUID

import msgspec

from holdfast.codec import texts_before_fields
from holdfast.definitions.flow_types import type_name
from holdfast.definitions.options import limit_seconds, option
from holdfast.definitions.signatures import (
    POSITIONAL,
    Arguments,
    Declared,
    Signature,
    evaluate,
    read_signature,
    refuse_method,
)
from holdfast.definitions.streams import StreamSink, StreamWriter
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.retry import Retry
from holdfast.types import Writer
from holdfast.values.durations import Duration
from holdfast.values.names import check_activity_name, check_step_name, check_stream_name

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_CHECKS: dict[str, Callable[[str], str]] = {
    "activity": check_activity_name,
    "consumer": check_activity_name,
    "step": check_step_name,
}

_LISTS: Final = (list, collections.abc.Sequence, collections.abc.Collection)
_creating = threading.Lock()


class Recorded(Generic[P, R_co]):
    """A function whose result is recorded once per call in a run: a step or an activity.

    `timeout_seconds` limits one attempt, None for no limit.
    """

    kind: ClassVar[str]
    timeout_option: ClassVar[str] = "timeout"

    # These are methods of the signature and of the result's type, so a call has no further level.

    encode_arguments: Callable[[tuple[object, ...], Mapping[str, object]], str]
    """Encode arguments; equal ones give equal text, however the caller wrote them.

    Raises TypeError for arguments that the function does not take, PayloadError for ones that
    cannot be stored.
    """
    decode_arguments: Callable[[str], Arguments]
    """Decode arguments into the declared types. Raises InvalidInput for ones that do not fit."""
    encode_result: Callable[[object], str]
    """Encode a result. Raises PayloadError, and InvalidInput for a result of another type."""
    encode_and_restore: Callable[[object], tuple[str, object]]
    """Encode a result; return the text, and the result as a replay will decode it."""
    decode_result: Callable[[str | bytes | msgspec.Raw], R_co]
    """Decode a result into the declared type. Raises InvalidInput for one that does not fit."""

    def __init__(
        self,
        fn: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Wrap `fn`; its own name, `Retry()` and no timeout are the defaults.

        Raises ConfigurationError for a function that cannot be recorded, naming what to change.
        """
        refuse_method(fn, self.kind)
        functools.update_wrapper(self, fn)
        self.fn: Callable[..., Any] = fn
        self.name = self._check_name(fn, name)
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004 - of an object whose class has it
        )
        self.retry = check_retry(retry, self)
        self.timeout_seconds = limit_seconds(timeout, str(self), self.timeout_option)
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigurationError(f"{self} is a generator: return a list instead")
        self._read_parameters(fn)
        self.result = result = self._read_result(fn)
        self.encode_result, self.decode_result = result.encode, result.decode
        self.encode_and_restore = result.encode_and_restore

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        return self.call_plain(*args, **kwargs)

    def call_plain(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        """Call the function itself, without recording anything."""
        if self.is_async:
            coroutine: Coroutine[object, None, R_co] = self.fn(*args, **kwargs)
            return coroutine
        return self._call_inline(args, kwargs)

    async def _call_inline(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> R_co:
        result: R_co = self.fn(*args, **kwargs)
        return result

    def arguments_before_fields(
        self, text: str, args: tuple[object, ...], kwargs: Mapping[str, object] | None
    ) -> Iterator[str]:
        """Yield the texts that arguments may have had before types got fields with defaults.

        The types are those that the function declares, or those of the arguments as they came, if
        it declares wider ones.
        """
        found = [self.signature.bind(args, kwargs or {})]
        with contextlib.suppress(InvalidInput):
            found.insert(0, self.decode_arguments(text))
        for positional, named in found:
            yield from texts_before_fields(
                text, {"a": positional, "k": named} if named else positional
            )

    def _read_parameters(self, fn: Callable[..., object]) -> None:
        self._use_signature(Signature(fn, self.name))

    def _read_result(self, fn: Callable[..., object]) -> Declared:
        return Declared(fn, "return", f"result of {self.name}")

    def _only_parameter(self, fn: Callable[..., object], why: str) -> str:
        """Return the name of a function's one parameter. Raises ConfigurationError, with `why`."""
        parameters = [*read_signature(fn).parameters.values()]
        if len(parameters) != 1 or parameters[0].kind not in POSITIONAL:
            raise ConfigurationError(f"{self} {why}")
        return parameters[0].name

    def _element_of(self, fn: Callable[..., object], name: str, what: str) -> object:
        """Return the type of the elements of a list that the function takes or returns.

        Raises ConfigurationError for another type, which it calls `what`.
        """
        try:
            annotation = evaluate(fn, name)
        except NameError as error:
            raise ConfigurationError(
                f"{self}: the type of {what} cannot be resolved ({error}); define it before"
            ) from None
        if annotation is Any or annotation is list:
            return Any
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) not in _LISTS or len(arguments) != 1:
            raise ConfigurationError(
                f"{self} takes a batch: {what} must be a list, such as "
                f"list[{type_name(annotation)}], not {type_name(annotation)}"
            )
        return arguments[0]

    def _use_signature(self, signature: Signature) -> None:
        self.signature = signature
        self.encode_arguments, self.decode_arguments = signature.encode, signature.decode

    def _copy(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def _check_name(self, fn: object, name: str | None) -> str:
        found = name if name is not None else getattr(fn, "__name__", None)
        if found is None or found == "<lambda>":
            raise ConfigurationError(
                f"{fn!r} has no name of its own: give the {self.kind} one with name=…"
            )
        with option(f"{self.kind} {getattr(fn, '__name__', fn)}", "name"):
            return _CHECKS[self.kind](found)


def check_run_retry(retry: object, of: str) -> Retry | None:
    """Return the policy by which runs are retried, None for none. Raises ConfigurationError."""
    if retry is None:
        return None
    if not isinstance(retry, Retry):
        raise ConfigurationError(
            f"{of}: retry must be a Retry, such as Retry(attempts=5), not {retry!r}"
        )
    if inspect.iscoroutinefunction(retry.should_retry):
        raise ConfigurationError(
            f"{of}: should_retry of a workflow cannot be async: it decides in the moment in which "
            "the run would end. Ask in a step, and raise what the answer is"
        )
    return retry


def check_retry(retry: object, of: object) -> Retry:
    """Return the policy, the default for None. Raises ConfigurationError for another value."""
    if retry is None:
        return Retry()
    if not isinstance(retry, Retry):
        raise ConfigurationError(
            f"{of}: retry must be a Retry, such as Retry(attempts=5) or Retry.NEVER, not {retry!r}"
        )
    return retry


class AttemptContext:
    """One attempt, as its own code sees it. `attempt` counts from 1.

    `variable` is the context variable in which the code finds its attempt.
    """

    variable: ClassVar[contextvars.ContextVar[Any]]
    _not_data: ClassVar = (
        "it is not an argument; the code of the attempt finds it with current_step() or "
        "current_activity()"
    )

    __slots__ = ("_cancelled", "attempt", "streams")

    attempt: int
    streams: StreamSink | None  # set when it is started; the subclasses begin with None
    _cancelled: threading.Event | None  # made on first use; the subclasses begin with None

    @property
    def cancelled(self) -> bool:
        """True if the attempt is cancelled: its result is not wanted. For long synchronous code."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait in a thread for at most `seconds`; return True once the attempt is cancelled."""
        return self._event().wait(seconds)

    @overload
    def stream(self, name: str, *, type: type[T]) -> StreamWriter[T]: ...
    @overload
    def stream(self, name: str) -> StreamWriter[object]: ...
    def stream(self, name: str, *, type: object = None) -> StreamWriter[Any]:
        """Return a stream of the run, to write to; see `RunHandle.stream` for how it is read.

        ```python
        out = current_step().stream("tokens")
        async for token in model(prompt):
            await out.write(token)
        ```

        `type` is for type checkers. Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`,
        ConfigurationError where there is no run that readers know, StreamClosed after the end.
        """
        check_stream_name(name)
        if self.streams is None or self.writer is None:
            raise ConfigurationError(
                f"stream {name!r} cannot be written here: steps and activities of workflows have "
                "streams; messages, transactions and activities called in batches have none"
            )
        return StreamWriter(name, self.streams.open(self, name))

    @property
    def writer(self) -> tuple[UUID, str, Writer] | None:
        """The run, the key of the leased task, and the attempt; None if it has no streams."""
        return None

    def note_streams(self) -> None:
        """Remember that the attempt has opened a stream."""

    def cancel(self) -> None:
        """Tell the attempt that it is cancelled. Safe from any thread."""
        self._event().set()

    def _event(self) -> threading.Event:
        with _creating:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled
