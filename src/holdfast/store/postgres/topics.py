"""Topics: events that are published, and who is subscribed to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import asyncpg
import msgspec

from holdfast.codec import raw
from holdfast.store.postgres.attributes import read_attributes
from holdfast.store.postgres.database import Part, read_headers, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.store.postgres.starts import labels
from holdfast.types import (
    DeclaredSubscriptions,
    EventTarget,
    NewEvent,
    NewSubscription,
    Notice,
    Published,
    QueueTarget,
    RunTarget,
    SubscriptionKind,
    SubscriptionRecord,
    UrlTarget,
)

_write: Final = msgspec.json.Encoder().encode
_read_tags: Final = msgspec.json.Decoder(tuple[str, ...]).decode

_read_published = reader(Published)
_read_subscription = reader(SubscriptionRecord, "target")


class PostgresTopics(Part):
    async def publish(self, event: NewEvent) -> tuple[Published, list[Notice]]:
        row = await self._database.row(
            "publish",
            event.topic,
            event.payload,
            event.event_id,
            self._database.tell,
            event.forwarded,
        )
        return _read_published(row), read_notices(row["notices"])

    async def subscribe(self, new: NewSubscription) -> tuple[int, bool]:
        row = await self._database.row("subscribe", _write(row_of(new)).decode())
        return row["subscription_id"], row["created"]

    async def unsubscribe(self, subscription_id: int) -> bool:
        return bool(await self._database.value("unsubscribe", subscription_id))

    async def list_subscriptions(
        self,
        *,
        kind: SubscriptionKind | None = None,
        topic: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[SubscriptionRecord]:
        rows = await self._database.rows("list_subscriptions", kind, topic, after, limit)
        return [_read_subscription(row, target=_target(row)) for row in rows]

    async def count_subscriptions(self, topic: str) -> Mapping[SubscriptionKind, int]:
        rows = await self._database.rows("count_subscriptions", topic)
        return {row["kind"]: row["subscriptions"] for row in rows}

    async def declare_subscriptions(
        self, app: str, subscriptions: Sequence[NewSubscription]
    ) -> DeclaredSubscriptions:
        rows = _write([row_of(each) for each in subscriptions]).decode()
        row = await self._database.row("declare_subscriptions", app, rows)
        return DeclaredSubscriptions(row["added"] or (), row["paused"] or (), row["resumed"] or ())

    async def sweep_topics(self, *, limit: int = 1000) -> int:
        return int(await self._database.value("sweep_topics", limit))


def row_of(new: NewSubscription) -> dict[str, object]:
    """Return a subscription as the SQL functions take it."""
    target = new.target
    fits = {"pattern": new.pattern, "match": raw(new.match)}
    if isinstance(target, QueueTarget):
        return {**fits, "kind": "queue", "target": target.queue}
    if isinstance(target, UrlTarget):
        url = {"target": target.url, "secret": target.secret, "allow_inner": target.allow_inner}
        return {**fits, "kind": "url", **url}
    return {
        **fits,
        "kind": target.kind,
        "target": target.name,
        "version": target.version,
        "queue": target.queue,
        "priority": target.priority,
        "timeout": target.timeout_seconds,
        "retention": target.retention_seconds,
        "tags": raw(labels(target.tags, target.attributes)),
        "headers": target.headers,
    }


def _target(row: asyncpg.Record) -> EventTarget | None:
    if row["kind"] == "run":
        return None
    if row["kind"] == "queue":
        return QueueTarget(queue=row["target"])
    if row["kind"] == "url":
        return UrlTarget(url=row["target"], allow_inner=row["allow_inner"])
    return RunTarget(
        name=row["target"],
        version=row["version"],
        queue=row["queue"],
        priority=row["priority"],
        timeout_seconds=row["timeout"],
        retention_seconds=row["retention"],
        tags=() if row["tags"] is None else _read_tags(row["tags"]),
        headers=read_headers(row["headers"]),
        attributes=read_attributes(row["attributes"]),
    )
