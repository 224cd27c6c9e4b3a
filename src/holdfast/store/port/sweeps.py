"""The part of the port for sweeps: workers that work for a limited time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import WorkerInfo


class SweepStore(Protocol):
    """Signs sweeps on, and says what remains when they end."""

    @readable
    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        """Sign on a worker that will have ended after so many seconds.

        If it is silent after that, `reap_workers` removes it for any observer: where there are only
        sweeps, none lives long enough to judge silence. Raises InvalidInput for 0 seconds or less,
        and for more than a day.
        """
        ...

    @readable
    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        """Return the time, and when a free task of these comes due, None for never.

        A moment that has passed means that work remains. The end of another sweep that is under way
        counts too: if it was killed, its tasks come due by then.
        """
        ...
