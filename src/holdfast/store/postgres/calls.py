"""Methods of parts that pass on what they are given: their parameters are those of the port.

```python
class PostgresQueues(Part):
    delete_queue: Call[bool] = only_value()
    list_queues = each_row(reader(QueueInfo))
```

Each calls the SQL function of its name, with its arguments in the order of the port.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import MethodType
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg

from holdfast.store.port import Store

T = TypeVar("T")

Call: TypeAlias = Callable[..., Coroutine[Any, Any, T]]


def all_rows(read: Callable[[Sequence[asyncpg.Record]], T]) -> Call[T]:
    """Return a method whose answer is made of all rows."""
    return cast("Call[T]", _Declared("rows", read))


def each_row(read: Callable[[asyncpg.Record], T]) -> Call[list[T]]:
    """Return a method whose answer has a value for each row."""
    return all_rows(lambda found: [read(row) for row in found])


def first_row(read: Callable[[asyncpg.Record], T]) -> Call[T | None]:
    """Return a method whose answer is made of the first row, None if there is none."""
    return all_rows(lambda found: read(found[0]) if found else None)


def only_row(read: Callable[[asyncpg.Record], T]) -> Call[T]:
    """Return a method whose answer is made of the only row."""
    return cast("Call[T]", _Declared("row", read))


def only_value() -> Call[Any]:
    """Return a method whose answer is the only value of the only row."""
    return only_row(lambda found: found[0])


def no_answer() -> Call[None]:
    """Return a method without an answer."""
    return only_row(lambda _: None)


class _Declared:
    """What a method calls: when it is looked up first, it is compiled and put in this place."""

    def __init__(self, call: str, read: Callable[[Any], object]) -> None:
        self._call, self._read = call, read

    def __set_name__(self, part: type, name: str) -> None:
        self._part, self._name = part, name

    def __get__(self, part: object, kind: type) -> Any:
        method = self._method()
        setattr(self._part, self._name, method)
        return method if part is None else MethodType(method, part)

    def _method(self) -> Callable[..., Any]:
        name, ported = self._name, getattr(Store, self._name)
        code = ported.__code__
        places = code.co_varnames[1 : code.co_argcount]
        options = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        taken = ", ".join(("self", *places, *(("*", *options) if options else ())))
        passed = ", ".join((repr(name), *places, *options))
        text = f"return _read(await self._database.{self._call}({passed}))"
        made: dict[str, Any] = {"_read": self._read}
        exec(f"async def {name}({taken}): {text}", made)
        method: Callable[..., Any] = made[name]
        method.__defaults__, method.__kwdefaults__ = ported.__defaults__, ported.__kwdefaults__
        return method
