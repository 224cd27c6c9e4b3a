"""Topics: events that are published, and who is subscribed to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from holdfast.codec import contains, raw
from holdfast.errors import InvalidInput
from holdfast.events import read_event_subscribed
from holdfast.store.memory import details
from holdfast.store.memory.chains import newest
from holdfast.store.memory.database import Part
from holdfast.store.memory.forwarding import forward_event
from holdfast.store.memory.messages import send_message
from holdfast.store.memory.payloads import check_json, check_run, checked
from holdfast.store.memory.queue_looks import find_queue
from holdfast.store.memory.rows import DeliveryRow, SubscriptionRow
from holdfast.store.memory.signals import has_signal
from holdfast.store.memory.starts import start_run
from holdfast.store.memory.tables import SILENCE, Tables, distinct
from holdfast.store.port import DELIVERIES_TOPIC, WORK_TOPIC, messages_topic
from holdfast.types import (
    DeclaredSubscriptions,
    Event,
    EventTarget,
    NewEvent,
    NewMessage,
    NewRun,
    NewSubscription,
    Notice,
    Published,
    QueueTarget,
    RunTarget,
    StartedRun,
    SubscriptionKind,
    SubscriptionRecord,
    UrlTarget,
)
from holdfast.values.composing import compose
from holdfast.values.ids import keyed_run_id, uuid7
from holdfast.values.patterns import EVENT_HEADER, TOPIC_HEADER, check_pattern, check_topic, fits
from holdfast.webhooks import check_secret, check_url

_SECOND: Final = 1_000_000
_HOUR: Final = 3_600 * _SECOND
_MOST_MATCH: Final = 8_192
_MOST_ID: Final = 255


class MemoryTopics(Part):
    async def publish(self, event: NewEvent) -> tuple[Published, list[Notice]]:
        async with self._transaction() as (tables, now):
            published, notices = publish(tables, now, event)
            return published, distinct(notices)

    async def subscribe(self, new: NewSubscription) -> tuple[int, bool]:
        async with self._transaction() as (tables, now):
            if isinstance(new.target, QueueTarget):
                find_queue(tables, new.target.queue)
            row, created = _write(tables, now, _checked(new))
            return row.subscription_id, created

    async def unsubscribe(self, subscription_id: int) -> bool:
        async with self._transaction() as (tables, _):
            row = tables.subscriptions.get(subscription_id)
            if row is None or row.run_id is not None:
                return False
            del tables.subscriptions[subscription_id]
            for each in [*tables.deliveries.values()]:
                if each.subscription_id == subscription_id:
                    del tables.deliveries[each.delivery_id]
            return True

    async def list_subscriptions(
        self,
        *,
        kind: SubscriptionKind | None = None,
        topic: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[SubscriptionRecord]:
        async with self._transaction() as (tables, _):
            if topic is not None:
                checked(check_topic, topic)
            found = [
                compose(SubscriptionRecord, row, kind=_kind(row), target=_shown(row.target))
                for row in tables.subscriptions.values()
                if row.subscription_id > after
                and (_kind(row) == kind if kind is not None else row.run_id is None)
                and (topic is None or fits(row.pattern, topic))
            ]
            return found[:limit]

    async def count_subscriptions(self, topic: str) -> Mapping[SubscriptionKind, int]:
        async with self._transaction() as (tables, _):
            checked(check_topic, topic)
            counts: dict[SubscriptionKind, int] = {}
            for row in tables.subscriptions.values():
                if fits(row.pattern, topic):
                    counts[_kind(row)] = counts.get(_kind(row), 0) + 1
            return counts

    async def declare_subscriptions(
        self, app: str, subscriptions: Sequence[NewSubscription]
    ) -> DeclaredSubscriptions:
        async with self._transaction() as (tables, now):
            added: list[str] = []
            resumed: list[str] = []
            for new in sorted(map(_checked, subscriptions), key=_in_order):
                row, created = _write(tables, now, new)
                row.app, row.heard_at = app, now
                if created:
                    added.append(new.pattern)
                elif row.paused_by == "code":
                    row.paused_at = row.paused_by = None
                    resumed.append(new.pattern)
            gone = [
                row
                for row in tables.subscriptions.values()
                if row.app == app
                and row.heard_at < now - SILENCE
                and row.paused_at is None
                and tables.can_tell_gone(app, now)
            ]
            for row in gone:
                row.paused_at, row.paused_by = now, "code"
            return DeclaredSubscriptions(added, sorted(row.pattern for row in gone), resumed)

    async def sweep_topics(self, *, limit: int = 1000) -> int:
        async with self._transaction() as (tables, now):
            old = [each for each, at in tables.published.items() if at <= now][:limit]
            for each in old:
                del tables.published[each]
            return len(old) + _forget(tables, limit)


def _in_order(new: NewSubscription) -> tuple[str, str, bool, str]:
    name = new.target.name if isinstance(new.target, RunTarget) else ""
    return name, new.pattern, new.match is None, new.match or ""


def publish(tables: Tables, now: int, event: NewEvent) -> tuple[Published, list[Notice]]:
    """Start, tell and send what is subscribed to an event."""
    checked(check_topic, event.topic)
    check_json("payload", event.payload)
    event_id = str(uuid7()) if event.event_id is None else event.event_id
    if not 1 <= len(event_id.encode()) <= _MOST_ID:
        raise InvalidInput(f"an event id takes 1 to 255 bytes, not {len(event_id.encode())}")
    if event.event_id is not None:
        if tables.published.get(event_id, now) > now:
            return Published(event_id=event_id, is_new=False), []
        tables.published[event_id] = now + _HOUR
    reached = _reached(tables, event)
    notices: list[Notice] = []
    workflows = runs = urls = refused = 0
    queues: set[str] = set()
    told = sorted(
        (row for row in reached if row.run_id is not None),
        key=lambda row: (str(row.run_id), row.signal),
    )
    for row in told:
        found = _tell(tables, now, row, event, event_id)
        runs += found is not None
        notices += found or []
    for row in reached:
        if isinstance(row.target, QueueTarget):
            queues.add(row.target.queue)
        elif isinstance(row.target, UrlTarget):
            urls += _send(tables, now, row.subscription_id, event, event_id)
        elif row.target is not None:
            started = _start(tables, now, row.subscription_id, row.target, event, event_id)
            workflows += started.created
            refused += started.refused is not None
            if started.created:
                notices.append(Notice(WORK_TOPIC, tables.runs[started.run_id].queue))
    if any(not tables.is_running(row.run_id) for row in told if row.run_id is not None):
        _forget(tables, 1000)
    queues &= tables.queues.rows.keys()
    for queue in sorted(queues):
        notices += _queue(tables, now, queue, event, event_id)
    if urls:
        notices.append(Notice(DELIVERIES_TOPIC, ""))
    notices += forward_event(tables, replace(event, event_id=event_id))
    published = Published(
        event_id=event_id,
        workflows=workflows,
        runs=runs,
        queues=len(queues),
        urls=urls,
        refused=refused,
    )
    return published, notices


def subscribe_run(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out EventSubscribed: subscribe the run, unless it is."""
    asked = read_event_subscribed(event.details or "")
    signal = event.key or ""
    known = {(row.run_id, row.signal) for row in tables.subscriptions.values()}
    if (run_id, signal) not in known:
        match = bytes(asked.match).decode()
        row = _add(tables, now, asked.pattern, None if match == "null" else match)
        row.run_id, row.signal = run_id, signal
    return []


