"""The documentation of the synchronous client: that of the asynchronous one, without `await`.

A generated method has its first line, for editors. `help()` shows all of it, and its signature.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from holdfast.client import Client, Message
from holdfast.client.handle import RunHandle
from holdfast.client.session import Group

_TWINS: Final = (Client, RunHandle, Message, *Group.__subclasses__())
_twin: Final = re.compile(rf"\b({'|'.join(each.__name__ for each in _TWINS)})(?=[.(`])")
_held: Final = re.compile(r"\b(RunHandle|Message)\b")  # in the type of a result
_WORDS: Final = (
    ("await ", ""),
    ("an `async with`", "a `with`"),
    ("async with ", "with "),
    ("async for ", "for "),
    ("the tasks of one event loop", "threads"),
)


class Documented:
    """The base of generated classes: they are documented as the class that they are made `of`."""

    def __init_subclass__(cls, of: type[object] | None = None) -> None:
        super().__init_subclass__()
        if of is None:
            return
        cls.__doc__ = _translated(of)
        for name, method in vars(cls).items():
            if isinstance(method, FunctionType):
                _name(method, getattr(of, name), f"{cls.__name__}.{name}", cls.__module__)


def _name(method: Any, made_of: Callable[..., object], name: str, module: str) -> None:
    """Give a method the documentation and the signature of the one that it is made of."""
    method.__doc__, method.__module__, method.__qualname__ = _translated(made_of), module, name
    method.__name__ = made_of.__name__
    signature = inspect.signature(made_of)
    result = _held.sub(r"Sync\1", str(signature.return_annotation).replace("Async", ""))
    method.__signature__ = signature.replace(return_annotation=result)


def _translated(documented: object) -> str | None:
    text = documented.__doc__
    if text is None:  # as with python -OO
        return None
    for words, others in _WORDS:
        text = text.replace(words, others)
    return _twin.sub(r"Sync\1", text)
