"""Transactional steps on PostgreSQL: connections for their code, and the logs of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.errors import ConfigurationError
from holdfast.store.port.transactions import ConnectionKind, Connector, DataPlace
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.open_transaction import Place
from holdfast.types import Event


class PostgresTransactions(Part):
    def connector(
        self, kind: ConnectionKind, factory: type, size: int, data: DataPlace | None = None
    ) -> Connector:
        if data is not None:
            return make_connector(Place.of(*data, records="table"), kind, factory, size)
        return make_connector(Place(self._database, "log"), kind, factory, size)

    async def find_step(self, run_id: UUID, key: str) -> int | None:
        found: int | None = await self._database.value("find_step", run_id, key)
        return found

    async def needless_results(
        self, run_ids: Sequence[UUID], keys: Sequence[str]
    ) -> Sequence[bool | None]:
        found: list[bool] = await self._database.value(
            "needless_results", list(run_ids), list(keys)
        )
        return found

    async def results_since(self) -> int:
        found: int = await self._database.value("results_since")
        return found

    async def sealed_step(self, run_id: UUID, event: Event) -> Event:
        """Return the end of a step as it is: payloads are not encoded here."""
        return event


def make_connector(place: Place, kind: ConnectionKind, factory: type, size: int) -> Connector:
    """Return what lends connections. Raises ConfigurationError without the library of the kind."""
    try:
        from holdfast.store.postgres import connectors

        return connectors.make_connector(place, kind, factory, size)
    except ImportError as error:
        library = kind.partition("-")[0]
        raise ConfigurationError(
            f"a transaction with a connection of {library} needs {error.name}, which is not "
            f"installed: `pip install 'holdfast[psycopg,{library}]'`"
        ) from error
