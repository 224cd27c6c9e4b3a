"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Unpack

from holdfast.client.publishing import Subscription
from holdfast.client.scheduling import RunsOfSchedule
from holdfast.client.topics import Topics
from holdfast.definitions.startable import AnyStartable
from holdfast.sync.base import SyncGroup
from holdfast.types import JSON, DeliveryRecord, Published, SubscriptionKind


class SyncTopics(SyncGroup[Topics]):
    """Events, and what they reach: workflows that are started, runs that wait."""

    def publish(
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
        published = client.topics.publish("invoices.17.paid", {"invoice": 17})
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
        return self._call(
            self._target.publish,
            topic,
            payload,
            event_id=event_id,
            connection=connection,
            notify=notify,
        )

    def subscribe(
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
        subscription = client.topics.subscribe("invoices.*.paid", workflow=checkout)
        assert client.topics.unsubscribe(subscription)
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
        return self._call(
            self._target.subscribe,
            pattern,
            workflow=workflow,
            url=url,
            match=match,
            secret=secret,
            allow_inner=allow_inner,
            **options,
        )

    def unsubscribe(self, subscription_id: int) -> bool:
        """Remove a subscription; what it has started stays. False if there is none.

        Those of runs that wait are not removed: they end with their runs.
        """
        return self._call(self._target.unsubscribe, subscription_id)

    def list(
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
        for each in client.topics.list(topic="invoices.17.paid"):
            print(each.subscription_id, each.pattern, each.target)
        ```
        """
        return self._call(self._target.list, kind=kind, topic=topic, after=after, limit=limit)

    def deliveries(
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
        for each in client.topics.deliveries(dead=True):
            print(each.topic, each.url, each.status, each.error)
        ```
        """
        return self._call(
            self._target.deliveries,
            dead=dead,
            subscription_id=subscription_id,
            after=after,
            limit=limit,
        )

    def redrive(self, delivery_ids: Sequence[int] | None = None) -> int:
        """Deliver dead deliveries again, these or all; return how many there were."""
        return self._call(self._target.redrive, delivery_ids)

    def discard(self, delivery_ids: Sequence[int] | None = None) -> int:
        """Delete dead deliveries, these or all; return how many there were."""
        return self._call(self._target.discard, delivery_ids)

    def count(self, topic: str) -> dict[SubscriptionKind, int]:
        """Return how many subscriptions of each kind have a pattern that a topic fits.

        Conditions and pauses are not looked at.
        """
        return self._call(self._target.count, topic)
