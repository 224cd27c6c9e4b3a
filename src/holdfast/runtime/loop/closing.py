"""Closing coroutines that will never be resumed."""

from __future__ import annotations

from types import CoroutineType, GeneratorType
from typing import Any, Final

_MAX_THROWS: Final = 20


def close_coroutine(coroutine: object) -> None:
    """End a suspended coroutine and all that it awaits, the innermost first.

    Code that swallows GeneratorExit again and again is kept for ever instead.
    """
    chain: list[Any] = []
    inner: Any = coroutine
    while _is_frame(inner):
        chain.append(inner)
        inner = inner.cr_await if hasattr(inner, "cr_await") else inner.gi_yieldfrom
    for frame in reversed(chain):
        if not _end(frame):
            _keep_for_ever(coroutine)
            return


def _is_frame(candidate: object) -> bool:
    return isinstance(candidate, CoroutineType | GeneratorType)


def _end(frame: Any) -> bool:
    for _ in range(_MAX_THROWS):
        try:
            blocked_on = frame.throw(GeneratorExit())
        except BaseException:
            return True
        if blocked_on is not None:
            # As a task would have done. Else the next await of this future raises at once, and
            # `while True: try: await future; except BaseException: pass` spins for ever; that is
            # why close() will not do either: it throws into a future that it left blocking.
            blocked_on._asyncio_future_blocking = False
    return False


def _keep_for_ever(coroutine: object) -> None:
    """Never let go of an object, not even at the interpreter's end: freeing it would spin."""
    from ctypes import py_object, pythonapi

    pythonapi.Py_IncRef(py_object(coroutine))
