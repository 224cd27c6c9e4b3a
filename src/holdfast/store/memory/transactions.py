"""Transactional steps on the store in memory: only their data is in a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.errors import ConfigurationError
from holdfast.store.port.transactions import ConnectionKind, Connector, DataPlace
from holdfast.types import Event


class Lends(Protocol):
    """What makes connectors for a test, to the databases of its data."""

    def __call__(
        self, kind: ConnectionKind, factory: type, size: int, data: DataPlace | None
    ) -> Connector | None:
        """Return what lends connections, None if there is no such database."""
        ...


class MemoryTransactions:
    """Refuses transactions, unless a test has a database for their data."""

    lends: Lends | None = None

    def connector(
        self, kind: ConnectionKind, factory: type, size: int, data: DataPlace | None = None
    ) -> Connector:
        found = None if self.lends is None else self.lends(kind, factory, size, data)
        if found is not None:
            return found
        raise ConfigurationError(
            "a transaction needs PostgreSQL, and this store is in memory: in a test give the "
            "database of its data, Environment(app, database='postgresql://…')"
        )

    async def find_step(self, run_id: UUID, key: str) -> int | None:
        """Return None: no transaction writes here; see `TransactionStore.find_step`."""
        return None

    async def needless_results(
        self, run_ids: Sequence[UUID], keys: Sequence[str]
    ) -> Sequence[bool | None]:
        """Return False: what a test leaves is the test's; see `needless_results` of the port."""
        return [False] * len(run_ids)

    async def results_since(self) -> int:
        """Return 0: all results of a test say of which run they are."""
        return 0

    async def sealed_step(self, run_id: UUID, event: Event) -> Event:
        return event
