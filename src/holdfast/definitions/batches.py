"""Batch activities: calls of several runs that a worker executes as one call with a list.

The code of a batch gets its `BatchContext` from `current_batch`.
"""

from __future__ import annotations

import contextvars
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast, overload

from holdfast.definitions.activities import Activity, ActivityContext
from holdfast.definitions.options import option
from holdfast.definitions.recorded import AttemptContext
from holdfast.definitions.signatures import Declared, Signature
from holdfast.errors import ConfigurationError
from holdfast.values.durations import Duration, seconds
from holdfast.values.numbers import whole_number

P = ParamSpec("P")
E = TypeVar("E")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_MOST_ELEMENTS: Final = 10_000
_MOST_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """How a worker fills a batch: with at most `size` calls, that it got `within` this time.

    The time begins with the first call of a batch. A worker holds no more calls than its
    concurrency, so a larger `size` is never reached.

    >>> Batch(size=100, within="200ms").within_seconds
    0.2
    """

    size: int
    within: Duration = "100ms"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for values that cannot work."""
        whole_number(self.size, "Batch", "size", 1, _MOST_ELEMENTS)
        if self.within_seconds > _MOST_SECONDS:
            raise ConfigurationError(
                f"within is at most {_MOST_SECONDS:g} s: the calls wait for it"
            )

    @property
    def within_seconds(self) -> float:
        """The longest time that a call waits for others."""
        with option("batch", "within"):
            return seconds(self.within)


class BatchActivity(Activity[P, R_co]):
    """An activity whose function takes a list of inputs and returns a list of results.

    A workflow calls it with one input, and gets one result. The results are in the order of the
    inputs. In place of a result, the function may return an exception: that call alone has failed.
    """

    def __init__(self, fn: Callable[..., object], *, batch: Batch, **options: Any) -> None:
        """Wrap `fn`; `options` are those of an activity.

        Raises ConfigurationError if it does not take and return a list.
        """
        super().__init__(cast("Callable[P, Awaitable[R_co]]", fn), **options)
        if not isinstance(batch, Batch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{self}: batch takes a Batch(…), not {batch!r}")
        self.batch = batch

    def call_plain(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        """Call the function with one input, without recording anything."""
        (element,), _ = self.decode_arguments(self.encode_arguments(args, kwargs))
        return self._call_one(element)

    async def _call_one(self, element: object) -> R_co:
        found = self.fn([element])
        [result] = await found if self.is_async else found
        if isinstance(result, BaseException):
            raise result
        return cast("R_co", result)

    def _read_parameters(self, fn: Callable[..., object]) -> None:
        why = "takes a batch, so it has one parameter, the list of inputs; a workflow calls it with"
        name = self._only_parameter(fn, f"{why} one of them")
        element = self._element_of(fn, name, f"its parameter {name}")

        def one(item: object) -> None: ...

        one.__annotations__ = {name: element}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameter = inspect.Parameter(name, kind, annotation=element)
        one.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
        self._use_signature(Signature(one, self.name))

    def _read_result(self, fn: Callable[..., object]) -> Declared:
        element = self._element_of(fn, "return", "its result")
        if typing.get_origin(element) in (typing.Union, types.UnionType):
            results = [each for each in typing.get_args(element) if not _is_exception(each)]
            element = typing.Union[tuple(results)] if results else Exception  # noqa: UP007
        if _is_exception(element):
            raise ConfigurationError(f"{self} can return nothing but exceptions: declare a result")
        return Declared.of_type(element, f"result of {self.name}")


class BatchDecorator(Protocol):
    """The decorator that `app.activity(batch=…)` returns: calls with one element become batches."""

    @overload
    def __call__(
        self, fn: Callable[[list[E]], Coroutine[object, None, Sequence[R | BaseException]]], /
    ) -> Activity[[E], R]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[E]], Sequence[R | BaseException]], /
    ) -> Activity[[E], R]: ...


def _is_exception(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


_batch: contextvars.ContextVar[BatchContext | None] = contextvars.ContextVar(
    "holdfast_batch", default=None
)


class BatchContext(AttemptContext):
    """One call of a batch activity, as its own code sees it.

    `elements` are the attempts that it executes, in the order of the inputs. `attempt` is the
    highest of their numbers. It is cancelled if no element's result is wanted any more.
    """

    variable = _batch

    __slots__ = ("elements", "name")

    def __init__(self, name: str, elements: Sequence[ActivityContext]) -> None:
        """Hold the attempts of a call."""
        self.name, self.elements = name, tuple(elements)
        self.attempt = max((each.attempt for each in elements), default=1)
        self._cancelled = self.streams = None

    def heartbeat(self, details: object = None) -> None:
        """Report that all elements make progress; see `ActivityContext.heartbeat`.

        For a single one, call `elements[n].heartbeat()`. Raises PayloadError for details that
        cannot be stored.
        """
        for each in self.elements:
            if not each.cancelled:
                each.heartbeat(details)


def current_batch() -> BatchContext:
    """Return the context of the batch activity that is running.

    ```python
    @app.activity(batch=Batch(size=100, within="200ms"))
    async def send(mails: list[Mail]) -> list[str]:
        for mail, attempt in zip(mails, current_batch().elements):
            ...
    ```

    Raises LookupError outside of a batch activity, also if one is called as a plain function.
    """
    context = _batch.get()
    if context is None:
        raise LookupError(
            "no batch of a worker is running here: call current_batch() in the code of an activity "
            "with batch=Batch(…) that a workflow has called"
        )
    return context
