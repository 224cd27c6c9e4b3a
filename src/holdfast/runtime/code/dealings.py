"""What a run has to do with others: orders, updates, values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.runtime.code.orders import Orders
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import Values
from holdfast.types import ANY_END

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop


class Dealings:
    """One instance's dealings, made when it first has any: most runs only call steps."""

    __slots__ = ("orders", "updates", "values")

    def __init__(self, loop: WorkflowLoop, note: Callable[[str, str, str | None], None]) -> None:
        self.orders, self.updates = Orders(loop, note), Updates(loop, note)
        self.values = Values(loop, note)

    @property
    def awaited(self) -> tuple[str, ...]:
        """What others may do to wake the run, besides sending signals."""
        return self.updates.awaited + ((ANY_END,) if self.orders.awaited else ())
