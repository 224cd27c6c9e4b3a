"""What reaches runs from outside: signals, decisions, POSTs to webhooks, cancels and ends."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg
from msgspec.structs import astuple

from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.store.postgres.rows import read_event, reader
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

_read_approval = reader(Approval)

_read_webhook = reader(FoundWebhook)


class PostgresExternal(Part):
    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Send signals; see `ExternalStore.signal_runs`. A refused value refuses the whole call."""
        row = await self._database.row(
            "signal_runs",
            *columns(signals, "run_id", "name", "payload", "signal_id", "update", "reply_to"),
            self._database.tell,
            [signal.trace for signal in signals],
        )
        return read_delivered(row)

    async def cancel_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        row = await self._database.row("cancel_runs", run_ids, reason, by)
        return read_delivered(row)

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        row = await self._database.row("terminate_runs", run_ids, reason, by)
        return read_delivered(row)

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        row = await self._database.row("time_out_runs", limit)
        return row["ended"], row["next_due_at"], read_notices(row["notices"])

    async def decide_approval(self, decision: Decision) -> Decided:
        row = await self._database.row("decide_approval", *astuple(decision))
        standing = None if row["event_type"] is None else read_event(row)
        return Decided(row["outcome"], standing, read_notices(row["notices"]))

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        found = await self._database.rows("list_approvals", run_id, limit)
        return [_read_approval(row) for row in found]

    async def find_webhook(self, digest: str) -> FoundWebhook | None:
        rows = await self._database.rows("find_webhook", digest)
        return _read_webhook(rows[0]) if rows else None

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        row = await self._database.row(
            "receive_webhook", post.digest, post.run_id, post.body, self._database.tell
        )
        return row["outcome"], read_notices(row["notices"])


def read_delivered(row: asyncpg.Record) -> Delivered:
    """Return what became of the runs of a call."""
    return Delivered(row["outcomes"] or [], read_notices(row["notices"]))
