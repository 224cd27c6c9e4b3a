"""Keys that paths into inputs lead to. The SQL function gives the same: see the second test."""

from __future__ import annotations

import hashlib

import asyncpg
import pytest

from holdfast import Limit, Singleton
from holdfast.errors import ConfigurationError
from holdfast.key_paths import key_of
from holdfast.store.memory.keys import key_value

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


LIMIT_CASES = [
    ('{"customer": "ann"}', "input.customer", "ann"),
    ('{"customer": {"id": 7}}', "input.customer", '{"id": 7}'),
    ('{"n": 7.50}', "input.n", "7.50"),
    ('{"customer": null}', "input.customer", "null"),
    ('{"customer": ""}', "input.customer", ""),
    ('{"a": 1, "b": 2}', "input.c|input.b", "2"),
    ('["a", "b"]', "input.-1", "b"),
    ('"%s"' % ("x" * 201), "input", f"md5:{hashlib.md5(b'x' * 201).hexdigest()}"),
]


async def test_values_of_limits_keys_are_the_same_in_sql_and_in_memory(
    module_database_url: str,
) -> None:
    connection = await asyncpg.connect(module_database_url)
    try:
        for text, key, value in LIMIT_CASES:
            found = await connection.fetchval("select holdfast._key_value($1, $2)", key, text)
            assert found == value, (text, key)
            assert key_value(key, text, None) == value, (text, key)
            assert key_value(key, "1", f'{{"input": {text}}}') == value, (text, key)
    finally:
        await connection.close()


@pytest.mark.parametrize("path", ["customer", "input.a|input.b", "input.a b", "input." + "n" * 256])
def test_limits_and_rules_have_one_syntax_of_paths(path: str) -> None:
    told = r"a path into the input|at most 256 bytes"
    with pytest.raises(ConfigurationError, match=told):
        Singleton(key=path)
    with pytest.raises(ConfigurationError, match=told):
        Limit(1, key=path)
