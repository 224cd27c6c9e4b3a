"""Deliveries of events to URLs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.calls import Call, each_row, only_row, only_value
from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import ClaimedDelivery, DeliveryRecord, EndedDelivery

_read_claimed = reader(ClaimedDelivery)
_read_delivery = reader(DeliveryRecord)


class PostgresDeliveries(Part):
    claim_deliveries = each_row(reader(ClaimedDelivery))
    next_delivery_at: Call[int | None] = only_value()
    list_deliveries = each_row(reader(DeliveryRecord))
    redrive_deliveries = only_row(lambda found: (found["redriven"], read_notices(found["notices"])))
    discard_deliveries: Call[int] = only_value()

    async def end_deliveries(self, ended: Sequence[EndedDelivery]) -> int:
        count: int = await self._database.value(
            "end_deliveries",
            *columns(ended, "delivery_id", "attempt", "status", "error", "retry_after"),
        )
        return count
