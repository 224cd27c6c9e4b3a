"""Keys that paths into inputs lead to. The SQL function gives the same: see the second test."""

from __future__ import annotations

import hashlib
import json

import asyncpg
import pytest

from holdfast import Limit, Singleton
from holdfast.errors import ConfigurationError
from holdfast.store.memory.keys import key_value
from holdfast.values.key_paths import key_of

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
    ('["a", "b"]', "input.+1", "b"),
    ('["a", "b"]', "input.01", "b"),
    ('["a", "b"]', "input.\N{ARABIC-INDIC DIGIT ONE}", ""),
    ('["a", "b"]', "input.2", ""),
    ('["a", "b"]', "input.first", ""),
    ('{"1": "one"}', "input.1", "one"),
    ('{"name": "\\u00fc\\n\\"x"}', "input.name", 'ü\n"x'),
    ('{"ü": "a"}', "input.ü", "a"),
    ('{"customer": ""}', "input.customer", ""),
    ('{"customer": "null"}', "input.customer", "null"),
    ('{"a": 1, "b": 2}', "input.c|input.b", "2"),
    ('{"a": 1, "b": null}', "input.c|input.b", ""),
    ('{"long": "%s"}' % ("x" * 201), "input.long", hashlib.sha256(b"x" * 201).hexdigest()),
    ('{"long": "%s"}' % ("x" * 200), "input.long", "x" * 200),
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


async def test_limits_and_rules_mean_the_same_keys(module_database_url: str) -> None:
    """Also those of activities, whose input is in their payload."""
    connection = await asyncpg.connect(module_database_url)
    set_limit = "select holdfast.set_limit('queue', $1, 'concurrency', 1, p_key => $2)"
    limit_keys = "select holdfast._limit_keys($1, 'shop/order@1', '', 0, $2)"
    changing = connection.transaction()
    await changing.start()
    try:
        for number, (text, path, key) in enumerate(CASES):
            if path is None:
                continue
            assert key_value(path, text, None) == key, (text, path)
            assert key_value(path, "1", f'{{"input": {text}}}') == key, (text, path)
            await connection.execute(set_limit, f"q{number}", path)
            found = json.loads(await connection.fetchval(limit_keys, f"q{number}", text))
            assert list(found.values()) == [key], (text, path)
    finally:
        await changing.rollback()
        await connection.close()


@pytest.mark.parametrize("path", ["customer", "input.a|input.b", "input.a b", "input." + "n" * 256])
def test_limits_and_rules_have_one_syntax_of_paths(path: str) -> None:
    told = r"a path into the input|at most 256 bytes"
    with pytest.raises(ConfigurationError, match=told):
        Singleton(key=path)
    with pytest.raises(ConfigurationError, match=told):
        Limit(1, key=path)
