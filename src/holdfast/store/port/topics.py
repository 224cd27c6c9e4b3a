"""The part of the port for topics: subscriptions, and events that are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import (
    DeclaredSubscriptions,
    NewEvent,
    NewSubscription,
    Notice,
    Published,
    SubscriptionKind,
    SubscriptionRecord,
)


class TopicStore(Protocol):
    """Publishes events, and keeps who is subscribed to them."""

    @readable
    async def publish(self, event: NewEvent) -> tuple[Published, list[Notice]]:
        """Publish an event: start, tell and send what is subscribed to it, in one transaction."""
        ...

    @readable
    async def subscribe(self, new: NewSubscription) -> tuple[int, bool]:
        """Subscribe a target; return the subscription's id, and True if it is new.

        Pattern, match and target make a subscription: of one that exists, the other values change.
        """
        ...

    @readable
    async def unsubscribe(self, subscription_id: int) -> bool:
        """Remove a subscription. False if there is none, or if it is that of a run."""
        ...

    @readable
    async def list_subscriptions(
        self,
        *,
        kind: SubscriptionKind | None = None,
        topic: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[SubscriptionRecord]:
        """Return subscriptions, oldest first: of a kind, else all but those of runs.

        With a `topic`, those whose patterns it fits. The list begins after the id `after`.
        """
        ...

    @readable
    async def count_subscriptions(self, topic: str) -> Mapping[SubscriptionKind, int]:
        """Return how many subscriptions of each kind have a pattern that a topic fits."""
        ...

    @readable
    async def declare_subscriptions(
        self, app: str, subscriptions: Sequence[NewSubscription]
    ) -> DeclaredSubscriptions:
        """Declare what the code of an app is subscribed to; again at least every 30 seconds.

        One that no worker has declared for 90 seconds, while others of the app declare theirs, is
        paused, and resumed when a worker declares it again.
        """
        ...

    @readable
    async def sweep_topics(self, *, limit: int = 1000) -> int:
        """Delete subscriptions of ended runs and old ids of events; return how many."""
        ...
