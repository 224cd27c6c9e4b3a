"""What steps and activities have in common: a function, its limits, and its values as JSON."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar

import msgspec

from holdfast.codec import texts_before_fields
from holdfast.definitions.declared import Declared
from holdfast.definitions.options import limit_seconds, option
from holdfast.definitions.signatures import Arguments, Signature
from holdfast.durations import Duration
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.names import check_activity_name, check_step_name
from holdfast.retry import Retry

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_CHECKS: dict[str, Callable[[str], str]] = {
    "activity": check_activity_name,
    "step": check_step_name,
}


class Recorded(Generic[P, R_co]):
    """A function whose result is recorded once per call in a run: a step or an activity.

    `timeout_seconds` limits one attempt, None for no limit.
    """

    kind: ClassVar[str]
    timeout_option: ClassVar[str] = "timeout"

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
        functools.update_wrapper(self, fn)
        self.fn: Callable[..., Any] = fn
        self.name = self._check_name(fn, name)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.retry = check_retry(retry, self)
        self.timeout_seconds = limit_seconds(timeout, str(self), self.timeout_option)
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigurationError(f"{self} is a generator: return a list instead")
        self._signature = Signature(fn, self.name)
        self._result = Declared(fn, "return", f"result of {self.name}")

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

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode arguments; equal ones give equal text, however the caller wrote them.

        Raises TypeError where the function does not take them, and PayloadError where they
        cannot be stored.
        """
        return self._signature.encode(args, kwargs)

    def decode_arguments(self, text: str) -> Arguments:
        """Decode arguments into the declared types. Raises InvalidInput where they do not fit."""
        return self._signature.decode(text)

    def arguments_before_fields(self, text: str) -> Iterator[str]:
        """Return what arguments may have been before their types got fields with defaults."""
        try:
            args, kwargs = self.decode_arguments(text)
        except InvalidInput:
            return iter(())
        return texts_before_fields(text, {"a": args, "k": kwargs} if kwargs else args)

    def encode_result(self, value: object) -> str:
        """Encode a result. Raises PayloadError (InvalidInput where the type is another)."""
        return self._result.encode(value)

    def decode_result(self, text: str | bytes | msgspec.Raw) -> R_co:
        """Decode a result into the declared type. Raises InvalidInput where it does not fit."""
        result: R_co = self._result.decode(text)
        return result

    def _copy(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def _check_name(self, fn: object, name: str | None) -> str:
        found = name if name is not None else getattr(fn, "__name__", None)
        if found is None:
            raise ConfigurationError(
                f"{fn!r} has no name of its own: give the {self.kind} one with name=…"
            )
        with option(f"{self.kind} {getattr(fn, '__name__', fn)}", "name"):
            return _CHECKS[self.kind](found)


def check_retry(retry: object, of: Recorded[..., object]) -> Retry:
    """Return the policy, the usual one for None. Raises ConfigurationError for what is none."""
    if retry is None:
        return Retry()
    if not isinstance(retry, Retry):
        raise ConfigurationError(
            f"{of}: retry takes a Retry, such as Retry(attempts=5) or Retry.NEVER, not {retry!r}"
        )
    return retry
