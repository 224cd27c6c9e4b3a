"""Large payloads: whose objects there are outside of the database, and who needs them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.objects import Objects, open_objects
from holdfast.store.postgres.database import Part, columns
from holdfast.types import FailingPut, UnneededPayloads


class PostgresLargePayloads(Part):
    """Knows which runs have payloads outside, and which use them."""

    def objects_at(self, url: str) -> Objects:
        return open_objects(url)

    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        return list(await self._database.value("own_payloads", url, list(owners), list(users)))

    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        await self._database.rows("note_put", url, owner, error)

    async def failing_puts(self, run_id: UUID) -> list[FailingPut]:
        rows = await self._database.rows("failing_puts", run_id)
        return [FailingPut(row["url"], row["failed_at"], row["error"]) for row in rows]

    async def due_payloads(
        self, *, limit: int = 100, lease_seconds: float = 600.0
    ) -> list[UnneededPayloads]:
        found = await self._database.rows("due_payloads", limit, lease_seconds)
        return [UnneededPayloads(row["owner"], row["url"]) for row in found]

    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        await self._database.rows("forget_payloads", *columns(deleted, "owner", "url"))
