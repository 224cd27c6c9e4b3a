"""Tests that share a database: nothing that one of them writes is left for the next."""

from __future__ import annotations

import re

import asyncpg
from clocks import EMPTY

# What is the same for all tests, or says what the database is.
KEPT = {"schema_migrations", "schema_functions", "former_names", "tracing", "sweeper"}


async def test_each_table_is_emptied(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "select relname::text from pg_class where relnamespace = 'holdfast'::regnamespace"
            " and relkind in ('r', 'p') and not relispartition"
        )
    finally:
        await connection.close()
    emptied = set(re.findall(r"delete from holdfast\.(\w+)", EMPTY))
    assert {row[0] for row in rows} == emptied | KEPT
