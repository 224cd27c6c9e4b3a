"""Which methods of the port pass values on as they are: the others are for a codec to encode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

_READABLE: Final = "__readable__"


def readable(method: M) -> M:
    """Say that a method has no payloads, or only some that stay readable in the database.

    A store with a codec refuses a method that is neither marked nor its own: see
    `holdfast.payloads.store.store`. What stays readable stands in docs/howto/payloads.md.
    """
    setattr(method, _READABLE, True)
    return method


def readable_methods(port: type) -> frozenset[str]:
    """Return the names of the methods of a protocol that are marked."""
    return frozenset(name for name in dir(port) if hasattr(getattr(port, name), _READABLE))