def move_subscriptions(tables: Tables, run_id: UUID, new_run_id: UUID) -> None:
    """Let the run that another one continues as take over its subscriptions."""
    for row in tables.subscriptions.values():
        if row.run_id == run_id:
            row.run_id = new_run_id


def _reached(tables: Tables, event: NewEvent) -> list[SubscriptionRow]:
    payload: object = msgspec.json.decode(event.payload)
    return [
        row
        for row in tables.subscriptions.values()
        if row.paused_at is None
        and fits(row.pattern, event.topic)
        and (row.match is None or contains(payload, msgspec.json.decode(row.match)))
    ]


def _tell(
    tables: Tables, now: int, row: SubscriptionRow, event: NewEvent, event_id: str
) -> list[Notice] | None:
    """Append an event to a run's log; None if it has ended, or was told before."""
    assert row.run_id is not None, "the subscription is that of a run"
    run_id = newest(tables, row.run_id)
    key = f"{event_id} {row.signal}"
    if not tables.is_running(run_id) or has_signal(tables, run_id, key):
        return None
    told = {"topic": event.topic, "id": event_id, "payload": raw(event.payload)}
    written = details.write(signal_name=row.signal, input=told)
    tables.append(run_id, Event("SignalReceived", key, written, now))
    return tables.wake_for(run_id, row.signal, now)


