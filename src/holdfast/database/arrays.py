"""Connections that know the arrays of PostgreSQL's own types.

The driver knows the types of single values, and asks the server what each array is: on each
connection again, in two round trips, with a query that takes the server 3 to 5 ms. The numbers of
these types are part of PostgreSQL and the same in all its releases (pg_type.dat).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Collection

    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

# By the array's number: its element's number, and the name of that in the catalog.
ARRAYS: Final = {
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1009: (25, "text"),
    1016: (20, "int8"),
    1022: (701, "float8"),
    1185: (1184, "timestamptz"),
    1187: (1186, "interval"),
    199: (114, "json"),
    2951: (2950, "uuid"),
    3807: (3802, "jsonb"),
}
_ROWS: Final = {
    oid: {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
    }
    for oid, (element, name) in ARRAYS.items()
}
_NO_QUERY: Final = SimpleNamespace(name="none")  # the statement in preparation stays as it is


class ArrayConnection(_Connection):
    """A connection of the driver that asks the server only what it cannot know."""

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> Any:
        if all(oid in _ROWS for oid in typeoids):
            return [_ROWS[oid] for oid in typeoids], _NO_QUERY
        return await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
