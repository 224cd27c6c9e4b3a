"""Keys that paths into inputs lead to. The SQL function gives the same: see the second test."""

from __future__ import annotations

import hashlib

import asyncpg
import pytest

from holdfast.key_paths import key_of

CASES = [
    ('{"customer": "ann"}', None, ""),
    ('{"customer": "ann"}', "input.customer", "ann"),
    ('{"customer": {"id": 7}}', "input.customer.id", "7"),
    ('{"customer": { "id":  7 } }', "input.customer", '{ "id":  7 }'),
    ('{"customer": null}', "input.customer", ""),
    ("{}", "input.customer", ""),
    ("7.50", "input.customer", ""),
    ('"ann"', "input", "ann"),
    ("7.50", "input", "7.50"),
    ("true", "input", "true"),
    ('["a", "b"]', "input.1", "b"),
    ('["a", "b"]', "input.-1", "b"),
    ('["a", "b"]', "input.2", ""),
    ('["a", "b"]', "input.first", ""),
    ('{"1": "one"}', "input.1", "one"),
    ('{"name": "\\u00fc\\n\\"x"}', "input.name", 'ü\n"x'),
    ('{"ü": "a"}', "input.ü", "a"),
    ('{"long": "%s"}' % ("x" * 513), "input.long", hashlib.sha256(b"x" * 513).hexdigest()),
    ('{"long": "%s"}' % ("x" * 512), "input.long", "x" * 512),
]


@pytest.mark.parametrize(("text", "path", "key"), CASES)
def test_path_leads_to_a_key(text: str, path: str | None, key: str) -> None:
    assert key_of(text, path) == key


async def test_sql_function_leads_to_the_same_keys(module_database_url: str) -> None:
    connection = await asyncpg.connect(module_database_url)
    try:
        for text, path, key in CASES:
            found = await connection.fetchval("select holdfast._key_of($1, $2)", text, path)
            assert found == key, (text, path)
    finally:
        await connection.close()
