"""`client.topics`: publish events, and say what they start."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Unpack, cast

from holdfast.client.publishing import Subscription, publish_within, read_subscription
from holdfast.client.scheduling import RUN_OPTIONS, RunsOfSchedule, new_target
from holdfast.client.session import Group
from holdfast.client.submitting import prepare_start
from holdfast.codec import encode
from holdfast.definitions.options import check_options
from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.starts import RunOptions
from holdfast.errors import ConfigurationError
from holdfast.store.shared_calls import persist
from holdfast.types import (
    JSON,
    DeliveryRecord,
    EventTarget,
    NewEvent,
    NewSubscription,
    Published,
    QueueTarget,
    RunTarget,
    SubscriptionKind,
    UrlTarget,
)
from holdfast.values.ids import uuid7
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.patterns import check_pattern, check_topic
from holdfast.values.texts import check_id
from holdfast.webhooks import check_host, check_secret, check_url

__all__ = ["Subscription", "Topics"]


class Topics(Group):
    """Events, and what they reach: workflows that are started, runs that wait."""

    async def publish(
        self,
        topic: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        connection: object = None,
        notify: bool = False,
    ) -> Published:
        """Publish an event: all that is subscribed to its topic gets it, in one transaction.

        ```python
        published = await client.topics.publish("invoices.17.paid", {"invoice": 17})
        print(published.workflows, published.runs)
        ```

        With a `connection`, it is part of the caller's open transaction there: if that is rolled
        back, nothing was published. The connection is one of asyncpg or psycopg, or a connection or
        session of SQLAlchemy. Workers find what it started when they next poll, within 2 s; with
        `notify` they are woken by the commit. With an `event_id`, an event that was published
        within the last hour is not published again: `is_new` is then False.

        The payload is stored as it is, also by an app that encrypts its payloads: the database
        compares it with conditions. Raises InvalidName for a topic that cannot be, PayloadError for
        a payload that cannot be stored.
        """
        text = encode(payload)
        if event_id is not None:
            check_id("event id", event_id)
        if connection is not None:
            event = NewEvent(topic=check_topic(topic), payload=text, event_id=event_id)
            return await publish_within(
                connection, event, schema=self._session.schema, notify=notify
            )
        if notify:
            raise ConfigurationError("notify is for a publish within a connection's transaction")
        # A drawn id counts as well: if the answer is lost, the call is repeated.
        drawn = str(uuid7()) if event_id is None else event_id
        event = NewEvent(topic=check_topic(topic), payload=text, event_id=drawn)
        return await self._session.change(lambda: self._session.store.publish(event))

    async def subscribe(
        self,
        pattern: str,
        *,
        workflow: AnyStartable | str | None = None,
        url: str | None = None,
        match: JSON = None,
        secret: str | None = None,
        allow_inner: bool = False,
        **options: Unpack[RunsOfSchedule],
    ) -> int:
        """Send each event of a topic that fits to a workflow, a queue or a URL; return an id.

        ```python
        subscription = await client.topics.subscribe("invoices.*.paid", workflow=checkout)
        assert await client.topics.unsubscribe(subscription)
        ```

        `*` stands for one segment, `#` for any number. With `match`, only events whose payload
        contains it count (as PostgreSQL's `jsonb @>`). The same pattern, match and target are one
        subscription: its other values change.

        For a `workflow`, each event starts a run; the payload is its input, and `options` are those
        of the run. With `queue` and no workflow, each event is sent to a message queue, of a FIFO
        queue with the topic as the group. For a `url`, workers send signed requests (see
        `holdfast.webhooks`): an answer of 200 to 299 within 10 s is success; else they try again
        after 10, 30, 60 and 300 s, then the delivery is dead (see `deliveries`). The `secret`
        signs, and nothing shows it;
        `holdfast.webhooks.new_secret` draws one. Inner addresses are refused unless `allow_inner`.

        Raises InvalidName for a pattern that cannot be, ConfigurationError for a URL or a secret
        that cannot be, and what `start` raises for a workflow and its options.
        """
        check_pattern(pattern)
        true_or_false(allow_inner, "allow_inner")
        if url is None and (secret is not None or allow_inner):
            raise TypeError("secret and allow_inner are options of a url")
        queue = options.get("queue")
        if workflow is not None and url is None:
            target: EventTarget = await self._runs(workflow, options)
        elif workflow is not None or (url is None) == (queue is None):
            raise ConfigurationError(
                "a subscription is of a workflow, of a queue or of a url: give one of them"
            )
        elif options.keys() - {"queue"}:
            raise TypeError(f"{', '.join(sorted(options))}: these are options of a workflow")
        elif url is None:
            target = QueueTarget(queue=check_queue_name(queue or ""))
        else:
            known = check_url(url)
            target = UrlTarget(
                url=known if allow_inner else check_host(known),
                secret=check_secret(secret),
                allow_inner=allow_inner,
            )
        text = None if match is None else encode(match)
        new = NewSubscription(pattern=pattern, target=target, match=text)
        subscription_id, _ = await persist(lambda: self._session.store.subscribe(new))
        return subscription_id

    async def _runs(self, workflow: AnyStartable | str, options: RunsOfSchedule) -> RunTarget:
        check_options(options, RUN_OPTIONS, "subscribe")
        wishes = cast("RunOptions", options)
        prepared = await prepare_start(self._session, workflow, wishes, RUN_OPTIONS)
        if prepared.template.kind == "flow":
            raise ConfigurationError(
                f"{prepared.template.name} is a flow: subscribe a workflow that calls the flow"
            )
        return new_target(prepared, "null")

    async def unsubscribe(self, subscription_id: int) -> bool:
        """Remove a subscription; what it has started stays. False if there is none.

        Those of runs that wait are not removed: they end with their runs.
        """
        number = _id("topics.unsubscribe", "subscription_id", subscription_id)
        return await persist(lambda: self._session.store.unsubscribe(number))

    async def list(
        self,
        *,
        kind: SubscriptionKind | None = None,
        topic: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> builtins.list[Subscription]:
        """Return subscriptions, oldest first: of a kind, else all but those of runs that wait.

        With a `topic`, those whose patterns it fits. `after` continues after an id.

        ```python
        for each in await client.topics.list(topic="invoices.17.paid"):
            print(each.subscription_id, each.pattern, each.target)
        ```
        """
        if topic is not None:
            check_topic(topic)
        whole_number(limit, "topics.list", "limit", 0)
        _id("topics.list", "after", after)
        found = await self._session.reads.list_subscriptions(
            kind=kind, topic=topic, after=after, limit=limit
        )
        return [read_subscription(each) for each in found]

    async def deliveries(
        self,
        *,
        dead: bool | None = None,
        subscription_id: int | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> builtins.list[DeliveryRecord]:
        """Return events that are not yet delivered to URLs, oldest first.

        `dead` are those that failed five times: with True only these, with False the others.
        `after` continues after an id.

        ```python
        for each in await client.topics.deliveries(dead=True):
            print(each.topic, each.url, each.status, each.error)
        ```
        """
        whole_number(limit, "topics.deliveries", "limit", 0)
        _id("topics.deliveries", "after", after)
        if subscription_id is not None:
            _id("topics.deliveries", "subscription_id", subscription_id)
        return await self._session.reads.list_deliveries(
            dead=dead, subscription_id=subscription_id, after=after, limit=limit
        )

    async def redrive(self, delivery_ids: Sequence[int] | None = None) -> int:
        """Deliver dead deliveries again, these or all; return how many there were."""
        return await self._session.change(
            lambda: self._session.store.redrive_deliveries(delivery_ids)
        )

    async def discard(self, delivery_ids: Sequence[int] | None = None) -> int:
        """Delete dead deliveries, these or all; return how many there were."""
        return await persist(lambda: self._session.store.discard_deliveries(delivery_ids))

    async def count(self, topic: str) -> dict[SubscriptionKind, int]:
        """Return how many subscriptions of each kind have a pattern that a topic fits.

        Conditions and pauses are not looked at.
        """
        return dict(await self._session.store.count_subscriptions(check_topic(topic)))


def _id(of: str, name: str, number: int) -> int:
    """Return a number that the database gives. Raises ConfigurationError for any other value."""
    return whole_number(number, of, name, 0, 2**63 - 1)
