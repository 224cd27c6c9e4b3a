"""Closing coroutines and async generators that will never be resumed.

If they are not closed here, Python closes them when it frees them. Their clean-up would then run in
the drain of another run, or outside of every run, where the calls of steps are ordinary calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncGenerator, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, cast

from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.run")

_MAX_THROWS: Final = 1_000
# Objects that the interpreter puts around an awaited coroutine or async generator. They have no
# attribute for what is inside; the garbage collector knows it.
_WRAPPERS: Final = frozenset(
    {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"}
)


def close_coroutine(coroutine: object) -> None:
    """End a suspended coroutine and all that it awaits, the innermost first.

    If the code swallows GeneratorExit again and again, keep the object for ever instead.
    """
    if not _end(_awaited(coroutine)):
        _keep_for_ever(coroutine)


def close_generator(generator: AsyncGenerator[object, Any]) -> None:
    """End an async generator that nothing iterates over any more."""
    if not _end(_awaited(generator)):
        _keep_for_ever(generator)
        return
    closer: Any = generator.aclose()
    try:
        blocked_on = closer.send(None)
    except BaseException:
        return
    _release(blocked_on)
    if not _end(_awaited(closer)):
        _keep_for_ever(generator)


def _awaited(outermost: object) -> list[Any]:
    """Return an awaitable and all that it awaits, the innermost last: `throw` works on each.

    An async generator is represented by the object that awaits its next item.
    """
    chain: list[Any] = []
    inner: Any = outermost
    while inner is not None:
        if isinstance(inner, CoroutineType):
            chain.append(inner)
            inner = inner.cr_await
        elif isinstance(inner, GeneratorType):
            chain.append(inner)
            inner = cast("Any", inner).gi_yieldfrom
        elif isinstance(inner, AsyncGeneratorType):
            inner = inner.ag_await
        elif type(inner).__name__ in _WRAPPERS:
            chain.append(inner)
            inner = next(filter(_is_code, gc.get_referents(inner)), None)
        else:
            break
    return chain


def _is_code(candidate: object) -> bool:
    code = isinstance(candidate, CoroutineType | GeneratorType | AsyncGeneratorType)
    return code or type(candidate).__name__ in _WRAPPERS


def _end(chain: list[Any]) -> bool:
    """Throw into a chain, the innermost first, until all have ended; False if they do not end."""
    left = _MAX_THROWS
    while chain:
        each = chain.pop()
        try:
            blocked_on = each.throw(GeneratorExit())
        except BaseException:
            continue
        _release(blocked_on)
        left -= 1
        if not left:
            return False
        chain += _awaited(each)  # it awaits something else now
    return True


def _release(blocked_on: Any) -> None:
    """Let a future that was yielded be awaited again, as a task would.

    Otherwise the next await of it raises at once, and `while True: try: await future; except
    BaseException: pass` loops for ever. For the same reason close() cannot be used here.
    """
    if asyncio.isfuture(blocked_on):
        blocked_on._asyncio_future_blocking = False


def _keep_for_ever(code: object) -> None:
    """Never free an object, not even when the interpreter ends: freeing it would loop for ever."""
    from ctypes import py_object, pythonapi

    pythonapi.Py_IncRef(py_object(code))
    logger.warning(
        "%r catches BaseException again and again and cannot be closed; its memory is lost: "
        "let it re-raise GeneratorExit and asyncio.CancelledError",
        getattr(code, "__qualname__", code),
    )


@contextlib.contextmanager
def unawaited_allowed() -> Generator[None]:
    """Suppress Python's warnings about coroutines that closed code made and never awaited.

    If runs are replayed at each wake-up, these warnings would hide all others.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)
        yield
