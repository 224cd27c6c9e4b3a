"""What was answered of a call for many callers that failed as a whole: for some, not for all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

_parts: Final[ContextVar[dict[int, Any] | None]] = ContextVar("holdfast_parts", default=None)


@contextmanager
def taking_parts(answered: dict[int, Any]) -> Generator[None]:
    """Take what was answered in calls of the block that raise, by the places of the items."""
    token = _parts.set(answered)
    try:
        yield
    finally:
        _parts.reset(token)


def taken_parts() -> dict[int, Any] | None:
    """Return where a call that fails in part tells what was answered; None if nobody asks."""
    return _parts.get()
