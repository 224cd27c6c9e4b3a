"""Deliveries of events to URLs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import ClaimedDelivery, DeliveryRecord, EndedDelivery, Notice

_read_claimed = reader(ClaimedDelivery)
_read_delivery = reader(DeliveryRecord)


class PostgresDeliveries(Part):
    async def claim_deliveries(
        self, *, limit: int, each: int = 10, busy: Sequence[int] = (), lease_seconds: float = 60.0
    ) -> list[ClaimedDelivery]:
        rows = await self._database.rows("claim_deliveries", limit, each, busy, lease_seconds)
        return [_read_claimed(row) for row in rows]

    async def end_deliveries(self, ended: Sequence[EndedDelivery]) -> int:
        count: int = await self._database.value(
            "end_deliveries",
            *columns(ended, "delivery_id", "attempt", "status", "error", "retry_after"),
        )
        return count

    async def next_delivery_at(self) -> int | None:
        at: int | None = await self._database.value("next_delivery_at")
        return at

    async def list_deliveries(
        self,
        *,
        dead: bool | None = None,
        subscription_id: int | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeliveryRecord]:
        rows = await self._database.rows("list_deliveries", dead, subscription_id, after, limit)
        return [_read_delivery(row) for row in rows]

    async def redrive_deliveries(
        self, delivery_ids: Sequence[int] | None = None
    ) -> tuple[int, list[Notice]]:
        row = await self._database.row("redrive_deliveries", delivery_ids)
        return row["redriven"], read_notices(row["notices"])

    async def discard_deliveries(self, delivery_ids: Sequence[int] | None = None) -> int:
        return int(await self._database.value("discard_deliveries", delivery_ids))
