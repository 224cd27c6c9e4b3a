"""Generated from the asynchronous client by scripts/generate_sync.py."""

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


class SyncTopics(SyncGroup[Topics], of=Topics):
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
        """Publish an event: all that is subscribed to its topic gets it, in one transaction."""
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
        """Send each event of a topic that fits to a workflow, a queue or a URL; return an id."""
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
        """Remove a subscription; what it has started stays. False if there is none."""
        return self._call(self._target.unsubscribe, subscription_id)

    def list(
        self,
        *,
        kind: SubscriptionKind | None = None,
        topic: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> builtins.list[Subscription]:
        """Return subscriptions, oldest first: of a kind, else all but those of runs that wait."""
        return self._call(self._target.list, kind=kind, topic=topic, after=after, limit=limit)

    def deliveries(
        self,
        *,
        dead: bool | None = None,
        subscription_id: int | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> builtins.list[DeliveryRecord]:
        """Return events that are not yet delivered to URLs, oldest first."""
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
        """Return how many subscriptions of each kind have a pattern that a topic fits."""
        return self._call(self._target.count, topic)
