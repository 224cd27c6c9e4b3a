"""Webhooks: URLs of runs, each of which takes one POST."""

from __future__ import annotations

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import FoundWebhook, Notice, WebhookOutcome, WebhookPost

_read_webhook = reader(FoundWebhook)


class PostgresWebhooks(Part):
    async def find_webhook(self, digest: str) -> FoundWebhook | None:
        rows = await self._database.rows("find_webhook", digest)
        return _read_webhook(rows[0]) if rows else None

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        row = await self._database.row(
            "receive_webhook", post.digest, post.run_id, post.body, self._database.tell
        )
        return row["outcome"], read_notices(row["notices"])
