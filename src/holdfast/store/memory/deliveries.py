"""Deliveries of events to URLs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import NEVER, DeliveryRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import DELIVERIES_TOPIC
from holdfast.types import ClaimedDelivery, DeliveryRecord, EndedDelivery, Notice, UrlTarget
from holdfast.values.composing import compose

_PAUSES: Final = (10, 30, 60, 300)  # seconds after the first attempts
_MOST: Final = len(_PAUSES) + 1  # attempts
_LOST: Final = "the worker was lost"


class MemoryDeliveries(Part):
    async def claim_deliveries(
        self, *, limit: int, each: int = 10, busy: Sequence[int] = (), lease_seconds: float = 60.0
    ) -> list[ClaimedDelivery]:
        async with self._transaction() as (tables, now):
            claimed: list[ClaimedDelivery] = []
            under_way = Counter(busy)
            taken = Counter(busy)
            for row in sorted(
                tables.deliveries.values(),
                key=lambda row: (under_way[row.subscription_id], *_by_moment(row)),
            ):
                target = _target(tables, row)
                full = taken[row.subscription_id] >= each
                if target is None or full or row.visible_at > now or len(claimed) >= limit:
                    continue
                taken[row.subscription_id] += 1
                if row.attempts >= _MOST:
                    row.dead_at, row.visible_at, row.error = now, NEVER, _LOST
                    continue
                row.attempts += 1
                row.visible_at = now + to_micros(lease_seconds)
                secret = target.secret or ""
                claimed.append(
                    compose(ClaimedDelivery, row, target, attempt=row.attempts, secret=secret)
                )
            return claimed

    async def end_deliveries(self, ended: Sequence[EndedDelivery]) -> int:
        async with self._transaction() as (tables, now):
            dead = 0
            for each in ended:
                row = tables.deliveries.get(each.delivery_id)
                if row is None or row.dead_at is not None or row.attempts != each.attempt:
                    continue
                if each.error is None:
                    del tables.deliveries[each.delivery_id]
                    continue
                row.status, row.error = each.status, each.error[:2000]
                if row.attempts >= _MOST:
                    row.dead_at, row.visible_at = now, NEVER
                    dead += 1
                else:
                    pause = max(_PAUSES[row.attempts - 1], each.retry_after)
                    row.visible_at = now + to_micros(pause)
            return dead

    async def next_delivery_at(self) -> int | None:
        async with self._transaction() as (tables, _):
            alive = [row.visible_at for row in tables.deliveries.values() if row.dead_at is None]
            return min(alive, default=None)

    async def list_deliveries(
        self,
        *,
        dead: bool | None = None,
        subscription_id: int | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeliveryRecord]:
        async with self._transaction() as (tables, _):
            found = [
                _record(tables, row)
                for row in tables.deliveries.values()
                if row.delivery_id > after
                and (dead is None or (row.dead_at is not None) == dead)
                and subscription_id in (None, row.subscription_id)
            ]
            return found[:limit]

    async def redrive_deliveries(
        self, delivery_ids: Sequence[int] | None = None
    ) -> tuple[int, list[Notice]]:
        async with self._transaction() as (tables, now):
            found = _dead(tables, delivery_ids)
            for row in found:
                row.attempts, row.dead_at, row.visible_at = 0, None, now
            return len(found), [Notice(DELIVERIES_TOPIC, "")] if found else []

    async def discard_deliveries(self, delivery_ids: Sequence[int] | None = None) -> int:
        async with self._transaction() as (tables, _):
            found = _dead(tables, delivery_ids)
            for row in found:
                del tables.deliveries[row.delivery_id]
            return len(found)


def _by_moment(row: DeliveryRow) -> tuple[int, int, int]:
    return row.subscription_id, row.visible_at, row.delivery_id


def _target(tables: Tables, row: DeliveryRow) -> UrlTarget | None:
    subscription = tables.subscriptions.get(row.subscription_id)
    target = None if subscription is None else subscription.target
    return target if isinstance(target, UrlTarget) else None


def _record(tables: Tables, row: DeliveryRow) -> DeliveryRecord:
    target = _target(tables, row)
    return compose(
        DeliveryRecord,
        row,
        due_at=None if row.dead_at is not None else row.visible_at,
        url=None if target is None else target.url,
    )


def _dead(tables: Tables, delivery_ids: Sequence[int] | None) -> list[DeliveryRow]:
    return [
        row
        for row in tables.deliveries.values()
        if row.dead_at is not None and (delivery_ids is None or row.delivery_id in delivery_ids)
    ]
