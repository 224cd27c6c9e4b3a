"""Connections for transactions of a test, whose runs are in memory."""

from __future__ import annotations

from uuid import UUID

from holdfast.database.scripts import DEFAULT_SCHEMA
from holdfast.store.port.transactions import ConnectionKind, Connector, DataPlace
from holdfast.store.postgres.open_transaction import Place
from holdfast.store.postgres.transactions import make_connector


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
        return make_connector(Place.of(*data, records="table", kept=kept), kind, factory, size)
    if url is None:
        return None
    place = Place.of(url, DEFAULT_SCHEMA, records="elsewhere", kept=kept)
    return make_connector(place, kind, factory, size)
