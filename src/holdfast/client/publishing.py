"""Publish an event within the caller's own transaction, and subscriptions as callers see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.client.transactions import callers_executor, notify_within
from holdfast.codec import decoder
from holdfast.database.scripts import check_schema_name
from holdfast.store.postgres import Statement
from holdfast.store.postgres.executing import Mark
from holdfast.types import (
    JSON,
    EventTarget,
    NewEvent,
    Notice,
    PausedBy,
    Published,
    SubscriptionKind,
    SubscriptionRecord,
)
from holdfast.values.moments import maybe_datetime, to_datetime

_plain = decoder(object)
_FIELDS = ("event_id", "is_new", "workflows", "runs", "queues", "urls", "refused")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as it was when it was asked for. `record` is its row.

    `target` is what an event starts; of a run that waits it is None, and `run_id` names the run.
    `app` is set if the code of an app declares it; `paused_by` is "code" if it no longer does.
    """

    record: SubscriptionRecord

    @property
    def subscription_id(self) -> int:
        """Its id."""
        return self.record.subscription_id

    @property
    def pattern(self) -> str:
        """The pattern of its topics."""
        return self.record.pattern

    @property
    def match(self) -> JSON:
        """What an event's payload must contain; None for any payload."""
        return None if self.record.match is None else _plain(self.record.match)

    @property
    def kind(self) -> SubscriptionKind:
        """What the target is."""
        return self.record.kind

    @property
    def target(self) -> EventTarget | None:
        """What an event starts."""
        return self.record.target

    @property
    def run_id(self) -> UUID | None:
        """The run that waits."""
        return self.record.run_id

    @property
    def app(self) -> str | None:
        """The app whose code declares it."""
        return self.record.app

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused."""
        return maybe_datetime(self.record.paused_at)

    @property
    def paused_by(self) -> PausedBy | None:
        """Who paused it."""
        return self.record.paused_by

    @property
    def created_at(self) -> datetime:
        """When it was made."""
        return to_datetime(self.record.created_at)


async def publish_within(
    connection: object, event: NewEvent, *, schema: str, notify: bool
) -> Published:
    """Publish an event on the caller's connection.

    Awaits only the connection, so with a synchronous one it never suspends. Raises
    ConfigurationError for an unknown kind of connection, and what the connection's library raises.
    """
    check_schema_name(schema)

    def publish(mark: Mark) -> Statement:
        topic, payload, event_id = (f"cast({mark(n)} as text)" for n in (1, 2, 3))
        call = f'"{schema}".publish({topic}, cast({payload} as json), {event_id})'
        columns = ", ".join(_FIELDS)
        return Statement(
            f"select {columns}, cast(to_json(notices) as text) from {call}",
            (event.topic, event.payload, event.event_id),
        )

    [(*values, notices)] = await callers_executor(connection)(connection, publish)
    if notify and notices is not None:
        found = msgspec.json.decode(str(notices), type=list[tuple[str, str]])
        await notify_within(connection, schema, [Notice(*each) for each in found])
    return msgspec.convert(dict(zip(_FIELDS, values, strict=True)), Published)
