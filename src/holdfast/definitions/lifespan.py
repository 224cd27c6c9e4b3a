"""Resources that a worker opens once and its steps and activities share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from inspect import isasyncgenfunction, iscoroutinefunction, unwrap
from typing import Any, Final, Generic, TypeVar, cast

from holdfast.definitions.caller import current_caller
from holdfast.errors import ConfigurationError

T = TypeVar("T")

_opened: ContextVar[Mapping[Lifespan[Any], object] | None] = ContextVar(
    "holdfast_lifespans", default=None
)


class Lifespan(Generic[T]):
    """A resource that each worker opens when it starts and closes when it has drained.

    ```python
    @app.lifespan
    async def database() -> AsyncIterator[Pool]:
        async with create_pool(url) as pool:
            yield pool

    @app.step
    async def count() -> int:
        return await database.get().fetchval("select count(*) from orders")
    ```
    """

    def __init__(
        self, fn: Callable[[], AsyncIterator[T]] | Callable[[], AbstractAsyncContextManager[T]]
    ) -> None:
        """Wrap an async generator function that yields once, or one that returns a context manager.

        It has no parameters, but may `get()` resources that were defined before it. Raises
        ConfigurationError for an async function that does not yield.
        """
        self.name: str = getattr(fn, "__name__", repr(fn))
        code = getattr(unwrap(fn), "__code__", None)
        self.place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        if iscoroutinefunction(fn):
            raise ConfigurationError(
                f"lifespan {self.name} does not yield: `yield` the resource instead of returning "
                "it, and close it after that"
            )
        self.__doc__ = fn.__doc__
        if isasyncgenfunction(fn):
            fn = asynccontextmanager(cast("Callable[[], AsyncGenerator[T]]", fn))
        self._open = cast("Callable[[], AbstractAsyncContextManager[T]]", fn)
        self._overrides: list[T] = []

    def __repr__(self) -> str:
        return f"<Lifespan {self.name}>"

    def open(self) -> AbstractAsyncContextManager[T]:
        """Return a context manager that opens and closes the resource."""
        return self._open()

    @property
    def overridden(self) -> bool:
        """Return True if a test has replaced the resource."""
        return bool(self._overrides)

    def get(self) -> T:
        """Return the resource, in steps and activities, threads included.

        Raises ConfigurationError elsewhere: workflow code is replayed, and must not use it.
        """
        if current_caller() is not None:
            raise ConfigurationError(
                f"workflow code must not use {self.name}: move the call to a step"
            )
        if self._overrides:
            return self._overrides[-1]
        opened = _opened.get()
        if opened is None or self not in opened:
            raise ConfigurationError(
                f"{self.name} is not open here: a worker opens it for the steps and activities "
                f"that it runs; in a test of a plain call, use `with {self.name}.override(…)`"
            )
        return cast("T", opened[self])

    @contextmanager
    def override(self, value: T) -> Generator[None]:
        """Replace the resource by a value while the block lasts, for tests.

        It holds for the whole process, and a worker that starts meanwhile does not open the
        resource.
        """
        self._overrides.append(value)
        try:
            yield
        finally:
            self._overrides.remove(value)


bind_lifespans: Final = _opened.set  # in the current contextvars context
