"""Large payloads: whose objects there are outside of the database, and who needs them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.objects import Objects, open_objects
from holdfast.store.postgres.calls import each_row
from holdfast.store.postgres.database import Part, columns
from holdfast.store.postgres.rows import reader
from holdfast.types import FailingPut, UnneededPayloads


class PostgresLargePayloads(Part):
    """Knows which runs have payloads outside, and which use them."""

    failing_puts = each_row(reader(FailingPut))
    due_payloads = each_row(reader(UnneededPayloads))

    def objects_at(self, url: str) -> Objects:
        return open_objects(url)

    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        return list(await self._database.value("own_payloads", url, list(owners), list(users)))

    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        await self._database.rows("note_put", url, owner, error)

    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        await self._database.rows("forget_payloads", *columns(deleted, "owner", "url"))
