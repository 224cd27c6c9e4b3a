"""Connections for transactions of a test, whose runs are in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from holdfast.client.transactions import WITH_DATA_ONLY
from holdfast.database.scripts import DEFAULT_SCHEMA
from holdfast.store.port.transactions import (
    ConnectionKind,
    Connector,
    DataPlace,
    Needless,
    OpenTransaction,
)
from holdfast.store.postgres.open_transaction import Place
from holdfast.store.postgres.transactions import make_connector

T = TypeVar("T")


class _Lending:
    """Lends connections to code that can have its data there, and not start or send anything."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.close, self.log_is_away = connector.close, connector.log_is_away

    async def within(
        self, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None
    ) -> T:
        before = WITH_DATA_ONLY.set(True)
        try:
            return await self._connector.within(use, isolation)
        finally:
            WITH_DATA_ONLY.reset(before)

    async def clean(self, needless: Needless) -> None:
        """Delete nothing: what a test leaves is the test's."""


def lend(
    url: str | None,
    kept: dict[tuple[UUID, str], str],
    kind: ConnectionKind,
    factory: type,
    size: int,
    data: DataPlace | None,
) -> Connector | None:
    """Return what lends connections to the data of transactions, None if there is no database.

    `kept` are the results of the test: a worker that is killed leaves them to the next, as its
    record and its data are one commit on PostgreSQL.
    """
    if data is not None:
        place = Place.of(*data, records="table", kept=kept)
    elif url is not None:
        place = Place.of(url, DEFAULT_SCHEMA, records="elsewhere", kept=kept)
    else:
        return None
    return _Lending(make_connector(place, kind, factory, size))
