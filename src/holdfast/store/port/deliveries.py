"""The part of the port for deliveries of events to URLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import ClaimedDelivery, DeliveryRecord, EndedDelivery, Notice


class DeliveryStore(Protocol):
    """Gives deliveries to workers, and keeps those that failed."""

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
