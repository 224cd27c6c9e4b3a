"""The part of the port for events that come from outside a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import Delivered, NewSignal, Notice


class ExternalStore(Protocol):
    """Appends to logs without holding the runs' leases: signals, cancel requests, ends."""

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Append SignalReceived to each run's log, and wake the run if it awaits that signal."""
        ...

    @readable
    async def cancel_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        """Append WorkflowCancelRequested, and wake the runs. Runs never claimed end at once.

        `by` is who asks for it; the event has it, as those of the other changes do.
        """
        ...

    @readable
    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        """Append WorkflowTerminated: runs end at once, and their code is not executed."""
        ...

    @readable
    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        """Append WorkflowTimedOut to runs that are past their deadline, which ends them.

        Returns how many were ended, when the next deadline is due, and the notices.
        """
        ...
