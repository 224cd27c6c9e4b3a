"""Webhooks: URLs of runs, each of which takes one POST."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.events import WEBHOOK_OPENED, WEBHOOK_RECEIVED
from holdfast.store.memory import details
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import WebhookRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    Event,
    FoundWebhook,
    Notice,
    WebhookBody,
    WebhookOutcome,
    WebhookPost,
    WebhookScheme,
)
from holdfast.values.composing import compose


class _Opened(msgspec.Struct, frozen=True):
    """What is read of WebhookOpened; its URL may be encrypted."""

    digest: str
    body: WebhookBody
    secret: str | None
    scheme: WebhookScheme


class MemoryWebhooks(Part):
    async def find_webhook(self, digest: str) -> FoundWebhook | None:
        async with self._transaction() as (tables, _):
            row = tables.webhooks.get(digest)
            if row is None:
                return None
            open_now = not row.closed and tables.is_running(row.run_id)
            return compose(
                FoundWebhook,
                row,
                state="received" if row.received else "open" if open_now else "closed",
            )

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_json("body", post.body)
            row = tables.webhooks.get(post.digest)
            if row is None:
                return "missing", []
            if row.run_id != post.run_id:
                return "moved", []
            if row.received:
                return "duplicate", []
            if row.closed or not tables.is_running(row.run_id):
                return "closed", []
            row.received = True
            told = details.write(body=raw(post.body))
            event = Event(WEBHOOK_RECEIVED, row.key, told, now)
            return "received", distinct(tables.tell(row.run_id, event))


def open_url(tables: Tables, _: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out WebhookOpened: write the row by which its URL is found."""
    opened = details.read(event.details, _Opened)
    row = WebhookRow(run_id, event.key or "", opened.body, opened.secret, opened.scheme)
    tables.webhooks.setdefault(opened.digest, row)
    return []


def close_url(tables: Tables, _: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out WebhookClosed."""
    for row in tables.webhooks.values():
        if (row.run_id, row.key) == (run_id, event.key):
            row.closed = True
    return []


def take_over(tables: Tables, fork: UUID) -> None:
    """Let a fork have the URLs that its log has as opened and not used, of runs that have ended.

    That is the origin, or an earlier fork of it.
    """
    log = [row.event for row in tables.logs[fork]]
    used = {event.key for event in log if event.type == WEBHOOK_RECEIVED}
    for event in log:
        if event.type != WEBHOOK_OPENED or event.key in used:
            continue
        row = tables.webhooks.get(details.read(event.details, _Opened).digest)
        if row is not None and not tables.is_running(row.run_id):
            row.run_id, row.received, row.closed = fork, False, False
