"""From a database that was found to the store on it."""

from __future__ import annotations

from holdfast.store.database import Database
from holdfast.store.postgres import PostgresStore


def store_of(database: Database, schema: str, connections: int = 4) -> PostgresStore:
    """Return the store of a database, connected as its user says once it is opened."""
    connecting = database.connecting
    return PostgresStore(
        database.url,
        schema=schema,
        connections=connections,
        prepare=connecting.prepare,
        listen_url=connecting.listen_url,
        tells=True,
    )
