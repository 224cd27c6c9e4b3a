"""The documentation of the synchronous client: that of the asynchronous one, without `await`.

A generated method has its first line, for editors. `help()` shows all of it.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Final

from holdfast.client import Client, Message
from holdfast.client.handle import RunHandle
from holdfast.client.session import Group

_TWINS: Final = (Client, RunHandle, Message, *Group.__subclasses__())
_twin: Final = re.compile(rf"\b({'|'.join(each.__name__ for each in _TWINS)})(?=[.(`])")
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
                method.__doc__ = _translated(getattr(of, name))
                method.__module__ = cls.__module__
                method.__qualname__ = f"{cls.__name__}.{name}"


def _translated(documented: object) -> str | None:
    text = documented.__doc__
    if text is None:  # as with python -OO
        return None
    for words, others in _WORDS:
        text = text.replace(words, others)
    return _twin.sub(r"Sync\1", text)
