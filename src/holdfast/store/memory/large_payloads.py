"""Large payloads: whose objects there are outside of the tables, and who needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from holdfast.codec import find_references
from holdfast.errors import InvalidInput
from holdfast.objects import MemoryObjects, Objects, check_objects_url
from holdfast.store.memory.clock import Clock, to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_limit
from holdfast.store.memory.rows import PayloadOwnerRow
from holdfast.store.memory.tables import Nesting, Tables
from holdfast.types import FailingPut, UnneededPayloads
from holdfast.values.texts import check_text

_DAY: Final = to_micros(86_400)
_FRESH: Final = to_micros(120.0)  # a failure from before is not one that is tried again


class MemoryLargePayloads(Part):
    """Knows which runs have payloads outside, and which use them; has the objects, too."""

    def __init__(self, clock: Clock, nesting: Nesting) -> None:
        super().__init__(clock, nesting)
        self._objects: dict[str, MemoryObjects] = {}

    def objects_at(self, url: str) -> Objects:
        return self._objects.setdefault(check_objects_url(url), MemoryObjects(url))

    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        async with self._transaction() as (tables, now):
            if len(owners) != len(users):
                raise InvalidInput("each owner of objects has one user or null")
            refused: set[UUID] = set()
            for owner in owners:
                row = tables.payload_owners.setdefault((owner, url), PayloadOwnerRow(now))
                if (row.removed_until or 0) > now:
                    refused.add(owner)
                    continue
                row.noted_at, row.removed_until = now, None
                row.due_at = max(row.due_at or 0, now + _DAY)
            for owner, user in zip(owners, users, strict=True):
                if user not in (None, owner) and owner not in refused:
                    tables.payload_users.add((user, owner))
            return sorted(refused)

    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        async with self._transaction() as (tables, now):
            row = tables.payload_owners.get((owner, url))
            if error is not None:
                check_text("error", error)
            if row is not None:
                row.failed = None if error is None else (now, error)

    async def failing_puts(self, run_id: UUID) -> list[FailingPut]:
        async with self._transaction() as (tables, now):
            return [
                FailingPut(url, *row.failed)
                for (owner, url), row in sorted(tables.payload_owners.items())
                if owner == run_id and row.failed is not None and row.failed[0] > now - _FRESH
            ]

    async def due_payloads(
        self, *, limit: int = 100, lease_seconds: float = 600.0
    ) -> list[UnneededPayloads]:
        async with self._transaction() as (tables, now):
            check_limit(limit)
            due = sorted(
                (row.due_at, place)
                for place, row in tables.payload_owners.items()
                if row.due_at is not None and row.due_at <= now
            )
            used = {owner for _, owner in tables.payload_users}
            found: list[UnneededPayloads] = []
            for _, (owner, url) in due[:limit]:
                row = tables.payload_owners[owner, url]
                row.due_at = None
                if owner not in tables.runs and owner not in used:
                    row.due_at = row.removed_until = now + to_micros(lease_seconds)
                    found.append(UnneededPayloads(owner, url))
            return found

    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        async with self._transaction() as (tables, _):
            for each in deleted:
                row = tables.payload_owners.get((each.owner, each.url))
                if row is not None and row.removed_until is not None:
                    del tables.payload_owners[each.owner, each.url]


def use_payloads(tables: Tables, run_id: UUID, values: Iterable[str | None]) -> None:
    """Note that a run uses the objects that values refer to: they come from other runs."""
    for value in values:
        for reference in find_references(value or ""):
            if reference.owner != run_id:
                tables.payload_users.add((run_id, reference.owner))


def share_payloads(tables: Tables, run_id: UUID, new_run_id: UUID) -> None:
    """Note that a run uses all objects that another one has or uses."""
    owners = {owner for owner, _ in tables.payload_owners if owner == run_id}
    owners |= {owner for user, owner in tables.payload_users if user == run_id}
    tables.payload_users |= {(new_run_id, owner) for owner in owners - {new_run_id}}