def _queue(tables: Tables, now: int, name: str, event: NewEvent, event_id: str) -> list[Notice]:
    row = find_queue(tables, name)
    message = NewMessage(
        event.payload,
        group=event.topic if row.settings.fifo else None,
        headers={TOPIC_HEADER: event.topic, EVENT_HEADER: event_id},
    )
    send_message(tables.queues, row, message, now)
    return [Notice(messages_topic(name), name)]


def _send(tables: Tables, now: int, subscription_id: int, event: NewEvent, event_id: str) -> bool:
    """Keep an event for a URL; False if it is there already."""
    known = {(row.subscription_id, row.event_id) for row in tables.deliveries.values()}
    if (subscription_id, event_id) in known:
        return False
    tables.deliveries_made += 1
    number = tables.deliveries_made
    tables.deliveries[number] = DeliveryRow(
        number, subscription_id, event_id, event.topic, event.payload, now, now
    )
    return True


def _start(
    tables: Tables,
    now: int,
    subscription_id: int,
    target: RunTarget,
    event: NewEvent,
    event_id: str,
) -> StartedRun:
    key = f"{event_id}/{subscription_id}"
    headers = {**(target.headers or {}), TOPIC_HEADER: event.topic, EVENT_HEADER: event_id}
    run = _run_of(target, keyed_run_id(target.name, key))
    return start_run(tables, now, replace(run, key=key, input=event.payload, headers=headers))


def _checked(new: NewSubscription) -> NewSubscription:
    checked(check_pattern, new.pattern)
    if new.match is not None:
        check_json("match", new.match)
        if len(new.match.encode()) > _MOST_MATCH:
            raise InvalidInput("a match takes up to 8,192 bytes as JSON")
    target = new.target
    if isinstance(target, QueueTarget):
        return new
    if isinstance(target, UrlTarget):
        checked(check_url, target.url)
        checked(check_secret, target.secret)
        return new
    check_run(_run_of(target, uuid4()))
    return new


def _run_of(target: RunTarget, run_id: UUID) -> NewRun:
    return compose(NewRun, target, run_id=run_id, version=target.version or 1)


def _write(tables: Tables, now: int, new: NewSubscription) -> tuple[SubscriptionRow, bool]:
    for row in tables.subscriptions.values():
        if row.target is not None and _identity(row.pattern, row.match, row.target) == _identity(
            new.pattern, new.match, new.target
        ):
            row.target = new.target
            return row, False
    row = _add(tables, now, new.pattern, new.match)
    row.target = new.target
    return row, True


def _identity(pattern: str, match: str | None, target: EventTarget) -> tuple[object, ...]:
    condition = None if match is None else msgspec.json.decode(match)
    match target:
        case QueueTarget(queue=name) | UrlTarget(url=name) | RunTarget(name=name):
            pass
    return pattern, condition, type(target), name


def _add(tables: Tables, now: int, pattern: str, match: str | None) -> SubscriptionRow:
    tables.subscriptions_made += 1
    row = SubscriptionRow(tables.subscriptions_made, pattern, match, now)
    tables.subscriptions[row.subscription_id] = row
    return row


def _forget(tables: Tables, limit: int) -> int:
    gone = [
        row.subscription_id
        for row in tables.subscriptions.values()
        if row.run_id is not None and not tables.is_running(row.run_id)
    ][:limit]
    for subscription_id in gone:
        del tables.subscriptions[subscription_id]
    return len(gone)


def _kind(row: SubscriptionRow) -> SubscriptionKind:
    if row.target is None:
        return "run"
    if isinstance(row.target, QueueTarget):
        return "queue"
    return "url" if isinstance(row.target, UrlTarget) else "workflow"


def _shown(target: EventTarget | None) -> EventTarget | None:
    if isinstance(target, UrlTarget):
        return UrlTarget(url=target.url, allow_inner=target.allow_inner)
    return target
