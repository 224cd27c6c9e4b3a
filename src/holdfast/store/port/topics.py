"""The part of the port for topics: events, subscriptions to them, and deliveries to URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import (
    ClaimedDelivery,
    DeclaredSubscriptions,
    DeliveryRecord,
    EndedDelivery,
    NewEvent,
    NewSubscription,
    Notice,
    Published,
    SubscriptionKind,
    SubscriptionRecord,
)


class TopicStore(Protocol):
    """Publishes events, keeps who is subscribed to them, and hands out deliveries to URLs."""

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

    @readable
    async def claim_deliveries(
        self, *, limit: int, each: int = 10, busy: Sequence[int] = (), lease_seconds: float = 60.0
    ) -> list[ClaimedDelivery]:
        """Take deliveries that are due, so that of one subscription `each` are under way at most.

        `busy` has a subscription once for each request that is under way; those with few come
        first. After `lease_seconds` others may take them again.
        """
        ...

    @readable
    async def end_deliveries(self, ended: Sequence[EndedDelivery]) -> int:
        """Say what came of attempts; return how many deliveries are dead by that.

        An attempt after which another one has begun changes nothing.
        """
        ...

    @readable
    async def next_delivery_at(self) -> int | None:
        """Return when the next delivery is due; None for never."""
        ...

    @readable
    async def list_deliveries(
        self,
        *,
        dead: bool | None = None,
        subscription_id: int | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeliveryRecord]:
        """Return deliveries, oldest first; the list begins after the id `after`."""
        ...

    @readable
    async def redrive_deliveries(
        self, delivery_ids: Sequence[int] | None = None
    ) -> tuple[int, list[Notice]]:
        """Deliver dead deliveries again, these or all; return how many there were."""
        ...

    @readable
    async def discard_deliveries(self, delivery_ids: Sequence[int] | None = None) -> int:
        """Delete dead deliveries, these or all; return how many there were."""
        ...
