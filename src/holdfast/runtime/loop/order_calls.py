"""What a call of an activity or a workflow gives: a coroutine that need not be awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.runtime.code.orders import Order, Orders


class OrderCall(Coroutine[object, None, object]):
    """An order that can be awaited once, by itself or as a task; nobody need await it.

    The order is given at the call. A plain coroutine would not do: one that is never awaited
    warns, and one that is cancelled before it began does not hear of it.
    """

    __slots__ = ("__name__", "_hash", "_orders", "_read", "coroutine", "order")

    def __init__(
        self, orders: Orders, order: Order, read: Callable[[Event], object], number: int
    ) -> None:
        """`read` makes the result of the order's end, `number` is the call's hash."""
        self._orders, self.order, self._read, self._hash = orders, order, read, number
        self.coroutine: Coroutine[object, None, object] | None = None  # once somebody awaits it
        self.__name__ = order.name

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{self.order.family} {self.order.key}>"

    def __await__(self) -> Generator[object, None, object]:
        if self.coroutine is not None:
            raise RuntimeError(f"{self!r} was awaited before: keep its result, or use a task")
        return self._begun().__await__()

    def send(self, value: None, /) -> object:
        return self._begun().send(value)

    def throw(
        self,
        typ: BaseException | type[BaseException],
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> object:
        error = val if isinstance(val, BaseException) else typ
        if self.coroutine is None:
            self._orders.withdraw(self.order)
        return self._begun().throw(error() if isinstance(error, type) else error)

    def close(self) -> None:
        if self.coroutine is not None:
            self.coroutine.close()

    def _begun(self) -> Coroutine[object, None, object]:
        if self.coroutine is None:
            self.coroutine = self._result()
        return self.coroutine

    async def _result(self) -> object:
        return self._read(await self._orders.end_of(self.order, withdraw=True))
