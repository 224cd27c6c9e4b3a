"""The part of the port for what reaches runs from outside: signals, decisions, POSTs, cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import (
    Approval,
    Decided,
    Decision,
    Delivered,
    FoundWebhook,
    NewSignal,
    Notice,
    WebhookOutcome,
    WebhookPost,
)


class ExternalStore(Protocol):
    """Appends to logs without holding the runs' leases: signals, decisions, cancels, ends."""

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

    @readable
    async def find_webhook(self, digest: str) -> FoundWebhook | None:
        """Return the webhook whose token has this digest, None if there is none."""
        ...

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        """Append WebhookReceived to the run's log, and wake the run. The first POST counts.

        The outcome is `duplicate` if there was one before, `closed` if the run takes none any more,
        `moved` if another run has the webhook by now, `missing` if there is none.
        """
        ...
