"""The part of the port for pauses, and for changes of where and when runs may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import Delivered, Notice, Pause, Reschedule, Scope


class ControlStore(Protocol):
    """Pauses and resumes runs, queues and workflows, and reschedules runs."""

    @readable
    async def pause_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        """Append WorkflowPaused: nothing of these runs is claimed until they are resumed.

        The holder of a leased run is notified: running steps end and are recorded, no new step
        starts, and the lease is given back. A run that is paused already is a `duplicate`.
        """
        ...

    @readable
    async def resume_runs(self, run_ids: Sequence[UUID], *, by: str | None = None) -> Delivered:
        """Append WorkflowResumed to paused runs, and to stuck ones that would be tried later.

        Both are tried at once. A run that is neither is a `duplicate`.
        """
        ...

    @readable
    async def reschedule_runs(
        self,
        run_ids: Sequence[UUID],
        change: Reschedule,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Delivered:
        """Append WorkflowRescheduled to runs of which the change changes something.

        The queue is that of their turns from then on; a run that a worker holds continues there
        until it suspends. A start changes runs that no worker has begun, and moves their deadlines
        with it. A run that has all of it already is a `duplicate`. Refused, and not changed at
        all, are the start of a run that has `begun`, all but the queue of one that waits for a
        rule of its workflow (`ruled`), and queue and start of a `flow`.
        """
        ...

    @readable
    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Pause or resume a queue or a workflow. Return True, with notices, if that changed it."""
        ...

    @readable
    async def list_pauses(self) -> list[Pause]:
        """Return the queues and workflows that are paused."""
        ...
