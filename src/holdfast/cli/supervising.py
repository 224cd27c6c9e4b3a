"""What `dev` and `worker --processes` share: starting workers, and stopping on signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from holdfast.cli import exits
from holdfast.cli.children import Child
from holdfast.cli.reaping import reaper
from holdfast.cli.settings import Settings
from holdfast.store.database import Database
from holdfast.store.opening import store_of

StartWorker: TypeAlias = Callable[[], Awaitable[Child]]
TellOfCrash: TypeAlias = Callable[[int], Awaitable[None]]


class Overseer(Protocol):
    """Keeps worker processes alive until it is stopped."""

    def stop(self) -> None:
        """Have the workers drain; asked again, have them end at once."""
        ...

    async def run(self) -> int:
        """Go on until stopped; return the exit code."""
        ...


class StopSignals:
    """Calls back on SIGTERM and on Ctrl-C, and remembers whether it was Ctrl-C."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived, self._interrupted = arrived, False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrive, number)

    def exit_code(self, code: int = exits.OK) -> int:
        """Return the code to end with: that of Ctrl-C, or the one given."""
        return exits.INTERRUPTED if self._interrupted else code

    def _arrive(self, number: signal.Signals) -> None:
        self._interrupted |= number == signal.SIGINT
        self._arrived()


async def oversee(
    settings: Settings,
    database: Database,
    arguments: Sequence[str],
    make: Callable[[StartWorker, TellOfCrash], Overseer],
) -> int:
    """Run what `make` makes of how to start a worker with these arguments; return the exit code."""

    async def start() -> Child:
        return await Child.start([*settings.arguments(), *arguments], settings.environment())

    store = store_of(database, settings.schema, connections=1)
    try:
        await store.open()
        overseer = make(start, reaper(store))
        signals = StopSignals(overseer.stop)
        return signals.exit_code(await overseer.run())
    finally:
        await store.close()
