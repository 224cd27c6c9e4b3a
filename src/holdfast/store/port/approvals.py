"""The part of the port for approvals."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import Approval, Decided, Decision


class ApprovalStore(Protocol):
    """Decides and lists approvals."""

    @readable
    async def decide_approval(self, decision: Decision) -> Decided:
        """Decide an approval: append ApprovalResolved to its run's log. The first decision wins."""
        ...

    @readable
    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        """Return open approvals, the oldest first."""
        ...
