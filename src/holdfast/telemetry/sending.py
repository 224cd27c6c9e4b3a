"""What is sent through a store: signals, which it counts, and hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.store.port import Store
from holdfast.telemetry.tallies import MOST_EXTERNAL, Counter, Family, gauge
from holdfast.types import Delivered, HintUse, NewSignal


def signals_counter() -> Counter:
    """Return the counter of signals: of a worker, a server or another program that sends them."""
    return Counter(
        "workflow_signals_total",
        "Signals that were delivered, counted by the program that sent them.",
        ("event",),
        most=MOST_EXTERNAL,
    )


def hint_families(use: HintUse | None) -> list[Family]:
    """Return what is known of hints through Redis; nothing without Redis."""
    if use is None:
        return []
    hints = Counter(
        "holdfast_hints_total",
        "Hints of new work through Redis: sent, refused (PostgreSQL told it), read, claimed for.",
        ("what",),
    )
    for what in ("sent", "refused", "read", "claimed"):
        hints.add((what,), getattr(use, what))
    if use.works is None:
        return [hints.family()]
    return [
        hints.family(),
        gauge("holdfast_redis_up", "1 if hints arrive through Redis.", use.works),
    ]


class CountedSignals:
    """Pass every call on to a store, and count the signals that were delivered."""

    def __init__(self, store: Store, counter: Counter) -> None:
        self._store, self._counter = store, counter

    @property
    def store(self) -> Store:
        """The store that counts."""
        return cast("Store", self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what is not counted as the store has it; it is asked once."""
            found = vars(self)[name] = getattr(self._store, name)
            return found

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        delivered = await self._store.signal_runs(signals)
        for signal, outcome in zip(signals, delivered.outcomes, strict=True):
            if outcome == "delivered" and not signal.update:
                self._counter.add((signal.name,))
        return delivered
