"""The part of the port for pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import Delivered, Notice, Pause, Scope


class ControlStore(Protocol):
    """Pauses and resumes runs, queues and workflows."""

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
        """Append WorkflowResumed to paused runs. A run that is not paused is a `duplicate`."""
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
