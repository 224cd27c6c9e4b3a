"""Publish an event within the caller's own transaction, and subscriptions as callers see them."""

from __future__ import annotations

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
    Value,
)
from holdfast.values.composing import shaped

_plain = decoder(object)
_FIELDS = ("event_id", "is_new", "workflows", "runs", "queues", "urls", "refused")


class Subscription(Value, frozen=True, kw_only=True):
    """A subscription as it was when it was asked for. `record` is its row.

    `pattern` is that of its topics, `match` what an event's payload must contain, None for any.
    `kind` says what the `target` is, which an event starts; of a run that waits it is None, and
    `run_id` names the run. `app` is set if the code of an app declares it; `paused_by` is "code" if
    it no longer does.
    """

    subscription_id: int
    pattern: str
    match: JSON
    kind: SubscriptionKind
    target: EventTarget | None
    run_id: UUID | None
    app: str | None
    paused_at: datetime | None
    paused_by: PausedBy | None
    created_at: datetime
    record: SubscriptionRecord


def read_subscription(record: SubscriptionRecord) -> Subscription:
    """Return a subscription as callers see it."""
    match = None if record.match is None else _plain(record.match)
    return shaped(Subscription, record, match=match, record=record)


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
